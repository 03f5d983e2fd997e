"""Text <-> tokens for a chat family, and what the agent's text means.

A turn only ever *adds* tokens: ``opening`` gives those before the first action, ``following`` those between
an action and the next. The pieces around the texts come from the tokenizer's own chat template, rendered once
with placeholders, so a transcript is extended and never rendered again: thoughts that a template would strip
from earlier turns stay as they were sampled. Text of the environment is encoded with special tokens switched
off: an observation that spells out a control token stays text.
"""

import re
from dataclasses import dataclass
from datetime import date
from typing import Any

from bmrl.errors import UsageError
from bmrl.speech import Frame, Speech, make_speech

# Stand for the texts of user, agent, user, agent, user while the template is read.
_TEXTS = tuple(f"\u2402{n}\u2403" for n in range(5))
# Some templates (Llama 3, SmolLM3) write today's date; the same recipe must give the same prompt tomorrow.
_TODAY = date(2024, 7, 26)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)

INSTRUCTIONS = (
    "You act in a text world. Each turn you are told what happened; answer with exactly one command, "
    "written as <action>command</action>."
)
THINK = "Reason first, briefly, inside <think></think>; then give the command."


@dataclass(frozen=True, slots=True)
class Chat:
    """How one tokenizer speaks.

    Attributes:
        speech: its tokenizer, see `Speech`.
        plain: the text of a turn is the action itself; otherwise it stands in ``<action>`` tags.
        first, later: around the first observation, and around each later one, without the stop token before it.
        close: ids that end an agent's turn when it was cut off before its stop token; the last is that token.
        stop_ids: ids that end a turn when sampled.
        before_answer: text that the template writes before what the agent says, after all that is its prompt.
        end_thought: ids that end the thought that the prompt itself begins (DeepSeek-R1); empty if it begins none.
    """

    speech: Speech
    plain: bool
    first: Frame
    later: Frame
    close: tuple[int, ...]
    stop_ids: frozenset[int]
    before_answer: str = ""
    end_thought: tuple[int, ...] = ()

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self.speech.tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of text that is only text: control tokens spelled out in it are not recognised."""
        return self.speech.text(text)

    def opening(self, observation: str) -> tuple[int, ...]:
        """Ids before the first action."""
        return self._framed(self.first, observation)

    def following(self, observation: str, *, stopped: bool) -> tuple[int, ...]:
        """Ids that a later turn adds before its action.

        Args:
            observation: the environment's answer to the action before.
            stopped: whether that action ended with a sampled stop token; if not, it is closed here.
        """
        return (*(() if stopped else self.close), *self._framed(self.later, observation))

    def _framed(self, frame: Frame, observation: str) -> tuple[int, ...]:
        after = not frame.head or self.speech.is_control(frame.head)  # before a later one stands a stop token
        text = self.speech.text(f"{frame.lead}{observation}{frame.trail}", after_control=after)
        return (*frame.head, *text, *frame.tail)

    def answer(self, action: str) -> tuple[int, ...]:
        """Ids of a turn in which the agent gives this action, stop token included (demonstrations)."""
        said = self.before_answer + (action if self.plain else f"<action>{action}</action>")
        after = self.speech.is_control(self.first.tail)
        return (*self.end_thought, *self.speech.text(said, after_control=after), *self.close)

    def text(self, token_ids: tuple[int, ...]) -> str:
        """What a turn's ids say, without the stop token."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_ids else token_ids
        return self.speech.decode(ids)

    def parse_action(self, text: str, *, stopped: bool) -> str:
        """As the function of this name, for this family."""
        return parse_action(text, stopped=stopped, plain=self.plain, thinks=bool(self.end_thought))


def parse_action(text: str, *, stopped: bool, plain: bool = False, thinks: bool = False) -> str:
    """The command in an agent's text; "" when there is none.

    A turn that was cut off holds no action: its text may be half a command. Otherwise the first ``<action>`` after
    the thoughts counts; what stands in thoughts that never end does not. Blanks around the command go, blanks within
    are the environment's to judge.

    Args:
        stopped: whether the agent ended the turn by itself.
        plain: all of the text is the command.
        thinks: the text begins within a thought.
    """
    if not stopped:
        return ""
    if plain:
        return text.strip()
    _, ended, said = text.rpartition("</think>")
    if thinks and not ended:
        return ""
    found = _ACTION.search(said.partition("<think>")[0])
    return found.group(1).strip() if found else ""


def rules(*, think: bool = False, system: str | None = None, instructions: str = "") -> str:
    """What a chat model is told before the first observation.

    Args:
        think: ask for thoughts before the action.
        system: instructions in place of the built-in ones.
        instructions: what the environment says about its commands.
    """
    return " ".join(part for part in (system or INSTRUCTIONS, instructions, THINK if think else "") if part)


def opening_text(told: str, observation: str) -> str:
    """The first message to a chat model: its rules and what it sees."""
    return f"{told}\n\n{observation}"


def make_chat(tokenizer: Any, *, think: bool = False, system: str | None = None, instructions: str = "") -> Chat:
    """Reads the chat family off a tokenizer.

    Args:
        tokenizer: a transformers tokenizer with a chat template. One whose configuration says
            ``action_format: plain`` (the pocket policy's) takes no instructions and answers without tags.
        think, system, instructions: see `rules`.

    Raises:
        UsageError: the template is missing, or cannot be extended turn by turn.
    """
    name = getattr(tokenizer, "name_or_path", "") or "this tokenizer"
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"model.name: {name} has no chat template; use an instruct model")
    plain = tokenizer.init_kwargs.get("action_format") == "plain"
    if plain and (think or system):
        raise UsageError(
            "chat: the pocket policy takes neither thoughts nor instructions; leave chat.think and chat.system out"
        )
    told = rules(think=think, system=system, instructions=instructions)
    texts = _TEXTS if plain else (opening_text(told, _TEXTS[0]), *_TEXTS[1:])
    (head, tail), whole = (_pieces(tokenizer, texts[:n], think=think, name=name) for n in (1, 5))
    begin, answered, gap, _, gap_again, tail_next = whole
    if begin != head or gap != gap_again:
        raise _rewrites(name)

    speech = make_speech(tokenizer)
    gap_ids = speech.control(gap, begins=False)
    stop_at = next((i for i in range(len(gap_ids)) if speech.is_control(gap_ids[i : i + 1])), None)
    end = _pieces(tokenizer, texts[:2], think=think, name=name, goes_on=False)[-1]
    stop = "" if stop_at is None else tokenizer.convert_ids_to_tokens(gap_ids[stop_at])
    # Blanks before the stop token are the template's own habit (Llama 2). A token that does not stand at the end of a
    # conversation begins the next turn; it does not end this one.
    if stop_at is None or tokenizer.decode(gap_ids[:stop_at]).strip() or stop not in end:
        raise UsageError(f"model.name: the chat template of {name} ends a turn without a stop token")
    end_thought = "\n</think>\n\n" if tail_next.rstrip().endswith("<think>") else ""
    return Chat(
        speech=speech,
        plain=plain,
        first=speech.frame(head, tail, begins=True),
        later=speech.frame(gap.partition(stop)[2], tail_next, begins=False),
        close=gap_ids[: stop_at + 1],
        stop_ids=frozenset({gap_ids[stop_at]} | ({tokenizer.eos_token_id} - {None})),
        before_answer=answered.removeprefix(tail) if answered.startswith(tail) else "",
        end_thought=speech.control(end_thought, begins=False),
    )


def _pieces(tokenizer: Any, texts: tuple[str, ...], *, think: bool, name: str, goes_on: bool = True) -> list[str]:
    """What the template writes before, between and after the placeholders of a conversation.

    Args:
        goes_on: whether the agent is to speak next.
    """
    from jinja2 import TemplateError

    roles = ("user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=goes_on,
            enable_thinking=think,  # Qwen3, SmolLM3; others do not look at it
            strftime_now=_TODAY.strftime,
        )
    except TemplateError as error:
        raise UsageError(
            f"model.name: the chat template of {name} fails on a plain conversation: {' '.join(str(error).split())}"
        ) from error
    found = [int(n) for n in re.findall("\u2402(\\d)\u2403", text)]
    if found != list(range(len(texts))):  # a text was left out, repeated or moved
        raise _rewrites(name)
    return re.split("\u2402\\d\u2403", text)


def _rewrites(name: str) -> UsageError:
    return UsageError(
        f"model.name: the chat template of {name} rewrites earlier turns; a transcript cannot be extended with it"
    )

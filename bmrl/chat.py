"""Text <-> tokens for a chat family, and what the agent's text means.

A turn only ever *adds* tokens: ``opening`` gives those before the first action, ``following`` those between
an action and the next. The pieces around the texts come from the tokenizer's own chat template, rendered once
with placeholders, so a transcript is extended and never rendered again. Text of the environment is encoded
with special tokens switched off: an observation that spells out a control token stays text.
"""

import re
from dataclasses import dataclass
from typing import Any

from bmrl.errors import UsageError

_FIRST, _ANSWER, _SECOND = "\u2402FIRST\u2403", "\u2402ANSWER\u2403", "\u2402SECOND\u2403"
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
        tokenizer: a transformers tokenizer.
        plain: the text of a turn is the action itself; otherwise it stands in ``<action>`` tags.
        head, tail: ids before and after the first observation.
        close: ids that end an agent's turn when it was cut off before its stop token.
        between, tail_next: ids before and after each later observation, without the stop token.
        stop_ids: ids that end a turn when sampled.
    """

    tokenizer: Any
    plain: bool
    head: tuple[int, ...]
    tail: tuple[int, ...]
    close: tuple[int, ...]
    between: tuple[int, ...]
    tail_next: tuple[int, ...]
    stop_ids: frozenset[int]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of text that is only text: control tokens spelled out in it are not recognised."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(ids)

    def opening(self, observation: str) -> tuple[int, ...]:
        """Ids before the first action."""
        return (*self.head, *self.encode(observation), *self.tail)

    def following(self, observation: str, *, stopped: bool) -> tuple[int, ...]:
        """Ids that a later turn adds before its action.

        Args:
            observation: the environment's answer to the action before.
            stopped: whether that action ended with a sampled stop token; if not, it is closed here.
        """
        closing = () if stopped else self.close
        return (*closing, *self.between, *self.encode(observation), *self.tail_next)

    def answer(self, action: str) -> tuple[int, ...]:
        """Ids of a turn in which the agent gives this action, stop token included (demonstrations)."""
        return (*self.encode(action if self.plain else f"<action>{action}</action>"), *self.close)

    def text(self, token_ids: tuple[int, ...]) -> str:
        """What a turn's ids say, without the stop token."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_ids else token_ids
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        # A byte-level tokenizer may emit bytes that are no UTF-8; the ids stay as sampled.
        return str(text).encode("utf-8", "replace").decode("utf-8")

    def parse_action(self, text: str, *, stopped: bool) -> str:
        """The command in an agent's text; "" when there is none.

        A turn that was cut off holds no action: its text may be half a command. In a plain chat all of the
        text is the command. Otherwise the first ``<action>`` after the thoughts counts.
        """
        if not stopped:
            return ""
        if self.plain:
            return text.strip()
        found = _ACTION.search(text.rpartition("</think>")[2])
        return found.group(1).strip() if found else ""


def make_chat(tokenizer: Any, *, think: bool = False, system: str | None = None, instructions: str = "") -> Chat:
    """Reads the chat family off a tokenizer.

    Args:
        tokenizer: a transformers tokenizer with a chat template. One whose configuration says
            ``action_format: plain`` (the pocket policy's) takes no instructions and answers without tags.
        think: ask for thoughts before the action.
        system: instructions in place of the built-in ones.
        instructions: what the environment says about its commands.

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
    rules = " ".join(part for part in (system or INSTRUCTIONS, instructions, THINK if think else "") if part)
    first = _FIRST if plain else f"{rules}\n\n{_FIRST}"

    def render(*texts: str) -> str:
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    opening, whole = render(first), render(first, _ANSWER, _SECOND)
    head, found_first, tail = opening.partition(_FIRST)
    before, found_answer, after = whole.partition(_ANSWER)
    gap, found_second, tail_next = after.partition(_SECOND)
    if not (found_first and found_answer and found_second and before.startswith(head + _FIRST)):
        raise UsageError(
            f"model.name: the chat template of {name} rewrites earlier turns; a transcript cannot be extended with it"
        )

    def special(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    gap_ids = special(gap)
    special_ids = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    if not gap_ids or gap_ids[0] not in special_ids:
        raise UsageError(f"model.name: the chat template of {name} ends a turn without a stop token")
    stop = gap_ids[0]
    return Chat(
        tokenizer=tokenizer,
        plain=plain,
        head=special(head),
        tail=special(tail),
        close=(stop,),
        between=gap_ids[1:],
        tail_next=special(tail_next),
        stop_ids=frozenset({stop, tokenizer.eos_token_id}),
    )

"""Text to ids and back, as the pieces of a conversation need it.

A conversation is rendered in pieces, so each piece must give the ids that it would give within the whole. Two things
stand in the way. Tokenizers after sentencepiece (Llama 2, Mistral, some of Gemma) put a blank before the text they are
given, and with some after every control token, too. And text of the environment may spell out control tokens.
"""

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template writes around an observation.

    Attributes:
        head, tail: ids before and after the text.
        lead, trail: text that stands between them and the observation. It is encoded with the observation: a blank
            before a word is one token with it (Mistral).
    """

    head: tuple[int, ...]
    lead: str
    trail: str
    tail: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Speech:
    """A tokenizer, for text within a conversation.

    Attributes:
        tokenizer: a transformers tokenizer.
        inner: the same without a blank of its own before the text.
        each: whether the tokenizer puts its blank after every control token.
        controls: ids of special and added tokens.
        control_text: matches their spelling.
        added: matches where the spelling of an added token begins that the tokenizer would recognise even
            with special tokens switched off (``<think>`` of some families); None if it has none.
    """

    tokenizer: Any
    inner: Any
    each: bool
    controls: frozenset[int]
    control_text: re.Pattern[str]
    added: re.Pattern[str] | None

    def text(self, text: str, *, after_control: bool = False) -> tuple[int, ...]:
        """Ids of text that is only text: control tokens spelled out in it are not recognised.

        Args:
            after_control: whether a control token stands before it.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate has no UTF-8
        # Cut after the first character of a spelling, no piece holds the whole of it.
        cuts = [found.start() + 1 for found in self.added.finditer(text)] if self.added else []
        ids: list[int] = []
        for start, end in zip([0, *cuts], [*cuts, None], strict=True):
            tokenizer = self.tokenizer if start == 0 and after_control and self.each and text else self.inner
            ids += tokenizer.encode(text[start:end], add_special_tokens=False, split_special_tokens=True)
        return tuple(ids)

    def control(self, text: str, *, begins: bool) -> tuple[int, ...]:
        """Ids of what a template writes: control tokens are recognised.

        Args:
            begins: whether the conversation begins with it.
        """
        if begins:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        found = self.control_text.search(text)
        cut = found.start() if found else len(text)
        before, after = self.inner.encode(text[:cut], add_special_tokens=False), text[cut:]
        return (*before, *(self.tokenizer.encode(after, add_special_tokens=False) if after else ()))

    def is_control(self, ids: tuple[int, ...]) -> bool:
        """Whether these end with a control token."""
        return bool(ids) and ids[-1] in self.controls

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of ids, control tokens spelled out."""
        text = self.inner.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        # A byte-level tokenizer may emit bytes that are no UTF-8; the ids stay as sampled.
        return str(text).encode("utf-8", "replace").decode("utf-8")

    def frame(self, head: str, tail: str, *, begins: bool) -> Frame:
        """What a template writes before and after an observation, cut where the text begins that belongs to it."""
        # A later turn's head stands after a stop token: without a control token of its own it is text.
        last = max((found.end() for found in self.control_text.finditer(head)), default=len(head) if begins else 0)
        first = found.start() if (found := self.control_text.search(tail)) else 0
        return Frame(
            head=self.control(head[:last], begins=begins),
            lead=head[last:],
            trail=tail[:first],
            tail=self.control(tail[first:], begins=False),
        )


def make_speech(tokenizer: Any) -> Speech:
    """Reads off a tokenizer how it treats the pieces of a text."""
    tokens = {**{i: tokenizer.convert_ids_to_tokens(i) for i in tokenizer.all_special_ids}}
    tokens.update({i: token.content for i, token in tokenizer.added_tokens_decoder.items()})
    spelled = sorted((token for token in tokens.values() if token.strip()), key=len, reverse=True)
    added = [t.content for t in tokenizer.added_tokens_decoder.values() if not t.special and t.content.strip()]
    inner = _without_blank(tokenizer)
    each = False
    if inner is not tokenizer and spelled:
        alone = tuple(inner.encode("a", add_special_tokens=False))
        within = tuple(tokenizer.encode(spelled[0] + "a", add_special_tokens=False))
        each = within[-len(alone) :] != alone or len(within) != len(alone) + 1
    return Speech(
        tokenizer=tokenizer,
        inner=inner,
        each=each,
        controls=frozenset(tokens),
        control_text=re.compile("|".join(map(re.escape, spelled)) or "(?!)"),
        added=re.compile(f"(?={'|'.join(map(re.escape, added))})") if added else None,
    )


def _without_blank(tokenizer: Any) -> Any:
    """A tokenizer that puts no blank before a text and takes none away; the same one if it is of that kind."""
    backend = tokenizer.backend_tokenizer
    parts = {part: getattr(backend, part) for part in ("normalizer", "pre_tokenizer", "decoder")}
    told = {part: json.loads(made.__getstate__()) if made else None for part, made in parts.items()}
    changed = {part: _bare(value, reads=part != "decoder") for part, value in told.items()}
    if changed == told:
        return tokenizer
    inner = deepcopy(tokenizer)
    inner._tokenizer = type(backend).from_str(json.dumps({**json.loads(backend.to_str()), **changed}))
    return inner


def _bare(part: Any, *, reads: bool) -> Any:
    """A normalizer, pre-tokenizer or decoder as JSON, without what adds or takes away a blank at the start."""
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend" or (part.get("type") == "Strip" and not reads):
        return None
    bare = dict(part)
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in part:
            bare[key] = [kept for each in part[key] if (kept := _bare(each, reads=reads)) is not None]
    if "prepend_scheme" in part:
        bare["prepend_scheme"] = "never"
    elif reads and part.get("add_prefix_space"):
        bare["add_prefix_space"] = False
    return bare

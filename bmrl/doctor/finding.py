"""One line of the doctor's."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found.

    Attributes:
        topic: what it is about, a word or two.
        state: ``ok``; ``note``, of what is optional; ``problem``.
        text: one line.
        remedy: what to do about a problem, one line; it may stand in ``text`` already.
        blocks: whether the recipe cannot run before that is done.
    """

    topic: str
    state: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""
    blocks: bool = False

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.state:<8} {self.topic:<13} {'; '.join(part for part in (self.text, self.remedy) if part)}"


def ok(topic: str, text: str) -> Finding:
    """What is as it should be."""
    return Finding(topic, "ok", text)


def note(topic: str, text: str) -> Finding:
    """What is missing and need not be there."""
    return Finding(topic, "note", text)


def problem(topic: str, text: str, remedy: str = "", *, blocks: bool = False) -> Finding:
    """What is wrong."""
    return Finding(topic, "problem", text, remedy, blocks)

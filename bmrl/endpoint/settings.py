"""Where a server is, how it is asked, and what that costs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask and how.

    Attributes:
        url: what comes before ``/chat/completions``.
        model: name that the server knows it by.
        key: sent as bearer token; never printed or written. "" sends none.
        fields: further fields of every request; None takes one out.
        concurrency: most requests at once.
        timeout_s: longest wait for one answer.
        retries: most further tries for one request.
        first_wait_s: mean wait before the first further try; doubles with each.
        max_requests, max_tokens: what may be spent, tokens of prompts and answers together; None is no limit.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 5
    first_wait_s: float = 1.0
    max_requests: int | None = None
    max_tokens: int | None = None


@dataclass(slots=True)
class Cost:
    """What was spent. Tokens are as the server counts them.

    Attributes:
        requests: all that were sent, further tries included.
        retried: further tries among them.
        uncounted: answers without a count of tokens.
        cut_off: answers that reached their limit of tokens.
        empty: answers without text.
    """

    requests: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0
    cut_off: int = 0
    empty: int = 0
    wall_s: float = 0.0

    def plus(self, other: Mapping[str, Any]) -> "Cost":
        """The sum with a cost that was written as JSON."""
        return Cost(**{name: value + other.get(name, 0) for name, value in asdict(self).items()})

    def minus(self, other: "Cost") -> "Cost":
        """What was spent since ``other``."""
        return Cost(**{name: value - getattr(other, name) for name, value in asdict(self).items()})

    def line(self) -> str:
        """For the person at the terminal."""
        tokens = f"{self.prompt_tokens:,} prompt and {self.completion_tokens:,} completion tokens"
        if self.uncounted:
            tokens += f" ({self.uncounted:,} answers without a count)"
        return f"cost: {self.requests:,} requests, {self.retried:,} of them retries, {tokens}, {self.wall_s:.1f} s"

    def notes(self) -> list[str]:
        """What may have made the result worse than the model is, one line each."""
        notes = []
        if self.cut_off:
            notes.append(f"{self.cut_off:,} answers were cut off at --turn-tokens and count as no action")
        if self.empty:
            notes.append(f"{self.empty:,} answers had no text and count as no action")
        return notes

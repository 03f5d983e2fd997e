"""What a chat server's answer says, or what is wrong with it. Pure functions."""

import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

LONGEST_MESSAGE = 200  # characters of what a server says that are shown
PATIENCE_S = 300.0  # longest wait that a server may ask for
# How servers say that a conversation is longer than their context: OpenAI, llama.cpp and vLLM, in this order.
_TOO_LONG = re.compile(r"context_length_exceeded|exceed_context_size|(maximum|available) context", re.IGNORECASE)
_BUSY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said.

    Attributes:
        stopped: whether it ended by itself, not for its limit of tokens.
        prompt_tokens, completion_tokens: as the server counts them; None if it does not.
        too_long: nothing was said, for the conversation does not fit into the server's context.
    """

    text: str
    stopped: bool
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    too_long: bool = False


class Fault(Exception):
    """No answer.

    Attributes:
        problem: what the server did.
        hint: what may help.
        transient: to ask again may help, always.
        passing: to ask again may help if the server has answered well before; otherwise it is no such server.
        wait_s: how long the server asks to wait.
    """

    def __init__(
        self, problem: str, hint: str, *, transient: bool = False, passing: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint
        self.transient, self.passing, self.wait_s = transient, passing, wait_s


def no_answer(error: Exception, timeout_s: float) -> Fault:
    """A request that nothing came back for.

    Args:
        error: ``TimeoutError``, or one of httpx's transport errors.
    """
    import httpx

    if isinstance(error, TimeoutError):
        return Fault(f"no answer within {timeout_s:g} s", "raise --timeout or lower --concurrency", transient=True)
    if isinstance(error, httpx.ConnectError):
        return Fault(
            f"cannot be reached ({_reason(error)})", "check --endpoint, and that the server runs", passing=True
        )
    told = _line(str(error)) or type(error).__name__
    return Fault(f"broke off ({told})", "check that the server runs", transient=True)


def _reason(error: BaseException) -> str:
    """The system's own words, from below those of the libraries."""
    found = error
    while (below := found.__cause__ or found.__context__) is not None:
        found = below
        if isinstance(found, BaseExceptionGroup):  # one for each address tried
            found = found.exceptions[0]
    if not isinstance(found, OSError):
        return _line(str(found) or str(error)).lower()
    # asyncio puts the address there; names that cannot be resolved and TLS have numbers of their own.
    own = isinstance(found, ssl.SSLError) or not found.errno or found.errno < 0
    return _line(found.strerror or str(found) if own else os.strerror(found.errno or 0)).lower()


def read(status: int, headers: Mapping[str, str], content: bytes, *, secret: str = "") -> Answer:
    """The answer in a response.

    Args:
        headers: names in lower case, or of any case in a mapping that does not mind.
        secret: never repeated, should the server do so.

    Raises:
        Fault: there is none.
    """
    if 200 <= status < 300:
        return _answer(content, secret)
    phrase = f"{status} {HTTPStatus(status).phrase}" if status in {s.value for s in HTTPStatus} else str(status)
    told = _told(content, secret)
    problem = f"answers {phrase}" + (f" ({told})" if told else "")
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY):
        if _TOO_LONG.search(content.decode("utf-8", "replace")):
            return Answer("", stopped=False, too_long=True)
        raise Fault(problem, "--field changes what is sent; see bmrl eval --help")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Fault(problem, "--key-env names the environment variable that holds the key")
    if status == HTTPStatus.NOT_FOUND:
        raise Fault(problem, "check --model, and --endpoint, which mostly ends in /v1")
    if 300 <= status < 400:
        raise Fault(problem, "it sends elsewhere; give the final address to --endpoint")
    if status in _BUSY or status >= 500:
        wait = _wait(headers.get("retry-after"))
        if wait is not None and wait > PATIENCE_S:
            raise Fault(f"{problem} and asks to wait {wait:,.0f} s", "come back then")
        raise Fault(problem, "lower --concurrency, or come back later", transient=True, wait_s=wait)
    raise Fault(problem, "check --endpoint and --model")


def _answer(content: bytes, secret: str) -> Answer:
    if not content.strip():
        raise Fault("answers nothing, an empty page", "check --endpoint", passing=True)
    try:
        value = json.loads(content)
    except ValueError as error:
        if content.lstrip()[:1] in (b"{", b"["):
            raise Fault("answers half a JSON", "check what is between here and the server", passing=True) from error
        what = "HTML" if content.lstrip()[:1] == b"<" else "no JSON"
        raise Fault(
            f"answers {what} ({_told(content, secret)})", "check --endpoint, which mostly ends in /v1", passing=True
        ) from error
    if not isinstance(value, dict) or value.get("error"):
        raise Fault(f"answers with an error ({_told(content, secret)})", "check --model", passing=True)
    try:
        choice = value["choices"][0]
        text = _text(choice["message"].get("content"))
        end = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Fault("answers without a choice to read", "check --model and --field", passing=True) from error
    usage = value.get("usage")
    counts = [usage.get(f"{part}_tokens") if isinstance(usage, dict) else None for part in ("prompt", "completion")]
    prompt, said = (count if isinstance(count, int) else None for count in counts)
    return Answer(text, end not in ("length", "content_filter"), prompt, said)


def _text(content: Any) -> str:
    """The text of a message; some servers give it in parts. A lone surrogate is no text."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError("no text")
    return (content or "").encode("utf-8", "replace").decode()


def _wait(header: str | None) -> float | None:
    """Seconds that a ``Retry-After`` asks for: a number, or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _told(content: bytes, secret: str) -> str:
    """What the server says of an error, in one line; "" if nothing."""
    text = content.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        return _line(title.group(1) if title else re.sub(r"<[^>]*>", " ", text), secret)
    for _ in range(3):  # {"error": {"message": …}}, {"detail": [{"msg": …}]} and the like
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            value = next((value[key] for key in ("error", "message", "detail", "msg") if value.get(key)), value)
    return _line(value if isinstance(value, str) else json.dumps(value), secret)


def _line(text: str, secret: str = "") -> str:
    if secret:
        text = text.replace(secret, "…")
    text = "".join(c if c.isprintable() else " " for c in text)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"

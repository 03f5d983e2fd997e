"""`bmrl eval --endpoint`: its options, and what they mean."""

import json
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import click

from bmrl.cli.clicks import Range
from bmrl.errors import UsageError

_WORK = Callable[..., Any]


def _url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        known = None
    if not known or not value.isascii() or re.search(r"\s", value):
        raise click.BadParameter("no URL such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        # Not repeated: it may hold a key.
        raise click.BadParameter("a URL without user, password, ? and #; the key comes through --key-env")
    return value.rstrip("/").removesuffix("/chat/completions")


def _fields(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name in ("model", "messages", "stream", "n"):
            raise click.BadParameter(f"{name} is not for changing")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _key(_: click.Context, __: click.Parameter, value: str | None) -> str:
    """The key itself; neither it nor a name that may be one is ever repeated."""
    if value is None:
        return ""
    key = os.environ.get(value, "").strip()
    if not key:
        raise click.BadParameter("there is no such environment variable, or it is empty; give its name, not the key")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise click.BadParameter("the variable holds no key: only printable ASCII can be sent")
    return key


_SECONDS = Range(min=0, min_open=True, max=86_400)
_OPTIONS = [
    click.option(
        "--endpoint",
        "url",
        metavar="URL",
        callback=_url,
        help="Play with a model behind an OpenAI-compatible server, e.g. http://localhost:8000/v1.",
    ),
    click.option("--model", metavar="NAME", help="The model's name there."),
    click.option(
        "--key-env", "key", metavar="VAR", callback=_key, help="Environment variable that holds the server's key."
    ),
    click.option(
        "--concurrency", type=click.IntRange(1, 1024), metavar="N", help="Most requests at once; 8 by default."
    ),
    click.option("--timeout", "timeout_s", type=_SECONDS, metavar="S", help="Longest wait for an answer; 60 s."),
    click.option("--retries", type=click.IntRange(0, 100), metavar="N", help="Further tries of a request; 5."),
    click.option(
        "--max-requests", type=click.IntRange(min=1), metavar="N", help="Stop before more than N requests, for now."
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Stop before more than N tokens, prompts and answers, for now.",
    ),
    click.option(
        "--field",
        "fields",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_fields,
        help="Further field of each request, as JSON; null leaves one out.",
    ),
]


def options(command: _WORK) -> _WORK:
    """The options of an endpoint; all but ``url`` and ``model`` are gathered by `endpoint`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def endpoint(given: dict[str, Any], checkpoint: str) -> Any:
    """Takes its options out of ``given``; the ``Endpoint`` that they describe, or None.

    Raises:
        UsageError: options that only make sense with others.
    """
    names = ("url", "model", "key", "concurrency", "timeout_s", "retries", "max_requests", "max_tokens", "fields")
    chosen = {name: value for name in names if (value := given.pop(name)) not in (None, "", {})}
    if "url" not in chosen:
        if chosen:
            raise UsageError(f"{_flag(next(iter(chosen)))} goes with --endpoint URL")
        return None
    if "model" not in chosen:
        raise UsageError("--endpoint: say which of its models with --model NAME")
    if checkpoint != "last":
        raise UsageError("--checkpoint: a served model has none; --model names it")
    from bmrl.endpoint import Endpoint

    return Endpoint(**chosen)


def _flag(name: str) -> str:
    return {"key": "--key-env", "timeout_s": "--timeout", "fields": "--field"}.get(name, f"--{name.replace('_', '-')}")

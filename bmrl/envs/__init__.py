"""Environments by name."""

import difflib
import inspect
from importlib import import_module
from typing import Any, cast

from bmrl.envs.base import Env, Step, Task
from bmrl.errors import UsageError

__all__ = ["ENVIRONMENTS", "Env", "Step", "Task", "instructions", "make"]

# name -> module:class; imported when first made, so that an environment costs nothing unless used.
ENVIRONMENTS = {"alfworld": "bmrl.envs.alfworld:AlfworldEnv"}


def make(name: str, **args: Any) -> Env:
    """Make an environment.

    Args:
        name: a key of `ENVIRONMENTS`.
        args: keyword arguments of its class.

    Raises:
        UsageError: unknown name or argument, in one line that names the nearest known one.
    """
    if name not in ENVIRONMENTS:
        raise UsageError(f"unknown environment {name!r}; {_hint(name, list(ENVIRONMENTS))}")
    cls = _class(name)
    known = list(inspect.signature(cls).parameters)
    for arg in args:
        if arg not in known:
            raise UsageError(f"env.args.{arg}: {name} has no such argument; {_hint(arg, known)}")
    return cast(Env, cls(**args))


def instructions(name: str) -> str:
    """What an environment tells an agent that has never seen it: its commands, say; often ""."""
    return str(getattr(_class(name), "instructions", ""))


def _class(name: str) -> Any:
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return getattr(import_module(module), attribute)


def _hint(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"

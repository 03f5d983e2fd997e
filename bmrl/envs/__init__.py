"""Environments by name."""

import difflib
import inspect
from collections.abc import Iterator, Sequence
from importlib import import_module
from random import Random
from typing import Any, Protocol, cast

from bmrl.envs.base import Env, Shown, Step, Task
from bmrl.errors import UsageError

__all__ = ["ENVIRONMENTS", "Env", "Shown", "Step", "Task", "demonstrations", "explorer", "instructions", "make"]

# name -> module:class; imported when first made, so that an environment costs nothing unless used.
ENVIRONMENTS = {
    "alfworld": "bmrl.envs.alfworld:AlfworldEnv",
    "textworld_coin": "bmrl.envs.textworld:CoinEnv",
    "textworld_cooking": "bmrl.envs.textworld:CookingEnv",
    "textworld_treasure": "bmrl.envs.textworld:TreasureEnv",
}
# name -> module:function that lets an exploring expert play; see `demonstrations`.
EXPERTS = {
    "alfworld": "bmrl.envs.alfworld.demonstration:demonstrations",
    "textworld_coin": "bmrl.envs.textworld.demonstration:coin",
    "textworld_cooking": "bmrl.envs.textworld.demonstration:cooking",
    "textworld_treasure": "bmrl.envs.textworld.demonstration:treasure",
}
# name -> module:class of the expert itself; see `explorer`.
EXPLORERS = {
    "alfworld": "bmrl.envs.alfworld.expert:Expert",
    "textworld_coin": "bmrl.envs.textworld.expert:Expert",
    "textworld_cooking": "bmrl.envs.textworld.expert:Expert",
    "textworld_treasure": "bmrl.envs.textworld.expert:Expert",
}

# name -> package that it is played with, and that the extra of its name installs.
PACKAGES = {
    "textworld_coin": "textworld",
    "textworld_cooking": "textworld",
    "textworld_treasure": "textworld",
}


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


def demonstrations(name: str, **settings: Any) -> Iterator[Sequence[Shown]]:
    """Games that an exploring expert won.

    Args:
        name: a key of `EXPERTS`.
        settings: count, seed, noise, max_turns, poll and args (the environment's arguments).

    Raises:
        UsageError: the environment has no expert.
    """
    if name not in EXPERTS:
        raise UsageError(f"sft.source: {name} has no expert; known: {', '.join(EXPERTS)}")
    module, _, attribute = EXPERTS[name].partition(":")
    return cast(
        Iterator[Sequence[Shown]],
        getattr(import_module(module), attribute)(**settings),
    )


class Explorer(Protocol):
    """A player that knows an environment in general, and of a game only what it has read."""

    def act(self) -> str: ...

    def observe(self, action: str, observation: str) -> None: ...


def explorer(name: str, opening: str, rng: Random) -> Explorer:
    """The exploring expert of an environment, at the start of a game.

    Args:
        name: a key of `EXPLORERS`.
        opening: the text that starts the game.
        rng: the stream of its choices.

    Raises:
        UsageError: the environment has no expert.
    """
    if name not in EXPLORERS:
        raise UsageError(f"{name} has no exploring expert; known: {', '.join(EXPLORERS)}")
    module, _, attribute = EXPLORERS[name].partition(":")
    return cast(Explorer, getattr(import_module(module), attribute)(opening, rng))


def instructions(name: str) -> str:
    """What an environment tells an agent that has never seen it: its commands, say; often ""."""
    return str(getattr(_class(name), "instructions", ""))


def _class(name: str) -> Any:
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return getattr(import_module(module), attribute)


def _hint(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"

"""Environments by name."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from random import Random
from typing import Any, Protocol, Self, cast

from bmrl.envs.base import Env, Shown, Step, Task
from bmrl.envs.installed import chosen, installed, package
from bmrl.errors import BmrlError, UsageError

__all__ = [
    "ENVIRONMENTS",
    "Env",
    "Shown",
    "Step",
    "Task",
    "check_env",
    "demonstrations",
    "explorer",
    "instructions",
    "judge",
    "make",
]

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
# name -> module:class that judges what an action was; see `judge`.
JUDGES = {
    "alfworld": "bmrl.envs.alfworld.kinds:Judge",
    "textworld_coin": "bmrl.envs.textworld.kinds:Judge",
    "textworld_cooking": "bmrl.envs.textworld.kinds:Judge",
    "textworld_treasure": "bmrl.envs.textworld.kinds:Judge",
}

# name -> package that it is played with, and that the extra of its name installs.
PACKAGES = {
    "textworld_coin": "textworld",
    "textworld_cooking": "textworld",
    "textworld_treasure": "textworld",
}


def names() -> list[str]:
    """All environments that there are, sorted: bmrl's own and those of installed packages."""
    return sorted({*ENVIRONMENTS, *installed()})


def environment(name: str) -> Any:
    """The class of an environment.

    Args:
        name: a key of `ENVIRONMENTS`, or of an entry point of the group ``bmrl.envs``.

    Raises:
        UsageError: unknown name, one that two packages offer, or one that cannot be imported.
    """
    entry = chosen(name, installed().get(name, ()), name in ENVIRONMENTS)
    if entry is None and name not in ENVIRONMENTS:
        raise UsageError(f"unknown environment {name!r}; {_hint(name, names())}")
    if entry is None:
        return _load(ENVIRONMENTS[name])
    try:
        cls = entry.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {name!r} of {package(entry)} cannot be imported: {_said(error)}") from error
    if not callable(cls):
        raise UsageError(f"environment {name!r} of {package(entry)}: {entry.value} is no class")
    return cls


def make(name: str, **args: Any) -> Env:
    """Make an environment.

    Args:
        name: see `environment`.
        args: keyword arguments of its class.

    Raises:
        UsageError: unknown name, an argument that is unknown, missing or not accepted; in one line.
    """
    cls = environment(name)
    known = parameters(cls)
    for arg in args:
        if arg not in known and not takes_any(known):
            raise UsageError(f"env.args.{arg}: {name} has no such argument; {_hint(arg, list(known))}")
    for arg in missing(known, args):
        raise UsageError(f"env.args.{arg}: {name} needs this argument")
    try:
        return cast(Env, cls(**args))
    except Exception as error:
        if name in ENVIRONMENTS or isinstance(error, BmrlError):
            raise
        raise UsageError(f"env.args: {name} cannot be made: {_said(error)}") from error


def parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """Arguments of an environment's class, with annotations as types where they can be read."""
    try:
        return dict(inspect.signature(cls, eval_str=True).parameters)
    except NameError:  # an annotation that only type checkers can read
        return dict(inspect.signature(cls).parameters)


def takes_any(known: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a class takes arguments by any name."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())


def missing(known: Mapping[str, inspect.Parameter], args: Collection[str]) -> list[str]:
    """Arguments that a class needs and is not given."""
    return [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in args
    ]


def beyond_own_limit(name: str, args: Mapping[str, Any], turns: int) -> str | None:
    """What is wrong with a budget that an environment's own limit cuts short, in one line; None if nothing is.

    Args:
        turns: the largest budget.

    Raises:
        UsageError: as `make`.
    """
    env = make(name, **args)
    limit = getattr(env, "max_turns", None)
    env.close()
    if limit is None or turns <= limit:
        return None
    return f"{turns} turns are more than the {limit} after which {name} ends by itself; ask for {limit} at most"


def check_env(
    world: str | Callable[..., Env],
    args: Mapping[str, Any] | None = None,
    *,
    splits: Sequence[str] = (),
    turns: int = 100,
) -> list[str]:
    """Whether an environment keeps the protocol, found out by playing it.

    Args:
        world: a name, or a class (or function) that makes one environment from ``args``.
        splits: which to look at; by default those of its ``splits()``, or ``train``.
        turns: the largest budget it is to bear; an own limit below it must be stated as ``max_turns``.

    Returns:
        A line for everything that is wrong, ``name of the check: what was seen``; empty if nothing is.

    Raises:
        UsageError: no such environment.
    """
    from bmrl.envs.checking import check  # only who checks needs it

    found = check(world, args or {}, splits=splits, turns=turns)
    return [f"{name}: {line}" for name, lines in found.items() for line in lines]


def demonstrations(name: str, **settings: Any) -> Iterator[Sequence[Shown]]:
    """Games that an exploring expert won.

    Args:
        name: a key of `EXPERTS`, or an installed environment whose class has ``demonstrations``.
        settings: count, seed, noise, max_turns, poll and args (the environment's arguments).

    Raises:
        UsageError: the environment has no expert.
    """
    play = _of(name, EXPERTS, "demonstrations")
    if play is None:
        raise UsageError(f"sft.source: {name} has no expert; known: {', '.join(EXPERTS)}")
    return cast(Iterator[Sequence[Shown]], play(**settings))


class Explorer(Protocol):
    """A player that knows an environment in general, and of a game only what it has read."""

    def act(self) -> str: ...

    def observe(self, action: str, observation: str) -> None: ...


def explores(name: str) -> bool:
    """Whether an environment has an exploring expert."""
    return _of(name, EXPLORERS, "explorer") is not None


def explorer(name: str, opening: str, rng: Random) -> Explorer:
    """The exploring expert of an environment, at the start of a game.

    Args:
        name: a key of `EXPLORERS`, or an installed environment whose class has an ``explorer``.
        opening: the text that starts the game.
        rng: the stream of its choices.

    Raises:
        UsageError: the environment has no expert.
    """
    cls = _of(name, EXPLORERS, "explorer")
    if cls is None:
        raise UsageError(f"{name} has no exploring expert; known: {', '.join(EXPLORERS)}")
    return cast(Explorer, cls(opening, rng))


class Judge(Protocol):
    """Follows one transcript and says of each action what it was, by what the transcript has revealed."""

    def judge(self, action: str, observation: str) -> str:
        """The kind of an action, one of ``base.KINDS``, by what was known before it; its answer is noted."""
        ...

    def fork(self) -> Self:
        """An independent copy."""
        ...


def judge(name: str) -> Callable[[str], Judge] | None:
    """What makes a judge of a game's transcript from its opening text; None if the environment has none.

    Args:
        name: a key of `JUDGES`, or an environment whose class has a ``judge``.
    """
    return cast(Callable[[str], Judge] | None, _of(name, JUDGES, "judge"))


def instructions(name: str) -> str:
    """What an environment tells an agent that has never seen it: its commands, say; often ""."""
    return str(getattr(environment(name), "instructions", ""))


def _of(name: str, own: Mapping[str, str], attribute: str) -> Any:
    """What belongs to an environment: by a table of bmrl's own, or as an attribute of an installed class."""
    return _load(own[name]) if name in own else getattr(environment(name), attribute, None)


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _said(error: BaseException) -> str:
    from bmrl.envs.worker import describe  # needs this package

    return describe(error)


def _hint(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"

"""Environments that other installed packages offer, as entry points of the group ``bmrl.envs``."""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from bmrl.errors import UsageError

GROUP = "bmrl.envs"


def installed() -> Mapping[str, Sequence[EntryPoint]]:
    """Name -> who offers it; nothing is imported."""
    return _offers(tuple(sys.path))


@lru_cache(maxsize=4)  # a look at every installed package takes milliseconds, and a rollout makes many environments
def _offers(path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):  # which looks through sys.path
        found.setdefault(entry.name, []).append(entry)
    return found


def chosen(name: str, offers: Sequence[EntryPoint], own: bool) -> EntryPoint | None:
    """The one offer of an environment; None where bmrl has it itself, or nobody has.

    Args:
        own: whether bmrl has one of that name.

    Raises:
        UsageError: several have it.
    """
    if len({entry.value for entry in offers}) + own > 1:
        packages = sorted({package(entry) for entry in offers}) + ["bmrl itself"] * own
        raise UsageError(
            f"environment {name!r} is offered by {' and '.join(packages)}; uninstall one, or rename its entry point"
        )
    return None if own or not offers else offers[0]


def package(entry: EntryPoint) -> str:
    """The distribution that offers it, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value

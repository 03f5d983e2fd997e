"""Environments that other installed packages offer, as entry points of the group ``bmrl.envs``."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from bmrl.errors import UsageError

GROUP = "bmrl.envs"


def installed() -> dict[str, list[EntryPoint]]:
    """Name -> who offers it; nothing is imported. Looked up anew each time, some milliseconds."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
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

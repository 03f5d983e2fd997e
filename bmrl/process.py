"""Process rewards: what single turns earn, beside the success of their episode. Never part of a reported success."""

from collections.abc import Sequence
from itertools import pairwise

from bmrl.envs.base import INEFFECTIVE, INVALID, PROGRESS, REDUNDANT, SEARCH


def progress(distances: Sequence[int | None], *, weight: float) -> list[float]:
    """Potential-based shaping by the planner's distance (Ng, Harada, Russell 1999), undiscounted.

    A turn earns phi(after) - phi(before) with phi = -weight x distance, and phi = 0 at every end, `budget` and
    `context` included. The sum is weight x the first distance, whatever was done: within a group it is the same for
    all episodes, and cancels unless turns are credited apart.

    Args:
        distances: fewest turns to the goal before each action; None where unknown or out of reach: then the last
            known one counts, or the first that comes, so that nothing is earned by becoming unknown.
        weight: reward per turn of distance.

    Returns:
        one reward per turn; all 0 if no distance is known.
    """
    known = [distance for distance in distances if distance is not None]
    if not known:
        return [0.0] * len(distances)
    last, filled = known[0], []
    for distance in distances:
        last = last if distance is None else distance
        filled.append(last)
    return [weight * (before - after) for before, after in pairwise([*filled, 0])]


def rules(kinds: Sequence[str], *, weight: float) -> list[float]:
    """Rules on what an action was: ``weight`` for one that has an effect right after one that failed, -``weight`` for a
    look at a place that had been searched already.

    Args:
        kinds: of each action, see ``envs.base.KINDS``.
    """
    after_failure = [False, *(kind in (INVALID, INEFFECTIVE) for kind in kinds)][: len(kinds)]
    return [
        weight * ((kind in (SEARCH, PROGRESS) and failed) - (kind == REDUNDANT))
        for kind, failed in zip(kinds, after_failure, strict=True)
    ]

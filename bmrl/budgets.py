"""Interaction budgets: how many turns a group of episodes may use, and what its agent is told.

Pure functions. ``section`` is anything with the attributes of a recipe's budget section: ``kind``
and what belongs to that kind (``turns``, ``weights``, ``low``, ``high``).
"""

import math
import random
from typing import Any


def probabilities(section: Any) -> dict[int, float]:
    """Each budget that can be drawn, in turns, with its probability.

    ``loguniform`` is the log-uniform density on [low, high + 1), rounded down: budget ``n`` has
    probability log((n + 1) / n) / log((high + 1) / low), so each octave is about equally frequent.
    """
    match section.kind:
        case "fixed":
            weights = {section.turns: 1.0}
        case "mix":
            shares = section.weights or [1.0] * len(section.turns)
            pairs = zip(section.turns, shares, strict=True)
            weights = {turns: float(share) for turns, share in pairs if share > 0}
        case "uniform":
            weights = dict.fromkeys(range(section.low, section.high + 1), 1.0)
        case "loguniform":
            weights = {n: math.log1p(1 / n) for n in range(section.low, section.high + 1)}
        case other:
            raise ValueError(f"unknown budget kind {other!r}")
    total = math.fsum(weights.values())
    return {turns: weight / total for turns, weight in weights.items()}


def draw(section: Any, rng: random.Random) -> int:
    """One budget, turns."""
    chances = probabilities(section)
    return rng.choices(list(chances), weights=list(chances.values()))[0]


def largest(section: Any) -> int:
    """The largest budget that can be drawn, turns."""
    # Ranges are not expanded here: a recipe check must answer at once, also for a mistyped bound.
    if section.kind in ("uniform", "loguniform"):
        return int(section.high)
    return max(probabilities(section))


def mean_turns(section: Any) -> float:
    """Expected budget, turns."""
    return math.fsum(turns * chance for turns, chance in probabilities(section).items())


def announcement(announce: str, budget: int, used: int) -> str:
    """The line that tells the agent of its budget before it acts; "" when it is told nothing.

    Args:
        announce: ``none``, ``total`` or ``remaining``.
        budget: turns the episode may use.
        used: turns it has used so far.
    """
    match announce:
        case "none":
            return ""
        case "total":
            return "You have 1 turn." if budget == 1 else f"You have {budget} turns."
        case "remaining":
            left = budget - used
            return "Turn left: 1." if left == 1 else f"Turns left: {left}."
        case other:
            raise ValueError(f"unknown announce {other!r}")

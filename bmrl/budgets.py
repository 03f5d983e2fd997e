"""Interaction budgets: how many turns a group of episodes may use, and what its agent is told.

Pure functions. ``section`` is anything with the attributes of a recipe's budget section: ``kind``
and what belongs to that kind (``turns``, ``weights``, ``low``, ``high``, ...).
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

UNMEASURED = 0.5  # learnability of a budget that no group has played yet


@dataclass(frozen=True, slots=True)
class Moment:
    """What a budget may depend on beside its section.

    Attributes:
        step: training step, counted from 1.
        plan_turns: length of the task's shortest plan, turns; 0 where it is unknown.
        learnability: budget, as text -> smoothed share of its groups that had both outcomes; see ``learned``.
    """

    step: int = 1
    plan_turns: int = 0
    learnability: Mapping[str, float] = field(default_factory=dict)


START = Moment()


def probabilities(section: Any, moment: Moment = START) -> dict[int, float]:
    """Each budget that can be drawn at that moment, in turns, with its probability.

    ``loguniform`` is the log-uniform density on [low, high + 1), rounded down: budget ``n`` has
    probability log((n + 1) / n) / log((high + 1) / low), so each octave is about equally frequent.

    ``curriculum`` is one budget for ``every`` steps and then the next; the last one stays (the staged horizon of
    AgentGym-RL, arXiv:2509.08755, and the schedules of arXiv:2506.07976).

    ``adaptive`` gives budget ``b`` of ``n``, whose learnability is ``v``, floor + (1 - n floor) v / (sum of all v).

    ``relative`` is each factor times the task's shortest plan, rounded up, between ``low`` and ``high``, as often.

    Raises:
        ValueError: an unknown kind, or ``relative`` without a plan.
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
        case "curriculum":
            weights = {section.turns[min((moment.step - 1) // section.every, len(section.turns) - 1)]: 1.0}
        case "adaptive":
            measured = {turns: moment.learnability.get(str(turns), UNMEASURED) for turns in section.turns}
            if not any(measured.values()):
                measured = dict.fromkeys(measured, 1.0)
            shared, norm = 1 - len(measured) * section.floor, math.fsum(measured.values())
            weights = {turns: section.floor + shared * value / norm for turns, value in measured.items()}
        case "relative":
            if moment.plan_turns < 1:
                raise ValueError("a relative budget needs the task's plan")
            weights = {}
            for factor in section.factors:
                # As it is written: 1.1 x 10 turns are 11, not 12 for a digit that binary numbers add.
                turns = math.ceil(Fraction(str(factor)) * moment.plan_turns)
                turns = min(max(turns, section.low), section.high)
                weights[turns] = weights.get(turns, 0.0) + 1.0
        case other:
            raise ValueError(f"unknown budget kind {other!r}")
    total = math.fsum(weights.values())
    return {turns: weight / total for turns, weight in weights.items()}


def draw(section: Any, rng: random.Random, moment: Moment = START) -> int:
    """One budget, turns."""
    chances = probabilities(section, moment)
    return rng.choices(list(chances), weights=list(chances.values()))[0]


def learned(before: Mapping[str, float], groups: Iterable[tuple[int, float]], *, memory: float) -> dict[str, float]:
    """Learnability of each budget after these groups: an exponential moving average, from ``UNMEASURED``.

    Args:
        groups: budget and success rate of each group, in the order of the plan.
        memory: what each group leaves of the value before it.
    """
    after = dict(before)
    for budget, rate in groups:
        value = after.get(str(budget), UNMEASURED)
        after[str(budget)] = memory * value + (1 - memory) * (0 < rate < 1)
    return after


def largest(section: Any) -> int:
    """The largest budget that can be drawn, turns; of ``curriculum`` the largest of the whole run."""
    # Ranges are not expanded here: a recipe check must answer at once, also for a mistyped bound.
    match section.kind:
        case "uniform" | "loguniform" | "relative":
            return int(section.high)
        case "curriculum" | "adaptive":
            return int(max(section.turns))
    return max(probabilities(section))


def mean_turns(section: Any, *, steps: int = 1, plan_turns: int = 0) -> float:
    """Expected budget, turns: mean over the run's steps; of ``adaptive`` while nothing is measured.

    Args:
        steps: those of the run, on which ``curriculum`` depends.
        plan_turns: length of an ordinary task's shortest plan, on which ``relative`` depends.
    """
    if section.kind == "curriculum":
        stages, last = section.turns[:-1], section.turns[-1]
        counts = [min(section.every, max(0, steps - i * section.every)) for i in range(len(stages))]
        played = sum(turns * count for turns, count in zip(stages, counts, strict=True))
        return float(played + last * (steps - sum(counts))) / steps
    chances = probabilities(section, Moment(plan_turns=plan_turns))
    return math.fsum(turns * chance for turns, chance in chances.items())


def announcement(announce: str, budget: int, used: int, wording: str | None = None) -> str:
    """The line that tells the agent of its budget before it acts; "" when it is told nothing.

    Args:
        announce: ``none``, ``total`` or ``remaining``.
        budget: turns the episode may use.
        used: turns it has used so far.
        wording: the line in other words, with ``{turns}`` where the number stands; the built-in one when None.
    """
    if wording is not None and announce in ("total", "remaining"):
        return wording.replace("{turns}", str(budget if announce == "total" else budget - used))
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

"""Guards: what a run must not go on with. Pure: numbers of a step in, counters and perhaps a line out.

Each guard counts its bad steps in a row. A step that says nothing about a guard, as one without an update says
nothing of the entropy, leaves its counter as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guards:
    """Thresholds; see the recipe's section ``guards``, whose defaults these are. None switches one off."""

    nonfinite_steps: int | None = 3
    gap_steps: int | None = 1
    min_entropy: float | None = 0.005
    max_repeat_share: float | None = 0.95
    max_invalid_share: float | None = 0.98
    patience: int = 5
    dead_steps: int | None = 20


COUNTERS = ("guard_nonfinite", "guard_gap", "guard_entropy", "guard_repeats", "guard_invalid", "guard_dead")
# While one of these counts, the policy may be spoilt already; dead groups leave it as it was.
HOLDING = COUNTERS[:-1]


def watch(
    guards: Guards, counters: Mapping[str, int], values: Mapping[str, float]
) -> tuple[dict[str, int], str | None]:
    """Counts a step.

    Args:
        counters: those after the step before; ``{}`` at first.
        values: the step's metrics: ``skipped_nonfinite``, ``skipped_gap``, ``entropy`` or ``sampled_entropy``,
            ``repeat_share``, ``invalid_share``, ``groups_played`` and ``groups_dropped``, as far as it has them.

    Returns:
        the new counters, and why the run must stop, naming guard and threshold; None if it need not.
    """
    bad = _bad(guards, values)
    before = {name: counters.get(name, 0) for name in COUNTERS}
    new = {name: before[name] if is_bad is None else (before[name] + 1) * is_bad for name, is_bad in bad.items()}
    limits = {
        "guard_nonfinite": guards.nonfinite_steps,
        "guard_gap": guards.gap_steps,
        "guard_dead": guards.dead_steps,
    }
    for name in COUNTERS:
        limit = limits.get(name, guards.patience)
        if limit is not None and bad[name] and new[name] >= limit:
            return new, _line(name, guards, values, new[name])
    return new, None


def holding(counters: Mapping[str, int]) -> bool:
    """Whether the policy may be spoilt, so that the last good checkpoint must stay the newest."""
    return any(counters.get(name, 0) for name in HOLDING)


def _bad(guards: Guards, values: Mapping[str, float]) -> dict[str, bool | None]:
    """Whether the step is a bad one, by guard; None where it does not say."""
    entropy, floor = _entropy(values), guards.min_entropy
    repeats, most_repeats = values.get("repeat_share"), guards.max_repeat_share
    invalid, most_invalid = values.get("invalid_share"), guards.max_invalid_share
    nonfinite, gap = values.get("skipped_nonfinite"), values.get("skipped_gap")
    # A step that was skipped as not finite tells neither entropy nor gap.
    spoilt = bool(nonfinite)
    return {
        "guard_nonfinite": None if nonfinite is None else nonfinite > 0,
        "guard_gap": None if gap is None or spoilt else gap > 0,
        "guard_entropy": False if floor is None else None if entropy is None or spoilt else entropy < floor,
        "guard_repeats": False if most_repeats is None else None if repeats is None else repeats > most_repeats,
        "guard_invalid": False if most_invalid is None else None if invalid is None else invalid > most_invalid,
        "guard_dead": values["groups_dropped"] >= values["groups_played"] if "groups_played" in values else None,
    }


def _entropy(values: Mapping[str, float]) -> float | None:
    # A policy without entropy makes groups without a signal, and so no update that measures it; sampling estimates it.
    return values.get("entropy", values.get("sampled_entropy"))


def _line(name: str, guards: Guards, values: Mapping[str, float], steps: int) -> str:
    counted = f"{steps} steps in a row" if steps > 1 else "this step"
    patience = f"guards.patience {guards.patience}"
    match name:
        case "guard_nonfinite":
            return (
                f"loss or gradient not finite in {counted}, skipped (guards.nonfinite_steps {guards.nonfinite_steps}); "
                "lower optimizer.learning_rate"
            )
        case "guard_gap":
            return (
                f"the sampler is not the policy: their log-probabilities differ by {values['logprob_gap']:.2g} nats on "
                f"average, above rollout.max_logprob_gap in {counted}, skipped (guards.gap_steps {guards.gap_steps})"
            )
        case "guard_entropy":
            return (
                f"the policy collapsed: entropy {_entropy(values) or 0.0:.2g} nats, below guards.min_entropy "
                f"{guards.min_entropy:g} for {counted} ({patience}); lower optimizer.learning_rate"
            )
        case "guard_repeats":
            return (
                f"the policy repeats itself: {values['repeat_share']:.0%} of turns say what the turn before said, "
                f"above guards.max_repeat_share {guards.max_repeat_share:g} for {counted} ({patience})"
            )
        case "guard_invalid":
            return (
                f"actions are refused: {values['invalid_share']:.0%}, above guards.max_invalid_share "
                f"{guards.max_invalid_share:g} for {counted} ({patience})"
            )
        case _:
            return (
                f"no group had a signal in {counted} (guards.dead_steps {guards.dead_steps}); tasks are too hard or "
                "too easy for the budgets"
            )

"""Whether a diagnosis finds what is known of scripted policies: 100 repetitions, each on another sample of tasks."""

import math
from functools import cache
from statistics import median

import pytest
from roads import diagnosed
from scripted import Scripted, population

pytestmark = pytest.mark.slow

REPETITIONS = 100
P, Q = 0.2, 0.6
BUDGETS = (4, 8, 16)
LENGTHS = (2, 4, 6)
TASKS, STATES, SAMPLES = 60, 30, 4


@cache
def repeated(p: float, q: float):
    """Diagnoses of a policy that errs with P and recovers with Q against one of p and q."""
    a, b = Scripted(P, Q, "a"), Scripted(p, q, "b")
    wanted = {"games": TASKS, "states": STATES, "samples": SAMPLES, "budgets": BUDGETS, "strengths": ()}
    return [diagnosed(a, b, seed=seed, **wanted) for seed in range(REPETITIONS)]


def holds(figure, truth: float) -> bool:
    return figure["low"] <= truth <= figure["high"]


def analytic(share: float, draws: int) -> float:
    """Width of the normal 95 % interval of a share of independent draws: 2 x 1.96 x sqrt(s (1 - s) / n).

    At each of 3 x 30 states (expert, A, B) of a bank 4 actions are drawn; whether one is an error depends on nothing
    but its own draw, so all 360 are independent, whatever state or task they are of. A task is played once: 60 draws.
    """
    return 2 * 1.96 * math.sqrt(share * (1 - share) / draws)


DRAWS = 3 * STATES * SAMPLES


def check(figures, truth: float, draws: int) -> None:
    assert 88 <= sum(holds(figure, truth) for figure in figures) <= 100
    assert median(f["high"] - f["low"] for f in figures) <= 1.25 * analytic(truth, draws)


@pytest.mark.parametrize(("p", "q"), [(P, 0.3), (0.4, Q)])
def test_p_and_q_are_found(p, q):
    found = [one["headline"] for one in repeated(p, q)]
    check([one["single_step"]["a"] for one in found], P, DRAWS)
    check([one["single_step"]["b"] for one in found], p, DRAWS)
    check([one["recovery"]["a"] for one in found], Q, DRAWS)
    check([one["recovery"]["b"] for one in found], q, DRAWS)


@pytest.mark.parametrize("place", range(len(BUDGETS)))
def test_the_curve_is_found(place):
    truth = population(Scripted(P, Q), BUDGETS[place], LENGTHS)
    check([one["curve"][place]["a"] for one in repeated(P, 0.3)], truth, TASKS)


def excludes(key: str, p: float, q: float) -> int:
    return sum(not holds(one["headline"][key]["difference"], 0) for one in repeated(p, q))


def test_policies_that_differ_only_after_an_error_differ_in_recovery_alone():
    assert excludes("recovery", P, 0.3) >= 90
    assert excludes("single_step", P, 0.3) <= 10


def test_policies_that_differ_only_before_an_error_differ_in_single_steps_alone():
    assert excludes("single_step", 0.4, Q) >= 90
    assert excludes("recovery", 0.4, Q) <= 10


def test_the_parts_of_the_gain_lie_around_the_truth():
    # Alike until the first error: what a policy decides before it adds nothing to the gain, in expectation.
    parts = [one["decomposition"][1] for one in repeated(P, 0.3)]
    assert sum(holds(part["decisions"], 0) for part in parts) >= 88
    gain = population(Scripted(P, Q), 8, LENGTHS) - population(Scripted(P, 0.3), 8, LENGTHS)
    assert sum(holds(part["after"], gain) for part in parts) >= 88

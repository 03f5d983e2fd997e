"""Budget distributions against their formulas, and what the agent is told."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from bmrl.budgets import Moment, announcement, draw, largest, learned, mean_turns, probabilities


def section(kind, **fields):
    return SimpleNamespace(kind=kind, **fields)


FIXED = section("fixed", turns=8)
MIX = section("mix", turns=[4, 8, 16, 30], weights=[1, 1, 2, 0])
EQUAL = section("mix", turns=[4, 8], weights=None)
UNIFORM = section("uniform", low=3, high=5)
LOG = section("loguniform", low=2, high=5)
STAGES = section("curriculum", turns=[4, 8, 16], every=25)
ADAPTIVE = section("adaptive", turns=[4, 8, 16], floor=0.1, memory=0.9)
RELATIVE = section("relative", factors=[1.0, 1.5, 2.0, 4.0], low=4, high=20)


def test_probabilities():
    assert probabilities(FIXED) == {8: 1.0}
    assert probabilities(MIX) == {4: 0.25, 8: 0.25, 16: 0.5}
    assert probabilities(EQUAL) == {4: 0.5, 8: 0.5}
    assert probabilities(UNIFORM) == pytest.approx({3: 1 / 3, 4: 1 / 3, 5: 1 / 3})
    # log(3/2), log(4/3), log(5/4), log(6/5) add up to log(6/2).
    expected = {n: math.log((n + 1) / n) / math.log(3) for n in (2, 3, 4, 5)}
    assert probabilities(LOG) == pytest.approx(expected)


def test_loguniform_gives_each_octave_the_same_share():
    chances = probabilities(section("loguniform", low=4, high=31))
    octaves = [sum(chances[n] for n in range(low, 2 * low)) for low in (4, 8, 16)]
    assert octaves == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("budget", [FIXED, MIX, EQUAL, UNIFORM, LOG], ids=lambda b: b.kind)
def test_frequencies_of_draws(budget):
    draws = 20_000
    rng = random.Random(0)
    counts = Counter(draw(budget, rng) for _ in range(draws))
    chances = probabilities(budget)
    assert counts.keys() <= chances.keys()
    for turns, chance in chances.items():
        # 5 standard deviations of a binomial share: one false alarm in about 2 million.
        bound = 5 * math.sqrt(chance * (1 - chance) / draws)
        assert abs(counts[turns] / draws - chance) <= bound


def test_draws_follow_from_the_seed():
    first = [draw(MIX, random.Random(7)) for _ in range(3)]
    rng, again = random.Random(7), random.Random(7)
    series = [draw(MIX, rng) for _ in range(20)]
    assert series == [draw(MIX, again) for _ in range(20)]
    assert first == [series[0]] * 3
    assert len(set(series)) > 1


def test_largest_and_mean():
    # A weight of 0 means that the budget never comes.
    assert [largest(b) for b in (FIXED, MIX, EQUAL, UNIFORM, LOG)] == [8, 16, 8, 5, 5]
    assert mean_turns(FIXED) == 8
    assert mean_turns(MIX) == 0.25 * 4 + 0.25 * 8 + 0.5 * 16
    assert mean_turns(UNIFORM) == pytest.approx(4)
    # 2 log(3/2) + 3 log(4/3) + 4 log(5/4) + 5 log(6/5) = 5 log 6 - log 60 - 2 log 2 = 3.4782,
    # over log 3 = 1.0986
    assert mean_turns(LOG) == pytest.approx(3.1660, abs=1e-4)


def test_largest_of_a_mistyped_range_answers_at_once():
    assert largest(section("uniform", low=1, high=10**12)) == 10**12


def test_announcements():
    assert announcement("none", 8, 0) == ""
    assert announcement("total", 8, 0) == announcement("total", 8, 5) == "You have 8 turns."
    assert announcement("total", 1, 0) == "You have 1 turn."
    assert announcement("remaining", 8, 3) == "Turns left: 5."
    assert announcement("remaining", 8, 7) == "Turn left: 1."


def test_announcements_in_other_words():
    words = "Only {turns} moves, {turns}!"
    assert announcement("total", 8, 3, words) == "Only 8 moves, 8!"
    assert announcement("remaining", 8, 3, words) == "Only 5 moves, 5!"
    assert announcement("none", 8, 3, words) == ""


def test_a_curriculum_moves_on_every_so_many_steps_and_stays_at_its_last():
    at = {step: probabilities(STAGES, Moment(step)) for step in (1, 25, 26, 50, 51, 1000)}
    assert at == {1: {4: 1.0}, 25: {4: 1.0}, 26: {8: 1.0}, 50: {8: 1.0}, 51: {16: 1.0}, 1000: {16: 1.0}}
    shrinking = section("curriculum", turns=[16, 4], every=2)
    assert [draw(shrinking, random.Random(0), Moment(step)) for step in (1, 2, 3, 4, 5)] == [16, 16, 4, 4, 4]
    assert largest(STAGES) == largest(shrinking) == 16
    # 25 steps of 4, 25 of 8, 50 of 16; and a run of 30: 25 of 4, 5 of 8.
    assert mean_turns(STAGES, steps=100) == (25 * 4 + 25 * 8 + 50 * 16) / 100
    assert mean_turns(STAGES, steps=30) == (25 * 4 + 5 * 8) / 30


def test_adaptive_probabilities_follow_learnability_above_their_floor():
    # Nothing measured: all are 0.5, so that each has a third.
    assert probabilities(ADAPTIVE) == pytest.approx({4: 1 / 3, 8: 1 / 3, 16: 1 / 3})
    # 0.1 + (1 - 3 x 0.1) v / (0 + 0.2 + 0.6): 0.1, 0.1 + 0.7 / 4, 0.1 + 0.7 x 3 / 4
    measured = Moment(9, learnability={"4": 0.0, "8": 0.2, "16": 0.6})
    assert probabilities(ADAPTIVE, measured) == pytest.approx({4: 0.1, 8: 0.275, 16: 0.625})
    # One that has not been played counts as 0.5: 0.1 + 0.7 x 0.5 / 0.7 = 0.6
    assert probabilities(ADAPTIVE, Moment(2, learnability={"4": 0.0, "8": 0.2}))[16] == pytest.approx(0.6)
    # All at 0: equal again, not a division by zero.
    dead = Moment(9, learnability={"4": 0.0, "8": 0.0, "16": 0.0})
    assert probabilities(ADAPTIVE, dead) == pytest.approx({4: 1 / 3, 8: 1 / 3, 16: 1 / 3})
    assert largest(ADAPTIVE) == 16
    assert mean_turns(ADAPTIVE) == pytest.approx(28 / 3)


def test_learnability_is_a_moving_average_over_groups_with_both_outcomes():
    # 4: 0.9 x 0.5 + 0.1 = 0.55, then a group without a success: 0.9 x 0.55 = 0.495. 8: all solved, 0.9 x 0.5.
    before = {"16": 0.3}
    after = learned(before, [(4, 0.25), (8, 1.0), (4, 0.0)], memory=0.9)
    assert after == pytest.approx({"4": 0.495, "8": 0.45, "16": 0.3})
    assert before == {"16": 0.3}


def test_relative_budgets_are_factors_of_the_plan_rounded_up_and_bounded():
    # 5 turns: 5, 7.5 -> 8, 10, 20. 3 turns: 3 -> 4, 4.5 -> 5, 6, 12. 9 turns: 9, 13.5 -> 14, 18, 36 -> 20.
    assert probabilities(RELATIVE, Moment(plan_turns=5)) == {5: 0.25, 8: 0.25, 10: 0.25, 20: 0.25}
    assert probabilities(RELATIVE, Moment(plan_turns=3)) == {4: 0.25, 5: 0.25, 6: 0.25, 12: 0.25}
    assert probabilities(RELATIVE, Moment(plan_turns=9)) == {9: 0.25, 14: 0.25, 18: 0.25, 20: 0.25}
    # 12, 18, 24, 48 -> two meet at high.
    assert probabilities(RELATIVE, Moment(plan_turns=12)) == {12: 0.25, 18: 0.25, 20: 0.5}
    # 1.1 x 10 is 11.000000000000002 in binary.
    assert probabilities(section("relative", factors=[1.1], low=1, high=99), Moment(plan_turns=10)) == {11: 1.0}
    assert largest(RELATIVE) == 20
    assert mean_turns(RELATIVE, plan_turns=5) == (5 + 8 + 10 + 20) / 4
    with pytest.raises(ValueError, match="plan"):
        draw(RELATIVE, random.Random(0))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="gaussian"):
        probabilities(section("gaussian"))
    with pytest.raises(ValueError, match="loudly"):
        announcement("loudly", 8, 0)

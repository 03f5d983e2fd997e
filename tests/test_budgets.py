"""Budget distributions against their formulas, and what the agent is told."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from bmrl.budgets import announcement, draw, largest, mean_turns, probabilities


def section(kind, **fields):
    return SimpleNamespace(kind=kind, **fields)


FIXED = section("fixed", turns=8)
MIX = section("mix", turns=[4, 8, 16, 30], weights=[1, 1, 2, 0])
EQUAL = section("mix", turns=[4, 8], weights=None)
UNIFORM = section("uniform", low=3, high=5)
LOG = section("loguniform", low=2, high=5)


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


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="gaussian"):
        probabilities(section("gaussian"))
    with pytest.raises(ValueError, match="loudly"):
        announcement("loudly", 8, 0)

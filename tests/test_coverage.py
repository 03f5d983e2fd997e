"""Intervals hold the truth as often as they say, and are no wider than they must be: on policies whose success is known.

100 repetitions with fixed seeds, each with tasks and plays of its own. Of 100 intervals with 95 % coverage 88 or more
hold the truth in all but 2 of 1,000 such tests (binomial distribution).
"""

from pathlib import Path

import numpy as np
import pytest
from scripted import Road, Scripted, population, success

from bmrl.compare import Side, compare
from bmrl.episodes import episode_line
from bmrl.evaluate import plan_plays, result
from bmrl.evaluations import Evaluation

REPETITIONS, TASKS, LENGTHS, BUDGETS = 100, 60, (2, 4, 6), [4, 6, 8, 12]
BAD, GOOD = Scripted(0.25, 0.5, "bad"), Scripted(0.1, 0.5, "good")
QUICK = Scripted(0.25, 0.9, "quick")  # errs as often as BAD, recovers better
Z = 1.96


def evaluated(policy, repetition, seeds):
    """An evaluation of tasks drawn for this repetition."""
    env = Road(TASKS, LENGTHS, seed=repetition)
    tasks = env.tasks("valid_seen")
    used = [1000 * repetition + seed for seed in range(seeds)]
    plays = plan_plays(tasks, "valid_seen", BUDGETS, used, "none")
    episodes = [policy.play(env, play) for play in plays]
    answer = result(
        episodes,
        tasks,
        BUDGETS,
        target=policy.name,
        checkpoint=None,
        split="valid_seen",
        split_hash=env.split_hash("valid_seen"),
        seeds=used,
        announce="none",
        sampling={"temperature": 1.0},
    )
    return answer, episodes


def by_length(policy, budget):
    return np.array([success(policy.p, policy.q, length, budget) for length in LENGTHS])


def held(rows, truths):
    """How many of the intervals of each budget hold its truth, and their median widths."""
    low, high = (np.array([[row[end] for row in one] for one in rows]) for end in ("low", "high"))
    holds = (low - 1e-12 <= truths) & (truths <= high + 1e-12)
    return holds.sum(axis=0), np.median(high - low, axis=0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_curve_holds_the_truth_as_often_as_it_says(seeds):
    rows = [evaluated(BAD, repetition, seeds)[0]["budgets"] for repetition in range(REPETITIONS)]
    truths = np.array([population(BAD, budget, LENGTHS) for budget in BUDGETS])
    counts, widths = held(rows, truths)
    assert np.all(counts >= 88), counts
    # A task's mean over S plays: its length is drawn, its success S_l is known. Var = Var(S_l) + E[S_l (1 - S_l)] / S;
    # the mean of N tasks has Var / N; the interval is z standard deviations either way.
    shares = np.stack([by_length(BAD, budget) for budget in BUDGETS])
    variance = shares.var(axis=1) + (shares * (1 - shares)).mean(axis=1) / seeds
    assert np.all(widths <= 1.25 * 2 * Z * np.sqrt(variance / TASKS)), widths


@pytest.mark.slow
@pytest.mark.parametrize(("better", "seeds"), [(GOOD, 1), (QUICK, 3)], ids=["errs less", "recovers better"])
def test_a_difference_holds_the_truth_as_often_as_it_says(better, seeds):
    rows = []
    for repetition in range(REPETITIONS):
        sides = []
        for policy in (BAD, better):
            answer, episodes = evaluated(policy, repetition, seeds)
            lines = [episode_line(episode) for episode in episodes]
            sides.append(Side(policy.name, [Evaluation(Path("x.json"), answer)], [lines]))
        rows.append(compare(*sides)["budgets"])
    a, b = (np.stack([by_length(policy, budget) for budget in BUDGETS]) for policy in (BAD, better))
    counts, widths = held(rows, (b - a).mean(axis=1))
    assert np.all(counts >= 88), counts
    # The plays of A and B of a task are independent but for its length: Var = Var(B_l - A_l) + E[A_l (1 - A_l) +
    # B_l (1 - B_l)] / S.
    variance = (b - a).var(axis=1) + (a * (1 - a) + b * (1 - b)).mean(axis=1) / seeds
    assert np.all(widths <= 1.25 * 2 * Z * np.sqrt(variance / TASKS)), widths


@pytest.mark.slow
def test_p_of_a_policy_against_its_equal_is_small_as_often_as_it_says():
    # Two names of one policy draw independently: no difference. With Holm's correction at most 5 % of comparisons
    # have any p below 0.05; 12 of 100 would be less likely than 1 in 200.
    twin = Scripted(BAD.p, BAD.q, "twin")
    small = 0
    for repetition in range(REPETITIONS):
        sides = []
        for policy in (BAD, twin):
            answer, episodes = evaluated(policy, repetition, 1)
            lines = [episode_line(episode) for episode in episodes]
            sides.append(Side(policy.name, [Evaluation(Path("x.json"), answer)], [lines]))
        small += min(row["p"] for row in compare(*sides)["budgets"]) < 0.05
    assert small < 12

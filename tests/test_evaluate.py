"""Success over budgets and its intervals, against values derived by hand."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import binomtest

from bmrl.envs.base import Task
from bmrl.episodes import episode_line
from bmrl.errors import BmrlError
from bmrl.evaluate import (
    BudgetPoint,
    area,
    ceiling,
    curve,
    plan_plays,
    result,
    search_reference,
    table,
)
from bmrl.intervals import bootstrap, bootstrap_difference, clustered, wilson
from bmrl.types import EndReason, Episode, Turn

TURN = Turn("You see a door.", (1,), "open", "open", (2,), (-0.1,), True, 0.0)


def task(name, plan=4, search=(6, 12)):
    return Task(name, "kind", plan=("go",) * plan, search_turns=search)


def played(name, turns, end="success", *, seed=0, budget=30):
    return Episode(0, 0, seed, name, "valid", seed, budget, EndReason(end), (TURN,) * turns, "", "")


TASKS = [task("a"), task("b"), task("c"), task("d")]


def test_every_task_is_played_once_per_seed_and_one_pass_serves_all_budgets():
    plays = plan_plays(TASKS, "valid", [8, 30, 4], [0, 7], "none")
    assert sorted((p.task.task_id, p.seed) for p in plays) == sorted((name, seed) for name in "abcd" for seed in (0, 7))
    assert {p.budget for p in plays} == {30}
    assert len({(p.step, p.group, p.episode) for p in plays}) == 8


@pytest.mark.parametrize("announce", ["total", "remaining"])
def test_an_agent_that_is_told_plays_every_budget_anew(announce):
    plays = plan_plays(TASKS, "valid", [30, 4], [0, 7], announce)
    assert sorted((p.task.task_id, p.seed, p.budget) for p in plays) == sorted(
        (name, seed, budget) for name in "abcd" for seed in (0, 7) for budget in (4, 30)
    )
    assert len({(p.step, p.group, p.episode) for p in plays}) == 16
    groups = {}
    for play in plays:
        groups.setdefault(play.group, set()).add((play.task.task_id, play.budget))
    assert all(len(members) == 1 for members in groups.values())


def test_a_seed_plays_the_same_whichever_other_seeds_are_played():
    alone = plan_plays(TASKS, "valid", [30], [7], "none")
    among = [p for p in plan_plays(TASKS, "valid", [30], [0, 7], "none") if p.seed == 7]
    assert alone == among


def test_curve_counts_success_within_the_budget_and_keeps_errors_in_the_denominator():
    # a solved at turn 4, b at turn 9, c out of budget, d crashed after 2 turns: of 4 tasks
    # budget 3: none; 4: a; 8: a; 9: a, b; 30: a, b.
    episodes = [
        played("a", 4),
        played("b", 9),
        played("c", 30, "budget"),
        played("d", 2, "env_error"),
    ]
    points = curve(episodes, TASKS, [30, 3, 4, 8, 9], "none")
    assert [(p.budget, p.success) for p in points] == [
        (3, 0.0),
        (4, 0.25),
        (8, 0.25),
        (9, 0.5),
        (30, 0.5),
    ]
    assert all(p.tasks == 4 for p in points)
    for point, successes in zip(points, [0, 1, 1, 2, 2], strict=True):
        interval = binomtest(successes, 4).proportion_ci(method="wilson")
        assert (point.low, point.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_a_context_end_shows_only_at_budgets_it_kept_the_episode_from():
    # a ended for the context after 5 turns: at budget 5 the budget had ended it anyway.
    points = curve([played("a", 5, "context")], [task("a")], [4, 5, 6, 30], "none")
    assert [p.context for p in points] == [0.0, 0.0, 1.0, 1.0]


def test_curve_of_an_agent_that_is_told_reads_each_budget_from_its_own_episodes():
    # Told 4 it hurries and wins in 3; told 30 it dawdles and loses.
    episodes = [played("a", 3, budget=4), played("a", 30, "budget", budget=30)]
    points = curve(episodes, [task("a")], [4, 30], "total")
    assert [p.success for p in points] == [1.0, 0.0]


def test_several_seeds_are_averaged_per_task_and_tasks_are_resampled():
    # Task means 1, 0.5, 0, 0 -> 0.375. Resampling the 8 episodes would give a narrower interval
    # than resampling the 4 tasks when seeds agree; here all but one pair agree.
    episodes = [
        played("a", 4, seed=0),
        played("a", 5, seed=1),
        played("b", 4, seed=0),
        played("b", 30, "budget", seed=1),
        *(played(name, 30, "budget", seed=seed) for name in "cd" for seed in (0, 1)),
    ]
    (point,) = curve(episodes, TASKS, [30], "none")
    assert point.success == 0.375
    # Variance of the mean of the task means: sum of squares 0.625^2 + 0.125^2 + 2 * 0.375^2 = 0.6875, / 3 / 4 = 0.0573.
    # Independent plays that vary so: 0.375 * 0.625 / 0.0573 = 4.09, times (1.96 / 3.182)^2 of Student's t: 1.55;
    # never fewer than the 4 tasks.
    assert (point.low, point.high) == wilson(1.5, 4)


def test_plays_that_agree_within_tasks_count_as_tasks_and_others_as_more():
    # 40 tasks, two plays each. All agree: effective plays 0.25 / (0.25 / 39) * (1.96 / 2.0227)^2 = 36.6, so 40.
    agree = np.array([0.0, 1.0] * 20)
    assert clustered(agree) == wilson(20, 40)
    # 10 of 0, 20 of 1/2, 10 of 1: variance 0.125 * 40 / 39 / 40 = 0.003205; 0.25 / 0.003205 = 78; with t 73.24.
    mixed = np.array([0.0, 0.5, 0.5, 1.0] * 10)
    assert clustered(mixed) == pytest.approx(wilson(36.62, 73.24), abs=1e-4)


def test_equal_task_means_get_wilson_not_an_interval_without_width():
    episodes = [played(name, 4, seed=seed) for name in "abcd" for seed in (0, 1)]
    (point,) = curve(episodes, TASKS, [30], "none")
    # All 4 of 4: the lower end is 4 / (4 + z^2) = 0.5101.
    assert (point.low, point.high) == (pytest.approx(0.5101, abs=1e-4), 1.0)


def test_lines_of_a_file_count_like_episodes():
    episodes = [played("a", 4), played("b", 9), played("c", 7, "failure"), played("d", 2)]
    lines = [json.loads(json.dumps(episode_line(e))) for e in episodes]
    assert curve(lines, TASKS, [4, 8], "none") == curve(episodes, TASKS, [4, 8], "none")


@pytest.mark.parametrize(
    "episodes",
    [
        [played("a", 4)],  # b is missing
        [played("a", 4), played("b", 4), played("b", 5)],  # b twice
        [played("a", 4), played("b", 4), played("x", 4)],  # unknown task
        [played("a", 4), played("b", 4), played("b", 4, seed=1)],  # a lacks seed 1
        [played("a", 4), played("b", 4, budget=8)],  # too small a budget
        [],
    ],
)
def test_incomplete_episodes_are_refused_in_one_line(episodes):
    with pytest.raises(BmrlError) as caught:
        curve(episodes, TASKS[:2], [30], "none")
    assert "\n" not in str(caught.value)


def test_references():
    tasks = [task("a", plan=3, search=(4, None)), task("b", plan=9, search=(8, 9))]
    assert [ceiling(tasks, b) for b in (2, 3, 9)] == [0.0, 0.5, 1.0]
    # budget 8: a solves 1 of 2 plays, b 1 of 2 -> 0.5; budget 9: 1/2 and 2/2 -> 0.75.
    assert [search_reference(tasks, b) for b in (3, 8, 9)] == [0.0, 0.5, 0.75]
    unknown = [*tasks, Task("c", "kind")]
    assert ceiling(unknown, 9) is None
    assert search_reference(unknown, 9) is None


def point(budget, success):
    return BudgetPoint(budget, success, 0.0, 1.0, None, None, 4, 0.0)


def test_area_is_over_log2_of_the_budget():
    # log2: 2, 3, 5. Trapezoids 1 * 0.25 + 2 * 0.75 = 1.75 over a width of 3.
    assert area([point(4, 0.0), point(8, 0.5), point(32, 1.0)]) == pytest.approx(1.75 / 3)
    assert area([point(4, 0.3), point(50, 0.3)]) == pytest.approx(0.3)
    assert area([point(8, 0.4)]) == 0.4


def test_wilson_against_scipy():
    for successes, trials in [(0, 7), (7, 7), (3, 7), (60, 120)]:
        interval = binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes, trials) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_bootstrap_covers_and_repeats():
    values = np.random.default_rng(0).normal(size=(400, 2))
    low, high = bootstrap(values)
    # Standard error of a mean of 400 standard normals is about 0.05: width about 4 * 0.05.
    assert np.all(low < values.mean(axis=0)) and np.all(values.mean(axis=0) < high)
    assert high - low == pytest.approx(0.196 * values.std(axis=0), rel=0.05)
    again = bootstrap(values)
    assert np.array_equal(low, again[0]) and np.array_equal(high, again[1])


def test_few_tasks_widen_the_bootstrap():
    # Hesterberg 2015: with 10 tasks the tails are Phi(-sqrt(10 / 9) * 2.262) = 0.00855 instead of 0.025. The means
    # of ten resamples of normal values are nearly normal: half width 2.385 * 0.949 / sqrt(10) of the sample's sd.
    values = np.random.default_rng(1).normal(size=(10, 1))
    low, high = bootstrap(values)
    assert (high - low)[0] / 2 == pytest.approx(2.385 * values.std() / 10**0.5, rel=0.06)


def test_runs_are_resampled_with_the_tasks():
    # Runs that differ by 1 for every task: a's two runs are 0 and 1, b's single run 1. Resampling two runs, both
    # are 0 or both 1 a quarter of the time each: the difference runs from 0 to 1. Of one run alone there is no width.
    a = np.stack([np.zeros((50, 1)), np.ones((50, 1))])
    low, high = bootstrap_difference(a, np.ones((1, 50, 1)))
    assert (low[0], high[0]) == (pytest.approx(0), pytest.approx(1))
    low, high = bootstrap_difference(a[:1], np.ones((1, 50, 1)))
    assert (low[0], high[0]) == (pytest.approx(1), pytest.approx(1))


def evaluation(episodes=None, **changes):
    episodes = episodes or [
        played("a", 4),
        played("b", 9),
        played("c", 30, "budget"),
        dataclasses.replace(played("d", 2, "timeout"), error="no answer"),
    ]
    settings = {
        "target": "pocket",
        "checkpoint": None,
        "split": "valid",
        "split_hash": "abc",
        "seeds": [0],
        "announce": "none",
        "sampling": {"temperature": 1.0},
    }
    return result(episodes, TASKS, [30, 4], **{**settings, **changes})


def test_result_is_the_contract_and_plain_json():
    value = json.loads(json.dumps(evaluation(), allow_nan=False))
    assert {
        "target",
        "checkpoint",
        "split",
        "split_hash",
        "seeds",
        "announce",
        "sampling",
        "tasks",
        "errors",
        "budgets",
    } <= set(value)
    assert value["tasks"] == 4
    assert value["errors"] == 1
    assert value["errored"] == [
        {"task_id": "d", "seed": 0, "budget": 30, "end_reason": "timeout", "error": "no answer"}
    ]
    assert [row["budget"] for row in value["budgets"]] == [4, 30]
    first = value["budgets"][0]
    assert first == {
        "budget": 4,
        "success": 0.25,
        "low": pytest.approx(wilson(1, 4)[0]),
        "high": pytest.approx(wilson(1, 4)[1]),
        "ceiling": 1.0,
        "search_reference": 0.0,
        "context": 0.0,
    }


def test_table_fits_80_columns_and_says_what_is_unknown():
    text = table(evaluation(seeds=list(range(40))))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "25.0 %" in text and "not solved: 1" in text
    tasks = [dataclasses.replace(t, plan=(), search_turns=()) for t in TASKS]
    episodes = [played(t.task_id, 4) for t in tasks]
    bare = result(
        episodes,
        tasks,
        [30],
        target="t",
        checkpoint=3,
        split="s",
        split_hash="",
        seeds=[0],
        announce="none",
        sampling={},
    )
    row = table(bare).splitlines()[-1].split()
    # budget, success %, low - high, ceiling, search reference, tasks, context ends %
    assert row == ["30", "100.0", "%", "51.0", "-", "100.0", "-", "-", "4", "0.0", "%"]

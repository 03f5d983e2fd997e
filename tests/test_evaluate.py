"""Success over budgets and its intervals, against values derived by hand."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import binomtest

from bmrl.envs.base import Task
from bmrl.errors import BmrlError
from bmrl.evaluate import (
    BudgetPoint,
    area,
    ceiling,
    curve,
    paired,
    plan_plays,
    result,
    search_reference,
    table,
)
from bmrl.intervals import bootstrap, wilson
from bmrl.run_folder import episode_line
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
    # 256 equally likely resamples, enumerated: the exact 2.5 % and 97.5 % quantiles.
    means = np.array([1.0, 0.5, 0.0, 0.0])
    exact = means[np.indices((4,) * 4).reshape(4, -1)].mean(axis=0)
    low, high = np.quantile(exact, [0.025, 0.975])
    assert (point.low, point.high) == (low, high)


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


def test_paired_gain_per_budget_and_over_budgets():
    before = [played("a", 9), played("b", 9), played("c", 30, "budget"), played("d", 3)]
    after = [played("a", 4), played("b", 8), played("c", 30, "budget"), played("d", 30, "budget")]
    # Budget 4: before d; after a: +1 a, -1 d -> 0. Budget 8: before d; after a, b -> (1+1-1)/4.
    # Budget 30: before a, b, d; after a, b: -1/4. Mean (0 + 0.25 - 0.25) / 3 = 0.
    gains = paired(before, after, TASKS, [30, 8, 4], "none")
    assert [(g.budget, g.gain) for g in gains] == [
        (4, 0.0),
        (8, 0.25),
        (30, -0.25),
        (None, pytest.approx(0.0)),
    ]
    assert all(g.low < g.gain < g.high for g in gains)


def test_paired_beats_unpaired_where_tasks_differ_a_lot():
    # 40 tasks, half easy, half hard; after solves 4 more. Paired: sd of the differences is
    # sqrt(0.1 * 0.9) = 0.3, so the half width is about 1.96 * 0.3 / sqrt(40) = 0.093.
    tasks = [task(str(i)) for i in range(40)]
    before = [played(str(i), 4, "success" if i < 20 else "failure") for i in range(40)]
    after = [played(str(i), 4, "success" if i < 24 else "failure") for i in range(40)]
    gain = paired(before, after, tasks, [30], "none")[0]
    assert gain.gain == pytest.approx(0.1)
    assert 0 < gain.low < gain.high < 0.2 + 0.01
    assert (gain.high - gain.low) / 2 == pytest.approx(0.093, abs=0.015)


def test_equal_gains_still_have_an_interval():
    before = [played(name, 30, "budget") for name in "abcd"]
    after = [played(name, 4) for name in "abcd"]
    gain = paired(before, after, TASKS, [30], "none")[0]
    # Unlike tasks: at most z^2 / (4 + z^2) = 0.4899; each could have lost 1 where others gain 1.
    assert (gain.gain, gain.high) == (1.0, 1.0)
    assert gain.low == pytest.approx(1 - 2 * 0.4899, abs=1e-4)
    none = paired(before, before, TASKS, [30], "none")[0]
    assert (none.low, none.high) == (
        pytest.approx(-0.4899, abs=1e-4),
        pytest.approx(0.4899, abs=1e-4),
    )


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

"""Comparisons: statistics against values by hand, what is refused, and what the command prints."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binomtest
from scripted import Road, Scripted

from bmrl import evaluations, results, run_folder
from bmrl.atomic import write_json
from bmrl.cli import bmrl, main
from bmrl.compare import choose, compare, holm, load, sign_flip, table
from bmrl.envs.base import Task
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import plan_plays, result
from bmrl.types import EndReason, Episode, Turn

TURN = Turn("You see a door.", (1,), "open", "open", (2,), (-0.1,), True, 0.0)
TASKS = [Task(name, "kind", ("go",) * 4, search_turns=(6, 12)) for name in "abcd"]


def played(name, turns, end="success", *, seed=0, budget=30):
    return Episode(0, 0, seed, name, "valid", seed, budget, EndReason(end), (TURN,) * turns, "", "")


def lost(name, **settings):
    return played(name, settings.get("budget", 30), "budget", **settings)


def evaluation(folder, name, episodes, *, tasks=TASKS, budgets=(4, 8, 30), **changes):
    settings = {
        "target": name,
        "checkpoint": None,
        "split": "valid",
        "split_hash": "abc",
        "seeds": sorted({e.seed for e in episodes}),
        "announce": "none",
        "sampling": {"temperature": 1.0},
    }
    answer = result(episodes, tasks, budgets, **{**settings, **changes})
    results.write(folder, name, episodes, answer)
    return evaluations.read(folder / f"{name}.json")


def compared(a, b):
    return compare(load("A", a if isinstance(a, list) else [a]), load("B", b if isinstance(b, list) else [b]))


BEFORE = [played("a", 9), played("b", 9), lost("c"), played("d", 3)]
AFTER = [played("a", 4), played("b", 8), lost("c"), lost("d")]


def test_difference_per_budget_with_wins_and_losses_by_name(tmp_path):
    found = compared(evaluation(tmp_path, "x", BEFORE), evaluation(tmp_path, "y", AFTER))
    # Budget 4: before d; after a: +1 a, -1 d -> 0. Budget 8: before d; after a, b -> (1 + 1 - 1) / 4.
    # Budget 30: before a, b, d; after a, b: -1/4.
    rows = [[row[key] for key in ("budget", "difference", "wins", "losses")] for row in found["budgets"]]
    assert rows == [
        [4, 0.0, ["a"], ["d"]],
        [8, 0.25, ["a", "b"], ["d"]],
        [30, -0.25, [], ["d"]],
    ]
    assert all(row["low"] < row["difference"] < row["high"] for row in found["budgets"])
    assert found["test"] == "mcnemar_exact" and found["tasks"] == 4
    # One discordant pair each way: p 1; three pairs, 2 of them one way: 1; one pair: 1.
    assert [row["p"] for row in found["budgets"]] == [1.0, 1.0, 1.0]
    # Area: log2 4, 8, 30 = 2, 3, 4.907. A: (1/4, 1/4, 3/4), B: (1/4, 1/2, 1/2).
    # Trapezoids of B - A: 1 * (0 + 0.25) / 2 + 1.907 * (0.25 - 0.25) / 2 = 0.125 over 2.907.
    assert found["area"]["difference"] == pytest.approx(0.125 / 2.906891)
    assert found["area"]["low"] < found["area"]["difference"] < found["area"]["high"]


def test_one_play_a_task_is_mcnemar():
    # Exact McNemar is the binomial test of the discordant pairs.
    for wins, losses, ties in [(0, 1, 3), (5, 0, 2), (9, 2, 30), (60, 31, 5), (7, 7, 0)]:
        differences = np.array([1] * wins + [-1] * losses + [0] * ties)
        assert sign_flip(differences) == pytest.approx(binomtest(wins, wins + losses).pvalue, rel=1e-12)
    assert sign_flip(np.array([0, 0, 0])) == 1.0
    # 3,000 wins to none: 2^-2999 is below every float, and still not 0.
    assert 0 < sign_flip(np.ones(3000, dtype=np.int64)) < 1e-300


def test_several_plays_a_task_are_a_permutation_test_over_task_means():
    # |sum| of (+-3, +-1, +-1) is at least 3 + 1 - 1 = 3: of the 8 choices of signs 5, 3, 3, 1 each way: 6 of 8.
    assert sign_flip(np.array([3, 1, -1])) == 6 / 8
    # In other units the same.
    assert sign_flip(np.array([30, 10, -10])) == 6 / 8
    differences = np.random.default_rng(0).integers(-3, 4, size=12)
    signs = 1 - 2 * ((np.arange(2**12)[:, None] >> np.arange(12)) & 1)
    sums = np.abs(signs @ differences)
    assert sign_flip(differences) == pytest.approx((sums >= abs(differences.sum())).mean(), rel=1e-12)


def test_holm():
    # Sorted 0.01, 0.02, 0.04 times 3, 2, 1: 0.03, 0.04, 0.04; and never below a smaller one's.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.02, 0.021]) == pytest.approx([0.04, 0.04])
    assert holm([0.7, 0.9]) == [1.0, 1.0]


def test_several_seeds_stay_together(tmp_path):
    # Two plays a task. Sums B - A: a +2, b +1, c 0, d 0; all one way, 2 of 4 tasks: p = 2 / 2^2.
    a = [lost(name, seed=seed) for name in "abcd" for seed in (0, 1)]
    b = [
        played("a", 4, seed=0),
        played("a", 4, seed=1),
        played("b", 4, seed=0),
        *(lost(name, seed=seed) for name, seed in (("b", 1), ("c", 0), ("c", 1), ("d", 0), ("d", 1))),
    ]
    found = compared(evaluation(tmp_path, "x", a), evaluation(tmp_path, "y", b))
    assert found["test"] == "sign_flip_exact"
    row = found["budgets"][0]
    assert (row["difference"], row["p_raw"], row["wins"]) == (3 / 8, 0.5, ["a", "b"])
    assert row["p"] == 1.0  # three budgets, each 0.5


def test_a_policy_with_itself_differs_in_nothing(tmp_path):
    one = evaluation(tmp_path, "x", BEFORE)
    found = compared(one, one)
    # Unlike tasks: at most z^2 / (4 + z^2) = 0.4899, whose difference may be up to 1 either way.
    for row in found["budgets"]:
        assert (row["difference"], row["p"], row["wins"], row["losses"]) == (0.0, 1.0, [], [])
        assert (row["low"], row["high"]) == (pytest.approx(-0.4899, abs=1e-4), pytest.approx(0.4899, abs=1e-4))


def test_all_tasks_gained_still_has_an_interval(tmp_path):
    a, b = [lost(name) for name in "abcd"], [played(name, 4) for name in "abcd"]
    row = compared(evaluation(tmp_path, "x", a), evaluation(tmp_path, "y", b))["budgets"][0]
    # Each of the unlike could have lost 1 where the others gain 1.
    assert (row["difference"], row["high"]) == (1.0, 1.0)
    assert row["low"] == pytest.approx(1 - 2 * 0.4899, abs=1e-4)
    assert row["p_raw"] == 2 / 2**4


def test_paired_beats_unpaired_where_tasks_differ_a_lot(tmp_path):
    # 40 tasks, half easy, half hard; after solves 4 more. Paired: sd of the differences is
    # sqrt(0.1 * 0.9) = 0.3, so the half width is about 1.96 * 0.3 / sqrt(40) = 0.093; unpaired it would be 0.22.
    tasks = [Task(str(i), "kind") for i in range(40)]
    sides = [
        evaluation(
            tmp_path, f"{limit}", [played(str(i), 4) if i < limit else lost(str(i)) for i in range(40)], tasks=tasks
        )
        for limit in (20, 24)
    ]
    row = compared(*sides)["budgets"][-1]
    assert row["difference"] == pytest.approx(0.1)
    assert (row["high"] - row["low"]) / 2 == pytest.approx(0.093, abs=0.015)


def test_errors_count_as_not_solved_and_are_listed(tmp_path):
    broken = Episode(0, 0, 0, "a", "valid", 0, 30, EndReason.TIMEOUT, (TURN,), "", "no answer in 30 s")
    found = compared(evaluation(tmp_path, "x", BEFORE), evaluation(tmp_path, "y", [broken, *AFTER[1:]]))
    assert found["budgets"][-1]["losses"] == ["a", "d"]
    assert [(e["of"], e["task_id"], e["end_reason"]) for e in found["errored"]] == [("B", "a", "timeout")]
    assert "environment errors of B, counted as not solved (1): a (seed 0)" in table(found)


def test_only_common_budgets_are_compared_and_told_ones_by_their_own_episodes(tmp_path):
    def told(solved, budgets):
        return [
            played(task.task_id, 3, budget=budget)
            if (task.task_id, budget) in solved
            else lost(task.task_id, budget=budget)
            for task in TASKS
            for budget in budgets
        ]

    a = evaluation(tmp_path, "x", told({("a", 4)}, (4, 8)), budgets=(4, 8), announce="total")
    b = evaluation(tmp_path, "y", told({("a", 8), ("b", 8)}, (8, 16)), budgets=(8, 16), announce="total")
    assert [(r["budget"], r["difference"]) for r in compared(a, b)["budgets"]] == [(8, 0.5)]


def test_training_runs_are_pooled_and_shown_one_by_one(tmp_path):
    def trained(name, solved, seed):
        return evaluation(
            tmp_path, name, [played(t, 4, seed=seed) if t in solved else lost(t, seed=seed) for t in "abcd"]
        )

    start = evaluation(tmp_path, "start", [lost(t) for t in "abcd"])
    one, two = trained("one", "ab", 0), trained("two", "abcd", 1)
    assert choose([[start], [one], [two]], [False, False, True]) == [start, one, two]
    found = compared(start, [one, two])
    row = found["budgets"][0]
    # Task means of B: a, b 1; c, d 1/2. Sums over its two runs: 2, 2, 1, 1, all one way: p = 2 / 2^4.
    assert (row["difference"], row["p_raw"], row["wins"]) == (0.75, 2 / 16, list("abcd"))
    assert [run["success"][0] for run in found["runs"]] == [0.0, 0.5, 1.0]
    assert [run["difference"][0] for run in found["runs"][1:]] == [0.5, 1.0]
    assert found["resampled"] == ["tasks", "runs"]
    # With both runs resampled the pooled interval reaches what either of them alone could be.
    assert row["low"] <= 0.5 and row["high"] == 1.0
    assert max(len(line) for line in table(found).splitlines() if "json" not in line) <= 80


DIFFERENT = {
    "split": ({"split": "other"}, "different split: valid in "),
    "games": ({"split_hash": "b" * 64}, "different games of the split (hash): abc in "),
    "announce": ({"announce": "total"}, "different announce: none in "),
    "sampling": ({"sampling": {"temperature": 0.0}}, "different sampling, temperature: 1.0 in "),
    "seeds": ({"seeds": [1]}, "different seeds: 0 in "),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_unlike_evaluations_are_refused_and_it_says_which(tmp_path, name):
    changes, said = DIFFERENT[name]
    a = evaluation(tmp_path, "x", BEFORE)
    episodes = [played(t.task_id, 4, seed=changes.get("seeds", [0])[0]) for t in TASKS]
    b = evaluation(tmp_path, "y", episodes, **changes, budgets=(30,))
    with pytest.raises(UsageError) as caught:
        choose([[a], [b]], [False, False])
    (line,) = str(caught.value).splitlines()
    assert said in line and "x.json" in line and "y.json" in line


def test_numbers_of_tasks_and_budgets_without_overlap_are_refused(tmp_path):
    a = evaluation(tmp_path, "x", BEFORE, budgets=(4, 8))
    b = evaluation(tmp_path, "y", AFTER[:2], tasks=TASKS[:2], budgets=(30,))
    with pytest.raises(UsageError) as caught:
        choose([[a], [b]], [False, False])
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "different number of tasks: 4 in" in lines[0] and "no budget in common: 4, 8 in" in lines[1]


def test_a_player_without_a_model_samples_nothing_and_can_be_compared(tmp_path):
    a, b = evaluation(tmp_path, "x", BEFORE), evaluation(tmp_path, "expert", AFTER, sampling={})
    assert choose([[a], [b]], [False, False]) == [a, b]


@pytest.fixture
def run(tmp_path):
    folder = run_folder.create(tmp_path / "runs", "", {"name": "demo"}, {})
    for step, episodes in ((0, BEFORE), (5, [played(t, 4) for t in "abcd"]), (10, AFTER)):
        evaluation(folder / "eval", f"step-{step:06d}", episodes, checkpoint=f"step-{step:06d}")
    return folder


def test_a_run_is_its_newest_evaluation_that_can_be_compared(run, tmp_path):
    def steps(text):
        return [found.step for found in evaluations.named(text)]

    assert steps(str(run)) == [10, 5, 0]
    assert steps(f"{run}@0") == [0]
    assert steps(f"{run}@best") == [5]
    # By hand, of the last policy on another split: newer than that of training, and not what A's can be compared with.
    evaluation(run / "eval", "valid_unseen-x", AFTER, split="other", checkpoint="step-000010")
    unseen = evaluation(tmp_path, "u", BEFORE, split="other")
    newest = evaluations.named(str(run))
    assert newest[0].head["split"] == "other"
    assert choose([evaluations.named(f"{run}@0"), newest], [False, False])[1].path.name == "step-000010.json"
    assert choose([[unseen], newest], [False, False])[1].path.name == "valid_unseen-x.json"
    with pytest.raises(UsageError, match=r"has evaluations of the steps 0, 5, 10"):
        evaluations.named(f"{run}@7")


def test_of_one_policys_evaluations_the_one_with_most_budgets_in_common_is_taken(tmp_path):
    episodes = [lost(task.task_id) for task in TASKS]
    start = evaluation(tmp_path, "start", episodes)
    few, more = (evaluation(tmp_path, name, episodes, budgets=b) for name, b in (("few", (30,)), ("more", (4, 8, 30))))
    assert choose([[start], [few, more]], [False, False]) == [start, more]
    assert choose([[few, start], [few, more]], [False, False]) == [start, more]
    other = evaluation(tmp_path, "other", episodes, budgets=(30,), checkpoint="step-000009")
    assert choose([[start], [other, more]], [False, False]) == [start, other]  # the likeliest policy comes first


def test_no_evaluation_is_one_line(run, tmp_path):
    bare = run_folder.create(tmp_path / "runs", "", {"name": "bare"}, {})
    for text, said in [
        ("pocket", "pocket: no evaluation; give a result file"),
        (str(tmp_path / "no.json"), "no such file"),
        (str(bare), f"no evaluation in this run; run: bmrl eval {bare}"),
        (str(tmp_path), "not a run folder"),
        (f"{run}@x", "has evaluations of the steps"),
    ]:
        with pytest.raises(UsageError) as caught:
            evaluations.named(text)
        assert said in str(caught.value) and "\n" not in str(caught.value)


def _replace(line, old, new):
    assert old in line
    return line.replace(old, new)


DAMAGED = {
    "cut off": (lambda lines: [*lines[:2], lines[2][:40], lines[3]], "x.jsonl:3: damaged, not an episode"),
    "odd reason": (
        lambda lines: [_replace(lines[0], '"end_reason": "success"', '"end_reason": "won"'), *lines[1:]],
        "x.jsonl:1: damaged, not an episode",
    ),
    "missing": (lambda lines: lines[:3], "x.jsonl:3: ends after 3 of 4 episodes"),
    "empty": (lambda lines: [], "x.jsonl:0: ends after 0 of 4 episodes"),
    "twice": (lambda lines: [*lines, lines[1]], "x.jsonl:5: b with seed 0 and 30 turns stands in line 2, too"),
    "other seed": (
        lambda lines: [*lines[:3], _replace(lines[3], '"seed": 0', '"seed": 7')],
        "x.jsonl:4: d with seed 7",
    ),
    "short": (
        lambda lines: [*lines[:3], _replace(lines[3], '"budget": 30', '"budget": 8')],
        "x.jsonl:4: d with seed 0",
    ),
    "other end": (
        lambda lines: [_replace(lines[0], '"end_reason": "success"', '"end_reason": "failure"'), *lines[1:]],
        "x.jsonl:1: damaged, not an episode",  # it says that it succeeded
    ),
    "lost": (
        lambda lines: [
            _replace(lines[0], '"success", "success": true', '"failure", "success": false'),
            *lines[1:],
        ],
        "x.json: success at 30 turns is 0.750, by its episodes 0.500",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_episodes_are_named_with_file_and_line(tmp_path, name):
    damage, said = DAMAGED[name]
    one = evaluation(tmp_path, "x", BEFORE)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{line}\n" for line in damage(path.read_text().splitlines())))
    with pytest.raises(BmrlError) as caught:
        load("A", [one])
    assert said in str(caught.value) and "\n" not in str(caught.value) and "evaluate" in str(caught.value)


def test_a_missing_episode_is_named(tmp_path):
    episodes = [played(name, 4, seed=seed) for name in "abcd" for seed in (0, 1)]
    one = evaluation(tmp_path, "x", episodes)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(BmrlError, match="ends after 7 of 8 episodes, d with seed 1 is missing"):
        load("A", [one])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 1, "budgets": 3}'])
def test_a_damaged_result_is_named(tmp_path, text):
    evaluation(tmp_path, "x", BEFORE)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BmrlError, match=r"x\.json: damaged, not an evaluation; remove it and evaluate again"):
        evaluations.named(str(tmp_path / "x.jsonl"))


def test_another_version_and_an_unfinished_evaluation_are_named(tmp_path):
    one = evaluation(tmp_path, "x", BEFORE)
    write_json(one.path, {**one.head, "format": 2})
    with pytest.raises(BmrlError, match=r"x\.json: format 2, this bmrl reads 1"):
        evaluations.read(one.path)
    one.path.unlink()
    with pytest.raises(UsageError, match=r"x\.json: missing, so the evaluation is not finished"):
        evaluations.read(tmp_path / "x.jsonl")


def invoke(*arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compare", *map(str, arguments)])
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err.splitlines()


def test_the_command(run, tmp_path, capsys):
    evaluation(tmp_path, "x", BEFORE)
    code, out, err = invoke(f"{run}@0", run, tmp_path / "x.json", "--json", capsys=capsys)
    assert (code, err) == (0, [])
    value = json.loads(out)
    assert {"budget", "difference", "low", "high", "p"} <= value["budgets"][0].keys()
    assert value["test"] == "mcnemar_exact" and len(value["others"]) == 1
    assert value["others"][0]["b"]["name"] == "C"
    code, out, err = invoke(f"{run}@0", run, tmp_path / "x.json", "--with", f"B={run}@5", capsys=capsys)
    assert (code, err) == (0, [])
    assert "B - A" in out and "C - A" in out and "runs one by one" in out


def test_the_command_refuses_in_one_line(run, tmp_path, capsys):
    other = evaluation(tmp_path, "x", BEFORE, split="other")
    assert invoke(run, other.path, capsys=capsys)[::2] == (
        2,
        [
            f"bmrl: cannot compare, different split: valid in {run / 'eval' / 'step-000010.json'}, other in "
            f"{other.path}; evaluate both alike"
        ],
    )
    for arguments in ([run], [run, run, "--with", "C=x"], [run, run, "--with", "x"], []):
        code, out, err = invoke(*arguments, capsys=capsys)
        assert (code, out, len(err)) == (2, "", 1)


def test_runs_of_another_recipe_are_not_pooled(run, tmp_path, capsys):
    base = tmp_path / "runs"
    same, other = (
        run_folder.create(base, "", {"name": "demo", "seed": 1, **more}, {})
        for more in ({}, {"optimizer": {"learning_rate": 0.1}})
    )
    for folder in (same, other):
        evaluation(folder / "eval", "step-000010", AFTER, checkpoint="step-000010")
    code, out, err = invoke(run, run, "--with", f"B={same}", capsys=capsys)
    assert (code, err) == (0, [])
    code, out, err = invoke(run, run, "--with", f"B={other}", capsys=capsys)
    assert (code, out) == (2, "")
    assert err == [
        f"bmrl: --with: {other} is not of the recipe of {run}, it differs in optimizer; compare it as a policy of its own"
    ]


def test_help_has_an_example():
    assert (
        "Example: bmrl compare runs/quickstart@0 runs/quickstart"
        in CliRunner().invoke(bmrl, ["compare", "--help"]).output
    )


def test_scripted_policies_end_to_end(tmp_path):
    # p 0.5 against 0.05: on 60 roads the better policy is told apart at every budget that can be kept.
    env, budgets = Road(60), [4, 8, 16]
    plays = plan_plays(env.tasks("train"), "train", budgets, [0, 1], "none")
    sides = [
        evaluation(
            tmp_path,
            name,
            [Scripted(p, 0.5, name).play(env, play) for play in plays],
            tasks=env.tasks("train"),
            budgets=budgets,
        )
        for name, p in (("bad", 0.5), ("good", 0.05))
    ]
    assert all(row["low"] > 0 and row["p"] < 0.001 for row in compared(*sides)["budgets"])

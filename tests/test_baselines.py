"""Players without a model: what they reach is what every table calls ceiling and search reference."""

import dataclasses
import json
import subprocess
import sys

import pytest
import tiny

from bmrl.baselines import evaluate
from bmrl.envs import ENVIRONMENTS
from bmrl.errors import UsageError


def played(name, *, world="alfworld", budgets=(4, 8, 30), seeds=(0,), tasks=24, announce="none", out=None):
    args = {"source": "embedded"} if world == "alfworld" else {}
    return evaluate(
        name,
        world,
        args,
        budgets=budgets,
        split="valid_seen",
        seeds=seeds,
        announce=announce,
        tasks=tasks,
        out=out,
    )


def test_the_oracle_reaches_the_ceiling_and_the_expert_the_search_reference():
    for point in played("oracle")["budgets"]:
        assert point["success"] == point["ceiling"]
    # The search reference is the mean of four plays; the expert's first four seeds are these plays.
    for point in played("expert", seeds=(0, 1, 2, 3))["budgets"]:
        assert point["success"] == pytest.approx(point["search_reference"])


def test_telling_the_budget_changes_nothing_but_how_often_is_played(tmp_path):
    for name in ("oracle", "expert"):
        one, each = (played(name, announce=announce, out=tmp_path)["budgets"] for announce in ("none", "total"))
        assert one == each
    sizes = sorted(len(path.read_text().splitlines()) for path in tmp_path.glob("*.jsonl"))
    assert sizes == [24, 24, 72, 72]  # 24 tasks at once, or at each of three budgets


def test_random_draws_accepted_commands_from_its_seed_alone(tmp_path):
    for folder in ("a", "b"):
        played("random", tasks=6, budgets=(12,), seeds=(0, 1), out=tmp_path / folder)
    (a,), (b,) = ((tmp_path / folder).glob("*.jsonl") for folder in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()
    episodes = [json.loads(line) for line in a.read_text().splitlines()]
    assert all(turn["valid"] for episode in episodes for turn in episode["turns"])
    actions = [[turn["action"] for turn in episode["turns"]] for episode in episodes]
    assert len(actions) == 12 and actions[:6] != actions[6:]


class Blank(tiny.Corridor):
    """A world of which nothing is known: no plans, no commands, no expert."""

    def tasks(self, split):
        return [dataclasses.replace(task, plan=()) for task in super().tasks(split)]

    def reset(self, task):
        opening = super().reset(task)
        self.admissible = None
        return opening


@pytest.mark.parametrize(("name", "lacks"), [("oracle", "no plan"), ("expert", "no exploring"), ("random", "not say")])
def test_a_world_of_which_nothing_is_known_has_no_baseline(name, lacks, monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "blank", "test_baselines:Blank")
    with pytest.raises(UsageError, match=lacks):
        played(name, world="blank", tasks=1)


class Wrong(tiny.Corridor):
    """Its plans end one turn early; the second task cannot be reset, the third not be won."""

    def tasks(self, split):
        return [dataclasses.replace(task, plan=task.plan[1:] or task.plan) for task in super().tasks(split)]

    def reset(self, task):
        if task.data == 2:
            raise RuntimeError("no second task")
        self.broken = task.data == 3
        return super().reset(task)

    def step(self, action):
        if self.broken and self.left == 1:
            raise RuntimeError("stumbled")
        return super().step(action)


def test_an_environment_that_fails_costs_an_episode_and_a_plan_that_does_not_win_is_told(monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "wrong", "test_baselines:Wrong")
    (point,) = played("oracle", world="wrong", budgets=(1,), tasks=2)["budgets"]
    assert point["success"] == 0.5
    found = played("oracle", world="wrong", budgets=(2,), tasks=3)
    assert (found["errors"], found["budgets"][0]["success"]) == (1, pytest.approx(1 / 3))
    assert played("random", world="wrong", budgets=(40,), tasks=3)["errors"] >= 1
    with pytest.raises(UsageError, match="the plan of valid_seen-3 does not win"):
        played("oracle", world="wrong", budgets=(8,), tasks=4)


def test_no_torch_and_one_line_for_what_a_baseline_cannot():
    program = (
        "import sys\nfrom bmrl.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as done:\n    sys.exit(f\"{done.code} {'torch' in sys.modules}\")"
    )
    for more, code in ((["--json"], 0), (["--temperature", "1"], 2)):
        line = [sys.executable, "-c", program, "eval", "oracle", "--budget", "4", "--tasks", "5", *more]
        done = subprocess.run(line, capture_output=True, text=True)
        *told, ended = done.stderr.strip().splitlines()
        assert ended == f"{code} False" and len(told) == (code > 0), done.stderr

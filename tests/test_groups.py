"""Which groups a step plays, which it refills, and which it learns from."""

import json
from functools import partial

import pytest
import tiny
import torch
from test_run import content, finish, train

from bmrl.batch import has_signal, in_range
from bmrl.credit import Prices
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.recipe import FixedBudget
from bmrl.trainer import Player, Refill, Update, plan_step, train_step
from bmrl.types import EndReason, Episode, Turn

CHAT = tiny.chat()
WON, LOST, BROKEN = EndReason.SUCCESS, EndReason.BUDGET, EndReason.ENV_ERROR
TASKS = [Task(f"task-{n}", "corridor", data=n) for n in range(11, 18)]
PLAN = partial(plan_step, tasks=TASKS, split="train", seed=3, group_size=2, budget=FixedBudget(kind="fixed", turns=4))


def group(*reasons: EndReason) -> list[Episode]:
    turn = Turn("", (1,), "go", "go", (2,), (-1.0,), True, 0.0)
    return [Episode(1, 0, n, "task", "train", 0, 8, reason, (turn,)) for n, reason in enumerate(reasons)]


@pytest.mark.parametrize(
    ("reasons", "rewards", "bounds", "signal", "within"),
    [
        ((WON, LOST), (1.0, 0.0), None, True, True),
        ((LOST, LOST), (0.0, 0.0), None, False, True),
        ((LOST, LOST), (0.0, -0.1), None, True, True),  # shaping
        ((WON, WON, BROKEN), (1.0, 1.0, 0.0), None, False, True),  # an error is no episode of the group
        ((WON, LOST, LOST, LOST), (1.0, 0.0, 0.0, 0.0), (0.25, 0.75), True, True),  # 1/4, the bound itself
        ((WON, LOST, LOST, LOST, LOST), (1.0, 0.0, 0.0, 0.0, 0.0), (0.25, 0.75), False, False),  # 1/5
        ((WON, LOST, BROKEN), (1.0, 0.0, 0.0), (0.5, 0.5), True, True),  # 1/2: the error does not count
        ((WON, WON), (1.0, 0.9), (0.0, 0.9), False, False),
        ((BROKEN, BROKEN), (0.0, 0.0), (0.0, 1.0), False, False),
    ],
)
def test_signal_and_range_of_a_group(reasons, rewards, bounds, signal, within):
    assert has_signal(group(*reasons), rewards, {}, bounds) == signal
    assert in_range(group(*reasons), {}, bounds) == within


def test_a_dropped_episode_gives_no_signal():
    assert has_signal(group(WON, LOST), (1.0, 0.0), {LOST: "train"})
    assert not has_signal(group(WON, LOST), (1.0, 0.0), {LOST: "drop"})


def test_no_task_comes_twice_before_all_came_once_however_many_groups_the_steps_draw():
    drawn, first = [], 0
    for step, groups in enumerate((3, 5, 2, 4, 7), start=1):
        plan = PLAN(step, first=first, groups=groups)
        assert [play.group for plays in plan for play in plays] == [g for g in range(groups) for _ in range(2)]
        drawn += [plays[0].task.task_id for plays in plan]
        first += groups
    epochs = [drawn[i : i + 7] for i in range(0, 21, 7)]
    assert all(sorted(epoch) == [task.task_id for task in TASKS] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]  # each shuffled anew
    # More groups of a step go on where the planned ones ended, which stay as they are.
    assert PLAN(2, first=3, groups=8)[:5] == PLAN(2, first=3, groups=5)


def stepped(*, refill=None, success_range=None, turn=0.0):
    """A step of three groups of tasks that cannot be won in four turns, and of what refills them."""
    with Pool("corridor", {}, workers=0, timeout_s=5, slots=6, make=tiny.make) as pool:
        policy = tiny.policy()
        player = Player(policy, CHAT, pool, 6, 3, 512, "none")
        return train_step(
            PLAN(1, first=0, groups=3),
            player,
            torch.optim.SGD(policy.trainable.values(), lr=0.0),
            Update(micro_batch_tokens=4096, prices=Prices(turn=turn)),
            max_error_share=0.0,
            on_episode=lambda _: None,
            poll=lambda: None,
            refill=refill,
            success_range=success_range,
        )


def test_dead_groups_are_refilled_in_whole_rounds_until_the_cap():
    asked = []

    def plan(groups):
        asked.append(groups)
        return PLAN(1, first=0, groups=groups)

    episodes, values = stepped(refill=Refill(plan, wanted=3, most=8))
    # All are dead: 3 planned, 3 missing, then 2 up to the cap.
    assert asked == [6, 8]
    assert (values["groups_played"], values["groups_dropped"], values["episodes"]) == (8, 8, 16)
    assert [(e.group, e.episode) for e in episodes] == [(g, e) for g in range(8) for e in range(2)]
    # Tasks go on in their order: 7 of them, then an epoch's first.
    assert len({e.task_id for e in episodes[:14]}) == 7
    assert "entropy" not in values  # nothing to learn from
    again, _ = stepped(refill=Refill(plan, wanted=3, most=8))
    assert again == episodes


def test_nothing_is_refilled_when_enough_have_a_signal():
    # Episodes of unequal length differ in reward; all of equal length would make a group dead.
    _, values = stepped(turn=-0.1, refill=Refill(lambda groups: pytest.fail("asked for more"), wanted=0, most=8))
    assert values["groups_played"] == 3


def test_groups_out_of_the_range_teach_nothing():
    # None is solved, so none lies within; without the filter the refused actions' rewards differ.
    _, values = stepped(success_range=(0.5, 1.0))
    assert values["groups_dropped"] == values["groups_played"] == 3
    assert "update_tokens" not in values


DYNAMIC = {
    "rollout.dynamic": "true",
    "rollout.max_groups": 7,
    "rollout.success_range": "[0.0, 0.9]",
    "reward.invalid_action": 0.0,
    "train.steps": 3,
    "train.checkpoint_every": 1,
}


def test_a_resumed_run_with_refills_equals_the_undisturbed_one(tmp_path):
    finish(train(tmp_path / "whole", **DYNAMIC), tmp_path)
    run = tmp_path / "run"
    finish(train(run, **DYNAMIC, **{"train.max_hours": 1e-9}), tmp_path)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    finish(train(run, "--resume", **DYNAMIC), tmp_path)
    assert content(run) == content(tmp_path / "whole")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    played = [record["groups_played"] for record in records]
    assert any(groups > 3 for groups in played) and all(groups <= 7 for groups in played)
    for record, groups in zip(records, played, strict=True):
        assert groups == 7 or groups - record["groups_dropped"] == 3
        assert record["episodes"] == 4 * groups
    lines = [json.loads(line) for path in sorted(run.glob("episodes/*")) for line in path.read_text().splitlines()]
    tasks = [line["task_id"] for line in lines if line["episode"] == 0]
    assert len(tasks) == sum(played) == len(set(tasks))  # there are far more tasks than that

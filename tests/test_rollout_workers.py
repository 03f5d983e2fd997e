"""A rollout goes on where environments in worker processes misbehave."""

import time

import pool_envs
import psutil
import pytest
import tiny

from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.rollout import Waited, rollout
from bmrl.types import EndReason, Play

CHAT = tiny.chat()
STOP = next(iter(CHAT.stop_ids))
TIMEOUT_S = 1.0


@pytest.mark.parametrize(
    ("turn", "deed", "reason", "error"),
    [
        (0, "hang", EndReason.TIMEOUT, "no answer within 1 s"),
        (2, "hang", EndReason.TIMEOUT, "no answer within 1 s"),
        (2, "exit", EndReason.ENV_ERROR, "the worker process ended with exit code 3"),
        (2, "raise", EndReason.ENV_ERROR, "FileNotFoundError"),
        (2, "garbage", EndReason.ENV_ERROR, "TypeError: the answer is bytes, not Step"),
        (0, "garbage", EndReason.ENV_ERROR, "TypeError: observation is bytes, not str"),
    ],
)
def test_one_ends_by_its_environment_and_the_others_by_the_game(turn, deed, reason, error):
    tasks = [
        Task("good", "trap"),
        Task("bad", "trap", data=(turn, deed)),
        *(Task(f"good-{n}", "trap") for n in range(4)),
    ]
    plays = [Play(1, group, 0, task, "train", 0, 5) for group, task in enumerate(tasks)]
    sampler = tiny.ScriptedSampler(lambda row, n: CHAT.answer("go"), rows=4, stop=STOP)
    began = time.monotonic()
    with Pool("trap", {}, workers=2, timeout_s=TIMEOUT_S, slots=4, make=pool_envs.make) as pool:
        episodes = rollout(
            plays, sampler=sampler, chat=CHAT, pool=pool, turn_tokens=8, context_tokens=512, temperature=1.0
        )
    # Twice the time-out, for it is played once more; the rest is starting three or four interpreters.
    assert time.monotonic() - began < 2 * TIMEOUT_S + 20
    assert psutil.Process().children(recursive=True) == []
    bad = episodes[1]
    assert (bad.end_reason, bad.task_id) == (reason, "bad")
    assert bad.error.startswith(error)
    # Turn 0 is the reset: nothing was generated. At turn 2 the second action had been sent.
    assert len(bad.turns) == turn
    assert [(e.end_reason, len(e.turns)) for e in episodes if e is not bad] == [(EndReason.SUCCESS, 3)] * 5


def test_time_in_environments_is_counted_with_workers_and_without():
    class Slow(pool_envs.Trap):
        def step(self, action):
            time.sleep(0.05)
            return super().step(action)

    waited = Waited()
    sampler = tiny.ScriptedSampler(lambda row, n: CHAT.answer("go"), rows=1, stop=STOP)
    with Pool("slow", {}, workers=0, timeout_s=1, slots=1, make=lambda name: Slow("echo")) as pool:
        rollout(
            [Play(1, 0, 0, Task("good", "trap"), "train", 0, 5)],
            sampler=sampler,
            chat=CHAT,
            pool=pool,
            turn_tokens=8,
            context_tokens=512,
            temperature=1.0,
            waited=waited,
        )
    assert waited.env_s >= 3 * 0.05

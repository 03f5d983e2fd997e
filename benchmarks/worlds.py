"""ALFWorld's fast engine as a place to measure in: every game lasts as long as its episode's budget.

A policy that has learned nothing would say what no game accepts and read "Nothing happens." for ever, and one that
has learned much would be done early. Here text that is no admissible command counts as one of them, chosen by its
checksum, so that observations are those of play; winning changes nothing; and after its turns a game is won or lost
by the checksum of all that was said, so that groups have a signal to learn from. Equal text, equal game.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any
from zlib import crc32

from bmrl.chat import Chat
from bmrl.envs import make as registered
from bmrl.envs.base import Step, Task
from bmrl.types import Play


class Timed:
    """The environment ``name``; the ``data`` of its tasks are pairs: turns of the game, data of the task."""

    def __init__(self, name: str, **args: Any) -> None:
        self._env = registered(name, **args)
        self.admissible: tuple[str, ...] | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        return self._env.tasks(split)

    def split_hash(self, split: str) -> str:
        return self._env.split_hash(split)

    def reset(self, task: Task) -> str:
        turns, data = task.data
        self._task, self._left, self._said = replace(task, data=data), turns, crc32(task.task_id.encode())
        return self._env.reset(self._task)

    def step(self, action: str) -> Step:
        self._said, self._left = crc32(action.encode(), self._said), self._left - 1
        known = self._env.admissible or ("look",)
        answer = self._env.step(action if action in known else known[self._said % len(known)])
        if answer.terminated:
            self._env.reset(self._task)
        # The lowest bit of a checksum is a sum of input bits; a higher one is no worse a coin.
        return Step(answer.observation, 0.0, not self._left, not self._left and bool(self._said & 64), None)

    def distance(self) -> int | None:
        return None

    def close(self) -> None:
        self._env.close()


class Heard(Chat):
    """A chat in which a turn that was cut off says what it says, not nothing: games of equal text are equal."""

    def parse_action(self, text: str, *, stopped: bool) -> str:
        return text.strip()


def heard(chat: Chat) -> Heard:
    """The same tokens, so heard."""
    return Heard(**{each.name: getattr(chat, each.name) for each in fields(chat)})


def make(name: str, **args: Any) -> Timed:
    """For the pool."""
    return Timed(name, **args)


def plays(tasks: Sequence[Task], *, episodes: int, group: int, least: int, most: int, seed: int) -> list[list[Play]]:
    """Groups of episodes, a task each; budgets evenly from ``least`` to ``most``, the shortest first.

    A single group has ``most``.
    """
    groups = episodes // group
    budgets = [most if groups == 1 else round(least + (most - least) * g / (groups - 1)) for g in range(groups)]
    return [
        [
            Play(
                1, g, n, replace(tasks[g % len(tasks)], data=(turns, tasks[g % len(tasks)].data)), "train", seed, turns
            )
            for n in range(group)
        ]
        for g, turns in enumerate(budgets)
    ]

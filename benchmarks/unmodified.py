"""ALFWorld's own engine, unmodified, behind bmrl's protocol. Importable by worker processes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bmrl.envs.base import Step, Task


class Unmodified:
    """TextWorld's PddlEnv in the wrappers that ALFWorld puts around it, as ALFWorld uses it.

    Args:
        source: folder with ``<split>/**/game.tw-pddl``.
    """

    def __init__(self, source: str) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs.pddl import PddlEnv

        infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
        self._env: Any = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
        self._source = Path(source)
        self.admissible: tuple[str, ...] | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        root = self._source / split
        return [
            Task(path.parent.relative_to(root).as_posix(), "", data=str(path))
            for path in sorted(root.rglob("game.tw-pddl"))
        ]

    def split_hash(self, split: str) -> str:
        return split

    def reset(self, task: Task) -> str:
        line = list(sys.argv)  # loading a game overwrites it
        self._env.load(str(task.data))
        state = self._env.reset()
        sys.argv[:] = line
        self.admissible = tuple(sorted(state["admissible_commands"]))
        return str(state["feedback"])

    def step(self, action: str) -> Step:
        state, score, done = self._env.step(action)
        self.admissible = tuple(sorted(state["admissible_commands"]))
        return Step(str(state["feedback"]), float(score), bool(done), bool(state["won"]), self.admissible)

    def distance(self) -> int | None:
        return None

    def close(self) -> None:
        self._env.close()


def make(name: str, *, source: str) -> Unmodified:
    """For the pool, which calls it in its workers."""
    return Unmodified(source)

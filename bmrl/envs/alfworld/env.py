"""ALFWorld as a bmrl environment."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bmrl.envs.alfworld import official, plan, splits
from bmrl.envs.alfworld.game import Game, game_from_record
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import Step, Task
from bmrl.errors import UsageError

ENGINES = ("fast",)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where games come from: the embedded splits, or a folder, with a manifest or in ALFWorld's own format."""

    folder: Path | None

    @property
    def compact(self) -> bool:
        return self.folder is None or (self.folder / splits.MANIFEST).is_file()

    def splits(self) -> list[str]:
        if self.folder is None:
            return list(splits.SPLITS)
        if self.compact:
            return list(splits.splits_of(self.folder))
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def tasks(self, split: str) -> Sequence[Task]:
        if self.folder is not None and not self.compact:
            return official.tasks(self.folder, split)
        return [task_of(record) for record in splits.read_split(split, self.folder)]


def task_of(record: Record) -> Task:
    """The task that a generated game is."""
    return Task(
        task_id=record.task_id,
        kind=record.kind,
        plan=record.plan,
        search_turns=record.search_turns,
        data=record,
    )


class AlfworldEnv:
    """Household tasks in text: find things, clean, heat, cool and place them.

    Args:
        source: "embedded" (the generated games that ship with bmrl), a folder made by ``bmrl games make``
            or with ``<split>/**/game.tw-pddl`` in ALFWorld's own format, or "auto": the folder
            ``$ALFWORLD_DATA`` names, if set, else embedded.
        engine: "fast", the plain-Python engine.
        admissible: whether the agent is shown the admissible commands after each observation.

    Raises:
        UsageError: unknown engine, or a source that is neither a known word nor a folder.
    """

    instructions = (
        "The commands are: go to X, open X, close X, take X from Y, move X to Y, use X, "
        "clean X with Y, heat X with Y, cool X with Y, slice X with Y, examine X, inventory, look."
    )

    def __init__(self, source: str = "auto", engine: str = "fast", admissible: bool = False) -> None:
        if engine not in ENGINES:
            raise UsageError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
        self._source = _find_source(source)
        self._show = admissible
        self._twin: Twin | None = None
        self.admissible: tuple[str, ...] | None = None

    def splits(self) -> list[str]:
        """Names of the splits that there are."""
        return self._source.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        """All games of a split, in their fixed order.

        Raises:
            UsageError: no such split.
            BmrlError: the files are missing or damaged.
        """
        return self._source.tasks(split)

    def split_hash(self, split: str) -> str:
        """SHA-256 of the split: of its games for the embedded ones, of ids and plans for a folder."""
        if self._source.compact:
            return splits.split_hash(split, self._source.folder)
        listed = [[task.task_id, list(task.plan)] for task in self.tasks(split)]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def reset(self, task: Task) -> str:
        """Start the task's game; returns the opening text."""
        self._twin = Twin(_game_of(task))
        return self._show_to_agent(self._twin, self._twin.reset())

    def step(self, action: str) -> Step:
        """Send one command. The reward is 1 for the step that wins, else 0."""
        twin = self._playing()
        text = self._show_to_agent(twin, twin.step(action))
        won = twin.won
        return Step(
            observation=text,
            reward=1.0 if won else 0.0,
            # A lost game is over, too: nothing may be left to put the held object into.
            terminated=won or plan.distance(twin) is None,
            won=won,
            admissible=self.admissible,
        )

    def distance(self) -> int | None:
        """Fewest turns to the goal with full knowledge; None where it cannot be reached."""
        return plan.distance(self._playing())

    def close(self) -> None:
        """Forget the game."""
        self._twin = None
        self.admissible = None

    def _playing(self) -> Twin:
        if self._twin is None:
            raise RuntimeError("step or distance before reset")
        return self._twin

    def _show_to_agent(self, twin: Twin, text: str) -> str:
        self.admissible = twin.admissible
        if not self._show:
            return text
        return f"{text}\nCommands: {', '.join(c for c in twin.admissible if c != 'help')}"


def _game_of(task: Task) -> Game:
    if isinstance(task.data, Record):
        return game_from_record(task.data)
    return official.read_game(Path(task.data))


def _find_source(source: str) -> _Source:
    told = f"alfworld source {source!r}"
    if source == "auto":
        source = os.environ.get("ALFWORLD_DATA") or "embedded"
        told = f"alfworld source 'auto': ALFWORLD_DATA={source}"
    if source == "embedded":
        return _Source(None)
    folder = Path(source).expanduser()
    if not source or not folder.is_dir():
        raise UsageError(f"{told}: no such folder; give 'embedded' or a folder of games")
    # ALFWorld's download puts its splits one folder further down.
    inner = folder / "json_2.1.1"
    return _Source(inner if inner.is_dir() else folder)

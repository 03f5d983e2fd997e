"""ALFWorld as a bmrl environment."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bmrl.envs.alfworld import export, listing, official, plan, splits
from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.listing import Listing
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import Step, Task
from bmrl.errors import BmrlError, UsageError

if TYPE_CHECKING:
    from bmrl.envs.alfworld.engine import Engine

ENGINES = ("fast", "textworld")
OFFICIAL = "json_2.1.1"  # the folder of ALFWorld's own games below $ALFWORLD_DATA
NEEDED = ("textworld", "fast_downward", "alfworld")  # packages of the engine "textworld"
MISSING = "textworld needs ALFWorld's own engine: pip install 'bmrl[alfworld]'"


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
        found = listing.splits(self.folder)
        if not found:
            raise UsageError(f"{self.folder}: holds no games; there should be SPLIT/**/{official.COMPILED}")
        return found

    def listing(self, split: str) -> Listing | None:
        return None if self.folder is None or self.compact else listing.listing(self.folder, split)

    def tasks(self, split: str) -> Sequence[Task]:
        listed = self.listing(split)
        if listed is not None:
            return listed.tasks
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
        source: "embedded" (the generated games that ship with bmrl), "official" (ALFWorld's own, in
            ``$ALFWORLD_DATA/json_2.1.1``), a folder made by ``bmrl games make`` or with
            ``<split>/**/game.tw-pddl`` in ALFWorld's own format, or "auto": the folder ``$ALFWORLD_DATA``
            names, if set, else embedded.
        engine: "fast", the plain-Python engine, or "textworld", ALFWorld's own, which needs the extra
            ``bmrl[alfworld]`` and is some hundred times slower. Both give the same answers.
        admissible: whether the agent is shown the admissible commands after each observation.

    Raises:
        UsageError: unknown engine, or a source that is neither a known word nor a folder.
        BmrlError: the engine is not installed.
    """

    instructions = (
        "The commands are: go to X, open X, close X, take X from Y, move X to Y, use X, "
        "clean X with Y, heat X with Y, cool X with Y, slice X with Y, examine X, inventory, look."
    )

    def __init__(self, source: str = "auto", engine: str = "fast", admissible: bool = False) -> None:
        if engine not in ENGINES:
            raise UsageError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
        if engine == "textworld" and not engine_installed():
            raise BmrlError(f"env.args.engine: {MISSING}")
        self._source = _find_source(source)
        self._textworld = engine == "textworld"
        self._show = admissible
        self._twin: Twin | None = None
        self._engine: Engine | None = None  # made with the first game, then used for all
        self._in_step = True
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
        """SHA-256 of the split's games: of their records, or of the files of ALFWorld's own format."""
        listed = self._source.listing(split)
        return splits.split_hash(split, self._source.folder) if listed is None else listed.digest

    def left_out(self, split: str) -> dict[str, tuple[str, ...]]:
        """Ids of games of the split that are not played, by the reason."""
        listed = self._source.listing(split)
        return {} if listed is None else listed.left_out

    def notes(self, split: str) -> list[str]:
        """What whoever plays the split should know of its games, one line each."""
        listed = self._source.listing(split)
        if listed is None:
            return []
        lines = []
        if listed.older:
            lines.append("made for ALFWorld before 0.4: their `put X in/on Y` is played as `move X to Y`")
        if listed.left_out:
            told = "; ".join(f"{len(ids):,} {reason}" for reason, ids in listed.left_out.items())
            lines.append(f"left out are {told}")
        return lines

    def reset(self, task: Task) -> str:
        """Start the task's game; returns the opening text.

        Raises:
            BmrlError: its file cannot be read.
        """
        record = task.data if isinstance(task.data, Record) else None
        if self._textworld or record is None:
            raw = official.read(Path(task.data)) if record is None else export.game_data(record)
        self._twin = Twin(official.parse(raw, task.task_id) if record is None else game_from_record(record))
        opening = self._twin.reset()
        self._in_step = True
        if self._textworld:
            self._engine = self._engine or _engine()
            known, opening = opening, self._engine.start(raw)
            self._compare(known, opening)
        return self._shown(opening)

    def step(self, action: str) -> Step:
        """Send one command. The reward is 1 for the step that wins, else 0."""
        twin = self._playing()
        answer = twin.step(action)
        if self._engine is not None:
            known, answer = answer, self._engine.step(action)
            self._compare(known, answer)
        text, won = self._shown(answer), (self._engine or twin).won
        return Step(
            observation=text,
            reward=1.0 if won else 0.0,
            # A lost game is over, too: nothing may be left to put the held object into.
            terminated=won or (self._in_step and plan.lost(twin)),
            won=won,
            admissible=self.admissible,
        )

    def distance(self) -> int | None:
        """Fewest turns to the goal with full knowledge; None where it cannot be reached, or is not known.

        With the engine "textworld" the plain-Python one plays along, to be asked for this. It is unknown
        from the first answer on in which they differ; none such is known.
        """
        twin = self._playing()
        return plan.distance(twin) if self._in_step else None

    def close(self) -> None:
        """Forget the game, and give a native library back."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._twin = self.admissible = None

    def _playing(self) -> Twin:
        if self._twin is None:
            raise RuntimeError("step or distance before reset")
        return self._twin

    def _compare(self, known: str, answer: str) -> None:
        twin, engine = self._playing(), self._engine
        assert engine is not None
        same = (known, twin.admissible, twin.won) == (answer, engine.admissible, engine.won)
        self._in_step = self._in_step and same

    def _shown(self, text: str) -> str:
        """What the agent reads: the engine's text, and the admissible commands if it may see them."""
        self.admissible = (self._engine or self._playing()).admissible
        if not self._show:
            return text
        return f"{text}\nCommands: {', '.join(c for c in self.admissible if c != 'help')}"


def engine_installed() -> bool:
    """Whether ALFWorld's own engine can be imported, found without importing it."""
    return all(find_spec(name) is not None for name in NEEDED)


def _engine() -> "Engine":
    from bmrl.envs.alfworld.engine import Engine

    return Engine()


def _folder(name: str) -> Path:
    if not name.isprintable():
        raise UsageError(f"alfworld source {name!a}: the name is no text on one line; rename the folder")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # nobody of that name has a home
        return Path(name)


def _find_source(source: str) -> _Source:
    told = f"alfworld source {source!r}"
    data = os.environ.get("ALFWORLD_DATA")
    if source == "official":
        if not data:
            raise UsageError(f"{told}: ALFWORLD_DATA is not set; set it to the folder of alfworld-download")
        folder = _folder(data) / OFFICIAL
        if not folder.is_dir():
            raise UsageError(f"{told}: there is no {folder}; run alfworld-download, or correct ALFWORLD_DATA={data}")
        return _Source(folder)
    if source == "auto":
        source = data or "embedded"
        told = f"alfworld source 'auto': ALFWORLD_DATA={source}"
    if source == "embedded":
        return _Source(None)
    folder = _folder(source)
    if not source or not folder.is_dir():
        raise UsageError(f"{told}: no such folder; give 'embedded', 'official' or a folder of games")
    # ALFWorld's download puts its splits one folder further down.
    inner = folder / OFFICIAL
    return _Source(inner if inner.is_dir() else folder)

"""Lists the games of a folder in ALFWorld's own format: ``<folder>/<split>/**/game.tw-pddl``."""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bmrl.envs.alfworld import official
from bmrl.envs.alfworld.game import Game
from bmrl.envs.alfworld.official import COMPILED
from bmrl.envs.alfworld.plan import shortest_plan
from bmrl.envs.alfworld.reference import search_turns
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import Task
from bmrl.errors import BmrlError, UsageError

TRAJECTORY = "traj_data.json"
# Why a game is not played. ALFWorld leaves out the same, and says nothing.
SORT = "with movable receptacles or sliced objects, which ALFWorld leaves out, too"
UNCOMPILED = f"without a compiled game ({COMPILED})"
UNCHECKED = "not said to be solvable"
UNSOLVABLE = "said to be unsolvable"
UNWINNABLE = "that no plan wins, or that are won before they begin"
LINKED = "behind a link to a folder, which is not followed; ALFWorld follows none, too"


@dataclass(frozen=True, slots=True)
class Listing:
    """The games of a split.

    Attributes:
        tasks: every playable game, sorted by its path.
        left_out: ids of the others, by the reason.
        digest: SHA-256 of all files of playable games, with their ids, in order.
        older: whether they were made for a grammar before ALFWorld 0.4.
    """

    tasks: tuple[Task, ...]
    left_out: dict[str, tuple[str, ...]]
    digest: str
    older: bool


@dataclass(frozen=True, slots=True)
class _File:
    """What a listing needs of one file; ``reason`` says why it is not played, or ""."""

    digest: str
    reason: str
    kind: str = ""
    plan: tuple[str, ...] = ()
    put: str = ""
    search_turns: tuple[int | None, ...] = ()


def splits(folder: Path) -> list[str]:
    """Names of the folders that hold a compiled game."""
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = [path.name for path in found if next(path.rglob(COMPILED), None) is not None]
    if odd := [name for name in names if not name.isprintable()]:
        raise UsageError(f"{folder}: a split is called {odd[0]!a}, which is no text on one line; rename it")
    return names


def listing(folder: Path, split: str) -> Listing:
    """All games of a split. Each file is read once per process, and again when it has changed.

    Plans and search references are computed here, some milliseconds a game.

    Raises:
        UsageError: no such split in the folder.
        BmrlError: files that cannot be read, games of several grammars, a game that is there twice, or no game.
    """
    root = folder / split
    if not root.is_dir():
        raise UsageError(f"{root}: no such split; the folder has: {', '.join(splits(folder)) or 'none'}")
    found: dict[str, _File] = {}
    damaged: list[str] = []
    left_out: dict[str, list[str]] = {}
    for task_id, reason in sorted(_folders(root)):
        try:
            if not task_id.isprintable():
                raise BmrlError(f"{task_id!a}: the name is no text on one line; rename it")
            file = _File("", reason) if reason else _read(root, task_id, searched=split != "train")
        except BmrlError as error:
            damaged.append(str(error))
            continue
        if file.reason:
            left_out.setdefault(file.reason, []).append(task_id)
        else:
            found[task_id] = file
    if damaged:
        raise BmrlError(f"{root}: {len(damaged)} unreadable games: {_some(damaged)}; download them again")
    if not found:
        told = "".join(f"; {len(ids):,} {reason}" for reason, ids in left_out.items())
        raise BmrlError(f"{root}: holds no {COMPILED} that can be played{told}")
    _refuse_mixed(root, found)
    _refuse_twice(root, found)
    content = "".join(f"{task_id}\n{file.digest}\n" for task_id, file in found.items())
    return Listing(
        tasks=tuple(_task(task_id, file, root) for task_id, file in found.items()),
        left_out={reason: tuple(ids) for reason, ids in left_out.items()},
        digest=hashlib.sha256(content.encode()).hexdigest(),
        older=any(file.put == official.OLDER for file in found.values()),
    )


def _folders(root: Path) -> list[tuple[str, str]]:
    """(task id, reason not to read it) of every folder that has a game, compiled or not.

    Raises:
        BmrlError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise BmrlError(f"{error.filename}: cannot be read ({error.strerror})") from error

    result = []
    for path, folders, files in os.walk(root, onerror=refuse):
        here = Path(path).relative_to(root)
        compiled = COMPILED in (*folders, *files)  # a folder of that name is told when it is read
        if compiled or TRAJECTORY in files:
            task_id, reason = here.as_posix(), "" if compiled else UNCOMPILED
            result.append((task_id, SORT if "movable" in task_id or "Sliced" in task_id else reason))
        result += [((here / name).as_posix(), LINKED) for name in folders if (Path(path) / name).is_symlink()]
    return result


def _refuse_mixed(root: Path, found: Mapping[str, _File]) -> None:
    older = [task_id for task_id, file in found.items() if file.put == official.OLDER]
    newer = [task_id for task_id, file in found.items() if file.put == official.CURRENT]
    if older and newer:
        few, word = (older, "older") if len(older) <= len(newer) else (newer, "newer")
        raise BmrlError(
            f"{root}: games of two grammars: {len(few):,} of {len(found):,} are {word} "
            f"(`{official.OLDER}` before ALFWorld 0.4, `{official.CURRENT}` since): {_some(few)}; use one download"
        )


def _refuse_twice(root: Path, found: Mapping[str, _File]) -> None:
    first: dict[str, str] = {}
    twice = [f"{i} = {first[f.digest]}" for i, f in found.items() if first.setdefault(f.digest, i) != i]
    if twice:
        raise BmrlError(f"{root}: {len(twice):,} games are there twice: {_some(twice)}; remove one of each")


def _some(names: Sequence[str]) -> str:
    return "; ".join(names[:5]) + (f"; and {len(names) - 5:,} more" if names[5:] else "")


def _task(task_id: str, file: _File, root: Path) -> Task:
    return Task(
        task_id=task_id,
        kind=file.kind,
        plan=file.plan,
        search_turns=file.search_turns,
        data=str(root / task_id / COMPILED),
    )


def _read(root: Path, task_id: str, searched: bool) -> _File:
    path = root / task_id / COMPILED
    try:
        state = path.stat()
    except OSError as error:
        raise BmrlError(f"{path}: cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(state.st_mode):  # to read a pipe would be to wait
        raise BmrlError(f"{path}: is no file")
    return _read_unchanged(path, task_id, searched, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8192)
def _read_unchanged(path: Path, task_id: str, searched: bool, changed_ns: int, size: int) -> _File:
    """What a file says; `changed_ns` and `size` are there to read it again when they differ."""
    content = official.content(path)
    raw = official.decode(content, path)
    digest = hashlib.sha256(content).hexdigest()
    if raw.get("solvable") is False:
        return _File(digest, UNSOLVABLE)
    game = official.parse(official.up_to_date(raw, path), task_id)
    if raw.get("solvable") is not True:
        return _File(digest, UNCHECKED)
    plan = shortest_plan(Twin(game))
    if not plan:
        return _File(digest, UNWINNABLE)
    return _File(
        digest=digest,
        reason="",
        kind=game.goal.kind,
        plan=plan,
        put=official.put_template(raw["grammar"]),
        # Asked for in evaluations only; thousands of training games would take a minute.
        search_turns=_search_turns(game, task_id) if searched else (),
    )


def _search_turns(game: Game, task_id: str) -> tuple[int | None, ...]:
    try:
        return search_turns(game, task_id)
    except BmrlError:  # a sentence written by a person, which the expert cannot read
        return ()

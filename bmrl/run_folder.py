"""The run folder: made whole or not at all, one process at a time, readable line by line."""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bmrl.atomic import (
    disk_errors,
    remove_temporary,
    sync_folder,
    temporary_suffix,
    write_json,
    write_text,
)
from bmrl.errors import BmrlError, UsageError
from bmrl.strict import loads
from bmrl.system import system_info as system_info

FORMAT = 1  # raised when an older bmrl could no longer read the folder
RECIPE, RESOLVED, SYSTEM = "recipe.yaml", "recipe.resolved.json", "system.json"
_CHECKPOINT, _OF_STEP = re.compile(r"step-(\d{6,})"), re.compile(r"step-(\d{6,})\.jsonl?$")
# What may differ between a run and the recipe it is resumed with: none of it changes an episode. The guards only stop
# a run: whether a step is skipped depends on none of them, but on rollout.max_logprob_gap, which is not here.
FREE = {
    "train.max_hours",
    "train.keep_checkpoints",
    "train.checkpoint_every",
    "env.workers",
    "env.timeout_s",
    "tracking",
    "guards",  # of a run that is older than they are
    *(
        f"guards.{key}"
        for key in (
            "nonfinite_steps",
            "gap_steps",
            "min_entropy",
            "max_repeat_share",
            "max_invalid_share",
            "patience",
            "dead_steps",
        )
    ),
}


def create(
    base: Path,
    recipe_text: str,
    resolved: dict[str, Any],
    system: dict[str, Any],
    explicit: Path | None = None,
) -> Path:
    """Make a new run folder with its recipe and a description of the machine.

    Args:
        base: where runs are, usually ``runs``.
        recipe_text: the recipe as the user wrote it.
        resolved: the recipe with every default; its ``name`` names the folder.
        explicit: the folder to make instead of ``base/<name>``.

    Returns:
        The folder: ``explicit``, or ``base/<name>``, numbered ``-2``, ``-3``, ... when taken.

    Raises:
        UsageError: ``explicit`` exists.
        BmrlError: the disk is full or forbidden; nothing is left behind.
    """
    target = explicit or base / str(resolved["name"])
    if explicit is not None:
        refuse_existing(explicit)
    temporary = target.parent / f".{target.name}{temporary_suffix()}"
    try:
        with disk_errors(str(target)):
            write_text(temporary / RECIPE, recipe_text)
            write_json(temporary / RESOLVED, resolved)
            write_json(temporary / SYSTEM, {"run_format": FORMAT, **system})
            folder = _claim(temporary, target, numbered=explicit is None)
            sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def refuse_existing(folder: Path) -> None:
    """Refuses a name for a new run that is taken.

    Raises:
        UsageError: it is.
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists; choose another --run or pass --resume")


def to_resume(base: Path, resolved: dict[str, Any], explicit: Path | None = None) -> Path:
    """The run that a recipe goes on with: ``explicit``, or the newest of the recipe's name in ``base``.

    Args:
        resolved: the recipe with every default.

    Raises:
        UsageError: there is none, or its recipe was another one; a line for each key that differs.
        BmrlError: its files are damaged, or another version of bmrl wrote them.
    """
    name = resolved["name"]
    folder = explicit or _newest(path for path in base.glob(f"{name}*") if _is_named(path, name))
    if folder is None:
        raise UsageError(f"no run of {name!r} in {base}/ to resume; start it without --resume, or name it with --run")
    lines = [
        f"{folder}: {key} is {json.dumps(old)} in the run and {json.dumps(new)} in this recipe; resume with the "
        "recipe and --set that it was started with, or start anew without --resume"
        for key, (old, new) in sorted(_differences(load_resolved(folder), resolved).items())
        if key not in FREE
    ]
    if lines:
        raise UsageError("\n".join(lines))
    return folder


def recipe_differences(a: Path, b: Path) -> list[str]:
    """Keys in which the recipes of two runs differ, apart from their seed, their name and what changes no episode.

    Raises:
        UsageError: one is no run.
        BmrlError: files are damaged, or another version of bmrl wrote them.
    """
    differences = _differences(load_resolved(a), load_resolved(b))
    return sorted(differences.keys() - FREE - {"seed", "name"})


def refuse_other_games(folder: Path, games: Mapping[str, str]) -> None:
    """Refuses to go on with games that are not those the run was started with.

    Args:
        games: split -> hash of its games.

    Raises:
        UsageError: a split has changed, or now comes from another place.
    """
    before = _read_object(folder / SYSTEM).get("games")
    for split, found in games.items():
        if isinstance(before, dict) and before.get(split, found) != found:
            raise UsageError(
                f"{folder}: the games of {split} are not those the run was started with ({before[split][:16]}, now "
                f"{found[:16]}); set ALFWORLD_DATA and the games' folder as they were, or start anew without --resume"
            )


def _is_named(path: Path, name: str) -> bool:
    return is_run(path) and load_resolved(path).get("name") == name


def _differences(a: Any, b: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Key -> both values, for the keys in which two recipes differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = a.keys() | b.keys()
        parts = (_differences(a.get(key), b.get(key), f"{path}.{key}".lstrip(".")) for key in keys)
        return {key: values for part in parts for key, values in part.items()}
    return {} if a == b else {path: (a, b)}


def _claim(temporary: Path, target: Path, *, numbered: bool) -> Path:
    """Rename to the first free name; renaming is what decides between two processes."""
    number = 1
    while True:
        name = target if number == 1 else target.with_name(f"{target.name}-{number}")
        if not os.path.lexists(name):
            try:
                return temporary.rename(name)
            except OSError:
                if not os.path.lexists(name):
                    raise
        if not numbered:
            raise UsageError(f"{target} exists; choose another --run or pass --resume")
        number += 1


def is_run(path: Path) -> bool:
    """Whether the folder was made by ``create``."""
    return (path / RESOLVED).is_file() and (path / SYSTEM).is_file()


def newest(base: Path) -> Path | None:
    """The run in ``base`` that was created last, or None."""
    if not base.is_dir():
        return None
    return _newest(path for path in base.iterdir() if not path.name.startswith(".") and is_run(path))


def _newest(runs: Iterable[Path]) -> Path | None:
    # The resolved recipe is written once, so its time is that of the run's creation.
    return max(runs, key=lambda run: ((run / RESOLVED).stat().st_mtime_ns, run.name), default=None)


def checkpoints(folder: Path) -> dict[int, Path]:
    """Step -> folder of the finished checkpoints in a run's ``checkpoints``; their contents are not verified."""
    if not folder.is_dir():
        return {}
    names = ((path, _CHECKPOINT.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): path for path, match in names if match}


def step_of(path: Path) -> int | None:
    """The step of a checkpoint in a run; None for any other path."""
    path = path.absolute()
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match and path.parent.name == "checkpoints" and is_run(path.parent.parent) else None


def forget_after(folder: Path, step: int) -> None:
    """Removes episodes and evaluations of later steps, which a resumed run plays again."""
    for path in (*(folder / "episodes").glob("step-*"), *(folder / "eval").glob("step-*")):
        if (match := _OF_STEP.match(path.name)) and int(match[1]) > step:
            path.unlink()


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; the lock ends with the process, however it ends.

    What a killed process left half written in the folder is removed.

    Raises:
        BmrlError: another process holds it.
    """
    path = folder / ".lock"
    with disk_errors(str(path)):
        # "a" makes the file when missing and leaves the holder's pid in it otherwise.
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise BmrlError(f"another process (pid {pid}) uses {folder}; wait for it or stop it") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        remove_temporary(folder)
        yield


def load_resolved(folder: Path) -> dict[str, Any]:
    """The resolved recipe of a run.

    Raises:
        UsageError: ``folder`` is no run folder.
        BmrlError: its files are damaged, or another version of bmrl wrote them.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a run folder; name one, usually in runs/")
    system, resolved = _read_object(folder / SYSTEM), _read_object(folder / RESOLVED, "model", "env", "budget")
    if system.get("run_format") != FORMAT:
        raise BmrlError(
            f"{folder}: run format {system.get('run_format')} of bmrl {system.get('bmrl')}, this "
            f"bmrl reads {FORMAT}; use that version or start a new run"
        )
    return resolved


def load_system(folder: Path) -> dict[str, Any]:
    """What is known of the machine of a run, see ``system.system_info``.

    Raises:
        UsageError: ``folder`` is no run folder.
        BmrlError: the file is damaged.
    """
    return _read_object(folder / SYSTEM, "versions", "games")


def backend_of(folder: Path) -> str | None:
    """The backend that a run was started with, if it says so.

    Raises:
        As ``load_system``; BmrlError also for one that is not known.
    """
    found = load_system(folder).get("backend")
    if found not in (None, "transformers", "unsloth"):
        raise BmrlError(f"{folder / SYSTEM}: damaged (unknown backend {found!r}); restore it or start a new run")
    return None if found is None else str(found)


def _read_object(path: Path, *parts: str) -> dict[str, Any]:
    """Of a file; ``parts`` are objects in it, where they are."""
    try:
        value = loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: missing, so {path.parent} is not a run folder; name one, usually in runs/"
        ) from error
    except (OSError, ValueError) as error:
        raise BmrlError(f"{path}: damaged ({_reason(error)}); restore it or start a new run") from error
    if not isinstance(value, dict):
        raise BmrlError(f"{path}: damaged (not a JSON object); restore it or start a new run")
    for part in parts:
        if not isinstance(value.get(part) or {}, dict):
            raise BmrlError(f"{path}: damaged ({part} is no object); restore it or start a new run")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    return f"not JSON: {error}"

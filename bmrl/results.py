"""The two files of an evaluation: its episodes, a line each, and its result. And what is there of one under way."""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bmrl.atomic import append_json, disk_errors, write_json
from bmrl.episodes import episode_line, is_episode, write_lines
from bmrl.errors import BmrlError
from bmrl.strict import is_number, loads
from bmrl.types import Episode


def write(folder: Path, name: str, episodes: Sequence[Episode | Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    """``name.jsonl``, then ``name.json``: where the second stands, both are whole."""
    write_lines(folder / f"{name}.jsonl", episodes)
    write_json(folder / f"{name}.json", answer)


def name_of(answer: Mapping[str, Any], *parts: str | None) -> str:
    """A file name that two evaluations share only if all their settings are equal.

    Args:
        parts: more to be read in it, such as the checkpoint.
    """
    settings = {key: answer[key] for key in ("target", "split_hash", "seeds", "announce", "sampling", "tasks")}
    settings["budgets"] = [point["budget"] for point in answer["budgets"]]
    return "-".join(part for part in (answer["split"], *parts, digest(settings)) if part)


def digest(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that differ where settings do."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Partial:
    """Episodes of an evaluation that is under way, on the disk as they end.

    The file's first line says of which settings they are; each further one what was spent since the one before, and
    the episode that ended then, if any.

    Attributes:
        episodes: (step, group, episode) -> what stands in an episodes file of it.
        costs: what was spent, line by line.
    """

    path: Path
    episodes: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cost: Mapping[str, Any], episode: Episode | None = None) -> None:
        """An episode has ended, or all stops before its end.

        Raises:
            BmrlError: the disk is full.
        """
        line = None if episode is None else episode_line(episode)
        append_json(self.path, {"cost": dict(cost), "episode": line})
        self.costs.append(dict(cost))
        if episode is not None and line is not None:
            self.episodes[episode.step, episode.group, episode.episode] = line


@contextlib.contextmanager
def partial(path: Path, settings: Mapping[str, Any]) -> Iterator[Partial]:
    """Goes on with the episodes in ``path``, or begins them. A file that would hold nothing is not left behind.

    Raises:
        BmrlError: a line is damaged, the settings are others, or another process is at it.
    """
    with disk_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BmrlError(f"another process adds to {path}; wait for it or stop it") from error
        found = Partial(path)
        if not _read(found, settings):
            append_json(path, {"settings": dict(settings)})
        try:
            yield found
        finally:
            if not found.costs:
                path.unlink(missing_ok=True)


def _read(found: Partial, settings: Mapping[str, Any]) -> bool:
    """Takes in what the file holds; whether it holds anything. Half a line at its end, left by a kill, is nothing."""
    lines = found.path.read_bytes().split(b"\n")[:-1]
    for number, text in enumerate(lines, start=1):
        try:
            line = loads(text)
            if number == 1:
                known = line["settings"]
                continue
            cost, episode = line["cost"], line["episode"]
            if not all(map(is_number, cost.values())) or not (episode is None or is_episode(episode)):
                raise ValueError("neither a cost nor an episode")
            found.costs.append(cost)
            if episode is not None:
                found.episodes[episode["step"], episode["group"], episode["episode"]] = episode
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "remove the line to play its episode again" if number > 1 else "remove the file to play all again"
            raise BmrlError(f"{found.path}:{number}: damaged; {hint}") from error
    if lines and known != json.loads(json.dumps(settings)):
        raise BmrlError(f"{found.path}: of other settings than those asked for; move it elsewhere")
    return bool(lines)

"""The episodes that a report shows: which, how far each turn was from the goal, and packed for a page."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bmrl.envs import make
from bmrl.envs.base import Env, Task
from bmrl.envs.replay import Fault, reset, step
from bmrl.episodes import read_episodes
from bmrl.report.read import Source

TEXT = 8_000  # most characters of one text; the rest is counted
REPLAY_S = 120.0  # longest time for distances, all runs together


@dataclass(slots=True)
class Packed:
    """Episodes as lists, each text once; ``page.js`` reads them.

    Attributes:
        texts: what the others name by their place in it.
        runs: names.
        episodes: (run, training step or None, evaluation or None, task, budget, end reason, seed, final
            observation, error, distance at the start, turns); a turn is (observation, action, valid, reward,
            log-probability, tokens, distance after it). Unknown numbers are None.
        total: episodes that the runs have.
        replayed: episodes whose distances are known.
    """

    texts: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    episodes: list[list[Any]] = field(default_factory=list)
    total: int = 0
    replayed: int = 0

    def data(self) -> dict[str, Any]:
        """What goes into the page."""
        return {"texts": self.texts, "runs": self.runs, "episodes": self.episodes}


def pack(sources: Sequence[Source], limit: int) -> Packed:
    """Episodes of the first and last evaluation, and of training steps spread evenly, ``limit`` in all at most."""
    packed, known = Packed(), dict[str, int]()
    deadline = time.monotonic() + REPLAY_S

    def text(value: object) -> int:
        shown = str(value)
        shown = shown if len(shown) <= TEXT else f"{shown[:TEXT]} … ({len(shown) - TEXT:,} characters more)"
        if shown not in known:
            known[shown] = len(packed.texts)
            packed.texts.append(shown)
        return known[shown]

    for number, source in enumerate(sources):
        packed.runs.append(source.name)
        distances = Distances(source, deadline)
        share = limit // len(sources)
        for evaluation, path, most in _files(source, share):
            episodes = read_episodes(path)
            packed.total += len(episodes)
            for episode in episodes[:most]:
                known_distances = distances.of(episode)
                packed.replayed += known_distances is not None
                packed.episodes.append(_line(number, evaluation, episode, known_distances, text))
        distances.close()
    return packed


def _files(source: Source, limit: int) -> Iterator[tuple[str | None, Path, int]]:
    """Evaluation or None, file, and how many of its episodes to show; every file comes, be it with 0."""
    chosen = source.found[-1:] if len(source.found) < 2 else [source.found[-1], source.found[0]]
    left = limit
    for one in chosen:
        path = one.path.with_suffix(".jsonl")
        if path.is_file():
            most = min(_lines(path), left // 2 if one is not chosen[-1] else left)
            left -= most
            of = "evaluation" if one.step is None else f"evaluation, step {one.step}"
            yield of, path, most
    training = sorted((source.folder / "episodes").glob("step-*.jsonl"))
    # Fewer episodes than steps: one of every so many steps. Else as many of each, whole groups first.
    every = max(1, -(-len(training) // max(left, 1)))
    steps = training[::every]
    sizes = {path: _lines(path) for path in training}
    each = left // len(steps) if steps else 0
    spare = left - sum(min(each, sizes[path]) for path in steps)
    for path in training:
        most = min(each, sizes[path]) if path in steps else 0
        more = min(spare, sizes[path] - most) if path in steps else 0
        spare -= more
        yield None, path, most + more


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _line(
    run: int,
    evaluation: str | None,
    episode: Mapping[str, Any],
    distances: Sequence[int | None] | None,
    text: Any,
) -> list[Any]:
    turns = [
        [
            text(turn["observation"]),
            text(turn["action"]),
            int(bool(turn["valid"])),
            turn.get("reward") or 0,
            turn.get("logprob"),
            turn.get("action_tokens") or 0,
            None if distances is None else distances[at + 1],
        ]
        for at, turn in enumerate(episode["turns"])
    ]
    return [
        run,
        None if evaluation else int(episode["step"]),
        None if evaluation is None else text(evaluation),
        text(episode["task_id"]),
        episode["budget"],
        text(episode["end_reason"]),
        episode["seed"],
        text(episode.get("final_observation") or ""),
        text(episode.get("error") or ""),
        None if distances is None else distances[0],
        turns,
    ]


class Distances:
    """Fewest turns to the goal before and after each turn of an episode, found by playing it again.

    None where it cannot be had: the environment is not here or knows none, plays otherwise than it did, or the
    time is over. Equal beginnings of episodes of one task are played once.
    """

    def __init__(self, source: Source, deadline: float) -> None:
        self._deadline = deadline
        self._tasks: dict[str, dict[str, Task]] = {}
        self._games = source.system.get("games") or {}
        self._seen: dict[tuple[str, str, tuple[str, ...]], list[int | None] | None] = {}
        self._env: Env | None = None
        env = source.recipe.get("env") or {}
        try:
            self._env = make(str(env["name"]), **env.get("args", {}))
        except Exception:  # a report is no place to mend an environment
            self._env = None

    def of(self, episode: Mapping[str, Any]) -> list[int | None] | None:
        """One more than the episode has turns, or None."""
        if self._env is None or time.monotonic() > self._deadline:
            return None
        try:
            task = self._of_split(str(episode["split"])).get(episode["task_id"])
            key = (str(episode["split"]), episode["task_id"], tuple(turn["action"] for turn in episode["turns"]))
            if task is not None and key not in self._seen:
                self._seen[key] = self._played(task, episode)
            return None if task is None else self._seen[key]
        except Exception:  # whatever an environment does, the report goes on without it
            self.close()
            return None

    def close(self) -> None:
        """Gives the environment back."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _of_split(self, split: str) -> dict[str, Task]:
        assert self._env is not None
        if split not in self._tasks:
            changed = split in self._games and self._games[split] != self._env.split_hash(split)
            self._tasks[split] = {} if changed else {task.task_id: task for task in self._env.tasks(split)}
        return self._tasks[split]

    def _played(self, task: Task, episode: Mapping[str, Any]) -> list[int | None] | None:
        assert self._env is not None
        turns = episode["turns"]
        after = [*(turn["observation"] for turn in turns[1:]), None]
        answer, distances = reset(self._env, task), list[int | None]()
        for turn, seen in zip(turns, after, strict=True):
            if isinstance(answer, Fault) or time.monotonic() > self._deadline:
                return None
            distances.append(self._env.distance())
            answer = step(self._env, turn["action"])
            if isinstance(answer, Fault) or (seen is not None and answer.observation != seen):
                return None  # a fault then, or other games now
        if isinstance(answer, Fault):
            return None
        distances.append(0 if answer.won else self._env.distance())
        return distances if any(one is not None for one in distances) else None

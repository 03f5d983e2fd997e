"""Finished evaluations, read back from their files and found by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bmrl import run_folder
from bmrl.episodes import read_episodes
from bmrl.errors import BmrlError, UsageError
from bmrl.strict import is_number, loads

FORMAT = 1  # raised when an older bmrl could no longer read an evaluation; the first ones carry no number
AGAIN = "evaluate again"
_KINDS = {
    "target": str,
    "checkpoint": str | int | None,
    "split": str,
    "split_hash": str,
    "announce": str,
    "seeds": list,
    "sampling": dict,
    "tasks": int,
    "errors": int,
    "budgets": list,
}
_NUMBERS = ("budget", "success", "low", "high")  # of a budget
_UNKNOWN = ("ceiling", "search_reference", "context")  # numbers as well, or None, or not there


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        path: of its ``.json``; the episodes stand beside it in the ``.jsonl`` of the same name.
        head: what ``bmrl eval --json`` printed.
    """

    path: Path
    head: Mapping[str, Any]

    @property
    def step(self) -> int | None:
        """The training step of its policy; None if that has none."""
        name = str(self.head.get("checkpoint")).removeprefix("step-")
        return int(name) if name.isascii() and name.isdecimal() else None

    @property
    def budgets(self) -> list[int]:
        """Turns, ascending."""
        return sorted(row["budget"] for row in self.head["budgets"])

    def episodes(self) -> list[dict[str, Any]]:
        """Its episodes: each task once per seed, and per budget where the agent was told.

        Raises:
            BmrlError: a line is damaged, an episode is missing, twice, or not of this evaluation; with file and line.
        """
        path = self.path.with_suffix(".jsonl")
        episodes = read_episodes(path)
        told = self.head["announce"] != "none"
        lines: dict[tuple[str, int, int], int] = {}
        for number, episode in enumerate(episodes, start=1):
            task_id, seed, budget = episode["task_id"], episode["seed"], episode["budget"]
            named = f"{task_id} with seed {seed} and {budget} turns"
            expected = budget in self.budgets if told else budget >= max(self.budgets)
            if seed not in self.head["seeds"] or not expected:
                raise BmrlError(f"{path}:{number}: {named} is not of {self.path.name}; {AGAIN}")
            key = (task_id, seed, budget if told else 0)
            if key in lines:
                raise BmrlError(f"{path}:{number}: {named} stands in line {lines[key]}, too; {AGAIN}")
            lines[key] = number
        task_ids = dict.fromkeys(task_id for task_id, _, _ in lines)
        plays = list(product(self.head["seeds"], self.budgets if told else [0]))
        total = self.head["tasks"] * len(plays)
        if len(lines) != total:
            missing = [(task_id, *play) for task_id in task_ids for play in plays if (task_id, *play) not in lines]
            named = f", {missing[0][0]} with seed {missing[0][1]} is missing" if missing else ""
            raise BmrlError(f"{path}:{len(episodes)}: ends after {len(lines)} of {total} episodes{named}; {AGAIN}")
        return episodes


def read(path: Path) -> Evaluation:
    """An evaluation by one of its two files; its episodes are not looked at.

    Raises:
        UsageError: there is none, or it is not finished.
        BmrlError: it is damaged, or another version of bmrl wrote it.
    """
    path = path.with_suffix(".json")
    if not path.is_file():
        if path.with_suffix(".jsonl").is_file():
            raise UsageError(f"{path}: missing, so the evaluation is not finished; run the same bmrl eval again")
        raise UsageError(f"{path}: no such file; bmrl eval --out DIR writes evaluations")
    try:
        head = loads(path.read_bytes())
        written = head.get("format", FORMAT)
        sound = all(isinstance(head[key], kind) for key, kind in _KINDS.items()) and is_number(head["area"])
        sound = sound and bool(head["seeds"]) and all(type(seed) is int for seed in head["seeds"])
        rows = head["budgets"]
        sound = sound and bool(rows) and all(type(row["budget"]) is int and row["budget"] > 0 for row in rows)
        sound = sound and all(is_number(row[key]) for row in rows for key in _NUMBERS)
        sound = sound and all(row.get(key) is None or is_number(row[key]) for row in rows for key in _UNKNOWN)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        written, sound = FORMAT, False
    if written != FORMAT:
        raise BmrlError(f"{path}: format {written}, this bmrl reads {FORMAT}; use the bmrl that wrote it, or {AGAIN}")
    if not sound:
        raise BmrlError(f"{path}: damaged, not an evaluation; remove it and {AGAIN}")
    return Evaluation(path, head)


def of_run(run: Path) -> list[Evaluation]:
    """The evaluations in a run folder, newest first: by the step of the policy, then by when they were made.

    Raises:
        UsageError: it is no run.
        BmrlError: one is damaged, or another version of bmrl wrote it or the run.
    """
    run_folder.load_resolved(run)
    found = [read(path) for path in (run / "eval").glob("*.json")]

    def age(evaluation: Evaluation) -> tuple[int, int, str]:
        step = -1 if evaluation.step is None else evaluation.step
        return step, evaluation.path.stat().st_mtime_ns, evaluation.path.name

    return sorted(found, key=age, reverse=True)


def named(text: str) -> list[Evaluation]:
    """What a name on the command line may mean, the likeliest first.

    Args:
        text: a result file, a run folder (all of its evaluations, newest first), or ``RUN@STEP``, ``RUN@best`` (those
            of one step; best is the largest area under the curves that the run measured while training).

    Raises:
        UsageError: it means nothing.
        BmrlError: files are damaged, or another version of bmrl wrote them.
    """
    path = Path(text)
    if path.suffix in (".json", ".jsonl"):
        return [read(path)]
    run, at, which = text.rpartition("@")
    if path.is_dir() or not (at and Path(run).is_dir()):
        run, which = text, ""
    if not Path(run).is_dir():
        raise UsageError(
            f"{text}: no evaluation; give a result file (bmrl eval --out DIR writes one), a run folder, or RUN@STEP"
        )
    found = of_run(Path(run))
    if not found:
        raise UsageError(f"{run}: no evaluation in this run; run: bmrl eval {run}")
    if not which:
        return found
    measured = {e.step: e.head["area"] for e in found if e.path.name.startswith("step-") and e.step is not None}
    best = max(measured, key=lambda step: (measured[step], step), default=None)
    step = best if which == "best" else int(which) if which.isascii() and which.isdecimal() else None
    chosen = [evaluation for evaluation in found if evaluation.step == step and step is not None]
    if not chosen:
        steps = ", ".join(str(step) for step in sorted({e.step for e in found if e.step is not None}))
        raise UsageError(f"{text}: {run} has evaluations of the steps {steps or 'of no checkpoint'}; also RUN@best")
    return chosen

"""What the files of a run hold, as far as a report shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bmrl import compare
from bmrl.episodes import read_episodes
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluations import read as read_evaluation
from bmrl.metrics import MetricsFile
from bmrl.run_folder import is_run, load_resolved, load_system


class Evaluation(NamedTuple):
    """A measured curve.

    Attributes:
        step: of the policy it is of; None when its target had no steps.
        result: the object of its file, see ``evaluate.result``.
        path: of that file; its episodes lie beside it.
    """

    step: int | None
    result: dict[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class Source:
    """One run.

    Attributes:
        name: what the report calls it.
        recipe: resolved, see ``recipe.resolved``.
        system: hardware and versions, see ``system.system_info``.
        found: evaluations that may share a plot, in order of their steps.
        others: every further evaluation of the run.
        metrics: a record for each training step.
        gains: the last of ``found`` compared with the first, see ``compare.compare``; None without two.
        diagnosis: what ``bmrl diagnose`` found out; None where it was not run.
    """

    folder: Path
    name: str
    recipe: dict[str, Any]
    system: dict[str, Any]
    found: list[Evaluation]
    others: list[Evaluation]
    metrics: list[dict[str, float | None]]
    gains: dict[str, Any] | None
    diagnosis: dict[str, Any] | None = None


def read(runs: Sequence[Path]) -> list[Source]:
    """All that a report needs of runs, episodes aside. Several are called by their folders, not their recipes.

    Raises:
        UsageError: one is not a run.
        BmrlError: one neither trained nor was evaluated, or its files are damaged.
    """
    sources = [_read(run) for run in runs]
    if len(sources) == 1:
        return sources
    folders = [source.folder.resolve() for source in sources]
    short = len({folder.name for folder in folders}) == len(folders)
    names = [folder.name if short else f"{folder.parent.parent.name}/{folder.name}" for folder in folders]
    return [replace(source, name=name) for source, name in zip(sources, names, strict=True)]


def _read(run: Path) -> Source:
    if not is_run(run):
        raise UsageError(f"{run} is not a run folder; name one, usually in runs/")
    recipe, system = load_resolved(run), load_system(run)
    found, metrics = evaluations(run), MetricsFile(run / "metrics.jsonl").read()
    if not found and not metrics:
        raise BmrlError(f"{run}: no evaluation to plot; run: bmrl eval {run}")
    known = {evaluation.path for evaluation in found}
    others = [_evaluation(path) for path in sorted((run / "eval").glob("*.json")) if path not in known]
    return Source(
        folder=run,
        name=str(recipe.get("name", run.name)),
        recipe=recipe,
        system=system,
        found=found,
        others=others,
        metrics=metrics,
        gains=_gains(found),
    )


def evaluations(run: Path) -> list[Evaluation]:
    """The evaluations made while training, in order of their steps; without any, the newest made by hand.

    Whatever was measured otherwise than the last of them is left out: two curves of one plot must be comparable.
    """
    folder = run / "eval"
    paths = sorted(folder.glob("step-*.json"))
    if not paths:
        paths = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    found = [_evaluation(path) for path in paths]
    if found:
        found = [one for one in found if _measured(one.result) == _measured(found[-1].result)]
    return sorted(found, key=lambda one: -1 if one.step is None else one.step)


def _gains(found: list[Evaluation]) -> dict[str, Any] | None:
    paths = [one.path for one in (found[0], found[-1])] if len(found) > 1 else []
    if not paths or not all(path.with_suffix(".jsonl").is_file() for path in paths):
        return None
    before, after = (
        compare.Side(name, [read_evaluation(path)], [read_episodes(path.with_suffix(".jsonl"))])
        for name, path in zip("AB", paths, strict=True)
    )
    return compare.compare(before, after)


def _measured(result: Mapping[str, Any]) -> tuple[object, ...]:
    settings = [result.get(key) for key in ("split", "split_hash", "sampling", "announce", "tasks", "seeds")]
    return (*settings, [row["budget"] for row in result["budgets"]])


def _evaluation(path: Path) -> Evaluation:
    found = read_evaluation(path)
    return Evaluation(found.step, dict(found.head), path)

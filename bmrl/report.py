"""Plots of a run, from its files alone."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bmrl import compare
from bmrl.atomic import write_bytes
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluations import read
from bmrl.metrics import MetricsFile
from bmrl.run_folder import is_run, load_resolved

# Okabe and Ito's colours, told apart by every kind of colour vision; lines differ in marker and
# dash as well, for black and white.
BEFORE, AFTER, CEILING, SEARCH = "#0072B2", "#D55E00", "#000000", "#009E73"
KEYS = {"target", "split", "seeds", "announce", "tasks", "area"}  # what is read of an evaluation's head
# An evaluation with the step of the policy it is of; None when its target had no steps.
Evaluation = tuple[int | None, dict[str, Any]]


def write(runs: list[Path]) -> list[Path]:
    """Draw ``plots/*.png`` in each run folder; the same files give the same bytes.

    Returns:
        The plots, in the order of the runs.

    Raises:
        UsageError: a folder is not a run.
        BmrlError: a run was never evaluated, or its files are damaged; nothing is drawn then.
    """
    drawings: list[tuple[Path, Callable[[Any], None]]] = []
    for run in runs:
        if not is_run(run):
            raise UsageError(f"{run} is not a run folder; name one, usually in runs/")
        name = str(load_resolved(run)["name"])
        found = evaluations(run)
        if not found:
            raise BmrlError(f"{run}: no evaluation to plot; run: bmrl eval {run}")
        drawings.append((run / "plots" / "success_over_budgets.png", _budgets_plot(name, found)))
        steps = [r for r in MetricsFile(run / "metrics.jsonl").read() if r.get("success") is not None]
        if steps:
            path = run / "plots" / "success_over_training.png"
            drawings.append((path, _training_plot(name, found, steps)))
    for path, draw in drawings:
        write_bytes(path, _png(draw))
    return [path for path, _ in drawings]


def progress(run: Path) -> str | None:
    """Success before and after training and the paired gain, as a table; None with fewer than two evaluations.

    Raises:
        BmrlError: an evaluation is damaged.
    """
    steps = sorted((run / "eval").glob("step-*.json"))
    if len(steps) < 2:
        return None
    ends = compare.choose([[read(steps[0])], [read(steps[-1])]], [False, False])
    before, after = (compare.load(name, [found]) for name, found in zip("AB", ends, strict=True))
    return compare.table(compare.compare(before, after))


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
        found = [pair for pair in found if _measured(pair[1]) == _measured(found[-1][1])]
    return sorted(found, key=lambda pair: -1 if pair[0] is None else pair[0])


def _measured(result: Mapping[str, Any]) -> tuple[object, ...]:
    settings = [result[key] for key in ("split", "announce", "tasks", "seeds")]
    return (*settings, [row["budget"] for row in result["budgets"]])


def _evaluation(path: Path) -> Evaluation:
    try:
        result = json.loads(path.read_bytes())
        checkpoint = result["checkpoint"]
        step = None if checkpoint is None else int(str(checkpoint).removeprefix("step-"))
        rows = [row[key] for row in result["budgets"] for key in ("budget", "success", "low", "high")]
        known = [row[key] for row in result["budgets"] for key in ("ceiling", "search_reference")]
        sound = bool(rows) and all(isinstance(value, int | float) for value in rows)
        sound = sound and all(value is None or isinstance(value, int | float) for value in known)
        sound = sound and result.keys() >= KEYS and isinstance(result["seeds"], list)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise BmrlError(f"{path}: damaged, not an evaluation; remove it and evaluate again")
    return step, result


def _budgets_plot(name: str, found: Sequence[Evaluation]) -> Callable[[Any], None]:
    """Success over budgets: first and last evaluation, and what is possible."""

    def draw(axes: Any) -> None:
        last = found[-1][1]
        ends = found[-1:] if len(found) == 1 else (found[0], found[-1])
        styles = ((AFTER, "s"),) if len(ends) == 1 else ((BEFORE, "o"), (AFTER, "s"))
        for (step, result), (colour, marker) in zip(ends, styles, strict=True):
            _curve(axes, result, _of_step(step), colour, marker)
        _dashed(axes, last, "ceiling", "ceiling: shortest plan fits", CEILING, "--")
        _dashed(axes, last, "search_reference", "exploring expert", SEARCH, "-.")
        budgets = sorted({row["budget"] for _, result in ends for row in result["budgets"]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, labels=[str(budget) for budget in budgets])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("budget (turns)")
        axes.set_title(f"{name}: success over budgets\n{last['split']}, {last['tasks']} tasks")

    return draw


def _of_step(step: int | None) -> str:
    if step is None:
        return "success"
    return "before training" if step == 0 else f"after step {step}"


def _curve(axes: Any, result: Mapping[str, Any], label: str, colour: str, marker: str) -> None:
    rows = result["budgets"]
    axes.errorbar(
        [row["budget"] for row in rows],
        [row["success"] for row in rows],
        # Differences below 0 could only be rounding errors, which matplotlib refuses.
        yerr=[
            [max(0.0, row["success"] - row["low"]) for row in rows],
            [max(0.0, row["high"] - row["success"]) for row in rows],
        ],
        label=f"{label} (95 % interval)",
        color=colour,
        marker=marker,
        capsize=3,
    )


def _dashed(axes: Any, result: Mapping[str, Any], key: str, label: str, colour: str, line: str) -> None:
    rows = [row for row in result["budgets"] if row.get(key) is not None]
    if rows:
        budgets, shares = [row["budget"] for row in rows], [row[key] for row in rows]
        axes.plot(budgets, shares, line, color=colour, label=label, linewidth=1.2)


def _training_plot(
    name: str, found: Sequence[Evaluation], steps: Sequence[Mapping[str, float | None]]
) -> Callable[[Any], None]:
    """Success of the training episodes, and the mean over budgets of the evaluations."""

    def draw(axes: Any) -> None:
        numbers, success = [r["step"] for r in steps], [r["success"] for r in steps]
        label = "training episodes, budgets as drawn"
        axes.plot(numbers, success, ".-", color=BEFORE, label=label, linewidth=0.8)
        places = [(step, result["area"]) for step, result in found if step is not None]
        if places:
            at, areas = zip(*places, strict=True)
            label = f"evaluation on {found[-1][1]['split']}, area over budgets"
            axes.plot(at, areas, "s-", color=AFTER, label=label)
        axes.set_xlabel("training step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"{name}: success over training")

    return draw


def _png(draw: Callable[[Any], None]) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change a report
        figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        draw(axes)
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel("success (share of episodes)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

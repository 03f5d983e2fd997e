"""Charts of what ``bmrl diagnose`` found out; docs/diagnosis.md says what each figure means."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bmrl.errors import BmrlError
from bmrl.report.charts import Chart, budget_axis, interval_bars, percent, points, points_axis, share_axis
from bmrl.report.figure import COLOURS, DASHES, INK, MARKERS
from bmrl.strict import loads

FORMAT = 1  # of the files that this reads
PARTS = {
    "recovery": "Recovery after forced errors",
    "step_quality": "Step quality by turn",
    "plan_length": "Success by plan length",
    "single_step": "Single decisions on track",
    "decomposition": "What the gain goes with",
}
Row = Mapping[str, Any]


def charts(run: Path) -> list[Chart]:
    """Those of the run's newest diagnosis; a chart without a drawing where there is nothing to draw.

    Raises:
        BmrlError: the file is damaged, or of another version.
    """
    paths = sorted((run / "diagnosis").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not paths:
        note = f"Not measured for this run. To measure: bmrl diagnose runs/{run.resolve().name}"
        return [Chart(name, title, note) for name, title in PARTS.items()]
    path = paths[-1]
    again = "remove it and run bmrl diagnose again"
    try:
        found = loads(path.read_bytes())
        version = found["diagnosis_format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BmrlError(f"{path}: damaged, not a diagnosis; {again}") from error
    if version != FORMAT:
        raise BmrlError(f"{path}: diagnosis format {version}, this bmrl reads {FORMAT}; {again}")
    try:
        names = {side: _name(found[side]) for side in ("a", "b")}
        about = f"{names['a']} against {names['b']}, {found['tasks']} tasks of {found['split']}."
        made = [
            _recovery(found["recovery"], names, about),
            _step_quality(found["resilience"], names, about),
            _plan_length(found["resilience"], names, about),
            _single_step(found["single_step"], names, about),
            _decomposition(found["decomposition"], about),
        ]
        lacking = " ".join(str(line) for line in found["missing"]) or "There was nothing to count."
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BmrlError(f"{path}: damaged, not a whole diagnosis; {again}") from error
    return [
        chart or Chart(name, title, f"Not in this diagnosis. {lacking}")
        for chart, (name, title) in zip(made, PARTS.items(), strict=True)
    ]


def _name(side: Row) -> str:
    return f"{side['name']} {side['checkpoint'] or ''}".strip()


def _recovery(part: Row | None, names: Mapping[str, str], about: str) -> Chart | None:
    rows = (part or {}).get("forced") or []
    budgets = [row["budget"] for row in rows]
    rows = [row for row in rows if row["budget"] == max(budgets)]
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for side, name in names.items():
            of_mode = [(row["k"], row["ratio"][side]) for row in rows if row["mode"] == mode]
            lines.append((f"{name}, {mode}", mode, side, _known(of_mode)))
    if not any(values for *_, values in lines):
        return None
    forced = sorted({k for *_, values in lines for k, _ in values})

    def draw(axes: Any) -> None:
        axes.axhline(1, color=INK, linewidth=0.8)
        for label, mode, side, values in lines:
            place = int(side == "a")
            style = {"color": COLOURS[place], "marker": MARKERS[place + 2 * (mode == "harmful")]}
            at = [forced.index(k) + _beside(side) for k, _ in values]
            interval_bars(axes, at, [v for _, v in values], label=label, linestyle=DASHES[mode == "harmful"], **style)
        axes.set_xticks(range(len(forced)), labels=[str(k) for k in forced])
        axes.set_xlabel("actions forced")
        axes.set_ylabel("success / undisturbed")  # longer ones are cut off
        axes.set_ylim(bottom=0)

    rate = [f"{name} {percent(part['rate'][side]['value'])}" for side, name in names.items()] if part else []
    return Chart(
        "recovery",
        PARTS["recovery"],
        f"{about} Success after so many forced actions over that of the undisturbed twin, both with the same turns "
        f"left; 1 is full recovery. Next action after an error is none: {', '.join(rate)}.",
        draw,
        _table(("k", *(label for label, *_ in lines)), forced, [dict(values) for *_, values in lines], _ratio),
    )


def _step_quality(part: Row | None, names: Mapping[str, str], about: str) -> Chart | None:
    rows = (part or {}).get("by_turn") or []
    return _sides(
        "step_quality",
        f"{about} Share of errors (invalid, ineffective, redundant or regressing actions) among the actions of the "
        "episodes still going. Lower is better.",
        [(_range(row["turns"]), row) for row in rows],
        names,
        x="turn",
        y="errors",
    )


def _plan_length(part: Row | None, names: Mapping[str, str], about: str) -> Chart | None:
    rows = (part or {}).get("by_plan_length") or []
    slacks = sorted({row["slack"] for row in rows})
    slack = slacks[len(slacks) // 2] if slacks else 0
    return _sides(
        "plan_length",
        f"{about} Success within {slack:g} times as many turns as the shortest plan has: long tasks are not harder "
        "for want of turns here.",
        [(_range(row["lengths"]), row) for row in rows if row["slack"] == slack],
        names,
        x="turns of the shortest plan",
        y="success",
    )


def _single_step(part: Row | None, names: Mapping[str, str], about: str) -> Chart | None:
    rows = (part or {}).get("on_track") or []
    return _sides(
        "single_step",
        f"{about} Probability of each kind of action on the same states before any error. Error sums the kinds that "
        "are errors.",
        [(row["kind"], row["mass"]) for row in rows if row["source"] == "all"],
        names,
        x="kind of action",
        y="probability",
        joined=False,
    )


def _decomposition(rows: Sequence[Row] | None, about: str) -> Chart | None:
    parts = ("decisions", "recovery", "survival")
    known = {part: _known([(row["budget"], row[part]) for row in rows or []]) for part in parts}
    if not any(known.values()):
        return None

    def draw(axes: Any) -> None:
        budget_axis(axes, [budget for values in known.values() for budget, _ in values])
        axes.axhline(0, color=INK, linewidth=0.8)
        drawn = []
        for n, (part, values) in enumerate(known.items()):
            at = [budget * (1 + 0.03 * (n - 1)) for budget, _ in values]
            bars = [(100 * value, 100 * low, 100 * high) for _, (value, low, high) in values]
            drawn += bars
            style = {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": DASHES[n]}
            interval_bars(axes, at, bars, label=part, **style)
        points_axis(axes, max(1.0, *(abs(x) for value in drawn for x in value)))

    budgets = sorted({budget for values in known.values() for budget, _ in values})
    return Chart(
        "decomposition",
        PARTS["decomposition"],
        f"{about} The gain at each budget as the sum of better decisions up to the first error, recovery from it, and "
        "what follows. It says which phase the gain goes with, not what changed inside the model.",
        draw,
        _table(("budget", *parts), budgets, [dict(known[part]) for part in parts], points),
    )


def _sides(
    name: str,
    note: str,
    rows: Sequence[tuple[str, Row]],
    names: Mapping[str, str],
    *,
    x: str,
    y: str,
    joined: bool = True,
) -> Chart | None:
    """Shares of both policies, side by side."""
    labels = [label for label, _ in rows]
    known = {side: _known([(at, pair[side]) for at, (_, pair) in enumerate(rows)]) for side in ("b", "a")}
    if not any(known.values()):
        return None

    def draw(axes: Any) -> None:
        for side, values in known.items():
            place = int(side == "a")
            interval_bars(
                axes,
                [at + _beside(side) for at, _ in values],
                [value for _, value in values],
                label=names[side],
                color=COLOURS[place],
                marker=MARKERS[place],
                linestyle=DASHES[1 - place] if joined else "none",
            )
        turned = 25 if max(map(len, labels)) > 6 else 0
        axes.set_xticks(range(len(labels)), labels=labels, rotation=turned, ha="right" if turned else "center")
        axes.set_xlabel(x)
        share_axis(axes, y)

    columns = [dict(known[side]) for side in ("a", "b")]
    table = _table((x, names["a"], names["b"]), range(len(labels)), columns, percent)
    named = [(labels[at], *row[1:]) for at, row in enumerate(table[1:])]
    return Chart(name, PARTS[name], note, draw, (table[0], *named))


def _beside(side: str) -> float:
    return 0.06 if side == "a" else -0.06  # intervals must not hide each other


def _known(values: Sequence[tuple[int, Row]]) -> list[tuple[int, tuple[float, float, float]]]:
    """Figures as (value, low, high), without those there was nothing to count for; nan where there is no interval."""
    found = []
    for at, figure in values:
        if figure["value"] is not None:
            low, high = (math.nan if figure[end] is None else float(figure[end]) for end in ("low", "high"))
            found.append((at, (float(figure["value"]), low, high)))
    return found


def _table(head: Sequence[str], places: Sequence[int], columns: Sequence[Mapping[int, Any]], say: Any) -> Any:
    def cell(column: Mapping[int, Any], place: int) -> str:
        if place not in column:
            return "–"
        value, low, high = column[place]
        if math.isnan(low) or math.isnan(high):
            return f"{say(value)} (no interval)"
        return f"{say(value)} ({say(low)} to {say(high)})"

    return (tuple(head), *((str(place), *(cell(column, place) for column in columns)) for place in places))


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _range(bounds: Sequence[int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low}–{high}"

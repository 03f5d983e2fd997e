"""A diagnosis for the terminal: plain text, at most 80 columns."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def tables(result: Mapping[str, Any]) -> str:
    """All parts of a result, those that are missing told at the end."""
    head = (
        f"A = {_called(result['a'])}, B = {_called(result['b'])}: {result['env']}, {result['split']}, "
        f"{result['tasks']} tasks, seeds {', '.join(map(str, result['seeds']))}, announce {result['announce']}, "
        f"temperature {result['temperature']:g}. Shares in %, 95 % intervals in brackets; n: tasks."
    )
    parts = [
        textwrap.fill(head, 80),
        _table("success over budgets", "budget", ((r["budget"], r) for r in result["curve"])),
        *_single(result),
        *_recovery(result),
        *_resilience(result),
        *_decomposition(result),
        "\n".join(textwrap.fill(f"missing: {line}", 80, subsequent_indent="  ") for line in result["missing"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _called(player: Mapping[str, Any]) -> str:
    return f"{player['name']} ({player['checkpoint']})" if player["checkpoint"] else str(player["name"])


def _single(result: Mapping[str, Any]) -> list[str]:
    single = result["single_step"]
    if single is None:
        return []
    ways = ", ".join(f"{name.upper()} {way}" for name, way in single["mass"].items())
    states = single["bank"]["on_track"]
    found = []
    for name, title in (("mass", f"probability ({ways})"), ("greedy", "greedy choice")):
        rows = [(r["kind"], r[name]) for r in single["on_track"] if r["source"] == "all" and _chosen(r[name])]
        found.append(_table(f"single-step decisions, {states} on-track states: {title}", "kind", rows))
    return found


def _chosen(row: Mapping[str, Any]) -> bool:
    """Whether anybody ever chose it."""
    return bool(row["a"]["value"] or row["b"]["value"])


def _recovery(result: Mapping[str, Any]) -> list[str]:
    recovery = result["recovery"]
    rows = [("next action no error, after-error bank", recovery["rate"])]
    if recovery["natural"]:
        rows += [
            ("next action no error, after 1st idle one", recovery["natural"]["next"]),
            ("solved, of those with an idle action", recovery["natural"]["success"]),
        ]
    rows += [("turns in a loop", recovery["loop"]), ("turns that repeat an action", recovery["repeated"])]
    found = [_table("recovery", "", [(name, row) for name, row in rows if row])]
    most = max(result["budgets"])
    forced = [r for r in recovery["forced"] or () if r["budget"] == most]
    for key, title in (
        ("ratio", f"success disturbed / undisturbed, {most} turns in all"),
        ("slack_matched", "the same, as many turns more as were lost"),
        ("regained", "distance regained, of the plays that lost any"),
    ):
        found.append(_table(title, "forced", [(f"{r['k']} {r['mode']}", r[key]) for r in forced if r[key]]))
    return found


def _resilience(result: Mapping[str, Any]) -> list[str]:
    resilience, most = result["resilience"], max(result["budgets"])
    lengths = [
        (f"{_range(r['lengths'])} at slack {r['slack']:g}", r)
        for r in resilience["by_plan_length"] or ()
        if r["slack"] in (1.5, 3.0)
    ]
    turns = [(_range(r["turns"]), r) for r in resilience["by_turn"] or ()]
    fatal = [(_range(r["turns"]), r) for r in resilience["hazard"] or () if r["budget"] == most]
    return [
        _table("success by plan length, within slack x length turns", "length", lengths),
        _table("errors by turn", "turns", turns),
        _table(f"games lost per turn with {most} turns (fatal turns)", "turns", fatal),
    ]


def _decomposition(result: Mapping[str, Any]) -> list[str]:
    rows = result["decomposition"]
    if rows is None:
        return []
    names = ("gain", "decisions", "recovery", "survival")
    lines = [
        f"what the gain goes with, points of a percent ({rows[0]['gain']['tasks']} tasks)",
        "budget " + "".join(f"{name:>18}" for name in names),
    ]
    for row in rows:
        lines.append(f"{row['budget']:>6} " + "".join(f"{_short(row[name]):>18}" for name in names))
    lines += textwrap.wrap(
        "decisions: up to the first error; recovery: until the next action that is none; survival: the rest. The "
        "policies were exchanged there: it says which phase the gain goes with, not what changed in the model.",
        80,
    )
    return ["\n".join(lines)]


def _short(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return "-"
    return f"{100 * figure['value']:+.1f} [{100 * figure['low']:+.0f} {100 * figure['high']:+.0f}]"


def _table(title: str, label: str, rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    width = max(len(label), *(len(str(name)) for name, _ in rows))
    # What remains of 80 columns decides whether the single intervals fit beside that of the difference.
    wide = width <= 13
    lines = [title, f"{label:<{width}} {'A':>{18 if wide else 6}}{'B':>{18 if wide else 6}}{'A - B':>21}{'n':>6}"]
    for name, row in rows:
        cells = [_cell(row[one], wide) for one in ("a", "b")]
        lines.append(
            f"{name!s:<{width}} {cells[0]:>{18 if wide else 6}}{cells[1]:>{18 if wide else 6}}"
            f"{_signed(row['difference']):>21}{row['difference']['tasks']:>6}"
        )
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any], wide: bool) -> str:
    if figure["value"] is None:
        return "-"
    value = f"{100 * figure['value']:.1f}"
    return value + _interval(figure, "") if wide else value


def _signed(figure: Mapping[str, Any]) -> str:
    return "-" if figure["value"] is None else f"{100 * figure['value']:+.1f}{_interval(figure, '+')}"


def _interval(figure: Mapping[str, Any], sign: str) -> str:
    if figure["low"] is None:
        return ""
    return f" [{100 * figure['low']:{sign}.0f} {100 * figure['high']:{sign}.0f}]"


def _range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"

"""A comparison for the terminal."""

import textwrap
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

LISTED = 10  # names of tasks that a table shows
TESTS = {
    "mcnemar_exact": "exact McNemar test, one play a task",
    "sign_flip_exact": "exact sign-flip test over task means",
}


def table(result: Mapping[str, Any]) -> str:
    """A comparison for the terminal: plain text, at most 80 columns but for names; shares in percent."""
    a, b = result["a"], result["b"]
    names = a["name"], b["name"]
    lines = [_title(side) for side in (a, b)]
    seeds = f"{result['seeds']} sampling seed{'s' * (result['seeds'] > 1)}"
    lines += [
        f"{result['split']}, {result['tasks']} tasks, {seeds}, announce {result['announce']}; paired by task",
        "",
        f"budget  {names[0]:>5}  {names[1]:>5}  {f'{names[1]} - {names[0]}':>6}    95 % interval       p  won/lost"
        "  ceiling  search",
    ]
    for row in result["budgets"]:
        won = f"{len(row['wins'])}/{len(row['losses'])}"
        references = f"{_percent(row['ceiling']):>7}  {_percent(row['search_reference']):>6}"
        lines.append(f"{row['budget']:>6}  {_differs(row)}  {_p(row['p']):>6}  {won:>8}  {references}")
    lines += [f"{'area':>6}  {_differs(result['area'])}", ""]
    lines.append(f"p: {TESTS[result['test']]}; Holm's correction over {len(result['budgets'])} budgets")
    if "runs" in result["resampled"]:
        lines.append("intervals: tasks and training runs resampled; p: tasks alone, for these runs")
        lines += ["", *_runs(result)]
    last = result["budgets"][-1]
    for word, tasks in (("won", last["wins"]), ("lost", last["losses"])):
        if tasks:
            more = f" and {len(tasks) - LISTED} more (--json has all)" if len(tasks) > LISTED else ""
            named = ", ".join(tasks[:LISTED])
            lines += _wrapped(f"{word} by {names[1]} at {last['budget']} turns ({len(tasks)}): {named}{more}")
    for name in names:
        errored = [f"{e['task_id']} (seed {e['seed']})" for e in result["errored"] if e["of"] == name]
        if errored:
            text = ", ".join(errored)
            lines += _wrapped(f"environment errors of {name}, counted as not solved ({len(errored)}): {text}")
    return "\n".join(lines)


def _title(side: Mapping[str, Any]) -> str:
    checkpoint = f", {side['checkpoint']}" if side["checkpoint"] else ""
    return f"{side['name']}: {side['target']}{checkpoint} ({', '.join(side['files'])})"


def _differs(row: Mapping[str, Any]) -> str:
    interval = f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"
    return f"{100 * row['a']:>5.1f}  {100 * row['b']:>5.1f}  {100 * row['difference']:>+6.1f}  {interval:>15}"


def _runs(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{'runs one by one':<20}" + "".join(f"{row['budget']:>7}" for row in result["budgets"]) + "   area"]
    for run in result["runs"]:
        values = [*run["success"], run["area"]]
        lines.append(f"{_label(run):<20}" + "".join(f"{100 * value:>7.1f}" for value in values))
        if "difference" in run:
            values = [*run["difference"], run["area_difference"]]
            label = f"  minus {result['a']['name']}"
            lines.append(f"{label:<20}" + "".join(f"{100 * value:>+7.1f}" for value in values))
    return [*lines, ""]


def _label(run: Mapping[str, Any]) -> str:
    parts = PurePath(run["file"]).parts
    # Of runs/NAME/eval/FILE.json the name, of any other file its own.
    name = parts[-3] if len(parts) > 2 and parts[-2] == "eval" else parts[-1]
    return f"{run['of']} {name}"[:19]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _p(p: float) -> str:
    return "<.0001" if p < 0.0001 else f"{p:.4f}"

"""Charts of evaluations: success over budgets, gain, turns used."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from bmrl.episodes import read_episodes
from bmrl.report.charts import Chart, budget_axis, interval_bars, of_step, percent, points, points_axis
from bmrl.report.figure import COLOURS, DASHES, INK, MARKERS
from bmrl.report.read import Evaluation, Source


def charts(source: Source) -> list[Chart]:
    """Those of one run; none without an evaluation."""
    if not source.found:
        return []
    gain = [_gain_chart(source, source.gains)] if source.gains else []
    return [budgets_chart(source.found), *gain, *_used_charts(source.found)]


def budgets_chart(found: Sequence[Evaluation]) -> Chart:
    """Success over budgets: first and last evaluation, and what is possible."""
    last = found[-1].result
    ends = found[-1:] if len(found) == 1 else (found[0], found[-1])

    def draw(axes: Any) -> None:
        styles = ((1, "-"),) if len(ends) == 1 else ((0, "--"), (1, "-"))
        for one, (place, dash) in zip(ends, styles, strict=True):
            _curve(axes, one.result, of_step(one.step), place, dash)
        references(axes, last)
        budget_axis(axes, [row["budget"] for one in ends for row in one.result["budgets"]])

    head = (
        "budget",
        *(of_step(one.step) for one in ends),
        "95 % interval",
        "ceiling",
        "search reference",
        "context ends",
    )
    rows = [
        (
            str(row["budget"]),
            *(percent(one.result["budgets"][at]["success"]) for one in ends),
            f"{percent(row['low'])} to {percent(row['high'])}",
            *(percent(row.get(key)) for key in ("ceiling", "search_reference", "context")),
        )
        for at, row in enumerate(last["budgets"])
    ]
    return Chart(
        "success_over_budgets",
        "Success over budgets",
        f"Share of the {last['tasks']} tasks of {last['split']} solved within a budget of turns, with 95 % intervals. "
        "The ceiling is what a shortest plan with full knowledge solves; the exploring expert must find things as the "
        "agent must.",
        draw,
        (head, *rows),
    )


def comparison_charts(sources: Sequence[Source]) -> list[Chart]:
    """Several runs side by side: their last curves and their gains, as far as two or more have them."""
    shown = [source for source in sources if source.found]
    gained = [source for source in sources if source.gains]
    return [*([_last_curves(shown)] if len(shown) > 1 else []), *([_all_gains(gained)] if len(gained) > 1 else [])]


def _last_curves(shown: Sequence[Source]) -> Chart:
    lasts = [source.found[-1].result for source in shown]
    same = {(result["split"], result.get("split_hash"), result["tasks"], result["announce"]) for result in lasts}

    def draw(axes: Any) -> None:
        for n, (source, result) in enumerate(zip(shown, lasts, strict=True)):
            _curve(axes, result, source.name, n % len(COLOURS), DASHES[n % len(DASHES)])
        if len(same) == 1:
            references(axes, lasts[0])
        budget_axis(axes, [row["budget"] for result in lasts for row in result["budgets"]])

    warning = "" if len(same) == 1 else " They were measured differently (split, tasks or announcement): mind that."
    return Chart(
        "runs_over_budgets",
        "Success over budgets, side by side",
        f"The last evaluation of each run, with 95 % intervals.{warning}",
        draw,
    )


def _all_gains(gained: Sequence[Source]) -> Chart:
    def draw(axes: Any) -> None:
        _gains(axes, [(source.name, source.gains["budgets"]) for source in gained if source.gains])

    return Chart(
        "runs_gain",
        "Gain over budgets, side by side",
        "Success after training minus before, paired by task, of each run by itself, with 95 % intervals.",
        draw,
    )


def _curve(axes: Any, result: Mapping[str, Any], label: str, place: int, dash: Any) -> None:
    rows = result["budgets"]
    interval_bars(
        axes,
        [row["budget"] for row in rows],
        [(row["success"], row["low"], row["high"]) for row in rows],
        label=label,
        color=COLOURS[place],
        marker=MARKERS[place],
        linestyle=dash,
    )


def references(axes: Any, result: Mapping[str, Any]) -> None:
    """What is possible, as far as it is known."""
    for key, label, dash in (
        ("ceiling", "ceiling", ":"),
        ("search_reference", "exploring expert", "-."),
    ):
        rows = [row for row in result["budgets"] if row.get(key) is not None]
        if rows:
            budgets, shares = [row["budget"] for row in rows], [row[key] for row in rows]
            axes.plot(budgets, shares, linestyle=dash, color=INK, label=label, linewidth=1.1)


def _gains(axes: Any, runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """In points of a percent, around 0."""
    budget_axis(axes, [gain["budget"] for _, gains in runs for gain in gains])
    axes.axhline(0, color=INK, linewidth=0.8)
    most = 10.0
    for n, (label, gains) in enumerate(runs):
        rows = [(100 * gain["difference"], 100 * gain["low"], 100 * gain["high"]) for gain in gains]
        most = max(most, *(abs(value) for row in rows for value in row))
        place = n % len(COLOURS)
        style = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[n % len(DASHES)]}
        interval_bars(axes, [gain["budget"] for gain in gains], rows, label=label, **style)
    points_axis(axes, most)


def _gain_chart(source: Source, gains: Mapping[str, Any]) -> Chart:
    def draw(axes: Any) -> None:
        _gains(axes, [("gain", gains["budgets"])])

    head = ("budget", "gain", "95 % interval", "p")
    rows = [
        (name, points(row["difference"]), f"{points(row['low'])} to {points(row['high'])}", p)
        for name, row, p in [
            *((str(row["budget"]), row, f"{row['p']:.4f}") for row in gains["budgets"]),
            ("area", gains["area"], ""),
        ]
    ]
    first, last = source.found[0].step, source.found[-1].step
    return Chart(
        "gain_over_budgets",
        "Gain over budgets",
        f"Success {of_step(last)} minus success {of_step(first)}, paired by task, in points of a percent. Where the "
        "interval holds 0, training may have changed nothing.",
        draw,
        (head, *rows),
    )


def _used_charts(found: Sequence[Evaluation]) -> list[Chart]:
    """How many turns the solved episodes of the evaluations took."""
    ends = found[-1:] if len(found) == 1 else (found[0], found[-1])
    used: list[tuple[str, list[int]]] = []
    for one in ends:
        path = one.path.with_suffix(".jsonl")
        if path.is_file():
            episodes = read_episodes(path)
            used.append((of_step(one.step), [len(e["turns"]) for e in episodes if e["success"]]))
    if not any(turns for _, turns in used):
        return []
    edges = _edges(max(turns for _, all_turns in used for turns in all_turns or [1]))

    def draw(axes: Any) -> None:
        for n, (label, turns) in enumerate(used):
            place = n if len(used) == 2 else 1
            counts = [sum(low < value <= high for value in turns) for low, high in pairwise(edges)]
            name = "solved episodes" if label == "success" else label
            axes.stairs(counts, edges, color=COLOURS[place], linestyle=("--", "-")[place], linewidth=1.6, label=name)
        axes.set_xlabel("turns used")
        axes.set_ylabel("solved episodes")
        axes.set_ylim(bottom=0)

    return [
        Chart(
            "turns_used",
            "Turns used to solve",
            "How many turns the solved episodes of an evaluation took. More area means more solved; mass moving to the "
            "left means solved sooner, mass appearing on the right means lasting longer.",
            draw,
        )
    ]


def _edges(most: int) -> list[int]:
    """About 15 bins of whole turns, (low, high]."""
    width = max(1, round(most / 15))
    return list(range(0, most + width, width))

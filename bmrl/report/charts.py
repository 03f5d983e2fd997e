"""A chart, and what the charts of a report share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bmrl.report.figure import Draw

WINDOW = 10  # training steps in a mean: single ones are noise
Record = Mapping[str, float | None]  # a step's metrics


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing.

    Attributes:
        name: of its files.
        title, note: what it shows, and how to read it.
        draw: None where there is nothing to draw; the note then says how to get it.
        table: its numbers, the first row being their names; empty if they are too many to read.
    """

    name: str
    title: str
    note: str
    draw: Draw | None = None
    table: tuple[tuple[str, ...], ...] = ()


def of_step(step: int | None) -> str:
    """What a reader calls the policy of a step."""
    if step is None:
        return "success"
    return "before training" if step == 0 else f"after step {step}"


def budget_axis(axes: Any, budgets: Sequence[int]) -> None:
    """Doubling budgets are equally far apart, as they are for an agent."""
    ticks = sorted(set(budgets))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("budget (turns)")
    share_axis(axes, "success")


def share_axis(axes: Any, label: str) -> None:
    """From 0 to 1, always: a chart must not make a small change look large."""
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], labels=["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylabel(label)


def step_axis(axes: Any) -> None:
    """Whole steps."""
    axes.set_xlabel("training step")
    axes.xaxis.get_major_locator().set_params(integer=True)


def points_axis(axes: Any, most: float) -> None:
    """Differences of shares in points of a percent, 0 in the middle.

    Args:
        most: largest absolute value that is drawn.
    """
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.reset_ticks()
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f}" if value else "0")
    axes.set_ylim(-1.08 * most, 1.08 * most)
    axes.set_ylabel("points of success")


def interval_bars(axes: Any, places: Sequence[float], rows: Sequence[tuple[float, float, float]], **style: Any) -> None:
    """Values with their intervals; ``rows`` are (value, low, high)."""
    below = [max(0.0, value - low) for value, low, _ in rows]  # below 0 could only be rounding, which is refused
    above = [max(0.0, high - value) for value, _, high in rows]
    axes.errorbar(places, [value for value, _, _ in rows], yerr=[below, above], capsize=2.5, elinewidth=1, **style)


def column(records: Sequence[Record], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of a key, where it was logged."""
    pairs = [(record["step"], record.get(key)) for record in records]
    known = [(at, value) for at, value in pairs if at is not None and value is not None]
    return [at for at, _ in known], [value for _, value in known]


def smoothed(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Each point's mean with up to `WINDOW` - 1 points before it."""
    values = [value for _, value in points]
    means = [fmean(values[max(0, at + 1 - WINDOW) : at + 1]) for at in range(len(values))]
    return [at for at, _ in points], means


def percent(share: float | None) -> str:
    """A share for a reader; a dash where it is unknown."""
    return "–" if share is None else f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of shares, in points of a percent."""
    return f"{100 * share:+.1f}"

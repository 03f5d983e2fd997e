"""Figures with 95 % intervals whose unit is the task: shares, and what is computed from shares.

Tasks are resampled for all shares of a figure together: a difference is paired by task, and parts that sum to a whole
do so in every resample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bmrl.intervals import wilson
from bmrl.seeds import stream

RESAMPLES = 2_000
UNDEFINED = 0.05  # an interval is not given where more of the resamples leave the figure undefined
Array = NDArray[np.float64]
Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted of each task: ``hits`` out of ``trials``, (tasks,) each; all counts of a diagnosis align."""

    hits: Array
    trials: Array

    @property
    def tasks(self) -> int:
        """Tasks of which anything was counted."""
        return int((self.trials > 0).sum())


class Tally:
    """Adds up counts, task by task.

    Args:
        tasks: how many there are.
    """

    def __init__(self, tasks: int) -> None:
        self._hits, self._trials = np.zeros(tasks), np.zeros(tasks)

    def add(self, task: int, hits: float, trials: float = 1.0) -> None:
        """Counts ``hits`` out of ``trials`` of the task at this place."""
        self._hits[task] += hits
        self._trials[task] += trials

    def counts(self) -> Counts:
        """What was counted so far."""
        return Counts(self._hits.copy(), self._trials.copy())


@lru_cache(maxsize=1)
def _weights(tasks: int) -> Array:
    """(RESAMPLES + 1, tasks): how often each task stands in each resample; first each once, for the estimate."""
    drawn = stream(0, "diagnose", tasks).multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES)
    return np.vstack([np.ones(tasks), drawn])


@lru_cache
def _levels(tasks: int) -> tuple[float, float]:
    """Quantiles of the resamples that make a 95 % interval.

    Resamples of n tasks vary by the factor sqrt((n - 1) / n) too little, and know as little of the variance as the t
    distribution says: the expanded percentile interval (Hesterberg 2015, What Teachers Should Know About the
    Bootstrap, section 4.3.3).
    """
    from scipy.stats import norm, t

    if tasks < 2:
        return 0.0, 1.0
    low = float(norm.cdf((tasks / (tasks - 1)) ** 0.5 * t.ppf(0.025, tasks - 1)))
    return low, 1 - low


def figure(of: Callable[..., Array], *parts: Counts) -> Figure:
    """``of`` the shares of the parts, with a percentile interval.

    Args:
        of: from one array of shares for each part, (resamples,), to the figure of each.

    Returns:
        ``value``, ``low``, ``high``, None where there is nothing to count; and ``tasks``, those of the smallest part.
    """
    tasks = min(part.tasks for part in parts)
    weights = _weights(len(parts[0].hits))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of(*(weights @ part.hits / (weights @ part.trials) for part in parts))
    if not np.isfinite(values[0]):
        return {"value": None, "low": None, "high": None, "tasks": tasks}
    drawn = values[1:][np.isfinite(values[1:])]
    low = high = None
    if len(drawn) >= (1 - UNDEFINED) * RESAMPLES:
        low, high = (float(end) for end in np.quantile(drawn, _levels(tasks)))
    return {"value": float(values[0]), "low": low, "high": high, "tasks": tasks}


def share(part: Counts) -> Figure:
    """A share; Wilson's interval on the number of tasks where each counts once, or all resamples agree."""
    found = figure(lambda one: one, part)
    once = bool(np.all(part.trials <= 1) and np.all((part.hits == 0) | (part.hits == part.trials)))
    if _no_width(found) or (once and found["value"] is not None):
        low, high = wilson(min(max(found["value"], 0.0), 1.0) * found["tasks"], found["tasks"])
        found |= {"low": low, "high": high}
    return found


def pair(a: Counts, b: Counts) -> dict[str, Figure]:
    """Two shares and their difference.

    Where all resamples agree, the difference may be what remains possible if the share of unlike tasks is at most
    Wilson's upper limit for none seen.
    """
    difference = figure(lambda x, y: x - y, a, b)
    if _no_width(difference):
        value, unlike = difference["value"], wilson(0, difference["tasks"])[1]
        difference |= {"low": value - unlike * (value + 1), "high": value + unlike * (1 - value)}
    return {"a": share(a), "b": share(b), "difference": difference}


def ratio(part: Counts, whole: Counts) -> Figure:
    """One share as a multiple of another; where all resamples agree, Wilson's interval of the first one's."""
    found = figure(lambda x, y: x / y, part, whole)
    if _no_width(found):
        over = whole.hits.sum() / whole.trials.sum()
        low, high = wilson(min(found["value"] * over, 1.0) * found["tasks"], found["tasks"])
        found |= {"low": low / over, "high": high / over}
    return found


def ratio_pair(a: tuple[Counts, Counts], b: tuple[Counts, Counts]) -> dict[str, Figure]:
    """Two ratios and their difference."""
    difference = figure(lambda x, y, z, w: x / y - z / w, *a, *b)
    if _no_width(difference):
        value, unlike = difference["value"], wilson(0, difference["tasks"])[1]
        difference |= {"low": value - unlike, "high": value + unlike}
    return {"a": ratio(*a), "b": ratio(*b), "difference": difference}


def mean_pair(a: Counts, b: Counts) -> dict[str, Figure]:
    """Two means of any size, such as turns, and their difference; no interval where all resamples agree."""
    figures = {
        "a": figure(lambda one: one, a),
        "b": figure(lambda one: one, b),
        "difference": figure(lambda x, y: x - y, a, b),
    }
    for found in figures.values():
        if _no_width(found):
            found |= {"low": None, "high": None}
    return figures


def _no_width(found: Figure) -> bool:
    return found["low"] is not None and found["high"] - found["low"] < 1e-12


def combination(terms: Sequence[tuple[float, Counts]]) -> Figure:
    """A sum of shares with factors, such as a part of a gain."""
    factors = np.array([factor for factor, _ in terms])
    found = figure(lambda *shares: factors @ np.array(shares), *(part for _, part in terms))
    if _no_width(found):
        # As for a difference: a combination of zero sum is a mean of differences.
        value, unlike = found["value"], wilson(0, found["tasks"])[1]
        found |= {"low": value - unlike * (value + 1), "high": value + unlike * (1 - value)}
    return found

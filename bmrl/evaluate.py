"""Success over budgets: what to play, and what finished episodes say. Pure functions, no torch.

The task is the unit of every statistic: episodes of one task are not independent, so intervals come
from resampling tasks, never episodes.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bmrl.envs.base import Task
from bmrl.errors import BmrlError
from bmrl.intervals import bootstrap, wilson
from bmrl.types import ERRORS, EndReason, Episode, Play

# An episode as it was played, or as a line of an episodes file says it was.
Finished = Episode | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """Success at one budget; shares between 0 and 1.

    Attributes:
        budget: turns.
        success: mean over tasks of the share of seeds that solved the task within the budget.
        low, high: 95 % interval of ``success``.
        ceiling: share of tasks that a shortest plan solves within the budget; None if unknown.
        search_reference: the same for the exploring expert, mean over its plays; None if unknown.
        tasks: number of tasks.
        context: share of episodes that ended within the budget because the context was full.
    """

    budget: int
    success: float
    low: float
    high: float
    ceiling: float | None
    search_reference: float | None
    tasks: int
    context: float


@dataclass(frozen=True, slots=True)
class Gain:
    """Success after minus before, paired by task; ``budget`` None: mean over the budgets."""

    budget: int | None
    gain: float
    low: float
    high: float


def plan_plays(
    tasks: Sequence[Task], split: str, budgets: Sequence[int], seeds: Sequence[int], announce: str
) -> list[Play]:
    """Every task once per seed; once per seed and budget when the agent is told its budget.

    A policy that is not told plays the same at every budget until it is cut off, so one pass at
    the largest budget holds the whole curve. A play's random stream depends on its own seed, not
    on which other seeds are played: its ``episode`` is the seed.
    """
    played = [max(budgets)] if announce == "none" else sorted(budgets)
    return [
        Play(0, place * len(tasks) + index, seed, task, split, seed, budget)
        for seed in seeds
        for place, budget in enumerate(played)
        for index, task in enumerate(tasks)
    ]


def curve(
    episodes: Iterable[Finished], tasks: Sequence[Task], budgets: Sequence[int], announce: str
) -> list[BudgetPoint]:
    """Success at each budget, ascending.

    An episode that ended in an error counts as not successful. Intervals: with one seed Wilson's
    on the number of tasks; with several a bootstrap over task means, or Wilson's where all task
    means are equal and a bootstrap would have no width.

    Raises:
        BmrlError: the episodes are not each task once per seed.
    """
    budgets = sorted(budgets)
    turns, ends = _played(episodes, tasks, budgets, announce)
    limits = np.array(budgets)
    solved = (ends == EndReason.SUCCESS) & (turns <= limits)  # (tasks, seeds, budgets)
    # Cut off at the budget itself it would have ended for the budget, not for the context.
    context = (ends == EndReason.CONTEXT) & (turns < limits)
    means = solved.mean(axis=1)  # (tasks, budgets)
    low, high = bootstrap(means)
    points = []
    for j, budget in enumerate(budgets):
        success, interval = float(means[:, j].mean()), (float(low[j]), float(high[j]))
        if solved.shape[1] == 1 or np.ptp(means[:, j]) == 0:
            interval = wilson(success * len(tasks), len(tasks))
        points.append(
            BudgetPoint(
                budget,
                success,
                *interval,
                ceiling=ceiling(tasks, budget),
                search_reference=search_reference(tasks, budget),
                tasks=len(tasks),
                context=float(context[:, :, j].mean()),
            )
        )
    return points


def ceiling(tasks: Sequence[Task], budget: int) -> float | None:
    """Share of tasks whose shortest plan fits into the budget; None when a plan is unknown."""
    if not all(task.plan for task in tasks):
        return None
    return sum(len(task.plan) <= budget for task in tasks) / len(tasks)


def search_reference(tasks: Sequence[Task], budget: int) -> float | None:
    """Mean share of the exploring expert's plays that solve a task within the budget, or None."""
    if not all(task.search_turns for task in tasks):
        return None
    shares = [
        sum(turns is not None and turns <= budget for turns in task.search_turns) / len(task.search_turns)
        for task in tasks
    ]
    return sum(shares) / len(shares)


def area(points: Sequence[BudgetPoint]) -> float:
    """Area under the curve over log2(budget), divided by its width: a mean success from 0 to 1.

    The axis is logarithmic because budgets are: from 4 to 8 turns is as large a change for an agent
    as from 16 to 32, and on a linear axis the largest budgets would be nearly all of the area.
    """
    success = np.array([point.success for point in points])
    if len(points) == 1:
        return float(success[0])
    places = np.log2([point.budget for point in points])
    return float(np.trapezoid(success, places) / (places[-1] - places[0]))


def paired(
    before: Iterable[Finished],
    after: Iterable[Finished],
    tasks: Sequence[Task],
    budgets: Sequence[int],
    announce: str,
) -> list[Gain]:
    """Gain at each budget, ascending, and last the mean over the budgets, with 95 % intervals.

    Task means over the seeds are subtracted task by task; tasks are resampled. Where all tasks
    gain the same, a bootstrap would have no width: the interval then is what remains possible if
    the share of unlike tasks is at most Wilson's upper limit for none seen.
    """
    budgets = sorted(budgets)
    gains = []
    for episodes in (before, after):
        turns, ends = _played(episodes, tasks, budgets, announce)
        gains.append(((ends == EndReason.SUCCESS) & (turns <= np.array(budgets))).mean(axis=1))
    difference = gains[1] - gains[0]  # (tasks, budgets)
    columns = np.column_stack([difference, difference.mean(axis=1)])
    low, high = bootstrap(columns)
    unlike = wilson(0, len(tasks))[1]
    result = []
    for j, budget in enumerate([*budgets, None]):
        gain, interval = float(columns[:, j].mean()), (float(low[j]), float(high[j]))
        if np.ptp(columns[:, j]) == 0:
            interval = (gain - unlike * (gain + 1), gain + unlike * (1 - gain))
        result.append(Gain(budget, gain, *interval))
    return result


def result(
    episodes: Sequence[Finished],
    tasks: Sequence[Task],
    budgets: Sequence[int],
    *,
    target: str,
    checkpoint: str | int | None,
    split: str,
    split_hash: str,
    seeds: Sequence[int],
    announce: str,
    sampling: Mapping[str, Any],
) -> dict[str, Any]:
    """An evaluation as JSON data: the object that ``bmrl eval --json`` prints.

    ``errors`` counts the episodes that ended in an environment error; ``errored`` lists them.
    """
    points = curve(episodes, tasks, budgets, announce)
    errored = [
        {key: _field(episode, key) for key in ("task_id", "seed", "budget", "end_reason", "error")}
        for episode in episodes
        if _field(episode, "end_reason") in ERRORS
    ]
    return {
        "target": target,
        "checkpoint": checkpoint,
        "split": split,
        "split_hash": split_hash,
        "seeds": list(seeds),
        "announce": announce,
        "sampling": dict(sampling),
        "tasks": len(tasks),
        "errors": len(errored),
        "errored": [{**entry, "end_reason": str(entry["end_reason"])} for entry in errored],
        "area": area(points),
        "budgets": [{key: value for key, value in asdict(point).items() if key != "tasks"} for point in points],
    }


def table(result: Mapping[str, Any]) -> str:
    """A result for the terminal: plain text, at most 80 columns."""
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    lines = [
        *textwrap.wrap(
            f"{result['target']}: success over budgets on {result['split']}, "
            f"announce {result['announce']}, seeds {seeds}",
            width=80,
        ),
        "",
        "budget  success  95 % interval  ceiling  search reference  tasks  context ends",
    ]
    for row in result["budgets"]:
        interval = f"{100 * row['low']:.1f} - {100 * row['high']:.1f}"
        lines.append(
            f"{row['budget']:>6}  {_percent(row['success']):>7}  {interval:>13}  "
            f"{_percent(row['ceiling']):>7}  {_percent(row['search_reference']):>16}  "
            f"{result['tasks']:>5}  {_percent(row['context']):>12}"
        )
    if result["errors"]:
        lines += ["", f"environment errors, counted as not solved: {result['errors']}"]
    return "\n".join(lines)


def gain_table(before: Mapping[str, Any], after: Mapping[str, Any], gains: Sequence[Gain]) -> str:
    """Two results of the same tasks side by side, with the paired gains, for the terminal."""
    lines = [
        f"{after['target']}: success over budgets on {after['split']}, {after['tasks']} tasks, "
        f"{len(after['seeds'])} sampling seed{'s' * (len(after['seeds']) > 1)}",
        f"before: {before['checkpoint']}, after: {after['checkpoint']}, paired by task",
        "",
        "budget   before    after     gain    95 % interval  ceiling  search reference",
    ]
    rows = [(row, new) for row, new in zip(before["budgets"], after["budgets"], strict=True)]
    for (old, new), gain in zip(rows, gains[:-1], strict=True):
        lines.append(
            f"{new['budget']:>6}  {_percent(old['success']):>7}  {_percent(new['success']):>7}  "
            f"{_points(gain)}  {_percent(new['ceiling']):>7}  {_percent(new['search_reference']):>16}"
        )
    lines.append(f"{'mean':>6}  {'':>7}  {'':>7}  {_points(gains[-1])}")
    return "\n".join(lines)


def _points(gain: Gain) -> str:
    """A difference of shares, in points of a percent."""
    interval = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
    return f"{100 * gain.gain:+7.1f}  {interval:>15}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _field(episode: Finished, name: str) -> Any:
    return getattr(episode, name) if isinstance(episode, Episode) else episode[name]


def _played(
    episodes: Iterable[Finished], tasks: Sequence[Task], budgets: Sequence[int], announce: str
) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Turns used and end reason, both (tasks, seeds, budgets).

    One pass serves all budgets: its episode stands in each of them.
    """
    told = announce != "none"
    found: dict[tuple[str, int, int], Finished] = {}
    seeds, count = set(), 0
    for episode in episodes:
        budget, seed = _field(episode, "budget"), _field(episode, "seed")
        if not told and budget < max(budgets):
            raise BmrlError(
                f"an episode of {_field(episode, 'task_id')} had {budget} turns, too few to tell "
                f"success at {max(budgets)}; evaluate again at the larger budget"
            )
        found[_field(episode, "task_id"), seed, budget if told else 0] = episode
        seeds.add(seed)
        count += 1
    keys = [
        [[(task.task_id, seed, budget if told else 0) for budget in budgets] for seed in sorted(seeds)]
        for task in tasks
    ]
    wanted = {key for per_task in keys for per_seed in per_task for key in per_seed}
    odd = sorted(wanted ^ found.keys())
    if odd or count != len(found) or not seeds:
        which = f", e.g. {odd[0][0]} with seed {odd[0][1]}" if odd else ""
        raise BmrlError(f"the episodes are not each task once per seed{which}; evaluate again")
    turns = [[[len(_field(found[k], "turns")) for k in row] for row in rows] for rows in keys]
    ends = [[[str(_field(found[k], "end_reason")) for k in row] for row in rows] for rows in keys]
    return np.array(turns), np.array(ends)

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
from bmrl.evaluations import FORMAT
from bmrl.intervals import clustered
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

    An episode that ended in an error counts as not successful. Intervals: `intervals.clustered`.

    Raises:
        BmrlError: the episodes are not each task once per seed.
    """
    budgets = sorted(budgets)
    turns, ends = _played(episodes, tasks, budgets, announce)
    limits = np.array(budgets)
    solved = (ends == EndReason.SUCCESS) & (turns <= limits)
    # Cut off at the budget itself it would have ended for the budget, not for the context.
    context = (ends == EndReason.CONTEXT) & (turns < limits)
    means = solved.mean(axis=1)  # (tasks, budgets)
    points = []
    for j, budget in enumerate(budgets):
        points.append(
            BudgetPoint(
                budget,
                float(means[:, j].mean()),
                *clustered(means[:, j]),
                ceiling=ceiling(tasks, budget),
                search_reference=search_reference(tasks, budget),
                tasks=len(tasks),
                context=float(context[:, :, j].mean()),
            )
        )
    return points


def outcomes(
    episodes: Iterable[Finished], task_ids: Sequence[str], budgets: Sequence[int], announce: str
) -> NDArray[np.bool_]:
    """Whether each task was solved within each budget, by seed: (tasks, seeds, budgets), budgets ascending.

    Raises:
        BmrlError: the episodes are not each task once per seed.
    """
    turns, ends = _played(episodes, [Task(task_id, "") for task_id in task_ids], sorted(budgets), announce)
    solved: NDArray[np.bool_] = (ends == EndReason.SUCCESS) & (turns <= np.array(sorted(budgets)))
    return solved


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
    """Area under the curve over log2(budget), divided by its width: a mean success from 0 to 1."""
    return float(np.array([p.success for p in points]) @ area_weights([p.budget for p in points]))


def area_weights(budgets: Sequence[int]) -> NDArray[np.float64]:
    """What the success at each budget, ascending, counts in the area under the curve; they sum to 1.

    The axis is logarithmic because budgets are: from 4 to 8 turns is as large a change for an agent
    as from 16 to 32, and on a linear axis the largest budgets would be nearly all of the area.
    """
    if len(budgets) == 1:
        return np.ones(1)
    widths = np.diff(np.log2(budgets))
    # The trapezoid rule: each piece of the axis counts half at either end.
    weights: NDArray[np.float64] = (np.append(widths, 0) + np.insert(widths, 0, 0)) / (2 * widths.sum())
    return weights


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
        "format": FORMAT,
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

"""B minus A, paired by task.

The task is the unit: plays of one task, by several sampling seeds or by several training runs of one recipe, stay
together in every resample and in every permutation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bmrl.compare.significance import holm, sign_flip
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import area_weights, outcomes
from bmrl.evaluations import AGAIN, Evaluation
from bmrl.intervals import bootstrap_difference, wilson
from bmrl.types import ERRORS


@dataclass(frozen=True, slots=True)
class Side:
    """What stands for one policy in a comparison.

    Attributes:
        name: its letter.
        evaluations: of it; several are training runs of one recipe.
        episodes: of each evaluation.
    """

    name: str
    evaluations: Sequence[Evaluation]
    episodes: Sequence[list[dict[str, Any]]]

    @property
    def head(self) -> Any:
        """Of its first evaluation; the others' differ in nothing that is read of it but the seeds."""
        return self.evaluations[0].head

    @property
    def task_ids(self) -> list[str]:
        """In the order of its first evaluation."""
        return list(dict.fromkeys(episode["task_id"] for episode in self.episodes[0]))

    def solved(self, task_ids: Sequence[str], budgets: Sequence[int]) -> NDArray[np.bool_]:
        """(runs, tasks, seeds, budgets)"""
        told = self.head["announce"] != "none"
        return np.stack(
            [
                outcomes([e for e in plays if not told or e["budget"] in budgets], task_ids, budgets, _announce(self))
                for plays in self.episodes
            ]
        )


def load(name: str, evaluations: Sequence[Evaluation]) -> Side:
    """Reads the episodes.

    Raises:
        BmrlError: episodes are damaged, missing, or not those of which the result speaks.
    """
    side = Side(name, evaluations, [evaluation.episodes() for evaluation in evaluations])
    for evaluation, plays in zip(evaluations, side.episodes, strict=True):
        alone = Side(name, [evaluation], [plays])
        shares = alone.solved(alone.task_ids, evaluation.budgets).mean(axis=(0, 1, 2))
        said = {row["budget"]: row["success"] for row in evaluation.head["budgets"]}
        for budget, share in zip(evaluation.budgets, shares, strict=True):
            if abs(said[budget] - share) > 1e-9:
                raise BmrlError(
                    f"{evaluation.path}: success at {budget} turns is {said[budget]:.3f}, by its episodes {share:.3f}; "
                    f"{AGAIN}"
                )
    return side


def compare(a: Side, b: Side) -> dict[str, Any]:
    """B minus A at each budget that both have, as JSON data; see docs/evaluation.md for the keys.

    Raises:
        UsageError: there is no budget that all have.
        BmrlError: their tasks are not the same.
    """
    evaluations = [*a.evaluations, *b.evaluations]
    budgets = sorted(set.intersection(*(set(evaluation.budgets) for evaluation in evaluations)))
    if not budgets:
        files = ", ".join(str(evaluation.path) for evaluation in evaluations)
        raise UsageError(f"cannot compare, no budget in common to {files}; evaluate all at the same --budget")
    task_ids = _same_tasks((a, b))
    solved = [side.solved(task_ids, budgets) for side in (a, b)]
    weights = area_weights(budgets)
    # (runs, tasks, budgets and last the area)
    means = [np.concatenate([m := plays.mean(axis=2), (m @ weights)[..., None]], axis=2) for plays in solved]
    pooled = [mean.mean(axis=0) for mean in means]
    difference = pooled[1] - pooled[0]
    low, high = _intervals(means, difference)
    columns = zip(
        *(one.mean(axis=0).tolist() for one in (*pooled, difference)), low.tolist(), high.tolist(), strict=True
    )
    *figures, area = [dict(zip(("a", "b", "difference", "low", "high"), column, strict=True)) for column in columns]
    plays = [one.shape[0] * one.shape[2] for one in solved]
    # In whole numbers, so that equal differences are equal: times the plays of a task on either side.
    counts = [one.sum(axis=(0, 2), dtype=np.int64) for one in solved]
    whole = counts[1] * plays[0] - counts[0] * plays[1]
    raw = [sign_flip(column) for column in whole.T]
    known = {row["budget"]: row for row in a.head["budgets"]}
    rows = [
        {
            "budget": budget,
            **figures[j],
            "p": p,
            "p_raw": raw[j],
            "wins": [name for name, d in zip(task_ids, whole[:, j], strict=True) if d > 0],
            "losses": [name for name, d in zip(task_ids, whole[:, j], strict=True) if d < 0],
            "ceiling": known[budget].get("ceiling"),
            "search_reference": known[budget].get("search_reference"),
        }
        for j, (budget, p) in enumerate(zip(budgets, holm(raw), strict=True))
    ]
    return {
        "a": _named(a),
        "b": _named(b),
        "split": a.head["split"],
        "split_hash": a.head["split_hash"],
        "announce": _announce(a),
        "tasks": len(task_ids),
        "seeds": len(a.head["seeds"]),
        "test": "mcnemar_exact" if plays == [1, 1] else "sign_flip_exact",
        "correction": "holm",
        "resampled": ["tasks", "runs"] if max(len(one) for one in means) > 1 else ["tasks"],
        "budgets": rows,
        "area": area,
        "runs": _one_by_one((a, b), means),
        "errored": _errored((a, b)),
    }


def _intervals(
    means: Sequence[NDArray[np.float64]], difference: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where all tasks differ by the same, resampling them gives no width: the interval then is what remains possible
    if the share of unlike tasks is at most Wilson's upper limit for none seen.
    """
    low, high = bootstrap_difference(*means)
    same, rest = difference.mean(axis=0), wilson(0, len(difference))[1]
    flat = high - low < 1e-9
    return np.where(flat, same - rest * (same + 1), low), np.where(flat, same + rest * (1 - same), high)


def _one_by_one(sides: tuple[Side, Side], means: Sequence[NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Each run's success by budget and its area; for B's also the difference to A, all of A's runs together."""
    base = means[0].mean(axis=(0, 1))
    rows = []
    for side, values in zip(sides, means, strict=True):
        for evaluation, run in zip(side.evaluations, values.mean(axis=1), strict=True):
            success: list[float] = run.tolist()
            row = {"of": side.name, "file": str(evaluation.path), "success": success[:-1], "area": success[-1]}
            if side is sides[1]:
                *less, area = (run - base).tolist()
                row |= {"difference": less, "area_difference": area}
            rows.append(row)
    return rows


def _errored(sides: tuple[Side, Side]) -> list[dict[str, Any]]:
    keys = ("task_id", "seed", "budget", "end_reason", "error")
    return [
        {"of": side.name, "file": str(evaluation.path), **{key: episode.get(key) for key in keys}}
        for side in sides
        for evaluation, episodes in zip(side.evaluations, side.episodes, strict=True)
        for episode in episodes
        if episode["end_reason"] in ERRORS
    ]


def _named(side: Side) -> dict[str, Any]:
    files = [str(evaluation.path) for evaluation in side.evaluations]
    return {"name": side.name, "target": side.head["target"], "checkpoint": side.head.get("checkpoint"), "files": files}


def _announce(side: Side) -> str:
    return str(side.head["announce"])


def _same_tasks(sides: tuple[Side, Side]) -> list[str]:
    """The tasks of all evaluations, in A's order."""
    task_ids = sides[0].task_ids
    for side in sides:
        for evaluation, episodes in zip(side.evaluations, side.episodes, strict=True):
            if odd := sorted(set(task_ids) ^ {episode["task_id"] for episode in episodes}):
                raise BmrlError(f"{evaluation.path}: {odd[0]} is not in both evaluations; {AGAIN}")
    return task_ids

"""Which evaluations can be compared."""

from collections.abc import Sequence
from typing import Any

from bmrl.errors import UsageError
from bmrl.evaluations import Evaluation
from bmrl.run_folder import is_run, recipe_differences


def unlike(a: Evaluation, b: Evaluation, *, siblings: bool = False) -> list[str]:
    """Why two evaluations cannot be compared, one line each; none if they can.

    Args:
        siblings: they are of training runs of one recipe: as many sampling seeds are enough.
    """
    heads = a.head, b.head
    samplings = [head["sampling"] for head in heads]
    if not all(samplings):
        samplings = [{}, {}]  # a player without a model samples nothing, and can be compared with any that does
    split = "split" if a.head["split"] != b.head["split"] else "split_hash"
    words = {"split": "split", "split_hash": "games of the split (hash)", "tasks": "number of tasks"}
    both: dict[str, tuple[Any, Any]] = {words.get(k, k): (a.head[k], b.head[k]) for k in (split, "tasks", "announce")}
    if siblings:
        both["number of seeds"] = len(a.head["seeds"]), len(b.head["seeds"])
    else:
        both["seeds"] = sorted(a.head["seeds"]), sorted(b.head["seeds"])
    for key in sorted({*samplings[0], *samplings[1]}):
        both[f"sampling, {key}"] = samplings[0].get(key), samplings[1].get(key)
    lines = [
        f"cannot compare, different {key}: {_short(one)} in {a.path}, {_short(other)} in {b.path}; evaluate both alike"
        for key, (one, other) in both.items()
        if one != other
    ]
    if not set(a.budgets) & set(b.budgets):
        budgets = [", ".join(map(str, one.budgets)) for one in (a, b)]
        lines.append(
            f"cannot compare, no budget in common: {budgets[0]} in {a.path}, {budgets[1]} in {b.path}; "
            "evaluate both at the same --budget"
        )
    return lines


def refuse_other_recipe(first: Evaluation, sibling: Evaluation) -> None:
    """Refuses to pool runs of recipes that differ in more than the seed; other evaluations do not say.

    Raises:
        UsageError: they do; the keys.
    """
    runs = [evaluation.path.parent.parent for evaluation in (first, sibling)]
    if all(is_run(run) for run in runs) and (keys := recipe_differences(*runs)):
        raise UsageError(
            f"--with: {runs[1]} is not of the recipe of {runs[0]}, it differs in {', '.join(keys)}; compare it as a "
            "policy of its own"
        )


def choose(groups: Sequence[Sequence[Evaluation]], siblings: Sequence[bool]) -> list[Evaluation]:
    """One of each group, so that all can be compared with the first.

    Of those of the likeliest policy, the ones with the most budgets in common; among equals the likeliest.

    Args:
        groups: what each name may mean, the likeliest first.
        siblings: whether a group is a training run of the same recipe as another.

    Raises:
        UsageError: there are none; why the likeliest cannot be.
    """

    def fits(first: Evaluation, group: Sequence[Evaluation], sibling: bool) -> Evaluation | None:
        alike = [one for one in group if not unlike(first, one, siblings=sibling)]
        return max(
            (one for one in alike if one.step == alike[0].step), key=lambda one: common(first, one), default=None
        )

    def common(*ones: Evaluation) -> int:
        return len(set.intersection(*(set(one.budgets) for one in ones)))

    chosen: list[list[Evaluation]] = []
    for first in groups[0]:
        found = [fits(first, group, sibling) for group, sibling in zip(groups[1:], siblings[1:], strict=True)]
        if None not in found and (not chosen or first.step == chosen[0][0].step):
            chosen.append([first, *(one for one in found if one is not None)])
    if chosen:
        return max(chosen, key=lambda ones: common(*ones))
    first = groups[0][0]
    lines = [
        line
        for group, sibling in zip(groups[1:], siblings[1:], strict=True)
        if fits(first, group, sibling) is None
        for line in unlike(first, group[0], siblings=sibling)
    ]
    raise UsageError("\n".join(dict.fromkeys(lines)))


def _short(value: object) -> str:
    """For a line of text: lists without brackets, hashes cut."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"

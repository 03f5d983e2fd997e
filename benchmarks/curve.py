"""Success over eight budgets in one pass, and in a pass for each.

`python benchmarks/curve.py [--json]`; see README.md in this folder.
"""

import math
from typing import Any

from common import Model, Settings, conduct, load, number, options, say, seconds, table
from competitors import alternating, ratio

KEYS = ("ratio_vs_separate", "same_curve")
BUDGETS = (4, 6, 8, 10, 15, 20, 30, 50)
ONE, EACH = "one pass", "a pass each"


def run(model: Model, games: int, settings: Settings, missing: list[str]) -> dict[str, Any]:
    """``games`` games of valid_seen, at all budgets at once and one after the other."""
    budgets = [budget for budget in BUDGETS if budget <= settings.most]
    with model.competitor("bmrl", "ours.py") as ours:
        job = {"games": games, "seed": settings.seed}
        curves: dict[str, dict[str, float]] = {ONE: {}, EACH: {}}

        def passes(name: str, each: list[list[int]]) -> dict[str, float]:
            answers = [ours.ask("evaluate", **job, budgets=part) for part in each]
            for answer in answers:
                curves[name].update(answer["success"])
            return {key: math.fsum(answer["figures"][key] for answer in answers) for key in ("wall_s", "cpu_s")}

        works = {ONE: lambda: passes(ONE, [budgets]), EACH: lambda: passes(EACH, [[budget] for budget in budgets])}
        before = load()
        ours.ask("evaluate", **job, budgets=budgets[:1])  # not counted
        found = alternating(works, repeats=settings.repeats, missing=missing, say=say)
    return {
        "model": model.name,
        "episodes": games,
        "budgets": budgets,
        "ratio_vs_separate": ratio(found, EACH, ONE),
        "same_curve": curves[ONE] == curves[EACH],
        "curves": curves,
        "most_expected": sum(budgets) / max(budgets),
        "competitors": found,
        "load": [before, load()],
    }


def shown(run: dict[str, Any]) -> Any:
    """The table of a run."""
    made = table(
        f"{run['model']}: {run['episodes']} games, budgets {' '.join(map(str, run['budgets']))}",
        "evaluation", "seconds", "CPU seconds", "times one pass",
    )  # fmt: skip
    for name, figures in run["competitors"].items():
        times = number(ratio(run["competitors"], name, ONE))
        made.add_row(name, seconds(figures["wall_s"]), number(figures["cpu_s"]["median"]), times)
    made.caption = f"{number(run['most_expected'])} times if no game ended before its budget"
    return made


@options(episodes=(32,), turns=(4, 50))
def main(settings: Settings, as_json: bool) -> None:
    """Seconds of a whole curve over budgets in one pass, against one pass for each budget."""
    conduct(run, settings, KEYS, shown, as_json, what="games")


if __name__ == "__main__":
    main()

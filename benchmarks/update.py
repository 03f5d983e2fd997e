"""Updates side by side: the same episodes through bmrl's update and TRL's, and in the row-per-turn layout.

`python benchmarks/update.py [--trl-python PYTHON] [--json]`; see README.md in this folder.
"""

import tempfile
from contextlib import ExitStack
from typing import Any

from common import Model, Settings, conduct, load, number, options, say, seconds, table
from competitors import alternating, ratio

KEYS = ("ratio_vs_trl", "peak_vs_trl", "ratio_vs_row_per_turn", "peak_vs_row_per_turn", "floor_fraction")
OURS, BY_TURN = "bmrl", "bmrl, a row per turn"


def run(model: Model, episodes: int, settings: Settings, missing: list[str]) -> dict[str, Any]:
    """One optimizer step on ``episodes`` recorded episodes of one model, by all competitors."""
    with ExitStack() as stack:
        enter = stack.enter_context
        player = enter(model.competitor("player", "ours.py"))
        recorded = player.ask("rollout", **settings.play(episodes), record=True)["episodes"]
        floors = player.ask("floors", episodes=recorded, rows=episodes, most=settings.most)
        job = {
            "episodes": recorded,
            "group": settings.group,
            "constant": settings.turn_tokens * settings.most,
            "scratch": enter(tempfile.TemporaryDirectory()),
        }
        # A process each: what one leaves in its allocator must not hide the peak of another.
        ours, by_turn = (enter(model.competitor(name, "ours.py")) for name in (OURS, BY_TURN))
        works: dict[str, Any] = {
            OURS: lambda: ours.ask("update", **job, layout="episode")["figures"],
            BY_TURN: lambda: by_turn.ask("update", **job, layout="turn")["figures"],
        }
        if settings.trl:
            trl = enter(model.competitor("TRL", "trl_peer.py", settings.trl))
            works["TRL"] = lambda: trl.ask("update", **job)["figures"]
        else:
            missing.append("TRL: name an environment that has it with --trl-python")
        before = load()
        found = alternating(works, repeats=settings.repeats, missing=missing, say=say)
    return {
        "model": model.name,
        "episodes": episodes,
        "tokens": sum(len(t["observation_ids"]) + len(t["action_ids"]) for e in recorded for t in e["turns"]),
        "action_tokens": sum(len(t["action_ids"]) for e in recorded for t in e["turns"]),
        "turns": sum(len(e["turns"]) for e in recorded),
        "ratio_vs_trl": ratio(found, "TRL", OURS),
        # The other way round: our peak as a share of theirs.
        "peak_vs_trl": ratio(found, OURS, "TRL", "peak_mb"),
        "ratio_vs_row_per_turn": ratio(found, BY_TURN, OURS),
        "peak_vs_row_per_turn": ratio(found, OURS, BY_TURN, "peak_mb"),
        "floor_fraction": floors["update_floor_s"] / found[OURS]["wall_s"]["median"] if OURS in found else None,
        "competitors": found,
        "floors": floors,
        "load": [before, load()],
    }


def shown(run: dict[str, Any]) -> Any:
    """The table of a run."""
    floor = run["floors"]["update_floor_s"]
    made = table(
        f"{run['model']}: {run['episodes']} episodes, {run['turns']} turns, {run['tokens']:,} tokens",
        "update", "seconds", "CPU seconds", "tokens/s", "peak, MiB", "times bmrl", "floor share",
    )  # fmt: skip
    for name, figures in run["competitors"].items():
        wall = figures["wall_s"]["median"]
        made.add_row(
            name,
            seconds(figures["wall_s"]),
            number(figures["cpu_s"]["median"]),
            number(run["tokens"] / wall),
            number(figures["peak_mb"]["median"]),
            number(ratio(run["competitors"], name, OURS)),
            f"{floor / wall:.1%}",
        )
    made.caption = f"floor: {number(floor)} s for forward and backward, nothing recomputed"
    return made


@options(episodes=(16,), turns=(4, 30))
def main(settings: Settings, as_json: bool) -> None:
    """Seconds and peak memory of one optimizer step on the same episodes in bmrl and in TRL."""
    conduct(run, settings, KEYS, shown, as_json)


if __name__ == "__main__":
    main()

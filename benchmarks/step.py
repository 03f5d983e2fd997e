"""Whole training steps side by side: bmrl's rollout and update, and TRL's of the same episodes.

`python benchmarks/step.py --trl-python PYTHON [--json]`; see README.md in this folder.
"""

import tempfile
from contextlib import ExitStack
from typing import Any

from common import Model, Settings, conduct, load, number, options, say, seconds, table
from competitors import alternating, ratio

from bmrl.errors import BmrlError

KEYS = ("ratio_vs_trl", "floor_fraction")
OURS = "bmrl"


def run(model: Model, episodes: int, settings: Settings, missing: list[str]) -> dict[str, Any]:
    """A step of ``episodes`` episodes by each; TRL replays those that bmrl has just played."""
    with ExitStack() as stack:
        enter = stack.enter_context
        ours = enter(model.competitor(OURS, "ours.py"))
        scratch = enter(tempfile.TemporaryDirectory())
        played: dict[str, Any] = {}

        def own() -> dict[str, float]:
            answer = ours.ask("step", **settings.play(episodes))
            played["episodes"] = answer["episodes"]
            return dict(answer["figures"])

        works: dict[str, Any] = {OURS: own}
        if settings.trl:
            trl = enter(model.competitor("TRL", "trl_peer.py", settings.trl))
            works["TRL"] = lambda: trl.ask("step", episodes=played["episodes"], group=settings.group, scratch=scratch)[
                "figures"
            ]
        else:
            missing.append("TRL: name an environment that has it with --trl-python")
        before = load()
        found = alternating(works, repeats=settings.repeats, missing=missing, say=say)
        if not played:
            raise BmrlError(missing[-1])
        floors = ours.ask("floors", episodes=played["episodes"], rows=episodes, most=settings.most)
    floor = sum(floors[key] for key in ("decode_floor_s", "prefill_floor_s", "update_floor_s"))
    return {
        "model": model.name,
        "episodes": episodes,
        "ratio_vs_trl": ratio(found, "TRL", OURS),
        "floor_fraction": floor / found[OURS]["wall_s"]["median"] if OURS in found else None,
        "floor_s": floor,
        "tokens": sum(len(t["observation_ids"]) + len(t["action_ids"]) for e in played["episodes"] for t in e["turns"]),
        "competitors": found,
        "floors": floors,
        "load": [before, load()],
    }


def shown(run: dict[str, Any]) -> Any:
    """The table of a run."""
    made = table(
        f"{run['model']}: {run['episodes']} episodes, {run['tokens']:,} tokens",
        "step", "seconds", "rollout", "CPU seconds", "tokens/s", "peak, MiB", "times bmrl", "floor share",
    )  # fmt: skip
    for name, figures in run["competitors"].items():
        wall = figures["wall_s"]["median"]
        made.add_row(
            name,
            seconds(figures["wall_s"]),
            number(figures["rollout_s"]["median"]),
            number(figures["cpu_s"]["median"]),
            number(run["tokens"] / wall),
            number(figures["peak_mb"]["median"]),
            number(ratio(run["competitors"], name, OURS)),
            f"{run['floor_s'] / wall:.1%}",
        )
    made.caption = f"floor: {number(run['floor_s'])} s for decode, pre-fill and update"
    return made


@options(episodes=(16,), turns=(4, 30))
def main(settings: Settings, as_json: bool) -> None:
    """Seconds of a whole training step in bmrl and in TRL."""
    conduct(run, settings, KEYS, shown, as_json)


if __name__ == "__main__":
    main()

"""Rollouts side by side: the same episodes through bmrl, transformers' `generate`, TRL's loop, vLLM.

`python benchmarks/rollout.py [--trl-python PYTHON] [--vllm-python PYTHON] [--json]`; see README.md in this folder.
"""

import tempfile
from contextlib import ExitStack
from typing import Any

from common import Model, Settings, conduct, load, number, options, say, seconds, table
from competitors import Competitor, alternating, ratio

from bmrl.errors import BmrlError

KEYS = (
    "ratio_vs_reprefill",
    "ratio_vs_cached",
    "ratio_vs_trl",
    "ratio_vs_vllm",
    "decode_floor_fraction",
    "prefill_floor_fraction",
    "padding_share",
)
OURS, BARE = "bmrl", "bmrl, no LoRA"
WARM_TURNS = 2


def run(model: Model, episodes: int, settings: Settings, missing: list[str]) -> dict[str, Any]:
    """All competitors on ``episodes`` episodes of one model."""
    play = settings.play(episodes)
    with ExitStack() as stack:
        enter = stack.enter_context
        ours = enter(model.competitor(OURS, "ours.py"))
        bare = enter(model.competitor(BARE, "ours.py", lora=0))
        recorded = ours.ask("rollout", **play, record=True)["episodes"]
        warm = [{**episode, "turns": episode["turns"][:WARM_TURNS]} for episode in recorded]
        counters: list[dict[str, float]] = []

        def own() -> dict[str, float]:
            answer = ours.ask("rollout", **play)
            counters.append(answer["counters"])
            return dict(answer["figures"])

        works: dict[str, Any] = {OURS: own, BARE: lambda: bare.ask("rollout", **play)["figures"]}
        scratch = enter(tempfile.TemporaryDirectory())
        for name, peer, job in peers(model, episodes, settings, missing):
            enter(peer)
            more = {"group": settings.group, "scratch": scratch}
            say(f"  {name}: warming up")
            try:
                peer.ask(job, episodes=warm, **more)
            except BmrlError as error:
                missing.append(str(error))
                say(f"  {error}")
                continue
            works[name] = lambda peer=peer, job=job, more=more: peer.ask(job, episodes=recorded, **more)["figures"]
        before = load()
        found = alternating(works, repeats=settings.repeats, missing=missing, say=say)
        floors = ours.ask("floors", episodes=recorded, rows=episodes, most=settings.most)
    return {
        "model": model.name,
        "episodes": episodes,
        "useful_tokens": sum(len(t["observation_ids"]) + len(t["action_ids"]) for e in recorded for t in e["turns"]),
        "action_tokens": sum(len(t["action_ids"]) for e in recorded for t in e["turns"]),
        "turns": sum(len(e["turns"]) for e in recorded),
        "ratio_vs_reprefill": ratio(found, "generate", OURS),
        "ratio_vs_cached": ratio(found, "generate, cache kept", OURS),
        "ratio_vs_trl": ratio(found, "TRL", OURS),
        "ratio_vs_vllm": ratio(found, "vLLM, no LoRA", BARE),
        **fractions(counters, floors),
        "competitors": found,
        "counters": counters,
        "floors": floors,
        "load": [before, load()],
    }


def peers(model: Model, episodes: int, settings: Settings, missing: list[str]) -> list[tuple[str, Competitor, str]]:
    """(name, process, job) of those that are to be had."""
    generate = model.competitor("generate", "generate_peer.py")
    found = [
        ("generate", generate, "reprefill"),
        ("generate, cache kept", model.competitor("generate, cache kept", "generate_peer.py"), "cached"),
    ]
    if settings.trl:
        found.append(("TRL", model.competitor("TRL", "trl_peer.py", settings.trl), "rollout"))
    else:
        missing.append("TRL: name an environment that has it with --trl-python")
    if settings.vllm:
        peer = model.competitor("vLLM, no LoRA", "vllm_peer.py", settings.vllm, rows=episodes, most=settings.most)
        found.append(("vLLM, no LoRA", peer, "rollout"))
    else:
        missing.append("vLLM: name an environment that has it with --vllm-python")
    return found


def fractions(counters: list[dict[str, float]], floors: dict[str, float]) -> dict[str, float | None]:
    """Shares of the measured floors that the quickest repeat reached, and the share of padding."""
    decode_s, prefill_s = (min(run[key] for run in counters) for key in ("decode_s", "prefill_s"))
    return {
        "decode_floor_fraction": floors["decode_floor_s"] / decode_s,
        "prefill_floor_fraction": floors["prefill_floor_s"] / prefill_s,
        "padding_share": counters[-1]["padding_share"],
    }


def shown(run: dict[str, Any]) -> Any:
    """The table of a run."""
    floor = run["floors"]["decode_floor_s"] + run["floors"]["prefill_floor_s"]
    made = table(
        f"{run['model']}: {run['episodes']} episodes, {run['turns']} turns, {run['useful_tokens']:,} tokens",
        "rollout", "seconds", "CPU seconds", "tokens/s", "times bmrl", "floor share",
    )  # fmt: skip
    for name, figures in run["competitors"].items():
        wall = figures["wall_s"]["median"]
        made.add_row(
            name,
            seconds(figures["wall_s"]),
            number(figures["cpu_s"]["median"]),
            number(run["useful_tokens"] / wall),
            number(ratio(run["competitors"], name, BARE if "no LoRA" in name else OURS)),
            f"{floor / wall:.1%}",
        )
    decode, prefill = run["floors"]["decode_floor_s"], run["floors"]["prefill_floor_s"]
    made.caption = f"floors: decode {number(decode)} s, pre-fill {number(prefill)} s"
    return made


@options(episodes=(16, 64), turns=(4, 30))
def main(settings: Settings, as_json: bool) -> None:
    """Seconds of the same episodes in bmrl and elsewhere, and next to the floors of this machine."""
    conduct(run, settings, KEYS, shown, as_json)


if __name__ == "__main__":
    main()

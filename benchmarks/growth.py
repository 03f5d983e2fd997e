"""How time and memory of a rollout grow with its turns and with its episodes.

`python benchmarks/growth.py [--json]`; see README.md in this folder.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from common import Model, Settings, conclude, load, models, number, options, say, seconds, table
from competitors import Competitor, spreads

from bmrl.errors import BmrlError

KEYS = ("time_exponent", "cpu_exponent", "time_exponent_episodes", "memory_vs_predicted")
ABREAST = 16  # episodes while budgets grow
TURNS = 8  # budget while episodes grow


def measure(ours: Competitor, settings: Settings, episodes: int, turns: int) -> dict[str, Any]:
    """Spreads of ``episodes`` episodes of ``turns`` turns each, all abreast, and what their cache holds."""
    play = {**settings.play(episodes), "least": turns, "most": turns, "group": min(settings.group, episodes)}
    runs = [ours.ask("rollout", **play)["figures"] for _ in range(settings.repeats)]
    say(f"  {episodes} episodes of {turns} turns: {min(run['wall_s'] for run in runs):.2f} s")
    return {"episodes": episodes, "turns": turns, **spreads(runs)}


def tokens(episode: dict[str, Any]) -> int:
    """Tokens that an episode holds at its end; of its last action nothing is kept."""
    turns = episode["turns"]
    return sum(len(t["observation_ids"]) + len(t["action_ids"]) for t in turns) - len(turns[-1]["action_ids"])


def exponent(points: list[dict[str, Any]], by: str, figure: str) -> float:
    """Slope of the line through log figure over log ``by``: how often the figure doubles when ``by`` doubles."""
    x, y = (np.log([value(point) for point in points]) for value in (lambda p: p[by], lambda p: p[figure]["median"]))
    return float(np.polyfit(x, y, 1)[0])


def run(model: Model, settings: Settings, missing: list[str]) -> dict[str, Any]:
    """Both lines of one model; turns that do not fit into its context are a line in ``missing``."""
    before = load()
    with model.competitor("bmrl", "ours.py") as ours:
        budgets = [settings.least * 2**n for n in range(16) if settings.least * 2**n <= settings.most]
        measure(ours, replace(settings, repeats=1), min(settings.episodes), budgets[0])  # not counted
        by_turns = []
        for turns in budgets:
            try:
                by_turns.append(measure(ours, settings, min(ABREAST, max(settings.episodes)), turns))
            except BmrlError as error:  # the embedded policy's context has no room for 64 turns
                missing.append(f"{model.name}, {turns} turns: {error}")
                break
        by_episodes = [measure(ours, settings, episodes, min(TURNS, settings.most)) for episodes in settings.episodes]
        longest = by_turns[-1]
        play = {**settings.play(longest["episodes"]), "least": longest["turns"], "most": longest["turns"]}
        play["group"] = min(settings.group, longest["episodes"])
        recorded = ours.ask("rollout", **play, record=True)["episodes"]
        floors = ours.ask("floors", episodes=recorded, rows=longest["episodes"], most=longest["turns"])
        fewest, most = by_episodes[0], by_episodes[-1]
        short = {**settings.play(most["episodes"]), "least": most["turns"], "most": most["turns"]}
        short["group"] = min(settings.group, most["episodes"])
        held = [tokens(episode) for episode in ours.ask("rollout", **short, record=True)["episodes"]]
    row = (most["peak_mb"]["median"] - fewest["peak_mb"]["median"]) / (most["episodes"] - fewest["episodes"])
    # Not of those that are set aside for it: they take memory only where something is written.
    predicted = floors["cache_bytes"] * sum(held) / len(held) / 2**20
    return {
        "model": model.name,
        "time_exponent": exponent(by_turns, "turns", "wall_s"),
        "cpu_exponent": exponent(by_turns, "turns", "cpu_s"),
        "time_exponent_episodes": exponent(by_episodes, "episodes", "wall_s"),
        # What one more live row takes, over the keys and values of as many tokens as it comes to hold.
        "memory_vs_predicted": row / predicted,
        "row_mb": row,
        "predicted_mb": predicted,
        "floor_s": floors["decode_floor_s"] + floors["prefill_floor_s"],
        "by_turns": by_turns,
        "by_episodes": by_episodes,
        "load": [before, load()],
    }


def shown(run: dict[str, Any]) -> Any:
    """The table of a run."""
    made = table(
        run["model"], "episodes x turns", "seconds", "seconds an episode", "CPU seconds", "peak, MiB", "MiB an episode"
    )
    for point in (*run["by_turns"], *run["by_episodes"]):
        each = point["episodes"]
        made.add_row(
            f"{each} x {point['turns']}",
            seconds(point["wall_s"]),
            number(point["wall_s"]["median"] / each),
            number(point["cpu_s"]["median"]),
            number(point["peak_mb"]["median"]),
            number(point["peak_mb"]["median"] / each),
        )
    last = run["by_turns"][-1]
    made.caption = (
        f"{last['episodes']} x {last['turns']}: floor {number(run['floor_s'])} s; "
        f"a row more: {number(run['row_mb'])} MiB, {number(run['predicted_mb'])} predicted"
    )
    return made


@options(episodes=(8, 16, 32, 64, 128), turns=(4, 64), quick_episodes=(4, 8))
def main(settings: Settings, as_json: bool) -> None:
    """Fitted exponents of seconds over turns, and over episodes; memory against what the cache must hold."""
    missing: list[str] = []
    runs = []
    for model in models(settings, missing):
        say(model.name)
        runs.append(run(model, settings, missing))
    conclude(runs, missing, KEYS, shown, as_json)


if __name__ == "__main__":
    main()

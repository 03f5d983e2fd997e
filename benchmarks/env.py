"""Steps per second of ALFWorld's engines on the same games and commands, and their share of a rollout."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import click
import unmodified

from bmrl.envs import Env, Task, make
from bmrl.envs.alfworld import export, splits
from bmrl.envs.pool import Pool, Reply
from bmrl.errors import BmrlError
from bmrl.system import system_info

SPLIT = "bench"
PASSES = {"fast": 20, "textworld": 3, "unmodified": 1}  # over all games; the first one fills caches
SLOTS = 4  # environments of the pool
TIMEOUT_S = 300.0
EPISODES, GROUP, TURNS = 64, 8, 30  # as in the quickstart: 8 tasks, 8 episodes each
REQUIRED = {"fast_vs_unmodified": 1000.0, "textworld_vs_unmodified": 5.0}
MOST_SHARE = 0.02

Scripts = Mapping[str, Sequence[str]]  # task_id -> commands


def commands(env: Env, tasks: Sequence[Task], steps: int, seed: int) -> Scripts:
    """For each game commands that are admissible where they come, and do not win."""
    scripts: dict[str, list[str]] = {}
    for index, task in enumerate(tasks):
        rng, said = Random(f"{seed}/{index}"), list[str]()
        env.reset(task)
        while len(said) < steps:
            said.append(rng.choice(env.admissible or ("look",)))
            if env.step(said[-1]).terminated:
                said.pop()  # another choice, from the same place
                env.reset(task)
                for command in said:
                    env.step(command)
        scripts[task.task_id] = said
    return scripts


def alone(env: Env, scripts: Scripts, passes: int) -> dict[str, float]:
    """One environment in this process. Medians over the passes after the first, if there are any."""
    tasks = [task for task in env.tasks(SPLIT) if task.task_id in scripts]
    rates = []
    for _ in range(passes):
        reset_s = step_s = 0.0
        for task in tasks:
            began = time.perf_counter()
            env.reset(task)
            ready = time.perf_counter()
            for command in scripts[task.task_id]:
                env.step(command)
            reset_s += ready - began
            step_s += time.perf_counter() - ready
        rates.append((sum(map(len, scripts.values())) / step_s, reset_s / len(tasks)))
    env.close()
    late = rates[1:] or rates
    return {
        "steps_per_s": median(rate for rate, _ in late),
        "first_pass_steps_per_s": rates[0][0],
        "reset_s": median(reset for _, reset in late),
        "first_pass_reset_s": rates[0][1],
    }


def pooled(pool: Pool, scripts: Scripts, passes: int) -> float:
    """Steps per second of a pool whose environments play abreast; resets are not counted."""
    tasks = [task for task in pool.tasks(SPLIT) if task.task_id in scripts]
    steps, spent_s = 0, 0.0
    for number in range(passes * len(tasks) // SLOTS + 1):
        played = {slot: tasks[(number * SLOTS + slot) % len(tasks)] for slot in range(SLOTS)}
        for slot, task in played.items():
            pool.reset(slot, task)
        pool.collect(range(SLOTS))
        began = time.perf_counter()
        for turn in range(min(len(scripts[task.task_id]) for task in played.values())):
            for slot, task in played.items():
                pool.step(slot, scripts[task.task_id][turn])
            answers = pool.collect(range(SLOTS))
            bad = next((answer for answer in answers if not isinstance(answer, Reply)), None)
            if bad is not None:
                raise BmrlError(f"the pool: {bad}")
            steps += SLOTS
        spent_s += time.perf_counter() - began
    return steps / spent_s


def rollout_share() -> dict[str, float]:
    """Share of a rollout of the pocket policy that goes into the fast engine, in the program itself."""
    from bmrl.files import recipes_path
    from bmrl.recipe import load
    from bmrl.rollout import Waited, rollout
    from bmrl.run.compose import make_player, make_pool, starting_policy
    from bmrl.sampler import LiveSampler
    from bmrl.types import Play

    recipe = load(recipes_path("quickstart.yaml"), ["env.args.source=embedded", "env.workers=0"])
    waited, policy = Waited(), starting_policy(recipe)
    with make_pool(recipe, slots=EPISODES) as pool:
        player = make_player(recipe, policy, pool, rows=EPISODES)
        tasks = pool.tasks("train")
        plays = [
            Play(1, group, episode, tasks[group], "train", 0, TURNS)
            for group in range(EPISODES // GROUP)
            for episode in range(GROUP)
        ]
        began = time.perf_counter()
        episodes = rollout(
            plays,
            sampler=LiveSampler(policy, rows=player.rows, context_tokens=player.context_tokens),
            chat=player.chat,
            pool=pool,
            turn_tokens=player.turn_tokens,
            context_tokens=player.context_tokens,
            temperature=recipe.rollout.temperature,
            waited=waited,
        )
        rollout_s = time.perf_counter() - began
    turns = sum(len(episode.turns) for episode in episodes)
    return {"rollout_share": waited.env_s / rollout_s, "rollout_s": rollout_s, "env_s": waited.env_s, "turns": turns}


def measured(source: str, scripts: Scripts, workers: int, missing: list[str]) -> dict[str, Any]:
    """Figures of each engine that is there; what is not is one line in ``missing``."""
    found: dict[str, Any] = {}
    engines: dict[str, tuple[Callable[..., Env], dict[str, Any]]] = {
        "fast": (make, {"source": source, "engine": "fast"}),
        "textworld": (make, {"source": source, "engine": "textworld"}),
        "unmodified": (unmodified.make, {"source": source}),
    }
    for name, (create, args) in engines.items():
        say(f"{name}: one process, then {workers} worker processes")
        try:
            figures: dict[str, float] = alone(create("alfworld", **args), scripts, PASSES[name])
            with Pool("alfworld", args, workers=workers, timeout_s=TIMEOUT_S, slots=SLOTS, make=create) as pool:
                figures["pool_steps_per_s"] = pooled(pool, scripts, PASSES[name])
            found[name] = figures
        except (BmrlError, ImportError) as error:
            missing.append(f"{name}: {error}")
            say(missing[-1])
    return found


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def ratio(engines: Mapping[str, Any], name: str, figure: str) -> float | None:
    """How many times the figure of the unmodified engine; None where one of the two is missing."""
    if name not in engines or "unmodified" not in engines:
        return None
    return float(engines[name][figure] / engines["unmodified"][figure])


@click.command(epilog="Example: python benchmarks/env.py --games 4 --steps 20 --json")
@click.option("--games", type=click.IntRange(min=1), default=6, show_default=True, help="Generated games.")
@click.option("--steps", type=click.IntRange(min=1), default=30, show_default=True, help="Commands for each game.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes of the pool.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of games and commands.")
@click.option("--rollout/--no-rollout", default=True, help="Whether to measure a rollout's share, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(games: int, steps: int, workers: int, seed: int, rollout: bool, as_json: bool) -> None:
    """Compare the engines on the same generated games and the same commands, in one run."""
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        records = splits.further_games(SPLIT, count=games, seed=seed)
        try:
            export.write_split(records, Path(folder) / SPLIT)
        except BmrlError as error:
            missing.append(str(error))
            splits.add_split(Path(folder), SPLIT, records, {"seed": seed})
        env = make("alfworld", source=folder)
        scripts = commands(env, env.tasks(SPLIT), steps, seed)
        engines = measured(folder, scripts, workers, missing)
    shares: dict[str, Any] = {"rollout_share": None}
    if rollout:
        say(f"rollout: {EPISODES} episodes of at most {TURNS} turns")
        shares = rollout_share()
    result: dict[str, Any] = {
        "fast_vs_unmodified": ratio(engines, "fast", "steps_per_s"),
        "textworld_vs_unmodified": ratio(engines, "textworld", "steps_per_s"),
        "fast_vs_unmodified_pool": ratio(engines, "fast", "pool_steps_per_s"),
        "textworld_vs_unmodified_pool": ratio(engines, "textworld", "pool_steps_per_s"),
        **shares,
        "engines": engines,
        "games": games,
        "steps": steps,
        "workers": workers,
        "missing": missing,
        "system": system_info(),
    }
    click.echo(json.dumps(result) if as_json else table(result))


def table(result: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = [f"{'engine':<12}{'steps/s':>12}{'pool':>12}{'first pass':>12}{'reset, s':>12}"]
    for name, row in result["engines"].items():
        figures = (row["steps_per_s"], row["pool_steps_per_s"], row["first_pass_steps_per_s"])
        lines.append(f"{name:<12}{''.join(f'{figure:>12,.1f}' for figure in figures)}{row['reset_s']:>12.4f}")
    for name, least in REQUIRED.items():
        value = result[name]
        lines.append(f"{name}: {'not measured' if value is None else f'{value:,.1f}'} (required: {least:,.0f})")
    share = result["rollout_share"]
    lines.append(f"rollout_share: {'not measured' if share is None else f'{share:.2%}'} (at most {MOST_SHARE:.0%})")
    return "\n".join([*lines, *(f"missing: {line}" for line in result["missing"])])


if __name__ == "__main__":
    main()

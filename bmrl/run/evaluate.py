"""Evaluating a policy: what a target is, playing it, and where the results go."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmrl import checkpoint as checkpoints
from bmrl import packaged, run_folder
from bmrl.atomic import write_json
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import plan_plays, result
from bmrl.files import recipes_path
from bmrl.policy import Policy, load, with_adapter
from bmrl.recipe import Recipe
from bmrl.recipe import load as load_recipe
from bmrl.rollout import rollout
from bmrl.run.compose import cache_rows, make_player, make_pool, say, starting_policy
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.sampler import LiveSampler
from bmrl.trainer import Player
from bmrl.types import Episode

ROWS = 128  # episodes in flight at once, if the cache holds them


@dataclass(frozen=True, slots=True)
class Target:
    """What is evaluated.

    Attributes:
        name: as results call it.
        recipe: its settings: environment, chat, context.
        checkpoint: which state of a run, e.g. ``step-000100``; None when there is only one.
        run: the run folder, if it is one.
        make: loads the policy.
    """

    name: str
    recipe: Recipe
    checkpoint: str | None
    run: Path | None
    make: Callable[[], Policy]


def evaluate(
    target: str | None,
    *,
    budgets: Sequence[int],
    split: str | None,
    seeds: Sequence[int],
    checkpoint: str,
    announce: str | None,
    temperature: float | None,
    tasks: int | None,
    out: Path | None,
) -> dict[str, Any]:
    """Plays a target over budgets; the JSON object that ``bmrl eval --json`` prints.

    Args:
        target: run folder, recipe, adapter folder, model folder, hub id or ``pocket``; None takes the newest
            run in ``runs/``, or ``pocket`` without one.
        budgets: turns; the recipe's when empty.
        split: the recipe's ``env.eval_split`` when None.
        seeds: one play of every task for each; the recipe's seed when empty.
        checkpoint: ``last``, ``best`` (by the area under the curves the run measured), or a step.
        announce: the recipe's when None.
        temperature: 0 is greedy; the recipe's when None.
        tasks: only the first so many of the split.
        out: folder for the episodes; by default ``eval/`` of the run, if the target is one.

    Raises:
        UsageError: no such target, checkpoint or split.
        BmrlError: it cannot be loaded.
    """
    found = find_target(target, checkpoint)
    recipe = found.recipe
    say(f"evaluating {found.name}" + (f", checkpoint {found.checkpoint}" if found.checkpoint else ""))
    with interruptible() as poll, make_pool(recipe, slots=ROWS) as pool:
        pool.tasks(split or recipe.env.eval_split)  # a wrong split is told before the model is loaded
        policy = found.make()
        rows = min(
            ROWS,
            cache_rows(policy, kv_cache_gb=recipe.rollout.kv_cache_gb, context_tokens=recipe.model.context_tokens),
        )
        player = make_player(recipe, policy, pool, rows=rows, announce=announce)
        progress = Progress(0)
        with progress.shown():
            episodes, answer = evaluate_policy(
                player,
                target=found.name,
                checkpoint=found.checkpoint,
                split=split or recipe.env.eval_split,
                budgets=list(budgets) or recipe.budget.eval,
                seeds=list(seeds) or [recipe.seed],
                temperature=recipe.rollout.temperature if temperature is None else temperature,
                limit=tasks,
                on_start=lambda total: progress.inner("episodes", total),
                on_episode=lambda _: progress.advance(),
                poll=poll,
            )
    folder = out or (found.run / "eval" if found.run else None)
    if folder is not None:
        settings = {key: answer[key] for key in ("seeds", "announce", "sampling", "tasks")}
        settings["budgets"] = [point["budget"] for point in answer["budgets"]]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        name = "-".join(part for part in (answer["split"], found.checkpoint, digest) if part)
        write_evaluation(folder, name, episodes, answer)
        say(f"episodes: {folder / name}.jsonl")
    return answer


def evaluate_policy(
    player: Player,
    *,
    target: str,
    checkpoint: str | None,
    split: str,
    budgets: Sequence[int],
    seeds: Sequence[int],
    temperature: float,
    limit: int | None,
    on_start: Callable[[int], None],
    on_episode: Callable[[Episode], None],
    poll: Callable[[], None],
) -> tuple[list[Episode], dict[str, Any]]:
    """Every task of the split once per seed; one pass serves all budgets when nothing is announced."""
    tasks = player.pool.tasks(split)[:limit]
    plays = plan_plays(tasks, split, budgets, seeds, player.announce)
    on_start(len(plays))
    episodes = rollout(
        plays,
        sampler=LiveSampler(player.policy, rows=player.rows),
        chat=player.chat,
        pool=player.pool,
        turn_tokens=player.turn_tokens,
        context_tokens=player.context_tokens,
        temperature=temperature,
        announce=player.announce,
        purpose="eval",
        on_episode=on_episode,
        poll=poll,
    )
    answer = result(
        episodes,
        tasks,
        budgets,
        target=target,
        checkpoint=checkpoint,
        split=split,
        split_hash=player.pool.split_hash(split),
        seeds=seeds,
        announce=player.announce,
        sampling={"temperature": temperature, "turn_tokens": player.turn_tokens},
    )
    return episodes, answer


def write_evaluation(folder: Path, name: str, episodes: Sequence[Episode], answer: dict[str, Any]) -> None:
    """``name.jsonl``, an episode a line, then ``name.json``, the result: where it stands, both are whole."""
    run_folder.write_lines(folder / f"{name}.jsonl", episodes)
    write_json(folder / f"{name}.json", answer)


def evaluated(folder: Path, step: int) -> bool:
    """Whether the run has its evaluation of this step."""
    return (folder / "eval" / f"step-{step:06d}.json").is_file()


def find_target(target: str | None, checkpoint: str) -> Target:
    """What a target's name means.

    Raises:
        UsageError: it means nothing.
    """
    if target is None:
        newest = run_folder.newest(Path("runs"))
        say(f"no target given: the {'newest run' if newest else 'embedded pocket policy'}")
        target = str(newest) if newest else "pocket"
    path = Path(target)
    if run_folder.is_run(path):
        return _run_target(path, checkpoint)
    if checkpoint != "last":
        raise UsageError(f"--checkpoint {checkpoint}: {target} is no run folder, it has no checkpoints")
    if target.endswith((".yaml", ".yml")) or (not path.exists() and recipes_path(f"{target}.yaml").is_file()):
        recipe = load_recipe(packaged.find(target))
        return Target(recipe.name, recipe, None, None, lambda: starting_policy(recipe))
    recipe = _defaults()
    if (path / "adapter_config.json").is_file():
        base = _read_json(path / "adapter_config.json", "copy the adapter again").get("base_model_name_or_path")
        if not base:
            raise UsageError(f"{path}: adapter_config.json names no base model; set base_model_name_or_path in it")
        recipe = _with_model(recipe, str(base))
        return Target(path.resolve().name, recipe, None, None, lambda: with_adapter(_load(recipe), path))
    if (
        target == "pocket"
        or (path / "config.json").is_file()
        or ("/" in target and not path.exists() and target.count("/") == 1)
    ):
        recipe = _with_model(recipe, target)
        return Target(path.resolve().name if path.exists() else target, recipe, None, None, lambda: _load(recipe))
    raise UsageError(
        f"{target}: neither a run, a recipe, an adapter or model folder, a hub id (owner/name) nor 'pocket'"
    )


def _run_target(folder: Path, checkpoint: str) -> Target:
    try:
        recipe = Recipe.model_validate(run_folder.load_resolved(folder))
    except ValueError as error:  # pydantic's is one
        raise BmrlError(
            f"{folder / run_folder.RESOLVED}: no recipe of this bmrl; restore the file, or use the bmrl that wrote it"
        ) from error
    steps = checkpoints.complete(folder / "checkpoints")
    if not steps:
        raise UsageError(f"{folder}: no checkpoint yet; let it train on with --resume")
    if checkpoint == "last":
        newest = checkpoints.latest(folder / "checkpoints")
        if newest is None:
            raise UsageError(f"{folder}: no undamaged checkpoint; let it train on with --resume")
        step = int(newest.name.removeprefix("step-"))
    else:
        step = best_step(folder, steps) if checkpoint == "best" else _step(checkpoint)
    if step not in steps:
        raise UsageError(f"--checkpoint {checkpoint}: {folder} has {', '.join(map(str, steps))}")
    name = f"step-{step:06d}"

    def make() -> Policy:
        found = checkpoints.load(folder / "checkpoints" / name)
        if recipe.model.new is not None:
            policy = load(str(folder / "model"), dtype="float32")
        else:
            policy = starting_policy(recipe)
        policy.load_adapter_tensors(found.adapter)
        return policy

    return Target(folder.resolve().name, recipe, name, folder, make)


def best_step(folder: Path, steps: Sequence[int]) -> int:
    """The checkpoint with the largest area under the curve that the run itself measured.

    Raises:
        UsageError: the run measured none of its checkpoints.
    """
    areas: dict[int, float] = {}
    hint = "remove it and name a step with --checkpoint"
    for step in steps:
        path = folder / "eval" / f"step-{step:06d}.json"
        if path.is_file():
            area = _read_json(path, hint).get("area")
            if not isinstance(area, int | float):
                raise BmrlError(f"{path}: damaged, not an evaluation; {hint}")
            areas[step] = area
    if not areas:
        raise UsageError(f"--checkpoint best: {folder} evaluated none of its checkpoints; set train.eval_every")
    return max(areas, key=lambda step: (areas[step], step))


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BmrlError(f"{path}: damaged, cannot be read as JSON; {hint}") from error
    if not isinstance(value, dict):
        raise BmrlError(f"{path}: damaged, not a JSON object; {hint}")
    return value


def _step(text: str) -> int:
    digits = text.removeprefix("step-")
    if not digits.isdecimal():
        raise UsageError(f"--checkpoint {text}: expected last, best or a step")
    return int(digits)


def _defaults() -> Recipe:
    """Settings for a target that brings none: those of the quickstart."""
    return load_recipe(recipes_path("quickstart.yaml"))


def _with_model(recipe: Recipe, name: str) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": name, "adapter": None})})


def _load(recipe: Recipe) -> Policy:
    return load(recipe.model.name, dtype=recipe.model.dtype)

"""Evaluating a policy: what a target is, playing it, and where the results go."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bmrl import checkpoint as checkpoints
from bmrl import results, run_folder, truncation
from bmrl.errors import UsageError
from bmrl.evaluate import plan_plays, result
from bmrl.policy import Policy, load, with_adapter
from bmrl.rollout import rollout
from bmrl.run.compose import cache_rows, make_player, make_pool, say, starting_policy
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.target import Target
from bmrl.trainer import Player
from bmrl.types import Episode, Play

ROWS = 128  # episodes in flight at once, if the cache holds them


def evaluate(
    target: Target,
    *,
    budgets: Sequence[int],
    split: str | None,
    seeds: Sequence[int],
    announce: str | None,
    temperature: float | None,
    tasks: int | None,
    out: Path | None,
    check_truncation: bool = False,
) -> dict[str, Any]:
    """Plays a target over budgets; the JSON object that ``bmrl eval --json`` prints.

    Args:
        target: from `target.find`.
        budgets: turns; the recipe's when empty.
        split: the recipe's ``env.eval_split`` when None.
        seeds: one play of every task for each; the recipe's seed when empty.
        announce: the recipe's when None.
        temperature: 0 is greedy; the recipe's when None.
        tasks: only the first so many of the split.
        out: folder for the episodes; by default ``eval/`` of the run, if the target is one.
        check_truncation: compare one pass with each budget played anew; the answer has it as ``truncation``.

    Raises:
        UsageError: no such split.
        BmrlError: it cannot be loaded.
    """
    recipe = target.recipe
    with interruptible() as poll, make_pool(recipe, slots=ROWS) as pool:
        split = split or recipe.env.eval_split
        pool.tasks(split)  # a wrong split is told before the model is loaded
        for note in pool.notes(split):
            say(f"{split}: {note}")
        policy, checkpoint = load_policy(target)
        say(f"evaluating {target.name}" + (f", checkpoint {checkpoint}" if checkpoint else ""))
        rows = min(
            ROWS,
            cache_rows(policy, kv_cache_gb=recipe.rollout.kv_cache_gb, context_tokens=recipe.model.context_tokens),
        )
        player = make_player(recipe, policy, pool, rows=rows, announce=announce)
        progress = Progress(0)
        budgets, seeds = list(budgets) or recipe.budget.eval, list(seeds) or [recipe.seed]
        playing: dict[str, Any] = {
            "temperature": recipe.rollout.temperature if temperature is None else temperature,
            "on_episode": lambda _: progress.advance(),
            "poll": poll,
        }
        with progress.shown():
            episodes, answer = evaluate_policy(
                player,
                target=target.name,
                checkpoint=checkpoint,
                split=split,
                budgets=budgets,
                seeds=seeds,
                limit=tasks,
                on_start=lambda total: progress.inner("episodes", total),
                **playing,
            )
            if check_truncation:
                chosen = pool.tasks(split)[:tasks]
                progress.inner("to check", len(chosen) * len(seeds) * (1 + len(set(budgets))))
                again = partial(play, player, **playing)
                checked = truncation.check(again, chosen, split, budgets, seeds, player.announce)
    folder = out or (target.folder / "eval" if target.kind == "run" and target.folder else None)
    if folder is not None:
        name = results.name_of(answer, checkpoint)
        results.write(folder, name, episodes, answer)
        say(f"episodes: {folder / name}.jsonl")
    return {**answer, "truncation": checked} if check_truncation else answer


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
    episodes = play(player, plays, temperature=temperature, on_episode=on_episode, poll=poll)
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


def play(
    player: Player,
    plays: Sequence[Play],
    *,
    temperature: float,
    on_episode: Callable[[Episode], None],
    poll: Callable[[], None],
) -> list[Episode]:
    """The player's episodes of these plays."""
    return rollout(
        plays,
        sampler=player.sampler(),
        chat=player.chat,
        pool=player.pool,
        turn_tokens=player.turn_tokens,
        context_tokens=player.context_tokens,
        temperature=temperature,
        announce=player.announce,
        wording=player.wording,
        action_tokens=player.action_tokens,
        purpose="eval",
        on_episode=on_episode,
        poll=poll,
    )


def evaluated(folder: Path, step: int) -> bool:
    """Whether the run has its evaluation of this step."""
    return (folder / "eval" / f"step-{step:06d}.json").is_file()


def load_policy(target: Target) -> tuple[Policy, str | None]:
    """The policy, and the name of the checkpoint that it is of, if any."""
    recipe, folder = target.recipe, target.folder
    if target.kind == "recipe":
        return starting_policy(recipe), None
    if target.kind != "run" or folder is None:
        policy = load(recipe.model.name, dtype=recipe.model.dtype, quantization=recipe.model.quantization)
        return (policy if folder is None else with_adapter(policy, folder)), None
    if target.step is None:
        newest = checkpoints.latest(folder / "checkpoints")
        if newest is None:
            raise UsageError(f"{folder}: no undamaged checkpoint; let it train on with --resume")
    else:
        newest = run_folder.checkpoints(folder / "checkpoints")[target.step]
    found = checkpoints.load(newest)
    policy = load(str(folder / "model"), dtype="float32") if recipe.model.new else starting_policy(recipe, folder)
    policy.load_adapter_tensors(found.adapter)
    return policy, newest.name

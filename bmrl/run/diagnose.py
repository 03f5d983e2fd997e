"""Diagnosing policies: what the targets are, playing them, and where the results go."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bmrl import envs
from bmrl.atomic import write_json
from bmrl.diagnose import Bank, Diagnosis, Settings, World, diagnose, read_bank
from bmrl.envs.pool import Pool
from bmrl.episodes import write_lines
from bmrl.policy import continuation_logprobs
from bmrl.run.compose import cache_rows, make_player, make_pool, say
from bmrl.run.evaluate import ROWS, load_policy, play
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.target import Target
from bmrl.trainer import Player
from bmrl.types import Episode, Play


@dataclass(frozen=True, slots=True)
class PolicyPlayer:
    """A trained policy as the diagnosis sees it.

    Attributes:
        temperature: of sampling.
        on_start, on_episode: told how many episodes begin, and of each that ends (progress).
        poll: may raise to stop.
    """

    player: Player
    temperature: float
    on_start: Callable[[int], None] = lambda total: None
    on_episode: Callable[[Episode], None] = lambda episode: None
    poll: Callable[[], None] = lambda: None

    def play(self, plays: Sequence[Play], *, greedy: bool = False) -> list[Episode]:
        """See `bmrl.diagnose.Player`."""
        if not plays:
            return []
        self.on_start(len(plays))
        temperature = 0.0 if greedy else self.temperature
        return play(self.player, plays, temperature=temperature, on_episode=self.on_episode, poll=self.poll)

    def mass(self, episodes: Sequence[Episode], commands: Sequence[Sequence[str]]) -> list[list[float]] | None:
        """See `bmrl.diagnose.Player`.

        Exact where the text of a turn is the command. Elsewhere a policy may say anything around its command, and the
        sum over what it may say cannot be had.
        """
        chat = self.player.chat
        if not chat.plain or self.temperature == 0:
            return None
        found = []
        for episode, wanted in zip(episodes, commands, strict=True):
            self.poll()
            beginning = episode.token_ids[: -len(episode.turns[-1].action_ids)]
            logprobs = continuation_logprobs(
                self.player.policy, beginning, [chat.answer(c) for c in wanted], temperature=self.temperature
            )
            found.append([math.exp(logprob) for logprob in logprobs])
        return found


def diagnose_targets(
    a: Target,
    b: Target,
    *,
    budgets: Sequence[int],
    split: str | None,
    seeds: Sequence[int],
    announce: str | None,
    temperature: float | None,
    tasks: int | None,
    states: int,
    samples: int,
    strengths: Sequence[int],
    bank: Path | None,
    out: Path | None,
) -> dict[str, Any]:
    """Compares two policies; the JSON object that ``bmrl diagnose --json`` prints.

    Both play in A's environment, with A's budgets, announcement and temperature; chat and context are their own.

    Args:
        a, b: from `target.find`, or `target.start_of`; no baselines.
        budgets, split, seeds, announce, temperature: those of A's recipe when empty or None.
        tasks: only the first so many of the split.
        states, samples, strengths: see `diagnose.Settings`.
        bank: file of a bank to use.
        out: folder for the results; by default ``diagnosis/`` of A's run, if it is one.

    Raises:
        UsageError: no such split, or the bank is of other games.
        BmrlError: a target cannot be loaded, or the bank is damaged.
    """
    recipe = a.recipe
    settings = Settings(
        budgets=sorted(budgets or recipe.budget.eval),
        seeds=list(seeds) or [recipe.seed],
        announce=announce or recipe.budget.announce,
        states=states,
        samples=samples,
        strengths=sorted(strengths),
    )
    heat = recipe.rollout.temperature if temperature is None else temperature
    with interruptible() as poll, make_pool(recipe, slots=ROWS) as pool:
        world = _world(a, split or recipe.env.eval_split, tasks)
        if bank is not None:  # before anything is loaded
            settings = replace(settings, bank=_stored(bank, world))
        progress = Progress(0)
        players, names, on_part = _players(a, b, pool, settings.announce, heat, progress, poll)
        try:
            with progress.shown():
                found = diagnose(players[0], players[1], world, settings, on_part)
        finally:
            world.env.close()
    head = {"a": names[0], "b": names[1], "temperature": heat}
    folder = out or (a.folder / "diagnosis" if a.kind == "run" and a.folder else None)
    return _written(found, head, folder, settings)


def _players(
    a: Target,
    b: Target,
    pool: Pool,
    announce: str,
    temperature: float,
    progress: Progress,
    poll: Callable[[], None],
) -> tuple[list[PolicyPlayer], list[dict[str, Any]], Callable[[str], None]]:
    """Both ready to play, what they are called, and who is to be told which part begins."""
    parts = [""]  # what is played now, last
    players, names = [], []
    for letter, target in zip("AB", (a, b), strict=True):
        player, checkpoint = _player(target, a, pool, announce)

        def start(total: int, letter: str = letter) -> None:
            progress.inner(f"{parts[-1]}, {letter}", total)

        players.append(PolicyPlayer(player, temperature, start, lambda _: progress.advance(), poll))
        names.append({"name": target.name, "checkpoint": checkpoint})

    def on_part(name: str) -> None:
        parts.append(name)
        progress.say(name)

    return players, names, on_part


def _player(target: Target, host: Target, pool: Pool, announce: str) -> tuple[Player, str | None]:
    """A target ready to play in the host's environment, and the checkpoint that it is of, if any."""
    recipe = target.recipe.model_copy(update={"env": host.recipe.env})
    policy, checkpoint = load_policy(replace(target, recipe=recipe))
    held = cache_rows(policy, kv_cache_gb=recipe.rollout.kv_cache_gb, context_tokens=recipe.model.context_tokens)
    return make_player(recipe, policy, pool, rows=min(ROWS, held), announce=announce), checkpoint


def _stored(path: Path, world: World) -> Bank:
    ids = [task.task_id for task in world.tasks]
    return read_bank(path, env=world.name, split=world.split, split_hash=world.split_hash, tasks=ids)


def _world(target: Target, split: str, limit: int | None) -> World:
    env = target.recipe.env
    made = envs.make(env.name, **env.args)
    expert = envs.explores(env.name)
    return World(
        name=env.name,
        env=made,
        split=split,
        split_hash=made.split_hash(split),
        tasks=made.tasks(split)[:limit],
        judge=envs.judge(env.name),
        expert=partial(envs.explorer, env.name) if expert else None,
    )


def _written(found: Diagnosis, head: dict[str, Any], folder: Path | None, settings: Settings) -> dict[str, Any]:
    """The result with the names of the players, and its files, if there is a folder for them."""
    result = {"diagnosis_format": found.result["diagnosis_format"], **head, **found.result}
    if folder is None:
        say("nothing is written: A is no run; name a folder with --out")
        return result
    keys = ("a", "b", "temperature", "env", "split_hash", "seeds", "announce", "tasks", "budgets")
    told = {key: result[key] for key in keys}
    told |= {"states": settings.states, "samples": settings.samples, "strengths": list(settings.strengths)}
    told["bank"] = found.bank.hash if found.bank else None
    name = f"{result['split']}-{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]}"
    if found.bank is not None:
        found.bank.write(folder / f"{name}.bank.jsonl")
        result["single_step"]["bank"]["file"] = f"{name}.bank.jsonl"
    for player, episodes in found.episodes.items():
        write_lines(folder / f"{name}.{player}.jsonl", episodes)
    write_json(folder / f"{name}.json", result)  # last: where it stands, all are whole
    say(f"diagnosis: {folder / name}.json")
    return result

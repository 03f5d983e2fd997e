"""Evaluating a model behind an OpenAI-compatible endpoint: resumable, within what may be spent."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bmrl import evaluations, results
from bmrl.chat import rules
from bmrl.endpoint import Cost, Endpoint, EndpointSampler, Texts
from bmrl.envs import instructions
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import plan_plays, result
from bmrl.rollout import rollout
from bmrl.run.compose import make_pool, say
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.target import Target
from bmrl.types import Episode, Play

FOLDER = Path("eval")  # where nothing else is said
UNLIMITED = 2**40  # tokens of a context: the server knows its own


def evaluate_endpoint(
    target: Target,
    endpoint: Endpoint,
    *,
    budgets: Sequence[int],
    split: str | None,
    seeds: Sequence[int],
    announce: str | None,
    temperature: float | None,
    tasks: int | None,
    out: Path | None,
) -> dict[str, Any]:
    """Plays a served model over budgets; the JSON object that ``bmrl eval --json`` prints.

    Beside what every evaluation has, it has ``endpoint``, the URL, and ``cost``. Arguments are those of ``evaluate``.

    Raises:
        UsageError: no such split.
        BmrlError: the server does not answer, or what may be spent is spent; what was played is kept.
    """
    recipe = target.recipe
    if recipe.budget.action_tokens is not None:
        raise UsageError("budget.action_tokens: a served model's tokens are not counted here; set it to null")
    with interruptible() as poll, make_pool(recipe, slots=endpoint.concurrency) as pool:
        split = split or recipe.env.eval_split
        chosen = pool.tasks(split)[:tasks]
        for note in pool.notes(split):
            say(f"{split}: {note}")
        settings: dict[str, Any] = {
            "target": target.name,
            "split": split,
            "split_hash": pool.split_hash(split),
            "seeds": list(seeds) or [recipe.seed],
            "announce": announce or recipe.budget.announce,
            "sampling": {
                "temperature": recipe.rollout.temperature if temperature is None else temperature,
                "turn_tokens": recipe.rollout.turn_tokens,
                **({"fields": dict(endpoint.fields)} if endpoint.fields else {}),
            },
        }
        told = rules(think=recipe.chat.think, system=recipe.chat.system, instructions=instructions(recipe.env.name))
        asked: dict[str, Any] = {
            **settings,
            "tasks": [task.task_id for task in chosen],
            "budgets": sorted(set(budgets or recipe.budget.eval)),
            "endpoint": endpoint.url,
            "env": [recipe.env.name, recipe.env.args],
            **({} if recipe.budget.wording is None else {"wording": recipe.budget.wording}),
            "rules": told,
        }
        folder, name = out or FOLDER, _name(asked)
        if (folder / f"{name}.json").is_file():
            say(f"{folder / name}.json: evaluated before, nothing is asked; remove it to play again")
            return dict(evaluations.read(folder / f"{name}.json").head)
        say(f"evaluating {target.name} at {endpoint.url}")
        with results.partial(folder / f"{name}.partial.jsonl", asked) as partial:
            plays = plan_plays(chosen, split, asked["budgets"], settings["seeds"], settings["announce"])
            cost = _play(plays, chosen, endpoint, Texts(told), pool, partial, settings, recipe.budget.wording, poll)
            lines = [partial.episodes[_key(play)] for play in plays]
            answer = result(lines, chosen, asked["budgets"], checkpoint=None, **settings)
            answer = {**answer, "endpoint": endpoint.url, "cost": asdict(cost)}
            results.write(folder, name, lines, answer)
            partial.path.unlink()
    say(f"episodes: {folder / name}.jsonl")
    return answer


def _play(
    plays: Sequence[Play],
    tasks: Sequence[Task],
    endpoint: Endpoint,
    chat: Texts,
    pool: Pool,
    partial: results.Partial,
    settings: Mapping[str, Any],
    wording: str | None,
    poll: Callable[[], None],
) -> Cost:
    """Plays what is missing; what all of it has cost.

    Raises:
        BmrlError: it stopped before its end; the message says how much there is and how to go on.
    """
    missing = [play for play in plays if _key(play) not in partial.episodes]
    if len(missing) < len(plays):
        say(f"going on: {_share(plays, tasks, partial)} before")
    before = Cost()
    for earlier in partial.costs:
        before = before.plus(earlier)
    progress = Progress(0)
    with progress.shown(), EndpointSampler(endpoint, progress.say) as sampler:
        progress.inner("episodes", len(missing))
        written = Cost()

        def keep(episode: Episode) -> None:
            nonlocal written
            now = sampler.cost
            partial.add(asdict(now.minus(written)), _without_tokens(episode))
            written = now
            progress.advance()

        try:
            rollout(
                missing,
                sampler=sampler,
                chat=chat,
                pool=pool,
                turn_tokens=settings["sampling"]["turn_tokens"],
                context_tokens=UNLIMITED,
                temperature=settings["sampling"]["temperature"],
                announce=settings["announce"],
                wording=wording,
                purpose="eval",
                on_episode=keep,
                poll=poll,
            )
        except BmrlError as error:
            rest = sampler.cost.minus(written)
            if rest.prompt_tokens or rest.uncounted:
                partial.add(asdict(rest))
            kept = f"kept in {partial.path}" if partial.episodes else "nothing to keep"
            raise type(error)(
                f"{error}; {_share(plays, tasks, partial)}, {kept}; the same command goes on from there"
            ) from error
        finally:
            say(sampler.cost.line() + (f"; before, {before.line()}" if before.requests else ""))
    cost = before.plus(asdict(sampler.cost))
    for note in cost.notes():
        say(f"note: {note}")
    return cost


def _share(plays: Sequence[Play], tasks: Sequence[Task], partial: results.Partial) -> str:
    """How much there is; a task counts once all of its episodes are there."""
    missing = {play.task.task_id for play in plays if _key(play) not in partial.episodes}
    done = len(tasks) - len(missing)
    return f"{done} of {len(tasks)} tasks ({len(partial.episodes)} of {len(plays)} episodes) were played"


def _key(play: Play) -> tuple[int, int, int]:
    return play.step, play.group, play.episode


def _without_tokens(episode: Episode) -> Episode:
    """Without the characters that stood for them."""
    turns = tuple(replace(turn, observation_ids=(), action_ids=(), logprobs=()) for turn in episode.turns)
    return replace(episode, turns=turns)


def _name(asked: Mapping[str, Any]) -> str:
    """A file name that no other settings have."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "_", asked["target"]).strip("._")[:60]
    return f"{asked['split']}-{model}-{results.digest(asked)}"

"""Players without a model, as evaluation targets: what a curve is measured against. No torch.

``expert`` explores as an agent must, knowing the world in general (its success is the search reference);
``oracle`` knows the game and plays a shortest plan (its success is the ceiling); ``random`` draws among the
commands that the environment would accept.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bmrl import results, truncation
from bmrl.envs import Task, explorer, make
from bmrl.envs.worker import Table
from bmrl.errors import UsageError
from bmrl.evaluate import plan_plays, result
from bmrl.seeds import python_stream
from bmrl.types import EndReason, Episode, Play, Turn

BASELINES = ("expert", "oracle", "random")
# What plays a game: sees an observation and the commands that would be accepted, names one.
Player = Callable[[str, tuple[str, ...] | None], str]


def evaluate(
    name: str,
    world: str,
    args: Mapping[str, Any],
    *,
    budgets: Sequence[int],
    split: str,
    seeds: Sequence[int],
    announce: str,
    tasks: int | None,
    out: Path | None,
    check_truncation: bool = False,
) -> dict[str, Any]:
    """Plays a baseline over budgets; the JSON object that ``bmrl eval --json`` prints.

    Args:
        name: one of `BASELINES`.
        world, args: name and arguments of the environment.
        budgets: turns.
        seeds: one play of every task for each.
        announce: baselines do not read it; it says how the budgets are played.
        tasks: only the first so many of the split.
        out: folder for the episodes; None writes none.
        check_truncation: as for a policy; see `truncation.check`.

    Raises:
        UsageError: no such split, or this environment has no such baseline.
    """
    env, table = make(world, **args), Table(partial(make, world, **args))
    try:
        chosen = env.tasks(split)[:tasks]

        def play(plays: Sequence[Play]) -> list[Episode]:
            return [_played(name, world, table, one) for one in plays]

        episodes = play(plan_plays(chosen, split, budgets, seeds, announce))
        answer = result(
            episodes,
            chosen,
            budgets,
            target=name,
            checkpoint=None,
            split=split,
            split_hash=env.split_hash(split),
            seeds=seeds,
            announce=announce,
            sampling={},
        )
        checked = None
        if check_truncation:
            checked = truncation.check(play, chosen, split, budgets, seeds, announce)
    finally:
        env.close()
        table.close()
    if out is not None:
        results.write(out, results.name_of(answer, name), episodes, answer)
    return answer if checked is None else {**answer, "truncation": checked}


def _played(name: str, world: str, table: Table, play: Play) -> Episode:
    """One episode; once more from its beginning where the environment failed, as a policy's is."""
    episode = _play(name, world, table, play)
    return _play(name, world, table, play) if episode.error else episode


def _play(name: str, world: str, table: Table, play: Play) -> Episode:
    """One episode; its turns have no tokens."""
    step = table.answer(0, play.task)
    if isinstance(step, str):
        return play.ended(EndReason.ENV_ERROR, (), "", step)
    act = player(name, world, play, step.observation)
    turns: list[Turn] = []
    reason = EndReason.BUDGET
    while reason is EndReason.BUDGET and len(turns) < play.budget:
        seen, accepted = step.observation, step.admissible
        action = act(seen, accepted)
        valid = bool(action) if accepted is None else action in accepted
        answer = table.answer(0, action)
        reward = 0.0 if isinstance(answer, str) else answer.reward
        turns.append(Turn(seen, (), action, action, (), (), valid, reward))
        if isinstance(answer, str):
            return play.ended(EndReason.ENV_ERROR, tuple(turns), seen, answer)
        step = answer
        if step.terminated:
            reason = EndReason.SUCCESS if step.won else EndReason.FAILURE
    return play.ended(reason, tuple(turns), step.observation)


def player(name: str, world: str, play: Play, opening: str) -> Player:
    """What plays as the baseline of that name, from the opening on.

    Raises:
        UsageError: this environment has no such baseline, at once or when it is to act.
    """
    task: Task = play.task
    if name == "oracle":
        if not task.plan:
            raise UsageError(f"oracle: {world} has no plan for {task.task_id}")
        rest = iter(task.plan)

        def follow(observation: str, accepted: tuple[str, ...] | None) -> str:
            for command in rest:
                return command
            raise UsageError(f"oracle: the plan of {task.task_id} does not win; see bmrl games verify --env {world}")

        return follow
    if name == "expert":
        return _explore(world, opening, Random(f"search/{task.task_id}/{play.seed}"))
    rng = python_stream(play.seed, "random", play.group, play.episode)

    def draw(observation: str, accepted: tuple[str, ...] | None) -> str:
        if not accepted:
            raise UsageError(f"random: {world} does not say which commands it would accept")
        return rng.choice(accepted)

    return draw


def _explore(world: str, opening: str, rng: Random) -> Player:
    # Keyed as the plays of the search reference are: seed i is its i-th play.
    expert = explorer(world, opening, rng)
    last: list[str] = []

    def act(observation: str, accepted: tuple[str, ...] | None) -> str:
        if last:
            expert.observe(last[-1], observation)
        last.append(expert.act())
        return last[-1]

    return act

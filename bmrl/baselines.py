"""Players without a model, as evaluation targets: what a curve is measured against. No torch.

``expert`` explores as an agent must, knowing the world in general (its success is the search reference);
``oracle`` knows the game and plays a shortest plan (its success is the ceiling); ``random`` draws among the
commands that the environment would accept.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bmrl import results
from bmrl.envs import Env, Task, explorer, make
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

    Raises:
        UsageError: no such split, or this environment has no such baseline.
    """
    env = make(world, **args)
    try:
        chosen = env.tasks(split)[:tasks]
        plays = plan_plays(chosen, split, budgets, seeds, announce)
        episodes = [_play(name, world, env, one) for one in plays]
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
    finally:
        env.close()
    if out is not None:
        results.write(out, results.name_of(answer, name), episodes, answer)
    return answer


def _play(name: str, world: str, env: Env, play: Play) -> Episode:
    """One episode; its turns have no tokens."""
    observation = env.reset(play.task)
    player = _player(name, world, play, observation)
    turns: list[Turn] = []
    reason = EndReason.BUDGET
    while reason is EndReason.BUDGET and len(turns) < play.budget:
        accepted = env.admissible
        action = player(observation, accepted)
        step = env.step(action)
        valid = bool(action) if accepted is None else action in accepted
        turns.append(Turn(observation, (), action, action, (), (), valid, float(step.reward)))
        observation = step.observation
        if step.terminated:
            reason = EndReason.SUCCESS if step.won else EndReason.FAILURE
    return play.ended(reason, tuple(turns), observation)


def _player(name: str, world: str, play: Play, opening: str) -> Player:
    task: Task = play.task
    if name == "oracle":
        if not task.plan:
            raise UsageError(f"oracle: {world} has no plan for {task.task_id}")
        rest = iter(task.plan)
        return lambda observation, accepted: next(rest)
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

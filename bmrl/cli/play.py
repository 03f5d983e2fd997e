"""`bmrl play`, which is `bmrl games play` as well: a person, a player without a model, or a policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import click

from bmrl.cli.clicks import Command
from bmrl.cli.games import ARGS, ENGINE, SOURCE, chosen_task, environment_arguments
from bmrl.cli.options import CHECKPOINT, TEMPERATURE
from bmrl.envs import make
from bmrl.envs.base import Env, Step, Task
from bmrl.envs.replay import Fault, reset, step
from bmrl.errors import BmrlError, UsageError
from bmrl.types import EndReason, Episode, Play

# Sees what the environment said last and what stands before a command; names one, None when there will be no more.
Act = Callable[[Step, str], str | None]
SEED = 0


@dataclass(frozen=True, slots=True)
class Table:
    """What is played, and what is told of it.

    Attributes:
        budget: most turns; None: as many as one likes.
        distance: whether the turns to the goal are shown at each turn.
    """

    env: Env
    task: Task
    budget: int | None
    distance: bool

    def status(self, turns: int) -> str:
        """What stands before a command: turns left, and the distance to the goal if it was asked for."""
        left = [f"{self.budget - turns} left"] if self.budget is not None else []
        goal = [to_goal(self.env)] if self.distance else []
        return f"[{', '.join(left + goal)}] > " if left or goal else "> "


@click.command(cls=Command, epilog="Example: bmrl play expert --task 3 --show-distance")
@click.argument("target", required=False)
@click.option("--env", "world", metavar="NAME", help="Environment; the target's own by default, else alfworld.")
@ARGS
@SOURCE
@ENGINE
@click.option("--split", metavar="NAME", help="Split of the game; valid_seen by default.")
@click.option("--task", default="1", show_default=True, metavar="N|ID", help="Its number in the split, or its id.")
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most turns; for a person as many as one likes by default, else the largest budget of the target's recipe.",
)
@click.option("--show-distance", is_flag=True, help="Say at each turn how many turns the goal is away.")
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True, metavar="N", help="Of its draws.")
@CHECKPOINT
@TEMPERATURE
def play(
    target: str | None,
    world: str | None,
    args: dict[str, str],
    source: str | None,
    engine: str | None,
    split: str | None,
    task: str,
    budget: int | None,
    show_distance: bool,
    seed: int,
    checkpoint: str,
    temperature: float | None,
) -> None:
    """Play a game in the terminal, or watch one being played.

    Without TARGET you play: one command a line; `?` lists the commands that would be accepted, `??`
    says how many turns the goal is away, and neither takes a turn. The end of the input (Ctrl-D)
    stops. TARGET is what plays instead: `expert`, `oracle`, `random`, or whatever `bmrl eval` takes.
    """
    if target is None:
        name, split = world or "alfworld", split or "valid_seen"
        env = make(name, **environment_arguments(name, args, source, engine))
        table = Table(env, chosen_task(env.tasks(split), task, split), budget, show_distance)
        _play(table, lambda _: _person(table))
        return
    from bmrl import target as targets

    found = targets.find(target, checkpoint, split, turns=budget, world=world)
    recipe = found.recipe
    given = environment_arguments(recipe.env.name, args, source, engine, own=recipe.env.args)
    recipe = recipe.model_copy(update={"env": recipe.env.model_copy(update={"args": given})})
    env, split = make(recipe.env.name, **given), split or recipe.env.eval_split
    table = Table(env, chosen_task(env.tasks(split), task, split), budget or max(recipe.budget.eval), show_distance)
    if found.kind == "baseline":
        if temperature is not None:
            raise UsageError(f"--temperature: {found.name} is no model, it samples nothing")
        _play(table, lambda opening: _baseline(found.name, recipe.env.name, table, split, seed, opening))
        return
    from bmrl.check import start_backend

    if found.kind in ("run", "recipe"):
        start_backend(recipe, found.folder)
    from bmrl.run.play import play as played  # imports torch

    episode = played(
        replace(found, recipe=recipe),
        split=split,
        task_id=table.task.task_id,
        budget=table.budget or 1,
        seed=seed,
        temperature=temperature,
    )
    _play(table, lambda _: _recorded(episode))


def to_goal(env: Env) -> str:
    """How far the goal is, for a reader."""
    turns = env.distance()
    if turns is None:
        return "distance unknown"
    return f"{turns} turn{'s' * (turns != 1)} to the goal"


def _play(table: Table, player: Callable[[str], Act]) -> None:
    """From the opening to the end of the game, of the budget or of the player."""
    answer = _sound(reset(table.env, table.task))
    click.echo(answer.observation)
    act, turns = player(answer.observation), 0
    while table.budget is None or turns < table.budget:
        command = act(answer, table.status(turns))
        if command is None:
            click.echo(f"\nstopped after {turns} turns")
            return
        answer, turns = _sound(step(table.env, command)), turns + 1
        click.echo(answer.observation)
        if answer.terminated:
            best = f"; a shortest plan takes {len(table.task.plan)}" if table.task.plan else ""
            click.echo(f"{'won' if answer.won else 'lost'} after {turns} turns{best}")
            return
    click.echo(f"the budget of {table.budget} turns is used up")


def _sound(answer: Step | Fault) -> Step:
    if isinstance(answer, Fault):
        raise BmrlError(f"the environment failed: {answer.text}")
    return answer


def _person(table: Table) -> Act:
    def act(answer: Step, prompt: str) -> str | None:
        while True:
            try:
                command = input(prompt)
            except EOFError:
                return None
            if command not in ("?", "??"):
                return command
            accepted = "\n".join(answer.admissible or ("it does not say",))
            click.echo(accepted if command == "?" else to_goal(table.env))

    return act


def _baseline(name: str, world: str, table: Table, split: str, seed: int, opening: str) -> Act:
    from bmrl import baselines

    player = baselines.player(name, world, Play(0, 0, seed, table.task, split, seed, table.budget or 1), opening)

    def act(answer: Step, prompt: str) -> str:
        command = player(answer.observation, answer.admissible)
        click.echo(f"{prompt}{command}")
        return command

    return act


def _recorded(episode: Episode) -> Act:
    """Its commands again; the environment answers them as it did."""
    actions = iter(turn.action for turn in episode.turns)

    def act(_: Step, prompt: str) -> str | None:
        command = next(actions, None)
        if command is not None:
            click.echo(f"{prompt}{command or '(no command)'}")
        elif episode.end_reason is EndReason.CONTEXT:
            click.echo(f"{prompt}(the next turn does not fit into the context)", nl=False)
        elif episode.error:
            click.echo(f"{prompt}(the environment failed: {episode.error})", nl=False)
        return command

    return act

"""What can be solved within a budget: by knowing everything, and by searching like the agent."""

from collections.abc import Sequence
from random import Random

from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.game import Game
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import Task

PLAYS = 4
MOST_TURNS = 100


def search_turns(game: Game, task_id: str) -> tuple[int | None, ...]:
    """Turns that the exploring expert needs in `PLAYS` plays seeded by the task's id.

    None: not solved within `MOST_TURNS`. No budget above that can be asked of the figures.
    """
    return tuple(_play(game, Random(f"search/{task_id}/{i}")) for i in range(PLAYS))


def _play(game: Game, rng: Random) -> int | None:
    twin = Twin(game)
    expert = Expert(twin.reset(), rng)
    for turn in range(1, MOST_TURNS + 1):
        action = expert.act()
        expert.observe(action, twin.step(action))
        if twin.won:
            return turn
    return None


def ceiling(tasks: Sequence[Task], budget: int) -> float:
    """Share of the tasks that a shortest plan with full knowledge solves within the budget."""
    return sum(0 < len(task.plan) <= budget for task in tasks) / len(tasks)


def search_reference(tasks: Sequence[Task], budget: int) -> float:
    """Share of the tasks that the exploring expert solves within the budget: mean of its plays.

    Args:
        tasks: tasks that all have `search_turns`.
        budget: in turns, at most `MOST_TURNS`.
    """
    shares = [
        sum(turns is not None and turns <= budget for turns in task.search_turns) / len(task.search_turns)
        for task in tasks
    ]
    return sum(shares) / len(shares)

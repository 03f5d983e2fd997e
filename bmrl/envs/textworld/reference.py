"""How many turns the exploring expert needs: the reference of an agent that must find things first."""

from random import Random

from bmrl.envs.textworld import text
from bmrl.envs.textworld.expert import Expert
from bmrl.envs.textworld.game import Game
from bmrl.envs.textworld.record import Record
from bmrl.envs.textworld.view import goal_of, view_of

PLAYS = 4
MOST_TURNS = 100


def search_turns(record: Record) -> tuple[int | None, ...]:
    """Turns that the exploring expert needs in `PLAYS` plays seeded by the task's id.

    None: not solved within `MOST_TURNS`. No budget above that can be asked of the figures.
    """
    return tuple(_play(record, Random(f"search/{record.task_id}/{i}")) for i in range(PLAYS))


def _play(record: Record, rng: Random) -> int | None:
    game = Game(record)
    goal, view = goal_of(game), view_of(game)
    expert = Expert(text.opening(game, view, goal), rng)
    for turn in range(1, MOST_TURNS + 1):
        action = expert.act()
        told = text.REFUSED
        if game.apply(action):
            before, view = view, view_of(game)
            told = text.answer(game, action, before, view, goal)
        if game.won or game.lost:
            return turn if game.won else None
        expert.observe(action, told)
    return None

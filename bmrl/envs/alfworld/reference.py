"""How many turns the exploring expert needs: the reference of an agent that must find things first."""

from random import Random

from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.game import Game
from bmrl.envs.alfworld.twin import Twin

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

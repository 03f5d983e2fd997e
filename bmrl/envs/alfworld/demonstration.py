"""Demonstrations: the exploring expert plays, now and then disturbed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from bmrl.envs.alfworld.env import AlfworldEnv, task_of
from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.generator import games
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.splits import embedded_contents
from bmrl.envs.alfworld.twin import REFUSED
from bmrl.envs.base import Task

# Share of the demonstrations that search in the order of the opening text. A small policy learns to look things
# up in what it has read much sooner where the next place to search can be looked up, too.
TIDY = 0.75
# Share of the forced actions that the game refuses, so that "Nothing happens." has been seen.
REFUSED_NOISE = 0.25
# Where to search next is one choice among many as good, which nobody can predict; a learner that minds it as much as
# taking what it has found spends nearly all of its gradient on it.
SEARCH_WEIGHT = 0.25


class Shown(NamedTuple):
    """One turn of a demonstration.

    Attributes:
        observation: what the agent is shown before the action.
        action: the command sent.
        weight: how much a learner should care to copy it: 0 if it was forced or did nothing, `SEARCH_WEIGHT` for
            a step of a search, else 1.
    """

    observation: str
    action: str
    weight: float


def demonstration(
    game: Record | Task,
    rng: Random,
    noise: float = 0.0,
    max_turns: int = 50,
    *,
    admissible: bool = False,
) -> tuple[list[Shown], bool]:
    """Let the expert play a game.

    Args:
        game: what to play.
        rng: stream of the expert's search order and of the noise.
        noise: probability, before each of the expert's own actions, that a random action is forced first: an
            admissible one (never "help"), or now and then opening a place elsewhere, which is refused. Forced
            actions cost turns like any other.
        max_turns: most turns.
        admissible: whether the observations list the admissible commands.

    Returns:
        The turns in order, and whether the game was won.
    """
    env = AlfworldEnv(source="embedded", admissible=admissible)
    observation = env.reset(task_of(game) if isinstance(game, Record) else game)
    # Two streams: a disturbance must not change the order in which the expert searches.
    disturb = Random(rng.getrandbits(64))
    expert = Expert(observation, Random(rng.getrandbits(64)), tidy=rng.random() < TIDY)
    turns: list[Shown] = []
    forced = False
    while len(turns) < max_turns:
        forced = not forced and disturb.random() < noise
        action = _disturbance(env.admissible or (), disturb) if forced else expert.act()
        weight = 0.0 if forced else SEARCH_WEIGHT if expert.searching else 1.0
        step = env.step(action)
        refused = step.observation.partition("\n")[0] == REFUSED
        turns.append(Shown(observation, action, 0.0 if refused else weight))
        if step.terminated:
            return turns, step.won
        expert.observe(action, step.observation)
        observation = step.observation
    return turns, False


def _disturbance(admissible: Sequence[str], rng: Random) -> str:
    elsewhere = [f"open {c.removeprefix('go to ')}" for c in admissible if c.startswith("go to ")]
    if elsewhere and rng.random() < REFUSED_NOISE:
        return rng.choice(elsewhere)
    return rng.choice([c for c in admissible if c != "help"])


def demonstrations(
    *,
    count: int,
    seed: int,
    noise: float,
    max_turns: int,
    args: Mapping[str, Any],
    poll: Callable[[], None] = lambda: None,
) -> Iterator[list[Shown]]:
    """Won demonstrations on games made for them: none is embedded, none is in an unseen room.

    Args:
        count: how many; games that the expert does not win are passed over.
        args: the environment's arguments; ``admissible`` counts here.
        poll: called before each game; may raise to stop.
    """
    admissible = bool(args.get("admissible", False))
    for index, game in enumerate(games(seed, 2 * count, avoid=embedded_contents())):
        poll()
        rng = Random(f"demonstration/{seed}/{index}")
        turns, won = demonstration(game, rng, noise, max_turns, admissible=admissible)
        if won:
            yield turns
            count -= 1
        if not count:
            return

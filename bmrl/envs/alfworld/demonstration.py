"""Demonstrations: the exploring expert plays, now and then disturbed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from bmrl.envs.alfworld.env import AlfworldEnv, task_of
from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.generator import games
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.splits import embedded_contents
from bmrl.envs.alfworld.twin import REFUSED
from bmrl.envs.base import Shown, Task

# Share of the demonstrations that search in the order of the opening text. A small policy learns to look things
# up in what it has read much sooner where the next place to search can be looked up, too.
TIDY = 0.75
# Share of the disturbances that the game refuses, and how likely such a one is to be sent once more. A policy that has
# never seen "Nothing happens." answered by something else sends what was refused until its budget is gone.
REFUSED_NOISE = 0.5
REPEATED = 0.5
# Where to search next is one choice among many as good, which nobody can predict; a learner that minds it as much as
# taking what it has found spends nearly all of its gradient on it. That it searches can be predicted, so the verb
# counts in full: weighed less, it would teach to take things that are not there.
SEARCH_WEIGHT = 0.25


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
            admissible one (never "help"), or one that is refused, perhaps several times. Forced actions cost
            turns like any other.
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
    forced: list[str] = []
    free = True  # the expert acts between two disturbances
    while len(turns) < max_turns:
        if free and disturb.random() < noise:
            forced = _disturbance(env.admissible or (), expert, disturb)
        free = not forced
        action = forced.pop() if forced else expert.act()
        weight = (SEARCH_WEIGHT if expert.searching else 1.0) if free else 0.0
        step = env.step(action)
        refused = step.observation.partition("\n")[0] == REFUSED
        turns.append(Shown(observation, action, 0.0 if refused else weight))
        if step.terminated:
            return turns, step.won
        expert.observe(action, step.observation)
        observation = step.observation
    return turns, False


def _disturbance(admissible: Sequence[str], expert: Expert, rng: Random) -> list[str]:
    """One admissible action, or one that is refused as often as it is sent."""
    if rng.random() >= REFUSED_NOISE:
        return [rng.choice([c for c in admissible if c != "help"])]
    while (action := _guess(admissible, expert, rng)) in admissible:
        pass
    repeats = 1
    while rng.random() < REPEATED:
        repeats += 1
    return [action] * repeats


def _guess(admissible: Sequence[str], expert: Expert, rng: Random) -> str:
    """A well-formed command such as someone might guess who has not read closely."""
    places = [c.removeprefix("go to ") for c in admissible if c.startswith("go to ")]
    here = [c.removeprefix("examine ") for c in admissible if c.startswith("examine ")]
    place = rng.choice(here if here and rng.random() < 0.5 else places)
    if rng.random() < 0.25:
        place = f"{place.rpartition(' ')[0]} {rng.randint(1, 9)}"
    thing = f"{expert.goal.object} {rng.randint(1, 2)}"
    verb = rng.choice(("go", "open", "examine", "take", "take", "move", "use", "do"))
    return {
        "go": f"go to {place}",
        "open": f"open {place}",
        "examine": f"examine {place}",
        "take": f"take {thing} from {place}",
        "move": f"move {thing} to {place}",
        "use": f"use {expert.goal.lamp or 'desklamp'} 1",
        "do": f"{rng.choice(('clean', 'heat', 'cool'))} {thing} with {place}",
    }[verb]


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

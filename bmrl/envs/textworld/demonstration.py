"""Demonstrations: the exploring expert plays, now and then disturbed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from bmrl.envs.base import Shown
from bmrl.envs.disturbed import play_disturbed, refused_action
from bmrl.envs.textworld import generator, splits
from bmrl.envs.textworld.env import WORLDS, task_of
from bmrl.envs.textworld.expert import Expert
from bmrl.envs.textworld.text import REFUSED
from bmrl.envs.textworld.view import DIRECTIONS

# Share of the demonstrations that search the nearest place first, in the order of the texts: a small policy learns to
# look up the next place to search much sooner than to guess it.
TIDY = 0.75
# Share of the disturbances that the game refuses, and how likely such a one is to be sent once more.
REFUSED_NOISE, REPEATED = 0.5, 0.4
# Where to search next is one choice among several as good, which nobody can predict.
SEARCH_WEIGHT = 0.3
# Plays of one game: making it takes longer than playing it.
PLAYS = 3
# What a disturbance may do without losing the game. In a treasure hunt, taking does.
_HARMLESS = ("go", "open", "close", "look", "inventory", "examine", "drop", "put", "insert", "take")
_COIN = ("go", "look", "inventory")


def demonstrations(
    world: str,
    *,
    count: int,
    seed: int,
    noise: float,
    max_turns: int,
    args: Mapping[str, Any],
    poll: Callable[[], None] = lambda: None,
) -> Iterator[list[Shown]]:
    """Won demonstrations on games made for them: none is embedded, none has what the unseen split has.

    Args:
        world: "cooking", "coin" or "treasure".
        count: how many; plays that are not won within ``max_turns`` are passed over.
        noise: probability, before each of the expert's own actions, that a random action is forced first: an
            admissible one that cannot lose the game, or one that is refused, perhaps several times.
        args: the environment's arguments; with ``source: generated`` the games are as difficult as it says.
        poll: called before each game; may raise to stop.
    """
    env = WORLDS[world](**args)
    made = generator.games(world, "demonstration", count, seed=seed, settings=env.settings, avoid=splits.known(world))
    for index, record in enumerate(made):
        poll()
        task = task_of(record)
        for play in range(PLAYS):
            turns, won = demonstration(env, task, Random(f"demonstration/{seed}/{index}/{play}"), noise, max_turns)
            if won:
                yield turns
                count -= 1
            if not count:
                return


def demonstration(env: Any, task: Any, rng: Random, noise: float, max_turns: int) -> tuple[list[Shown], bool]:
    """Let the expert play a game in an environment; the turns in order, and whether the game was won."""
    observation = env.reset(task)
    # Two streams: a disturbance must not change the order in which the expert searches.
    disturb = Random(rng.getrandbits(64))
    expert = Expert(observation, Random(rng.getrandbits(64)), tidy=rng.random() < TIDY)
    return play_disturbed(
        env,
        observation,
        expert,
        lambda admissible: _disturbance(env.world, admissible, expert, disturb),
        disturb,
        noise=noise,
        max_turns=max_turns,
        search_weight=SEARCH_WEIGHT,
        refusal=REFUSED,
    )


def _disturbance(world: str, admissible: Sequence[str], expert: Expert, rng: Random) -> list[str]:
    """One admissible action, or one that is refused as often as it is sent."""
    if rng.random() >= REFUSED_NOISE:
        verbs = _HARMLESS if world == "cooking" else _COIN if world == "coin" else _HARMLESS[:-1]
        by_verb: dict[str, list[str]] = {}
        for command in admissible:
            by_verb.setdefault(command.partition(" ")[0], []).append(command)
        # Half of them walk; else verbs evenly, or nearly all would look at something.
        kinds = ["go"] * len(by_verb) + sorted(by_verb)
        chosen = rng.choice([verb for verb in kinds if verb in verbs and verb in by_verb])
        return [rng.choice(by_verb[chosen])]
    return refused_action(lambda: _guess(world, expert, rng), admissible, rng, repeated=REPEATED)


def _guess(world: str, expert: Expert, rng: Random) -> str:
    """A well-formed command of one who has not read closely."""
    view = expert.memory.view
    go = f"go {rng.choice(DIRECTIONS)}"
    things = sorted(view.where) or ["coin"]
    thing = rng.choice([food for food, _, _ in expert.memory.recipe or ()] or [expert.wanted or rng.choice(things)])
    if world == "coin":
        return rng.choice((go, f"take {thing}"))
    other = rng.choice(sorted({*view.where.values(), *view.closed} - {"I"} | {view.here}))
    guesses = [go, f"open {other}", f"take {thing}", f"take {thing} from {other}"]
    if world == "cooking":
        tool, verb = rng.choice(("oven", "stove", "BBQ")), rng.choice(("chop", "slice", "dice"))
        guesses += [f"cook {thing} with {tool}", f"{verb} {thing} with knife", "prepare meal", "examine cookbook"]
    return rng.choice(guesses)


coin = partial(demonstrations, "coin")
cooking = partial(demonstrations, "cooking")
treasure = partial(demonstrations, "treasure")

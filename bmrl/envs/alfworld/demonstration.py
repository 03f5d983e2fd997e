"""Demonstrations: the exploring expert plays, now and then disturbed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from bmrl.envs.alfworld.env import AlfworldEnv, task_of
from bmrl.envs.alfworld.expert import Expert
from bmrl.envs.alfworld.generator import Difficulty, games
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.splits import embedded_contents
from bmrl.envs.alfworld.twin import REFUSED
from bmrl.envs.base import Shown, Task
from bmrl.envs.disturbed import play_disturbed, refused_action

# Share of the demonstrations that search in the order of the opening text. A small policy learns to look things
# up in what it has read much sooner where the next place to search can be looked up, too.
TIDY = 0.75
# Share of the disturbances that the game refuses, and how likely such a one is to be sent once more. A policy that has
# never seen "Nothing happens." answered by something else sends what was refused until its budget is gone.
REFUSED_NOISE = 0.6
REPEATED = 0.4
# Where to search next is one choice among many as good, which nobody can predict; a learner that minds it as much as
# taking what it has found spends nearly all of its gradient on it. A learner that does not see yet whether what it
# wants is there will try to take it: that costs a turn, where passing it by costs the game.
SEARCH_WEIGHT = 0.2
# Share of the games in rooms of few receptacles: there is more to take and to place, and less to remember.
SMALL, RECEPTACLES = 0.5, (3, 8)


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
    return play_disturbed(
        env,
        observation,
        expert,
        lambda admissible: _disturbance(admissible, expert, disturb),
        disturb,
        noise=noise,
        max_turns=max_turns,
        search_weight=SEARCH_WEIGHT,
        refusal=REFUSED,
    )


def _disturbance(admissible: Sequence[str], expert: Expert, rng: Random) -> list[str]:
    """One admissible action, or one that is refused as often as it is sent."""
    if rng.random() >= REFUSED_NOISE:
        return [rng.choice([c for c in admissible if c != "help"])]
    return refused_action(lambda: _guess(expert, rng), admissible, rng, repeated=REPEATED)


def _guess(expert: Expert, rng: Random) -> str:
    """A well-formed command of one who has not read closely; most often about where the agent is."""
    places, here = expert.receptacles, expert.here
    place = rng.choice(here if here and rng.random() < 0.7 else places)
    if rng.random() < 0.15:
        place = f"{place.rpartition(' ')[0]} {rng.randint(1, 9)}"
    thing = f"{expert.goal.object} {rng.choice((1, 1, 2))}"
    verb = rng.choice(("go", "open", "examine", "take", "take", "take", "move", "use", "do"))
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
    for index, game in enumerate(_games(seed, 2 * count)):
        poll()
        rng = Random(f"demonstration/{seed}/{index}")
        turns, won = demonstration(game, rng, noise, max_turns, admissible=admissible)
        if won:
            yield turns
            count -= 1
        if not count:
            return


def _games(seed: int, count: int) -> Iterator[Record]:
    """Games of all kinds, none of them embedded, those of small rooms among the others."""
    avoid, rng = embedded_contents(), Random(f"sizes/{seed}")
    whole = games(seed, count, avoid=avoid)
    small = {
        n: games(seed, count, namespace=f"sft-{n}", avoid=avoid, difficulty=Difficulty(receptacles=n))
        for n in range(RECEPTACLES[0], RECEPTACLES[1] + 1)
    }
    for _ in range(count):
        yield next(small[rng.randint(*RECEPTACLES)] if rng.random() < SMALL else whole)

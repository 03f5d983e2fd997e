"""How an expert is played for demonstrations: now and then a random action is forced on it."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from bmrl.envs.base import Env, Shown


class Searcher(Protocol):
    """An exploring expert that says whether its last action only looked for something."""

    searching: bool

    def act(self) -> str: ...

    def observe(self, action: str, observation: str) -> None: ...


def play_disturbed(
    env: Env,
    observation: str,
    expert: Searcher,
    disturbance: Callable[[Sequence[str]], list[str]],
    rng: Random,
    *,
    noise: float,
    max_turns: int,
    search_weight: float,
    refusal: str,
) -> tuple[list[Shown], bool]:
    """Play on from a reset environment.

    Args:
        observation: the opening text.
        disturbance: from the admissible commands to actions that are forced, last one first.
        rng: decides when; a stream of its own, so that a disturbance does not change how the expert searches.
        noise: probability of a disturbance before each of the expert's own actions.
        max_turns: most turns; forced actions cost turns like any other.
        search_weight: weight of a step that only searches.
        refusal: first line of the answer to an action that is refused.

    Returns:
        The turns in order, and whether the game was won. Forced and refused actions have weight 0.
    """
    turns: list[Shown] = []
    forced: list[str] = []
    free = True  # the expert acts between two disturbances
    refused = False
    while len(turns) < max_turns:
        if free and rng.random() < noise:
            forced = disturbance(env.admissible or ())
        free = not forced
        action = forced.pop() if forced else expert.act()
        # What follows a refusal counts in full, a search or not: else the weights themselves would teach to try again.
        weight = (search_weight if expert.searching and not refused else 1.0) if free else 0.0
        step = env.step(action)
        refused = step.observation.partition("\n")[0] == refusal
        turns.append(Shown(observation, action, 0.0 if refused else weight))
        if step.terminated:
            return turns, step.won
        expert.observe(action, step.observation)
        observation = step.observation
    return turns, False


def refused_action(guess: Callable[[], str], admissible: Sequence[str], rng: Random, *, repeated: float) -> list[str]:
    """An action that is refused, as often as it is sent; ``repeated``: probability of each further time."""
    while (action := guess()) in admissible:
        pass
    repeats = 1
    while rng.random() < repeated:
        repeats += 1
    return [action] * repeats

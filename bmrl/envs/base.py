"""What an environment is: text in, text out, no cap on the number of turns.

An environment never knows the budget of an episode; the rollout counts turns. Its own random draws come
from a stream of its own, never from shared global state, so two environments never disturb each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# What an action was, by what its transcript has revealed.
INVALID = "invalid"  # the environment refused it, and nothing was learned from that
INEFFECTIVE = "ineffective"  # accepted, but it showed nothing new and brought nothing nearer
REDUNDANT = "redundant"  # a look at a place that had been searched, or visited, already
SEARCH = "search"  # it could show something unseen
PROGRESS = "progress"  # the goal is nearer, by what has been seen
REGRESS = "regress"  # the goal is farther, by what has been seen
KINDS = (INVALID, INEFFECTIVE, REDUNDANT, SEARCH, PROGRESS, REGRESS)


@dataclass(frozen=True, slots=True)
class Task:
    """One game of a split.

    Attributes:
        task_id: stable name, unique within its split.
        kind: family of the task, for breakdowns (for ALFWorld one of six).
        plan: a shortest list of commands that wins, found with full knowledge; empty if unknown.
        data: what the environment needs to start the game; opaque to everyone else.
        search_turns: turns the exploring expert, who must find things like the agent, needed in each of
            its seeded plays; None for a play that did not solve the task; empty if unknown.
    """

    task_id: str
    kind: str
    plan: tuple[str, ...] = ()
    data: Any = field(default=None, repr=False, compare=False)
    search_turns: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """An environment's answer to one action.

    Attributes:
        observation: text for the agent.
        reward: the environment's own reward for this step.
        terminated: the game is over, won or lost.
        won: the task is solved.
        admissible: the commands it would accept now, sorted; None if it cannot tell.
        distance: what `Env.distance` says now, filled in by whoever asks for it; an environment leaves it out.
    """

    observation: str
    reward: float
    terminated: bool
    won: bool
    admissible: tuple[str, ...] | None
    distance: int | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """One turn of a demonstration.

    Attributes:
        observation: what the agent is shown before the action.
        action: the command sent.
        weight: how much a learner should care to copy it: 0 only shows it, because it was forced or refused.
    """

    observation: str
    action: str
    weight: float


class Env(Protocol):
    """The protocol every environment follows. ``docs/environments.md`` shows a whole one.

    ``step`` must answer any text, the empty one included: a rollout sends "" when the agent's text held no
    action. ``admissible`` is the same as that of the last ``Step``, and is set by ``reset`` as well.

    What a class may have beside it:
        instructions: text, what it tells an agent that has never seen it: its commands, say.
        splits(): names of its splits, so that a wrong one is told before anything runs.
        max_turns: turns after which it ends an episode by itself; larger budgets are refused. None: never.
        reward_range: lowest and highest reward of a step; (0, 1) where it is not said.
        explorer(opening, rng), demonstrations(...), judge(opening): see the functions of that name in ``bmrl.envs``.
    """

    admissible: tuple[str, ...] | None

    def tasks(self, split: str) -> Sequence[Task]: ...

    def split_hash(self, split: str) -> str:
        """Identity of a split's games and their order: equal only where all games are."""
        ...

    def reset(self, task: Task) -> str: ...

    def step(self, action: str) -> Step: ...

    def distance(self) -> int | None:
        """Fewest turns to the goal from here with full knowledge; None where unknown or unreachable."""
        ...

    def close(self) -> None:
        """Gives back what it holds; may come twice, and without a reset before it."""
        ...

"""A world and policies of which everything is known: success at every budget, how often they err and recover.

The world is a road. On it, "forward" brings the goal nearer and "stray" leaves the road; off it, "return" leads back
to where it was left and "wander" leads nowhere. A policy errs ("stray") with probability p at each decision on the
road, and recovers ("return") with probability q at each decision off it; what it does follows from the last
observation and a draw alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from bmrl.chat import Chat, make_chat
from bmrl.envs.base import Step, Task
from bmrl.pocket import build_tokenizer
from bmrl.seeds import python_stream
from bmrl.types import Completion, EndReason, Episode, Play, Turn

ON, OFF = ("forward", "stray"), ("return", "wander")
KIND = {"forward": "progress", "stray": "regress", "return": "progress", "wander": "ineffective"}


class Road:
    """Won by as many "forward" as the task's road is long.

    Args:
        games: tasks of a split.
        lengths: of the roads, each equally likely.
        seed: of the draw of lengths; another seed is another sample of the same population of tasks.
    """

    instructions = "The commands are: forward, stray, return, wander."

    def __init__(self, games: int = 60, lengths: Sequence[int] = (2, 4, 6), seed: int = 0) -> None:
        self.games, self.lengths, self.seed = games, tuple(lengths), seed
        self.admissible: tuple[str, ...] | None = None

    def splits(self) -> list[str]:
        return ["train", "valid_seen", "valid_unseen"]

    def tasks(self, split: str) -> list[Task]:
        rng = Random(f"road/{split}/{self.seed}/{self.lengths}")
        drawn = [rng.choice(self.lengths) for _ in range(self.games)]
        return [Task(f"{split}-{n}", "road", ("forward",) * length, data=length) for n, length in enumerate(drawn)]

    def split_hash(self, split: str) -> str:
        return hashlib.sha256(repr([split, *self.tasks(split)]).encode()).hexdigest()

    def reset(self, task: Task) -> str:
        self.left, self.off = int(task.data), False
        return self._look()

    def step(self, action: str) -> Step:
        if action not in (self.admissible or ()):
            return Step("Nothing happens.", 0.0, False, False, self.admissible)
        self.left -= action == "forward"
        self.off = action in ("stray", "wander")
        won = self.left == 0
        return Step(self._look(), float(won), won, won, self.admissible)

    def distance(self) -> int | None:
        return self.left + self.off

    def close(self) -> None:
        pass

    def _look(self) -> str:
        self.admissible = tuple(sorted(OFF if self.off else ON))
        return f"You are {'off' if self.off else 'on'} the road . {self.left} to go ."

    @staticmethod
    def explorer(opening: str, rng: Random) -> "Guide":
        return Guide(opening)


class Guide:
    """The expert: it never errs and always returns."""

    def __init__(self, opening: str) -> None:
        self.seen = opening

    def act(self) -> str:
        return OFF[0] if is_off(self.seen) else ON[0]

    def observe(self, action: str, observation: str) -> None:
        self.seen = observation


def make(name: str, **args) -> Road:
    """As a pool makes environments, also in worker processes."""
    return Road(**args)


def is_off(observation: str) -> bool:
    """Whether the last look in a text is from off the road; what it was told of its turns may follow."""
    return observation.rpartition("You are")[2].startswith(" off")


def kinds(opening: str, actions: Sequence[str], observations: Sequence[str]) -> list[str]:
    """The kind of each action of a transcript, as those of `bmrl.envs.alfworld.kinds`."""
    refused = "Nothing happens."
    return ["invalid" if text == refused else KIND[act] for act, text in zip(actions, observations, strict=True)]


@dataclass(frozen=True)
class Scripted:
    """Errs with probability p on the road, recovers with probability q off it.

    Policies of different names draw independently of each other, those of one name the same.
    """

    p: float
    q: float
    name: str = "scripted"

    def probabilities(self, observation: str) -> Mapping[str, float]:
        """Command -> probability."""
        if is_off(observation):
            return {OFF[0]: self.q, OFF[1]: 1 - self.q}
        return {ON[0]: 1 - self.p, ON[1]: self.p}

    def act(self, observation: str, draw: float) -> str:
        """The command for a uniform draw from [0, 1)."""
        (first, chance), (second, _) = self.probabilities(observation).items()
        return first if draw < chance else second

    def play(self, env: Road, play: Play) -> Episode:
        """An episode without tokens; its draws depend on seed, group and episode of the play, not on its budget."""
        rng = python_stream(play.seed, self.name, play.group, play.episode)
        seen, turns = env.reset(play.task), []
        while len(turns) < play.budget:
            action = self.act(seen, rng.random())
            step = env.step(action)
            turns.append(Turn(seen, (), action, action, (), (), True, step.reward))
            seen = step.observation
            if step.won:
                return play.ended(EndReason.SUCCESS, tuple(turns), seen)
        return play.ended(EndReason.BUDGET, tuple(turns), seen)


class Speaker:
    """A scripted policy as a rollout's sampler: it reads and says tokens, one action a step.

    It draws with the first uniform that the rollout gives it for a turn. ``prompts`` is all it was shown.
    """

    def __init__(self, policy: Scripted, chat: Chat, *, rows: int) -> None:
        self.policy, self.chat, self.rows = policy, chat, rows
        self.asked: dict[int, tuple[str, float]] = {}
        self.prompts: list[str] = []

    def begin(self, row: int, added: Sequence[int], draws: NDArray[np.float64]) -> None:
        text = self.chat.tokenizer.decode(added)
        self.prompts.append(text)
        self.asked[row] = text, float(draws[0])

    def step(self, *, temperature: float, stop_ids: frozenset[int]) -> list[tuple[int, Completion]]:
        said = [(row, self.chat.answer(self.policy.act(text, draw))) for row, (text, draw) in self.asked.items()]
        self.asked = {}
        return [(row, Completion(ids, (0.0,) * len(ids), True)) for row, ids in said]

    def drop(self, row: int) -> None:
        pass


def chat() -> Chat:
    shown = "You are off on the road . to go Nothing happens turns left of 0 1 2 3 4 5 6 7 8 9"
    words = [f" {word}" for word in shown.split(" ")]
    return make_chat(build_tokenizer([*words, *ON, *OFF], words=80, context_tokens=2048))


@cache
def success(p: float, q: float, left: int, turns: int, off: bool = False) -> float:
    """P(the road's remaining ``left`` is walked within ``turns``), exactly.

    S(0, t, on) = 1; S(l, 0, .) = 0;
    S(l, t, on) = (1 - p) S(l - 1, t - 1, on) + p S(l, t - 1, off);
    S(l, t, off) = q S(l, t - 1, on) + (1 - q) S(l, t - 1, off).
    """
    if left == 0:
        return 1.0
    if turns == 0:
        return 0.0
    if off:
        return q * success(p, q, left, turns - 1) + (1 - q) * success(p, q, left, turns - 1, True)
    return (1 - p) * success(p, q, left - 1, turns - 1) + p * success(p, q, left, turns - 1, True)


def population(policy: Scripted, budget: int, lengths: Sequence[int]) -> float:
    """Success of a task drawn from the population of `Road`."""
    return float(np.mean([success(policy.p, policy.q, length, budget) for length in lengths]))

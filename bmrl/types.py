"""The vocabulary: what a rollout produces. Frozen, plain data; imports nothing heavy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EndReason(StrEnum):
    """Why an episode ended. Every episode has exactly one."""

    SUCCESS = "success"  # the environment says the task is solved
    FAILURE = "failure"  # the environment says it is over and lost
    BUDGET = "budget"  # the turns allowed were used up
    CONTEXT = "context"  # the next turn would not fit into the context
    TIMEOUT = "timeout"  # the environment did not answer in time
    ENV_ERROR = "env_error"  # the environment crashed or broke its protocol


# An episode that ended so says nothing about the policy: it is kept and counted, never scored.
ERRORS = (EndReason.TIMEOUT, EndReason.ENV_ERROR)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a sampler generated for one turn.

    Attributes:
        token_ids: the sampled ids, stop token included when it was sampled.
        logprobs: log-probability of each sampled id under the distribution sampled from, nats.
        stopped: whether the last id is a stop token; False when ``turn_tokens`` cut the turn off.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation -> one generated action -> one environment step.

    ``observation_ids`` holds only the tokens this turn *added* before the action, so the concatenation
    of ``observation_ids + action_ids`` over the turns is exactly what the sampler saw and sampled. A turn that was
    decided beforehand was only read: all of its tokens are ``observation_ids``.
    """

    observation: str
    observation_ids: tuple[int, ...]
    text: str  # what was generated, as text, without the stop token
    action: str  # the command sent to the environment; "" when the text held none
    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    valid: bool  # the environment accepted the action
    reward: float  # the environment's own reward for this step
    distance: int | None = None  # fewest turns to the goal before the action, where that was asked for and is known


@dataclass(frozen=True, slots=True)
class Episode:
    """One play of one task under one budget.

    Attributes:
        step: training step the episode belongs to (0 in an evaluation).
        group: index of its group within the step.
        episode: index within the group.
        seed: the seed all of its random streams are keyed by.
        budget: the most turns it was allowed.
        final_observation: the environment's answer to the last action.
        error: what went wrong in the environment, when ``end_reason`` is an error; else "".
    """

    step: int
    group: int
    episode: int
    task_id: str
    split: str
    seed: int
    budget: int
    end_reason: EndReason
    turns: tuple[Turn, ...]
    final_observation: str = ""
    error: str = ""

    @property
    def success(self) -> bool:
        return self.end_reason is EndReason.SUCCESS

    @property
    def action_tokens(self) -> int:
        return sum(len(turn.action_ids) for turn in self.turns)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of the episode in order: one training row."""
        return tuple(i for turn in self.turns for i in (*turn.observation_ids, *turn.action_ids))

    @property
    def action_mask(self) -> tuple[bool, ...]:
        """True exactly on the tokens the policy sampled, aligned with ``token_ids``."""
        return tuple(
            sampled
            for turn in self.turns
            for ids, sampled in ((turn.observation_ids, False), (turn.action_ids, True))
            for _ in ids
        )


@dataclass(frozen=True, slots=True)
class Play:
    """An episode to be played. Its fields become those of the ``Episode`` of the same name.

    Attributes:
        task: what to play, an environment's task; it has a ``task_id``.
        budget: the most turns allowed, those of the prefix included; the same for all plays of a group.
        prefix: commands that are already decided. The environment is taken through them; the policy reads them as if
            it had given them, in the words of its chat. None of their tokens counts as sampled.
    """

    step: int
    group: int
    episode: int
    task: Any
    split: str
    seed: int
    budget: int
    prefix: tuple[str, ...] = ()

    def ended(self, reason: EndReason, turns: tuple[Turn, ...], final_observation: str, error: str = "") -> Episode:
        """What was played of it."""
        return Episode(
            step=self.step,
            group=self.group,
            episode=self.episode,
            task_id=self.task.task_id,
            split=self.split,
            seed=self.seed,
            budget=self.budget,
            end_reason=reason,
            turns=turns,
            final_observation=final_observation,
            error=error,
        )

"""Who is credited with what: from the rewards of turns to the advantage of each turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmrl.algorithm import anchored, centred, leave_one_out, over_batch, rewards_to_go, standardised
from bmrl.types import Episode


@dataclass(frozen=True, slots=True)
class Prices:
    """What the turns of an episode earn; see the recipe's section ``reward``."""

    success: float = 1.0
    invalid_action: float = 0.0
    turn: float = 0.0

    def of_turns(self, episode: Episode) -> list[float]:
        """Shaped reward of each turn, the success with the last; never reported as success."""
        rewards = [self.turn + self.invalid_action * (not turn.valid) for turn in episode.turns]
        if rewards:
            rewards[-1] += self.success * episode.success
        return rewards


@dataclass(frozen=True, slots=True)
class Credit:
    """How advantages are computed; see the recipe's section ``algorithm``.

    Attributes:
        name: ``grpo``, ``dr_grpo``, ``rloo``, ``reinforce_pp``, ``gspo`` or ``gigpo``.
        per: ``episode``: all turns of an episode have its advantage; ``turn``: each has that of its rewards to go.
        discount: of later rewards, in rewards to go.
        baseline: of ``reinforce_pp``: the mean of the ``group``, or of the whole ``batch``.
        step_weight: of ``gigpo``: weight of the step-level advantage beside that of the episode.
        scale: of ``gigpo``: divide both by their standard deviation.
    """

    name: str = "rloo"
    per: str = "episode"
    discount: float = 1.0
    baseline: str = "group"
    step_weight: float = 1.0
    scale: bool = False


Groups = Sequence[Sequence[Sequence[float]]]  # group, episode, turn


def advantages(rewards: Groups, states: Sequence[Sequence[Sequence[str]]], credit: Credit) -> list[list[list[float]]]:
    """Advantage of each turn of each episode of each group.

    Args:
        rewards: of each turn; no episode is without turns.
        states: what the environment showed before each turn, for ``gigpo``; like ``rewards``.
    """
    if credit.name == "gigpo":
        return [_gigpo(group, seen, credit) for group, seen in zip(rewards, states, strict=True)]
    discount = credit.discount if credit.per == "turn" else 1.0
    to_go = [[rewards_to_go(episode, discount) for episode in group] for group in rewards]
    returns = [[episode[0] for episode in group] for group in to_go]
    level = _levels(returns, credit)
    if credit.per == "episode":
        return [
            [[value] * len(turns) for value, turns in zip(values, group, strict=True)]
            for values, group in zip(level, to_go, strict=True)
        ]
    # The baseline is that of whole episodes, and so knows no turn: one of the turns with the same number would pay
    # for each further turn.
    scales = _scales(returns, credit)
    return [
        [[value + (later - turns[0]) * scale for later in turns] for value, turns in zip(values, group, strict=True)]
        for values, group, scale in zip(level, to_go, scales, strict=True)
    ]


def _levels(returns: Sequence[Sequence[float]], credit: Credit) -> list[list[float]]:
    """Episode-level advantages."""
    of_group: dict[str, Callable[[Sequence[float]], list[float]]] = {
        "grpo": standardised,
        "gspo": standardised,
        "dr_grpo": centred,
        "rloo": leave_one_out,
        "reinforce_pp": centred if credit.baseline == "group" else list,
    }
    level = [of_group[credit.name](group) for group in returns]
    if credit.name != "reinforce_pp":
        return level
    flat = iter(over_batch([value for group in level for value in group]))
    return [[next(flat) for _ in group] for group in level]


def _scales(returns: Sequence[Sequence[float]], credit: Credit) -> list[float]:
    """What a unit of return is worth in advantage, per group; 0 where the algorithm divides by a spread of 0."""
    if credit.name in ("grpo", "gspo"):
        return [_inverse_spread(group) for group in returns]
    if credit.name == "reinforce_pp":
        centre = centred if credit.baseline == "group" else list
        return [_inverse_spread([value for group in returns for value in centre(group)])] * len(returns)
    return [1.0] * len(returns)


def _inverse_spread(values: Sequence[float]) -> float:
    if not values or max(values) == min(values):
        return 0.0
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / len(values)) ** -0.5)


def _gigpo(rewards: Sequence[Sequence[float]], states: Sequence[Sequence[str]], credit: Credit) -> list[list[float]]:
    """Episode-level advantage + step_weight x step-level advantage (arXiv:2505.10978)."""
    whole = (standardised if credit.scale else centred)([sum(episode) for episode in rewards])
    to_go = [rewards_to_go(episode, credit.discount) for episode in rewards]
    steps = anchored(states, to_go, scale=credit.scale)
    return [[value + credit.step_weight * step for step in turns] for value, turns in zip(whole, steps, strict=True)]

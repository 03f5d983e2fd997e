"""Advantages from the returns of a group's episodes, which share task and budget.

Each takes one return per episode: a baseline over turns, or over tokens, would know how long an episode was.
"""

from collections.abc import Sequence
from itertools import accumulate


def centred(returns: Sequence[float]) -> list[float]:
    """r - mean (Dr. GRPO, arXiv:2503.20783). Equal returns give exactly 0."""
    return _scaled(returns, 1.0)


def standardised(returns: Sequence[float]) -> list[float]:
    """(r - mean) / std (GRPO, arXiv:2402.03300, section 4.1.2).

    The standard deviation is the population's. Equal returns give exactly 0.
    """
    mean = sum(returns) / max(len(returns), 1)
    return _scaled(returns, (sum((r - mean) ** 2 for r in returns) / max(len(returns), 1)) ** 0.5)


def leave_one_out(returns: Sequence[float]) -> list[float]:
    """r - mean of the others (RLOO, arXiv:2402.14740); 0 for an episode without others.

    An episode is in no part of its own baseline, so that the estimate of the gradient is unbiased.
    """
    count = len(returns)
    return _scaled(returns, (count - 1) / count) if count > 1 else [0.0] * count


def over_batch(advantages: Sequence[float]) -> list[float]:
    """(a - mean) / std over all episodes of a step (REINFORCE++, arXiv:2501.03262)."""
    return standardised(advantages)


def rewards_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Of each turn, the rewards from it on: R_t = r_t + discount * R_(t+1)."""
    return list(accumulate(reversed(rewards), lambda later, now: now + discount * later))[::-1]


def _scaled(returns: Sequence[float], scale: float) -> list[float]:
    # Sums of equal numbers round: without the test, groups without a signal would seem to have one.
    if not returns or max(returns) == min(returns):
        return [0.0] * len(returns)
    mean = sum(returns) / len(returns)
    return [(r - mean) / scale for r in returns]

"""The maths of the update: pure functions on tensors and plain numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor


def grpo_advantages(rewards: Sequence[float]) -> list[float]:
    """Advantages within one group: (r - mean) / std (GRPO, arXiv:2402.03300, section 4.1.2).

    The standard deviation is the population's. Equal rewards give exactly 0.
    """
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    return [(r - mean) / std for r in rewards]


def token_weights(lengths: Sequence[int], *, aggregation: str, constant: float) -> list[float]:
    """Weight of each token's loss, one number per episode; fixed once per optimizer step.

    Args:
        lengths: action tokens of each episode in the step.
        aggregation: ``token``: 1 / all tokens (DAPO, arXiv:2503.14476). ``episode``: 1 / (episodes x own
            tokens) (GRPO). ``constant``: 1 / (episodes x constant), so that long episodes weigh no less per
            token (Dr. GRPO, arXiv:2503.20783).
        constant: tokens, for ``constant``.
    """
    episodes = len(lengths)
    if aggregation == "token":
        return [1.0 / sum(lengths)] * episodes
    if aggregation == "episode":
        return [1.0 / (episodes * n) for n in lengths]
    return [1.0 / (episodes * constant)] * episodes


def clipped_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped surrogate (PPO, arXiv:1707.06347, equation 7, with a bound of its own on each side), to minimise.

    All arguments have shape (n,), one entry per action token.

    Returns:
        the loss, a scalar: -sum(weights * min(ratio * advantage, clip(ratio) * advantage));
        the ratios exp(logprobs - old_logprobs), (n,), detached;
        where the clip took the gradient away, (n,) bool.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()
    stopped = ((ratio > 1.0 + clip_high) & (advantages > 0)) | ((ratio < 1.0 - clip_low) & (advantages < 0))
    return loss, ratio.detach(), stopped.detach()


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference): exp(d) - d - 1 with d = reference - policy, never negative.

    Source: J. Schulman, "Approximating KL Divergence" (2020), estimator k3. Shapes (n,).
    """
    difference = reference_logprobs - logprobs
    return torch.exp(difference) - difference - 1.0

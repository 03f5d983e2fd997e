"""The surrogate loss: ratios, clipping, and how the losses of tokens add up."""

from collections.abc import Sequence

import torch
from torch import Tensor


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


def token_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """How much likelier each token has become, exp(logprobs - old_logprobs); shapes (n,)."""
    return torch.exp(logprobs - old_logprobs)


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, counts: Sequence[int]) -> Tensor:
    """The geometric mean of an episode's ratios, for each of its tokens (GSPO, arXiv:2507.18071, equation 7).

    Args:
        logprobs, old_logprobs: (n,), the action tokens of the episodes in order.
        counts: action tokens of each episode.

    Returns:
        (n,)
    """
    means = torch.stack([part.mean() for part in torch.split(logprobs - old_logprobs, list(counts))])
    return torch.exp(means.repeat_interleave(torch.tensor(counts, device=means.device)))


def clipped_loss(
    ratio: Tensor, advantages: Tensor, weights: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate (PPO, arXiv:1707.06347, equation 7, with a bound of its own on each side), to minimise.

    All arguments have shape (n,), one entry per action token.

    Returns:
        the loss, a scalar: -sum(weights * min(ratio * advantage, clip(ratio) * advantage));
        where the clip took the gradient away, (n,) bool.
    """
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()
    stopped = ((ratio > 1.0 + clip_high) & (advantages > 0)) | ((ratio < 1.0 - clip_low) & (advantages < 0))
    return loss, stopped.detach()

"""Per-token estimates of KL(policy || reference), J. Schulman, "Approximating KL Divergence" (2020).

All take ``logprobs`` and ``reference_logprobs`` of the sampled tokens, nats, shapes (n,), and return (n,).
"""

from torch import Tensor, exp


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """policy - reference: unbiased, of high variance, may be negative.

    Its own gradient says nothing of the reference: it has the mean 0. The value is therefore given the gradient of
    `k2`, which is that of the KL.
    """
    surrogate = k2(logprobs, reference_logprobs)
    return (logprobs - reference_logprobs).detach() + surrogate - surrogate.detach()


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """(policy - reference)^2 / 2: biased, of low variance; on policy its gradient is that of the KL without bias."""
    return (logprobs - reference_logprobs) ** 2 / 2


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = reference - policy: unbiased, never negative; its gradient is that of KL(reference ||
    policy) on policy."""
    difference = reference_logprobs - logprobs
    return exp(difference) - difference - 1.0

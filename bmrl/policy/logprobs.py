"""Log-probabilities of sampled tokens, without ever holding the logits of all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bmrl.policy.model import Policy
from bmrl.policy.packed import packed_hidden
from bmrl.policy.quantized import refuse_reordered

HEAD_BYTES = 2**26  # of one slice of fp32 logits; softmax and gradient hold about four such


def token_logprobs(
    policy: Policy,
    ids: Tensor,
    picked: Tensor,
    *,
    lengths: Sequence[int] | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens given all before them in their episode, where ``picked``.

    The rest is never computed, and the (batch, time, vocabulary) logits never exist: the output layer runs on slices
    of the picked positions and is recomputed in the backward pass.

    Args:
        ids: (batch, time) token ids: one episode a row, padded on the right (under causal attention no picked token
            sees the padding); with ``lengths`` one packed row.
        picked: (batch, time) bool; never true at the first token of an episode.
        lengths: tokens of each episode of a packed row, for a policy that packs.
        temperature: the logits are divided by it, as in sampling.
        entropy_gradient: let gradients flow through the entropies, too.

    Returns:
        logprobs, (n,) fp32 nats, and entropies of the same distributions, (n,), detached unless asked for otherwise;
        in row order.

    Raises:
        BmrlError: gradients are asked for, and would be wrong, see ``quantized``.
    """
    if torch.is_grad_enabled():
        refuse_reordered(policy.causal)
    states = policy.hidden(input_ids=ids, use_cache=False) if lengths is None else packed_hidden(policy, ids, lengths)
    before = states[:, :-1][picked[:, 1:]]  # (n, width): the state that predicts each picked token
    targets = ids[:, 1:][picked[:, 1:]]  # (n,)
    size = max(1, HEAD_BYTES // (4 * policy.causal.config.get_text_config().vocab_size))

    def piece(state: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(policy.logits(state) / temperature, dim=-1)
        held = logprobs if entropy_gradient else logprobs.detach()
        entropy = -(held.exp() * held).sum(-1)
        return logprobs.gather(-1, target[:, None]).squeeze(-1), entropy

    pieces = [
        checkpoint(piece, state, target, use_reentrant=False) if torch.is_grad_enabled() else piece(state, target)
        for state, target in zip(torch.split(before, size), torch.split(targets, size), strict=True)
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])

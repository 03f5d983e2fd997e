"""Log-probabilities of several continuations of one beginning, which is read once."""

from collections.abc import Sequence

import torch

from bmrl.policy.logprobs import HEAD_BYTES
from bmrl.policy.model import Policy


def continuation_logprobs(
    policy: Policy, beginning: Sequence[int], continuations: Sequence[Sequence[int]], *, temperature: float = 1.0
) -> list[float]:
    """Log-probability of each continuation, the sum over its tokens, in nats.

    The continuations share the keys and values of the beginning, and are padded on the right: under causal attention
    no token of theirs sees the padding. Costs the beginning once, and the continuations.

    Args:
        beginning: at least one token.
        continuations: at least one token each.
        temperature: the logits are divided by it, as in sampling.
    """
    from transformers import DynamicCache

    if not continuations:
        return []
    policy.model.eval()  # no dropout, and no activation checkpointing, which would ignore the cache
    count, longest = len(continuations), max(map(len, continuations))
    cache = DynamicCache(config=policy.causal.config.get_text_config())
    padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in continuations], device=policy.device)
    lengths = torch.tensor([len(ids) for ids in continuations], device=policy.device)
    with torch.inference_mode():
        ids = torch.tensor([list(beginning)], device=policy.device)
        states = policy.hidden(input_ids=ids, past_key_values=cache, use_cache=True)[:, -1:].expand(count, -1, -1)
        if longest > 1:
            cache.batch_repeat_interleave(count)
            later = policy.hidden(input_ids=padded[:, :-1], past_key_values=cache, use_cache=True)
            states = torch.cat([states, later], dim=1)  # (count, longest, width): what predicts each token
        real = torch.arange(longest, device=policy.device) < lengths[:, None]
        size = max(1, HEAD_BYTES // (4 * policy.causal.config.get_text_config().vocab_size))
        logprobs = torch.zeros(count, longest, dtype=torch.float64, device=policy.device)
        logprobs[real] = torch.cat(
            [
                torch.log_softmax(policy.logits(state) / temperature, dim=-1).gather(-1, target[:, None])[:, 0].double()
                for state, target in zip(torch.split(states[real], size), torch.split(padded[real], size), strict=True)
            ]
        )
    return [float(total) for total in logprobs.sum(1)]

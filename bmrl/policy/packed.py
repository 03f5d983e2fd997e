"""Several episodes in one row, none of which sees another: no padding anywhere, and each attends to itself alone.

A packed row is (1, tokens): its episodes end to end, the positions of each counted from 0. Attention runs once per
episode, on views, so that no (tokens, tokens) mask exists and each is as exact as alone. The lengths travel where a
mask would, as a four-dimensional tensor of integers: transformers hands such a mask to every layer untouched, also
to one that activation checkpointing runs again in the backward pass, and an attention that does not know what it
means fails instead of mixing the episodes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bmrl.policy.model import Policy

ATTENTION = "bmrl_packed"
PROBE = [5, 3, 4]  # tokens of the episodes that a model's packing is tried with
# A CPU compiles its bfloat16 products anew for each shape it meets, and keeps them: with every length a shape of its
# own, memory grew by 15 MiB a step. There, episodes get room up to a multiple of so many tokens.
CPU_BFLOAT16 = 32


def packed_hidden(policy: Policy, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """Last hidden states (1, tokens, width) of a packed row.

    Args:
        policy: one that packs.
        ids: (1, tokens) token ids.
        lengths: tokens of each episode, in order.
    """
    compiled = ids.device.type == "cpu" and torch.bfloat16 in (policy.causal.dtype, _autocast())
    widths = [-(-length // CPU_BFLOAT16) * CPU_BFLOAT16 for length in lengths]
    if compiled and widths != list(lengths):
        row = ids.new_zeros(1, sum(widths))
        places = torch.cat([torch.arange(length) + sum(widths[:i]) for i, length in enumerate(lengths)])
        row[:, places] = ids  # the room is on the right, where no token of the episode looks
        return packed_hidden(policy, row, widths)[:, places]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return policy.hidden(
        input_ids=ids,
        position_ids=positions.to(ids.device),
        attention_mask=torch.tensor(lengths)[None, None, None],
        use_cache=False,
    )


def _autocast() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def with_packing(policy: Policy) -> Policy:
    """The policy, packing where its model can.

    Found out once, by running three short episodes alone and packed: a model that mixes them (by convolutions, by
    an attention of its own, by positions it counts itself) keeps its attention, and is given padded rows.
    """
    config = policy.causal.config.get_text_config()
    own = config._attn_implementation
    ids = torch.arange(sum(PROBE), device=policy.device)[None] % config.vocab_size
    with torch.no_grad():
        states = [policy.hidden(input_ids=part, use_cache=False) for part in torch.split(ids, PROBE, 1)]
        alone = torch.cat(states, 1).float()
        config._attn_implementation = ATTENTION
        try:
            error = (packed_hidden(policy, ids, PROBE).float() - alone).norm() / alone.norm()
        except Exception:  # whatever a foreign attention makes of integers for a mask
            error = torch.tensor(torch.inf)
    # Two exact kernels differ by rounding, which layers add up; a token of a neighbour differs by far more.
    if error <= max(1e-4, 10 * torch.finfo(policy.causal.dtype).eps):
        return replace(policy, packs=True)
    config._attn_implementation = own
    return policy


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each episode of a packed row; within each row without lengths.

    Args:
        query: (batch, heads, time, head_dim).
        key, value: (batch, kv_heads, width, head_dim); of values it may be another one.
        attention_mask: (1, 1, 1, episodes) lengths, then batch is 1; or what transformers makes for unpacked rows:
            (batch, 1, time, width) bool, or None where rows are causal and whole.
        sliding_window: the layer looks at most so far back, the query itself included.
        softcap: bound that tanh puts on the scores (Gemma 2), which torch's attention cannot do.

    Returns:
        (batch, time, heads, head_dim), and None for the weights.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        time = query.shape[2]
        if (
            mask is None
            and time > 1
            and (softcap is not None or (sliding_window is not None and time > sliding_window))
        ):
            mask = query.new_ones(time, time, dtype=torch.bool).tril().triu(1 - (sliding_window or time))
        if softcap is not None:
            return _capped(query, key, value, mask, scaling=scaling, softcap=softcap, dropout=dropout)
        out: Tensor = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling)[0]
        return out

    if attention_mask is None or attention_mask.dtype != torch.long:
        return attend(query, key, value, attention_mask), None
    # split, not slices: the gradient of a slice is as long as the row, that of a split is put together once.
    lengths = attention_mask.flatten().tolist()
    queries, keys, values = (torch.split(tensor, lengths, 2) for tensor in (query, key, value))
    return torch.cat([attend(*part, None) for part in zip(queries, keys, values, strict=True)], 1), None


def _capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float,
    dropout: float,
) -> Tensor:
    """Attention with bounded scores; query heads that share a key/value head are folded, so that none is repeated."""
    batch, heads, time, size = query.shape
    kv_heads, width = key.shape[1], key.shape[2]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * time, size)
    scores = folded @ key.transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
    scores = (torch.tanh(scores / softcap) * softcap).view(batch, heads, time, width)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    weights = torch.nn.functional.dropout(weights, dropout)
    out = weights.view(batch, kv_heads, -1, width) @ value
    return out.view(batch, heads, time, -1).transpose(1, 2)


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)

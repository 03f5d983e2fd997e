"""The least that a rollout or an update must do, and how fast this machine does it at best.

Decoding reads: at each forward the weights once, and of each row the keys and values it has. Pre-fill and update
compute: the products of their tokens with the weights, and attention. Bytes over a measured copy rate and operations
over a measured matrix-product rate are seconds below which nothing here can get.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Turns = Sequence[tuple[Sequence[int], Sequence[int]]]  # (tokens added, tokens sampled) of each turn


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model the floors need.

    Attributes:
        weight_bytes: what a decode step reads: all weights, the output layer once; an adapter can be merged into
            them, and counts for nothing.
        cache_bytes: keys and values of one token.
        linear: weights that every token is multiplied with, without those of adapter and output layer.
        adapter: weights of the adapter.
        head: weights of the output layer.
        attention: operations for a token to attend to one other, over all layers.
    """

    weight_bytes: int
    cache_bytes: int
    linear: int
    adapter: int
    head: int
    attention: int


def shape_of(policy: Any) -> Shape:
    """Of a ``bmrl.policy.Policy``."""
    config = policy.causal.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    embeddings = {id(policy.causal.get_input_embeddings().weight), id(policy.causal.get_output_embeddings().weight)}
    adapter = {id(p) for p in policy.trainable.values()} if policy.adapted else set()
    inner = [p for p in policy.model.parameters() if id(p) not in embeddings | adapter]
    head = policy.causal.get_output_embeddings().weight
    return Shape(
        weight_bytes=sum(p.nbytes for p in inner) + head.nbytes,
        cache_bytes=2 * layers * config.num_key_value_heads * width * policy.causal.dtype.itemsize,
        linear=sum(p.numel() for p in inner if p.ndim > 1),
        adapter=sum(p.numel() for p in policy.trainable.values()) if policy.adapted else 0,
        head=head.numel(),
        attention=4 * layers * heads * width,
    )


def decode_bytes(episodes: Sequence[Turns], rows: int, shape: Shape) -> int:
    """Bytes that decoding must read with at most ``rows`` rows abreast.

    A turn's first token comes from the pre-fill, its last enters the cache with the next pre-fill. Forwards are no
    fewer than the tokens over the rows, nor than those of the longest episode, whose tokens come one by one.
    """
    each = [sum(len(sampled) - 1 for _, sampled in turns) for turns in episodes]
    read = 0  # keys and values, in tokens
    for turns in episodes:
        length = 0
        for added, sampled in turns:
            length += len(added)
            read += sum(length + n for n in range(1, len(sampled)))
            length += len(sampled)
    return max(-(-sum(each) // rows), *each) * shape.weight_bytes + read * shape.cache_bytes


def prefill_operations(episodes: Sequence[Turns], shape: Shape) -> int:
    """Operations of pre-filling each token once; what openings have in common counts once over all episodes."""
    shared: set[tuple[int, ...]] = set()
    total = 0
    for turns in episodes:
        opening = tuple(turns[0][0])
        new = [n for n in range(1, len(opening) + 1) if opening[:n] not in shared]
        shared.update(opening[:n] for n in new)
        total += sum(_token(n, shape) for n in new) + (2 * shape.head if new else 0)
        length = len(opening)
        for (_, sampled), (added, _) in pairwise(turns):
            length += len(sampled) - 1
            total += sum(_token(length + n, shape) for n in range(1, len(added) + 2)) + 2 * shape.head
            length += len(added) + 1
    return total


def update_operations(episodes: Sequence[Turns], shape: Shape) -> int:
    """Operations of a forward and a backward over each episode once, nothing recomputed.

    Base weights are frozen: the backward pass is as long as the forward; the adapter's is twice as long. The output
    layer serves the sampled tokens only.
    """
    total = 0
    for turns in episodes:
        tokens = sum(len(added) + len(sampled) for added, sampled in turns)
        total += 2 * sum(_token(n, shape) for n in range(1, tokens + 1)) + 6 * shape.adapter * tokens
        total += sum(4 * shape.head * len(sampled) for _, sampled in turns)
    return total


def _token(attended: int, shape: Shape) -> int:
    return 2 * shape.linear + attended * shape.attention


def rates(dtype: str) -> dict[str, float]:
    """What this machine does at best, with the threads torch uses: bytes copied and operations per second."""
    import torch

    source = torch.ones(256 * 2**20, dtype=torch.uint8)  # far more than any cache
    target = torch.empty_like(source)
    copied = best(lambda: target.copy_(source))
    side = 2048
    left, right = (torch.ones(side, side, dtype=getattr(torch, dtype)) for _ in range(2))
    with torch.no_grad():
        multiplied = best(lambda: left @ right)
    # A copy reads and writes each byte.
    return {"copy_bytes_per_s": 2 * source.nbytes / copied, "operations_per_s": 2 * side**3 / multiplied}


def best(work: Callable[[], object], times: int = 12) -> float:
    """Least seconds of a call: what else runs on the machine slows it, and nothing makes it quicker."""
    work()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)

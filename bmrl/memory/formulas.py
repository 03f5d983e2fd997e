"""Bytes of what training holds, from a model's architecture and plain numbers; what was counted and measured is in
docs/memory.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bmrl.architecture import Architecture, Linear

SIZES = {"bfloat16": 2, "float32": 4}  # bytes
FORWARD_TOKENS = 4096  # as `sampler.FORWARD_TOKENS`
HEAD_BYTES = 2**26  # as `policy.logprobs.HEAD_BYTES`
LEAST_WIDTH = 256  # as `cuda_graphs.LEAST_WIDTH`
# bitsandbytes: weights that share a constant, constants that share another one, entries of its two tables.
NF4_BLOCK, NF4_NESTED, NF4_TABLES = 64, 256, 16 + 256
# bitsandbytes' 8-bit AdamW: entries that share a constant; smaller tensors stay in 32 bit, larger ones are paged.
ADAM8_BLOCK, ADAM8_LEAST, PAGED_LEAST = 256, 4096, 100_000


@dataclass(frozen=True, slots=True)
class Kind:
    """How a model computes.

    Attributes:
        dtype: bytes of a weight that is not quantized, and of an activation.
        quantized: whether the linear layers are in NF4.
        laid_out: whether a CPU holds weights that are not quantized a second time, as its products read them, see
            ``policy.linear``.
    """

    dtype: int
    quantized: bool
    laid_out: bool

    @property
    def low(self) -> bool:
        """Whether adapters are computed in the model's type, rather than in float32 with copies of what they read."""
        return self.dtype == 4 or (self.laid_out and not self.quantized)


def weights(a: Architecture, kind: Kind) -> int:
    """Weights of the model, without quantization constants."""
    if not kind.quantized:
        return a.parameters * kind.dtype
    return (a.parameters - a.linear_weights) * kind.dtype + a.linear_weights // 2


def quantization(a: Architecture) -> int:
    """Constants of NF4 with double quantization: one byte a block, four a block of blocks, an offset, two tables."""

    def constants(linear: Linear) -> int:
        blocks = -(-linear.weights // NF4_BLOCK)
        return blocks + 4 * -(-blocks // NF4_NESTED) + 4 * (NF4_TABLES + 1)

    return a.layers * sum(map(constants, a.layer()))


def adapted(a: Architecture, targets: str | Sequence[str]) -> list[Linear]:
    """The linear layers that get an adapter: all but the output layer, or those that are named."""
    if isinstance(targets, str):
        return a.linears()
    return [
        linear
        for linear in (*a.linears(), a.head)
        if any(linear.name == target or linear.name.endswith(f".{target}") for target in targets)
    ]


def adapter(linears: Sequence[Linear], rank: int) -> list[int]:
    """Parameters of each tensor of the adapter; they are float32, whatever the model is."""
    return [size for linear in linears for size in (rank * linear.inputs, rank * linear.outputs)]


def optimizer(name: str, tensors: Sequence[int]) -> int:
    """State of the optimizer for trained tensors of so many entries, on the device that trains."""
    if name == "adamw":
        return sum(8 * n + 4 for n in tensors)  # two moments, and the count of steps
    size = 0
    for n in tensors:
        if n < ADAM8_LEAST:
            size += 8 * n
        elif name == "adamw8bit" or n < PAGED_LEAST:
            size += 2 * (n + 4 * -(-n // ADAM8_BLOCK))
        else:
            size += 2 * 4 * -(-n // ADAM8_BLOCK)  # only the constants: the moments move to the computer's memory
    return size + 2 * 4 * 256


def laid_out(a: Architecture, kind: Kind) -> int:
    """What a CPU holds of the weights a second time while it trains."""
    if not kind.laid_out:
        return 0
    return (a.head.weights + (0 if kind.quantized else a.linear_weights)) * kind.dtype


def sampling_copies(a: Architecture, kind: Kind, linears: Sequence[Linear], rank: int, *, cpu: bool) -> int:
    """What is copied of weights and adapter while episodes are played, see ``policy.linear.for_sampling``."""
    low = sum(adapter(linears, rank))
    if kind.quantized:
        return low * kind.dtype
    if not cpu:
        return sum(linear.weights for linear in linears) * kind.dtype if kind.dtype == 4 else low * kind.dtype
    if not kind.laid_out:  # float32, the adapter added to the weight
        return (a.linear_weights + a.head.weights) * kind.dtype
    # The second factors of layers that read the same stand beside their weights as one matrix, mostly 0.
    up = sum(linear.outputs * rank for linear in linears)
    beside = a.layers * rank * (3 * (a.query + 2 * a.keys) + 2 * 2 * a.intermediate + 2 * a.hidden)
    return (a.linear_weights + low - up + beside) * kind.dtype


def cache_token(a: Architecture, dtype: int) -> int:
    """Keys and values of one token of one episode."""
    return 2 * a.layers * a.keys * dtype


def cache(a: Architecture, dtype: int, *, rows: int, context_tokens: int, spare: int) -> int:
    """Keys and values of so many episodes, each of the whole context; ``spare`` positions more of each."""
    return rows * (context_tokens + spare) * cache_token(a, dtype)


def graph_shapes(*, rows: int, context_tokens: int) -> int:
    """How many CUDA graphs decoding may capture: numbers of rows and widths double from one shape to the next."""
    widths = max(0, math.ceil(math.log2((context_tokens + 1) / LEAST_WIDTH)))
    return (math.ceil(math.log2(rows)) + 1) * (widths + 1)


def reading(a: Architecture, kind: Kind, *, tokens: int, context_tokens: int, rank: int) -> int:
    """Activations of a forward of the rollout, at its fullest: the feed-forward part of one layer.

    Args:
        tokens: of the forward.
        context_tokens: positions that its attention may have to mask.
    """
    d = kind.dtype
    # The residual stream, its norm in float32 and as it was, gate and up, their product and what was before it.
    forward = tokens * (a.hidden * (2 * d + 4) + 4 * a.intermediate * d + 2 * rank * d)
    # A mask for every query and key, for all query heads that share a key head.
    masks = tokens * context_tokens * (a.heads // a.kv_heads) * d
    return forward + masks + dequantized(a, kind)


def sampling(a: Architecture, kind: Kind, rows: int) -> int:
    """Logits of one token of each row, and what is made of them on the way to a sample."""
    return rows * a.vocabulary * (5 * 4 + kind.dtype)


def kept(a: Architecture, kind: Kind, rank: int) -> int:
    """What one layer keeps of one token for the backward pass."""
    d = kind.dtype
    norms = 2 * (4 * a.hidden + 4)
    attention = (2 * a.query + 2 * a.keys) * d + 4 * a.heads
    feed_forward = 3 * a.intermediate * d
    if kind.low:  # one copy of each different input of the linear layers
        inputs = (2 * a.hidden + a.query + a.intermediate) * d
        inner = 7 * rank * d
    else:  # one copy in float32 for each layer with an adapter
        inputs = (5 * a.hidden + a.query + a.intermediate) * 4
        inner = 7 * rank * 4
    return norms + attention + feed_forward + inputs + inner


def passing(a: Architecture, kind: Kind) -> int:
    """What one layer holds of one token beside that, at the fullest moment of its backward pass."""
    d = kind.dtype
    grads = (a.intermediate + a.hidden) * d
    if not kind.low:
        return grads + 4 * (2 * a.intermediate + a.hidden)
    return grads + (a.intermediate * d if kind.laid_out else 0)  # two products of a gradient are added up


def dequantized(a: Architecture, kind: Kind) -> int:
    """The largest 4-bit layer as its product reads it."""
    return max(linear.weights for linear in a.layer()) * kind.dtype if kind.quantized else 0


def update(
    a: Architecture, kind: Kind, *, tokens: int, picked: int, rank: int, low: int, checkpointing: bool
) -> tuple[int, int]:
    """Activations of one micro-batch, and what comes on top: slices of logits, or one layer's backward pass.

    The logits come first, while all activations are there.

    Args:
        low: parameters of the adapter, which a CPU that computes them in another type keeps in both.
        tokens: of the micro-batch.
        picked: sampled tokens among them.
        checkpointing: whether layers are run again in the backward pass, of which then only the inputs are kept.
    """
    one, d = kept(a, kind, rank), kind.dtype
    layers = a.layers * (a.hidden * d if checkpointing else one)
    cast = low * d if kind.low and d == 2 else 0
    # The last norm keeps what it read in float32; states after it, and their gradient.
    activations = tokens * (layers + a.hidden * (4 + 2 * d)) + picked * a.hidden * 2 * d + cast
    positions = min(max(1, HEAD_BYTES // (4 * a.vocabulary)), picked)
    logits = 5 * 4 * positions * a.vocabulary
    layer = tokens * (passing(a, kind) + (one if checkpointing else 0)) + dequantized(a, kind)
    return activations, max(logits, layer)

"""The live KV cache and attention over ragged batches: rows of any length, no padding.

A forward takes the new tokens of many rows, one row's after another's, as one sequence (1, tokens): linear layers
see no padding. Each row's keys and values lie in a place of its own, (kv_heads, capacity, head_dim) in a block
(places, kv_heads, capacity, head_dim) per layer, at 0..length-1 and without holes, so positions are exact, a row
grows without a copy, and attention reads of a row just what it holds.
"""

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "bmrl_ragged"  # of the attention, among those of transformers


@dataclass(frozen=True, slots=True)
class Segment:
    """What one row brings to a forward: ``count`` tokens, after the ``start`` that its place holds."""

    place: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring rows that attend in one call.

    Attributes:
        at: their first token in the sequence of the forward.
        place, rows: where they lie in the block.
        count: tokens of each.
        width: positions that are read of each.
        mask: (rows, 1, count, width) bool, true where a query may look; None where it may everywhere.
    """

    at: int
    place: int
    rows: int
    count: int
    width: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a forward are written, and what each may look at."""

    places: Tensor  # (tokens,)
    positions: Tensor  # (tokens,)
    pieces: tuple[_Piece, ...]
    needed: int  # query-key pairs, those after a query in its own piece included
    computed: int  # the same, with what shorter rows of a piece are padded by


def layout(segments: Sequence[Segment], device: torch.device, *, together: bool) -> Layout:
    """Lays out a forward.

    Args:
        together: whether neighbours with one token each attend in one call, the shorter ones masked. That pays
            where a call costs more than what it reads: on an accelerator, not on a CPU.
    """
    pieces: list[_Piece] = []
    group: list[Segment] = []
    at = 0
    for i, segment in enumerate(segments):
        group.append(segment)
        after = segments[i + 1] if i + 1 < len(segments) else None
        joins = together and after is not None and (segment.count, after.count) == (1, 1)
        if joins and after is not None and after.place == segment.place + 1:
            continue
        pieces.append(_piece(group, at, device))
        at += sum(s.count for s in group)
        group = []
    return Layout(
        places=torch.tensor([s.place for s in segments for _ in range(s.count)], device=device),
        positions=torch.tensor([s.start + i for s in segments for i in range(s.count)], device=device),
        pieces=tuple(pieces),
        needed=sum(s.count * (s.start + s.count) for s in segments),
        computed=sum(p.rows * p.count * p.width for p in pieces),
    )


def _piece(group: Sequence[Segment], at: int, device: torch.device) -> _Piece:
    first = group[0]
    lengths = [s.start + s.count for s in group]
    width = max(lengths)
    mask = None
    if first.count > 1 or min(lengths) < width:
        starts = torch.tensor([s.start for s in group], device=device)[:, None, None, None]
        queries = torch.arange(first.count, device=device)[:, None]
        mask = torch.arange(width, device=device) <= starts + queries
    return _Piece(at, first.place, len(group), first.count, width, mask)


class LiveCache(Cache):  # type: ignore[misc]
    """The storage, in the shape transformers' models expect of a cache.

    Args:
        layers: of the model.
        places: rows it holds.
        capacity: tokens of each.
    """

    def __init__(self, layers: int, places: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self._places = places
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._layout: Layout | None = None

    def aim(self, layout: Layout) -> None:
        """Where the next forward writes."""
        self._layout = layout

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores what a layer computed, (1, kv_heads, tokens, head_dim) each; the layer's blocks."""
        return self._put(self._keys, key_states, layer_idx), self._put(self._values, value_states, layer_idx)

    def _put(self, blocks: list[Tensor | None], new: Tensor, layer: int) -> Tensor:
        block = blocks[layer]
        if block is None:
            block = blocks[layer] = _zeros((self._places, new.shape[1], self.capacity, new.shape[3]), new)
        assert self._layout is not None
        block[self._layout.places, :, self._layout.positions] = new[0].transpose(0, 1)
        return block

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Gives a place what another one holds, up to so many tokens."""
        for block in (*self._keys, *self._values):
            if block is not None:
                block[target, :, :tokens] = block[source, :, :tokens]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros, not empty: a masked position still takes part in the product, and 0 x NaN is NaN.

    On a CPU they are pages that take memory only once they are written: small ones, for a row that is half full would
    fill huge ones to the end.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, math.prod(shape) * like.element_size())
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


def _ragged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    ragged: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of each row's new tokens to what the row holds.

    It reads each key/value head once for all query heads that share it: these become further query positions of
    their key/value head, which is exact and spares the copy that repeating keys and values would make.

    Args:
        query: (1, heads, tokens, head_dim).
        key, value: blocks (places, kv_heads, capacity, head_dim); of values it may be another one.
        sliding_window: the layer looks at most so far back, the query itself included.
        softcap: bound that tanh puts on the scores (Gemma 2), which torch's attention cannot do.
        ragged: the forward's layout.

    Returns:
        (1, tokens, heads, head_dim of the values).
    """
    assert ragged is not None
    heads, tokens, size = query.shape[1:]
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    out = query.new_empty(tokens, heads, value.shape[3])
    for piece in ragged.pieces:
        end = piece.at + piece.rows * piece.count
        places, width, mask = slice(piece.place, piece.place + piece.rows), piece.width, piece.mask
        if sliding_window is not None and width > sliding_window:
            mask = _windowed(piece, sliding_window, query.device)
        if mask is not None and piece.count > 1 and groups > 1:
            mask = mask.repeat(1, 1, groups, 1)
        own = query[0, :, piece.at : end]  # (heads, rows x count, size)
        folded = own.view(kv_heads, groups, piece.rows, piece.count, size).permute(2, 0, 1, 3, 4)
        folded = folded.reshape(piece.rows, kv_heads, groups * piece.count, size)
        read = _attend(folded, key[places, :, :width], value[places, :, :width], mask, scaling, softcap)
        read = read.view(piece.rows, heads, piece.count, -1).transpose(1, 2)
        out[piece.at : end] = read.reshape(piece.rows * piece.count, heads, -1)
    return out[None], None


def _windowed(piece: _Piece, window: int, device: torch.device) -> Tensor:
    mask = piece.mask
    if mask is None:
        mask = torch.ones(piece.rows, 1, piece.count, piece.width, dtype=torch.bool, device=device)
    own = mask.sum(-1, keepdim=True) - 1  # a query's position: it may look at everything up to itself
    return mask & (torch.arange(piece.width, device=device) > own - window)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> Tensor:
    if softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value


ALL_ATTENTION_FUNCTIONS.register(NAME, _ragged_attention)

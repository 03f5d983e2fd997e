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
        place: where the first one lies in the block.
        starts: what each held before.
        count: new tokens of each.
        width: positions that are read of each.
    """

    at: int
    place: int
    starts: tuple[int, ...]
    count: int
    width: int

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def end(self) -> int:
        return self.at + self.rows * self.count


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a forward are written, and what each may look at.

    Attributes:
        places, positions: (tokens,) each.
        needed: query-key pairs, those after a query in its own piece included.
        computed: the same, with what shorter rows of a piece are padded by.
        masks: of pieces, as layers ask for them; most layers ask for the same.
    """

    places: Tensor
    positions: Tensor
    pieces: tuple[_Piece, ...]
    needed: int
    computed: int
    masks: dict[tuple[Any, ...], Tensor | None]

    def mask(self, piece: _Piece, queries: int, dtype: torch.dtype, window: int | None) -> Tensor | None:
        """What to add to a piece's scores, (rows, 1, queries x count, width): 0, or minus infinity where not to look.

        Args:
            queries: heads that share a key, and so become further queries of it, see ``_ragged_attention``.
            window: how far back the layer looks at most, the query itself included; None: to the beginning.

        Returns:
            None where all may look everywhere.
        """
        window = window if window is not None and window < piece.width else None
        if window is None and piece.count == 1 and min(piece.starts) + 1 == piece.width:
            return None
        key = (piece.at, queries, dtype, window)
        if key not in self.masks:
            device = self.places.device
            own = self.positions[piece.at : piece.end].view(piece.rows, 1, piece.count, 1)
            at = torch.arange(piece.width, device=device)
            hidden = at > own if window is None else (at > own) | (at <= own - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
            self.masks[key] = mask.repeat(1, 1, queries, 1)
        return self.masks[key]


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
        width = max(s.start + s.count for s in group)
        pieces.append(_Piece(at, group[0].place, tuple(s.start for s in group), segment.count, width))
        at += sum(s.count for s in group)
        group = []
    return Layout(
        places=torch.tensor([s.place for s in segments for _ in range(s.count)], device=device),
        positions=torch.tensor([s.start + i for s in segments for i in range(s.count)], device=device),
        pieces=tuple(pieces),
        needed=sum(s.count * (s.start + s.count) for s in segments),
        computed=sum(p.rows * p.count * p.width for p in pieces),
        masks={},
    )


def even_layout(positions: Tensor, width: int) -> Layout:
    """A forward of one token for each of the first places, whose shapes tell nothing of what the places hold.

    Args:
        positions: (places,) where each writes.
        width: positions that are read of each.
    """
    places = torch.arange(len(positions), device=positions.device)
    # That some start before ``width`` calls for a mask, which follows ``positions``.
    piece = _Piece(at=0, place=0, starts=(-1,) * len(places), count=1, width=width)
    return Layout(places, positions, (piece,), needed=0, computed=len(places) * width, masks={})


class LiveCache(Cache):  # type: ignore[misc]
    """The storage, in the shape transformers' models expect of a cache.

    Args:
        layers: of the model.
        places: rows it holds.
        capacity: tokens of each.
        spare: positions of each beyond that, to write what nobody reads.
    """

    def __init__(self, layers: int, places: int, capacity: int, *, spare: int = 0) -> None:
        super().__init__(layers=[])
        self.places = places
        self.capacity = capacity
        self.room = capacity + spare
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
            block = blocks[layer] = _zeros((self.places, new.shape[1], self.room, new.shape[3]), new)
        assert self._layout is not None
        places, positions = self._layout.places, self._layout.positions
        block[places, :, positions] = new[0].transpose(0, 1)[: len(places)]
        return block

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Gives a place what another one holds, up to so many tokens."""
        for block in (*self._keys, *self._values):
            if block is not None:
                block[target, :, :tokens] = block[source, :, :tokens]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def decoder_inputs(tokens: Tensor, plan: Layout, cache: LiveCache) -> dict[str, object]:
    """What a decoder of transformers takes to read ``tokens`` (1, count); ``plan`` says where the first of them lie."""
    room = tokens.shape[1] - len(plan.positions)
    return {
        "input_ids": tokens,
        "position_ids": torch.nn.functional.pad(plan.positions, (0, room))[None],
        # Of four dimensions: transformers then makes no mask of its own.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device),
        "past_key_values": cache,
        "use_cache": True,
        "ragged": plan,
    }


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
    shared = heads // kv_heads
    queries = query[0].view(kv_heads, shared, tokens, size)
    parts = []
    for piece in ragged.pieces:
        own = queries[:, :, piece.at : piece.end].view(kv_heads, shared, piece.rows, piece.count, size)
        own = own.permute(2, 0, 1, 3, 4).reshape(piece.rows, kv_heads, -1, size)
        places, width = slice(piece.place, piece.place + piece.rows), piece.width
        mask = ragged.mask(piece, shared, query.dtype, sliding_window)
        read = _attend(own, key[places, :, :width], value[places, :, :width], mask, scaling, softcap)
        parts.append(read.view(piece.rows, heads, piece.count, -1).transpose(1, 2).reshape(-1, heads, read.shape[3]))
    if tokens > ragged.pieces[-1].end:  # what fills the forward up is nobody's
        parts.append(query.new_zeros(tokens - ragged.pieces[-1].end, heads, value.shape[3]))
    return torch.cat(parts)[None], None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> Tensor:
    if softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value


ALL_ATTENTION_FUNCTIONS.register(NAME, _ragged_attention)

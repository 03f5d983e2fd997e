"""Generation with a live KV cache: each row is one episode, and a turn pre-fills only the tokens it adds.

Storage is one block per layer, (rows, kv_heads, capacity, head_dim); row r holds its tokens at 0..length-1,
with no holes, so positions and masks are exact and a row can move by one copy. Live rows are the first ones of
the block: when a row leaves, the last live row takes its place. Capacity grows in steps, never per token.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bmrl.policy import Policy
from bmrl.types import Completion

GROW = 256  # tokens by which the storage grows; a growth copies the whole cache once


@dataclass(slots=True)
class Counters:
    """What was generated since the counters were made; seconds are wall-clock."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True)
class _Row:
    """A live row.

    ``tokens`` are those in the cache; ``pending`` is the last sampled token, which enters it with the next
    turn. ``state`` is the hidden state after the opening, for siblings that start later.
    """

    tokens: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    opening: int = 0
    state: Tensor | None = None


class _LiveCache(Cache):  # type: ignore[misc]
    """The storage, in the shape transformers' models expect of a cache."""

    def __init__(self, layers: int, rows: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.capacity = 0
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def aim(self, first: int, positions: Tensor, width: int) -> None:
        """Where the next forward writes and reads.

        Args:
            first: place of its first row.
            positions: (rows, time) place of each new token in its row.
            width: tokens of a row that are read, from 0.
        """
        rows = torch.arange(first, first + len(positions), device=positions.device)[:, None]
        self._at = (rows, positions)
        self._read = slice(first, first + len(positions)), width

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self._put(self._keys, key_states, layer_idx), self._put(self._values, value_states, layer_idx)

    def _put(self, blocks: list[Tensor | None], new: Tensor, layer: int) -> Tensor:
        """Stores ``new`` (rows, kv_heads, time, head_dim); what these rows hold, as a view."""
        block = blocks[layer]
        if block is None or block.shape[2] < self.capacity:
            # zeros, not empty: a masked position still takes part in the product, and 0 x NaN is NaN
            grown = new.new_zeros(self.rows, new.shape[1], self.capacity, new.shape[3])
            if block is not None:
                grown[:, :, : block.shape[2]] = block
            blocks[layer] = block = grown
        rows, positions = self._at
        block[rows, :, positions] = new.transpose(1, 2)
        places, width = self._read
        return block[places, :, :width]

    def copy_row(self, source: int, target: int, length: int) -> None:
        for block in (*self._keys, *self._values):
            if block is not None:
                block[target, :, :length] = block[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention that reads each key/value head once for all query heads that share it.

    The heads of a group become further query positions of their key/value head, which is exact and spares the
    copy that repeating keys and values would make at every token.

    Args:
        query: (batch, heads, time, head_dim).
        key, value: (batch, kv_heads, width, head_dim); of values it may be another one.
        attention_mask: (batch or 1, 1, time, width) bool, true where a query may look.
        sliding_window: the layer looks at most so far back, the query itself included.
        softcap: bound that tanh puts on the scores (Gemma 2), which torch's attention cannot do.
    """
    batch, heads, length, size = query.shape
    groups = heads // key.shape[1]
    width = key.shape[2]
    mask = attention_mask
    if sliding_window is not None and width > sliding_window:
        own = mask.sum(-1, keepdim=True) - 1  # a query's position: it may look at everything up to itself
        mask = mask & (torch.arange(width, device=mask.device) > own - sliding_window)
    if length > 1:
        mask = mask.repeat(1, 1, groups, 1)
    folded = query.reshape(batch, key.shape[1], groups * length, size)
    if softcap is None:
        out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = folded @ key.transpose(2, 3) * (scaling or size**-0.5)
        scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~mask, -torch.inf)
        out = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value
    return out.reshape(batch, heads, length, -1).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("bmrl_grouped", _grouped_attention)


@contextmanager
def _sampling(policy: Policy) -> Iterator[None]:
    """No gradients, no dropout, no activation checkpointing (which would ignore the cache), our attention."""
    config = policy.causal.config.get_text_config()
    before = config._attn_implementation
    policy.model.eval()
    config._attn_implementation = "bmrl_grouped"
    try:
        with torch.no_grad():
            yield
    finally:
        config._attn_implementation = before


class LiveSampler:
    """Samples for many rows at once from one policy, keeping every row's cache between turns.

    Args:
        policy: the model; read, never changed.
        rows: most rows alive at once.
    """

    def __init__(self, policy: Policy, *, rows: int) -> None:
        self.policy = policy
        self.rows = rows
        self.counters = Counters()
        self._cache = _LiveCache(policy.causal.config.get_text_config().num_hidden_layers, rows)
        self._live: list[_Row] = []
        self._order: list[int] = []  # physical place -> row name

    def drop(self, row: int) -> None:
        """Forgets a row; its place is free at once."""
        place = self._order.index(row)
        last = len(self._order) - 1
        if place != last:
            self._cache.copy_row(last, place, len(self._live[last].tokens))
            self._order[place], self._live[place] = self._order[last], self._live[last]
        self._order.pop()
        self._live.pop()

    def generate(
        self,
        added: dict[int, Sequence[int]],
        draws: dict[int, NDArray[np.float64]],
        *,
        temperature: float,
        stop_ids: frozenset[int],
    ) -> Iterator[tuple[int, Completion]]:
        """One turn of every live row, and of new ones.

        Args:
            added: row -> the tokens that this turn adds before the action. A row not seen before begins with
                them. Rows alive but not named here are an error: they would decode for nothing.
            draws: row -> one uniform number per token it may sample; their count bounds the action.
            temperature: of sampling; 0 takes the most likely token.
            stop_ids: tokens that end an action.

        Yields:
            (row, completion), each as soon as it is complete, so that its environment can step while others
            decode.
        """
        if set(self._order) - set(added):
            raise ValueError("a live row was left out of the turn")
        began = time.perf_counter()
        with _sampling(self.policy):
            states = self._prefill(added)
        self.counters.prefill_s += time.perf_counter() - began
        yield from self._decode(states, draws, temperature, stop_ids)

    def _prefill(self, added: dict[int, Sequence[int]]) -> Tensor:
        """Hidden state (live rows, width) after each row's added tokens, in the order of the places."""
        old = list(zip(self._order, self._live, strict=True))
        states = []
        if old:
            brought = [[*state.pending, *added[row]] for row, state in old]
            self.counters.prefill_tokens += sum(map(len, brought))
            states.append(self._forward(0, brought))
        openings = {row: tuple(ids) for row, ids in added.items() if row not in dict(old)}
        if openings:
            states.append(self._open(openings))
        return torch.cat(states)

    def _open(self, openings: dict[int, tuple[int, ...]]) -> Tensor:
        """Admits rows. Each distinct opening is computed once, unless a live sibling still holds it."""
        first = len(self._order)
        made: dict[tuple[int, ...], int] = {}  # opening -> place that holds it
        for place, held in enumerate(self._live):
            made.setdefault(tuple(held.tokens[: held.opening]), place)
        needed = [o for o in dict.fromkeys(openings.values()) if o not in made]
        # Rows that compute come first, so that they are neighbours in the block.
        leaders = {next(row for row, o in openings.items() if o == opening): opening for opening in needed}
        for row in (*leaders, *(row for row in openings if row not in leaders)):
            self._order.append(row)
            self._live.append(_Row())
        if len(self._order) > self.rows:
            raise ValueError(f"{len(self._order)} rows in a sampler made for {self.rows}")
        if leaders:
            states = self._forward(first, list(leaders.values()))
            self.counters.prefill_tokens += sum(map(len, leaders.values()))
            for place, (opening, state) in enumerate(zip(leaders.values(), states, strict=True), start=first):
                made[opening] = place
                self._live[place].opening, self._live[place].state = len(opening), state
        self._reserve(max(map(len, openings.values())))
        for place in range(first + len(leaders), len(self._order)):
            opening = openings[self._order[place]]
            source = made[opening]
            self._cache.copy_row(source, place, len(opening))
            self._live[place] = _Row(list(opening), [], len(opening), self._live[source].state)
        return torch.stack([self._known(row) for row in self._live[first:]])

    @staticmethod
    def _known(row: _Row) -> Tensor:
        assert row.state is not None
        return row.state

    def _reserve(self, tokens: int) -> None:
        """Makes room for rows of so many tokens."""
        if tokens > self._cache.capacity:
            self._cache.capacity = -(-tokens // GROW) * GROW

    def _forward(self, first: int, added: Sequence[Sequence[int]]) -> Tensor:
        """Runs the model on what the rows from place ``first`` on add.

        Returns:
            (rows, width) hidden state after each row's last token; meaningless for a row that adds none.
        """
        live = self._live[first : first + len(added)]
        start = torch.tensor([len(row.tokens) for row in live])
        count = torch.tensor([len(ids) for ids in added])
        longest = int(count.max())
        ids = torch.zeros(len(added), longest, dtype=torch.long)
        for i, new in enumerate(added):
            ids[i, : len(new)] = torch.as_tensor(new, dtype=torch.long)
        width = int(start.max()) + longest
        self._reserve(width)
        device = self.policy.device
        # Padding on the right is written beyond a row's length, where its next tokens overwrite it, and no
        # query of the row looks that far.
        positions = (start[:, None] + torch.arange(longest)).to(device)
        mask = torch.arange(width, device=device) <= positions[:, :, None]
        self._cache.aim(first, positions, width)
        hidden = self.policy.hidden(
            input_ids=ids.to(device),
            attention_mask=mask[:, None],
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        for row, new in zip(live, added, strict=True):
            row.tokens.extend(new)
        return hidden[torch.arange(len(added)), (count - 1).clamp(min=0)]

    def _decode(
        self, states: Tensor, draws: dict[int, NDArray[np.float64]], temperature: float, stop_ids: frozenset[int]
    ) -> Iterator[tuple[int, Completion]]:
        order = list(self._order)  # rows are dropped between turns only, so places hold still here
        uniforms = np.stack([draws[row] for row in order])
        sampled: list[list[int]] = [[] for _ in order]
        logprobs: list[list[float]] = [[] for _ in order]
        active = list(range(len(order)))
        for t in range(uniforms.shape[1]):
            began = time.perf_counter()
            with _sampling(self.policy):
                if t:
                    # Finished rows in between ride along with no token of their own.
                    fed = [sampled[place][-1:] if place in active else [] for place in range(active[-1] + 1)]
                    states = self._forward(0, fed)
                picks, logps = sample(self.policy.logits(states[active]), uniforms[active, t], temperature)
            self.counters.decode_tokens += len(active)
            for place, token, logp in zip(active, picks, logps, strict=True):
                sampled[place].append(token)
                logprobs[place].append(logp)
            done = [p for p in active if sampled[p][-1] in stop_ids or t + 1 == uniforms.shape[1]]
            active = [p for p in active if p not in done]
            self.counters.decode_s += time.perf_counter() - began
            for place in done:
                ids = sampled[place]
                self._live[place].pending = ids[-1:]
                yield order[place], Completion(tuple(ids), tuple(logprobs[place]), ids[-1] in stop_ids)
            if not active:
                return


def sample(logits: Tensor, uniforms: NDArray[np.float64], temperature: float) -> tuple[list[int], list[float]]:
    """One token per row by inverting the cumulative distribution, and its log-probability.

    Args:
        logits: (rows, vocabulary) fp32.
        uniforms: (rows,) in [0, 1), one draw per row; the same draw gives the same token in any batch.
        temperature: 0 takes the most likely token and reports its log-probability at temperature 1.
    """
    logprobs = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
    if temperature:
        cumulative = logprobs.double().exp().cumsum(-1)
        u = torch.as_tensor(uniforms, device=logits.device)[:, None] * cumulative[:, -1:]
        picks = torch.searchsorted(cumulative, u, right=True).clamp_(max=logits.shape[-1] - 1)
    else:
        picks = logprobs.argmax(-1, keepdim=True)
    chosen = logprobs.gather(-1, picks)
    return picks.squeeze(-1).tolist(), chosen.squeeze(-1).tolist()

"""Generation with a live KV cache: each row is one episode, and a turn reads only the tokens it adds.

Every forward takes all rows that have something to say: some read what a turn adds, others the token they sampled
last. So a row that begins a turn waits for nobody, and one whose action is complete costs nothing.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bmrl.cuda_graphs import FixedDecode
from bmrl.errors import BmrlError
from bmrl.kv_cache import NAME, LiveCache, Segment, decoder_inputs, layout
from bmrl.policy import Forward, Policy, for_sampling, swapped
from bmrl.types import Completion

# Most tokens of a forward, unless a single row brings more: bounds what its activations take.
FORWARD_TOKENS = 4096
# Tokens an opening must have in common with another one, to be copied rather than read.
SHARED = 16
BLOCK = 256  # entries of the vocabulary whose sum is taken in float32


@dataclass(slots=True)
class Counters:
    """What was generated since the counters were made; seconds are wall-clock.

    The time of a forward that both reads and decodes is shared out by its tokens.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0
    attention_needed: int = 0  # pairs of query and key
    attention_computed: int = 0  # the same with padding


@dataclass(slots=True)
class _Row:
    """A live row.

    Attributes:
        held: tokens in the cache.
        opening: the first turn's tokens, once they are there; siblings copy them.
        state: hidden state after the opening, for siblings.
        new: tokens that enter the cache with the next forward. The last sampled token is always among them.
        draws: what is left of the turn's uniform numbers; empty between turns.
    """

    held: int = 0
    opening: tuple[int, ...] = ()
    state: Tensor | None = None
    new: list[int] = field(default_factory=list)
    draws: list[float] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class LiveSampler:
    """Samples for many rows at once from one policy, keeping every row's cache between turns.

    Args:
        policy: the model; read, never changed. Its weights must hold still while a row is alive.
        rows: most rows alive at once.
        context_tokens: most tokens of a row.
        cuda_graphs: whether a card decodes in captured graphs.
        fixed: whether decoding has fixed shapes, which graphs need; by default on a card that may use them.
    """

    def __init__(
        self, policy: Policy, *, rows: int, context_tokens: int, cuda_graphs: bool = True, fixed: bool | None = None
    ) -> None:
        self.policy = policy
        self.rows = rows
        self.counters = Counters()
        config = policy.causal.config.get_text_config()
        graphs = cuda_graphs and policy.device.type == "cuda"
        fixed = graphs if fixed is None else fixed
        self._cache = LiveCache(config.num_hidden_layers, rows, context_tokens, spare=int(fixed))
        self._fixed = FixedDecode(policy, self._cache, graphs=graphs) if fixed else None
        self._live: dict[int, _Row] = {}
        # A CPU compiles its bfloat16 products anew for each number of tokens.
        self._compiled = policy.device.type == "cpu" and policy.causal.dtype == torch.bfloat16
        self._forwards: list[tuple[torch.nn.Module, Forward]] = []

    @property
    def captured(self) -> list[tuple[int, int]]:
        """Shapes that decode in graphs: (places, positions that attention reads)."""
        return self._fixed.captured if self._fixed else []

    def begin(self, row: int, added: Sequence[int], draws: NDArray[np.float64]) -> None:
        """A turn of a row; one not seen before, or dropped, is new.

        Args:
            row: from 0 to ``rows`` - 1.
            added: the tokens that the turn adds before the action.
            draws: a uniform number per token that it may sample; their count bounds the action.

        Raises:
            ValueError: there is no such row, it is in a turn, or it would be longer than ``context_tokens``.
        """
        if not 0 <= row < self.rows:
            raise ValueError(f"row {row} of a sampler made for {self.rows}")
        if not self._live:
            self._forwards = for_sampling(self.policy)
            if self._fixed:
                self._fixed.forget()
        state = self._live.setdefault(row, _Row())
        if state.draws:
            raise ValueError(f"row {row} is in a turn already")
        state.new += added
        if state.held + len(state.new) + len(draws) > self._cache.capacity + 1:  # the last one sampled is not stored
            raise ValueError(f"row {row} would be longer than the {self._cache.capacity} tokens of a row")
        state.draws = draws.tolist()
        state.sampled, state.logprobs = [], []

    def drop(self, row: int) -> None:
        """Forgets a row; its place is free at once."""
        del self._live[row]

    def step(self, *, temperature: float, stop_ids: frozenset[int]) -> list[tuple[int, Completion]]:
        """One token for every row that is in a turn.

        Args:
            temperature: of sampling; 0 takes the most likely token.
            stop_ids: tokens that end an action.

        Returns:
            (row, completion) of the actions that it completes.

        Raises:
            BmrlError: there is not enough memory for even one row.
        """
        began = time.perf_counter()
        active = {row: state for row, state in sorted(self._live.items()) if state.draws}
        decoded = sum(bool(state.sampled) for state in active.values())
        counters = self.counters
        read_before = counters.prefill_tokens
        with torch.inference_mode(), self._sampling():
            states = self._read(active)
            uniforms = np.array([state.draws.pop(0) for state in active.values()])
            picks, logps = sample(self.policy.logits(states), uniforms, temperature)
        completed = []
        for (row, state), token, logp in zip(active.items(), picks, logps, strict=True):
            state.sampled.append(token)
            state.logprobs.append(logp)
            state.new = [token]
            if token in stop_ids or not state.draws:
                state.draws = []
                completed.append((row, Completion(tuple(state.sampled), tuple(state.logprobs), token in stop_ids)))
        read = counters.prefill_tokens - read_before
        spent = time.perf_counter() - began
        # Neither, where all that is active copied its opening from a sibling: that took the place of reading.
        decoding = spent * decoded / (read + decoded) if decoded else 0.0
        counters.prefill_s += spent - decoding
        counters.decode_s += decoding
        counters.decode_tokens += len(active)
        counters.steps += 1
        return completed

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """No dropout, no activation checkpointing (it would ignore the cache), our attention, the fastest adapter."""
        config = self.policy.causal.config.get_text_config()
        before = config._attn_implementation
        if self.policy.model.training:  # to ask costs nothing, to set it walks through all modules
            self.policy.model.eval()
        config._attn_implementation = NAME
        try:
            with swapped(self._forwards):
                yield
        finally:
            config._attn_implementation = before

    def _read(self, active: dict[int, _Row]) -> Tensor:
        """Takes in what is new of each row; hidden states (rows, width) after their last tokens."""
        states: dict[int, Tensor] = {}
        going = [row for row, state in active.items() if state.held]
        if self._fixed and (decoding := [row for row in going if len(self._live[row].new) == 1]):
            self._decode(self._fixed, decoding, states)
            going = [row for row in going if row not in states]
        openings = {row: tuple(state.new) for row, state in active.items() if not state.held}
        holders = {state.opening: row for row, state in self._live.items() if state.opening}
        leaders = list({o: row for row, o in reversed(openings.items()) if o not in holders}.values())
        # The first opening of all is there before the others, which may begin like it.
        alone = 1 if not holders else len(leaders)
        for rows in (going + leaders[:alone], leaders[alone:]):
            for row in rows:
                if row in openings:
                    self._share(row, holders)
            for part in self._parts(rows):
                self._forward(part, states)
            for row in rows:
                if row in openings:
                    state = active[row]
                    state.opening, state.state = openings[row], states[row]
                    holders[state.opening] = row
        for row, opening in openings.items():
            if row not in states:
                source = self._live[holders[opening]]
                self._cache.copy(holders[opening], row, len(opening))
                active[row].held, active[row].opening, active[row].state = len(opening), opening, source.state
                assert source.state is not None
                states[row] = source.state
        return torch.stack([states[row] for row in active])

    def _share(self, row: int, holders: dict[tuple[int, ...], int]) -> None:
        """Copies the longest beginning that a new row has in common with an opening that is there."""
        state = self._live[row]
        # At least one token is read: its hidden state is what the first token is sampled from.
        common = {other: _common(opening, state.new[:-1]) for opening, other in holders.items()}
        if common and (tokens := max(common.values())) >= SHARED:
            self._cache.copy(max(common, key=lambda other: common[other]), row, tokens)
            state.held, state.new = tokens, state.new[tokens:]

    def _parts(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows that go into a forward together."""
        part: list[int] = []
        tokens = 0
        for row in rows:
            count = len(self._live[row].new)
            if part and tokens + count > FORWARD_TOKENS:
                yield part
                part, tokens = [], 0
            part.append(row)
            tokens += count
        if part:
            yield part

    def _decode(self, fixed: FixedDecode, rows: Sequence[int], states: dict[int, Tensor]) -> None:
        """One token of each of these rows, which hold something already; of none where memory does not suffice."""
        held = {row: state.held for row, state in self._live.items()}
        try:
            hidden, computed = fixed({row: self._live[row].new[0] for row in rows}, held)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return  # they go the way of rows that read, which is split until it fits
        for row in rows:
            state = self._live[row]
            states[row] = hidden[row]
            self.counters.attention_needed += state.held + 1
            self._took(state)
        self.counters.attention_computed += computed

    def _took(self, state: _Row) -> None:
        """Books what is new of a row as held."""
        if not state.sampled:
            self.counters.prefill_tokens += len(state.new)
        state.held += len(state.new)
        state.new = []

    def _forward(self, rows: Sequence[int], states: dict[int, Tensor]) -> None:
        """Runs the model on what is new of these rows; where memory does not suffice, on half of them each time."""
        live = [self._live[row] for row in rows]
        device = self.policy.device
        segments = [Segment(row, state.held, len(state.new)) for row, state in zip(rows, live, strict=True)]
        plan = layout(segments, device, together=device.type != "cpu")
        self._cache.aim(plan)
        try:
            tokens = [i for state in live for i in state.new]
            room = filled_up(len(tokens)) - len(tokens) if self._compiled else 0
            ids = torch.tensor([tokens + [0] * room], device=device)
            hidden = self.policy.hidden(**decoder_inputs(ids, plan, self._cache))[0]
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if len(rows) == 1:
                raise BmrlError(
                    f"not enough memory to read {segments[0].count} tokens of one episode; lower rollout.kv_cache_gb"
                ) from error
            hidden = None
        if hidden is None:  # after the handler, which would keep what the failed forward made
            if device.type == "cuda":
                torch.cuda.empty_cache()
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                self._forward(half, states)
            return
        last = -1
        for row, state in zip(rows, live, strict=True):
            last += len(state.new)
            states[row] = hidden[last]
            self._took(state)
        self.counters.attention_needed += plan.needed
        self.counters.attention_computed += plan.computed


def filled_up(tokens: int) -> int:
    """Tokens of a forward that has room for so many: of few numbers, of which few are much larger."""
    size = max(4, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // size) * size


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out; on a CPU torch has no class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two sequences begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def sample(logits: Tensor, uniforms: NDArray[np.float64], temperature: float) -> tuple[list[int], list[float]]:
    """One token per row by inverting the cumulative distribution, and its log-probability.

    Args:
        logits: (rows, vocabulary) fp32.
        uniforms: (rows,) in [0, 1), one draw per row; the same draw gives the same token in any batch.
        temperature: 0 takes the most likely token and reports its log-probability at temperature 1.
    """
    logprobs = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
    picks = _inverted(logprobs.exp(), uniforms) if temperature else logprobs.argmax(-1)
    chosen = logprobs.gather(-1, picks[:, None])
    return picks.tolist(), chosen.squeeze(-1).tolist()


def _inverted(weights: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
    """The first entry of each row at which the running sum exceeds its share ``uniforms`` of the whole.

    In two steps, blocks and then the entries of one: float64 throughout a vocabulary would cost more than all else
    that a token takes, and a running sum in float32 would err by more than single tokens weigh.

    Args:
        weights: (rows, entries), not negative.

    Returns:
        (rows,) entries, none of weight 0.
    """
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[1] % BLOCK))
    blocks = padded.view(len(weights), -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    aim = torch.as_tensor(uniforms, device=weights.device)[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, aim, right=True).clamp_(max=ends.shape[1] - 1)
    start = torch.where(block > 0, ends.gather(-1, (block - 1).clamp_(min=0)), 0.0)
    # As a share of the block, for the block's own running sum ends in another last digit.
    share = ((aim - start) / (ends.gather(-1, block) - start)).clamp_(max=1 - 1e-9)
    sums = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1).double().cumsum(-1)
    entry = torch.searchsorted(sums, share * sums[:, -1:], right=True)
    # Of weights that are no numbers any entry will do: its log-probability is none either, which tells.
    return (block * BLOCK + entry).squeeze(-1).clamp_(max=weights.shape[1] - 1)

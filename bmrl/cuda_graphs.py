"""Decoding in fixed shapes, on a card as captured CUDA graphs: one token of every row, started with a single call.

A forward of one token a row takes a card less time than the host needs to start its kernels one by one. A graph
starts them all; it replays the same kernels on the same memory. So all places up to the last one in use take part,
whether their row says something or not, positions lie in a tensor, and attention reads a width that many lengths
share, with a mask. A place whose row says nothing writes behind what it holds, where its next token goes.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bmrl.kv_cache import LiveCache, decoder_inputs, even_layout
from bmrl.policy import Policy

LEAST_WIDTH = 256  # positions; every wider shape is twice as wide, so that few graphs serve all lengths


@dataclass(frozen=True, slots=True)
class _Graph:
    """What was captured, and the memory it reads its input from and leaves its outcome in."""

    graph: "torch.cuda.CUDAGraph"
    inputs: Tensor  # (2, places): tokens, and their positions
    hidden: Tensor


class FixedDecode:
    """One token of every place.

    Args:
        policy: its layers' ``forward`` must be what they were at the first call until ``forget``.
        cache: with room for one position more than a row may hold.
        graphs: whether to capture; otherwise the same forward runs as it is.
    """

    def __init__(self, policy: Policy, cache: LiveCache, *, graphs: bool) -> None:
        self._policy, self._cache = policy, cache
        self._graphs = graphs
        self._captured: dict[tuple[int, int], _Graph] = {}

    def forget(self) -> None:
        """Drops all graphs: the model's weights have changed or moved."""
        self._captured.clear()

    def __call__(self, tokens: Mapping[int, int], held: Mapping[int, int]) -> tuple[Tensor, int]:
        """Takes in one token of some places.

        Args:
            tokens: place -> token.
            held: place -> tokens it holds, of all that are in use.

        Returns:
            hidden states (places, width) of all places up to the last one in use, valid until the next call; and
            how many query-key pairs were computed.
        """
        places = min(_at_least(max(held) + 1, 1), self._cache.places)
        width = min(_at_least(max(held[place] for place in tokens) + 1, LEAST_WIDTH), self._cache.room)
        ids = [tokens.get(place, 0) for place in range(places)]
        inputs = torch.tensor([ids, [held.get(place, 0) for place in range(places)]])
        if self._graphs and (graph := self._graph(places, width)):
            graph.inputs.copy_(inputs)
            graph.graph.replay()
            hidden = graph.hidden
        else:
            hidden = self.forward(inputs.to(self._policy.device), width)
        return hidden, places * width

    @property
    def captured(self) -> list[tuple[int, int]]:
        """Shapes (places, width) that there are graphs of."""
        return sorted(self._captured)

    def forward(self, inputs: Tensor, width: int) -> Tensor:
        """What a graph captures: the host starts kernels, looks at no value and moves nothing to the card or back.

        Args:
            inputs: (2, places), tokens and their positions.
            width: positions that attention reads.
        """
        plan = even_layout(inputs[1], width)
        self._cache.aim(plan)
        return self._policy.hidden(**decoder_inputs(inputs[:1], plan, self._cache))[0]

    def _graph(self, places: int, width: int) -> _Graph | None:
        """The graph of a shape, captured at its first use; None where the model cannot be captured."""
        if (places, width) not in self._captured:
            try:
                self._captured[places, width] = self._capture(places, width)
            except RuntimeError as error:
                # Such as a model whose forward looks at a value: the host would have to wait for the card.
                self._graphs = False
                self._captured.clear()
                warnings.warn(f"decoding goes on without CUDA graphs: {str(error).splitlines()[0]}", stacklevel=2)
                return None
        return self._captured[places, width]

    def _capture(self, places: int, width: int) -> _Graph:
        device = self._policy.device
        inputs = torch.zeros(2, places, dtype=torch.long, device=device)
        inputs[1] = self._cache.capacity  # behind everything that any row holds: nothing is overwritten by these runs
        graph = torch.cuda.CUDAGraph()
        others = next(iter(self._captured.values()), None)  # of which only one runs at a time: they share memory
        capture = torch.cuda.graph(graph, pool=others.graph.pool() if others else None)
        # torch's own stream for captures, of which a process has one: for each stream that a library of products
        # meets it keeps some 10 to 30 MiB for good.
        aside, current = capture.capture_stream, torch.cuda.current_stream(device)
        assert aside is not None
        aside.wait_stream(current)
        with torch.cuda.stream(aside), _no_waiting():  # libraries set themselves up at the first run: not capturable
            self.forward(inputs, width)
        current.wait_stream(aside)
        # The outer one is for a capture that fails: its own end then fails as well, and leaves its stream in place.
        with torch.cuda.stream(current), capture:
            hidden = self.forward(inputs, width)
        return _Graph(graph, inputs, hidden)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Whatever would let the host wait for the card is a RuntimeError.

    Within a capture it is one, too; here nothing has been begun yet that it would break off.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _at_least(count: int, least: int) -> int:
    """The first of ``least``, twice, four times ... that is not below ``count``."""
    while least < count:
        least *= 2
    return least

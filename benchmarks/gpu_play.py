"""What the parts of ``gpu_check.py`` share: sizes, time, memory, and turns that no row ends by itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gpu_models import gib
from serve import peak_above, start_peak

from bmrl.batch import Row
from bmrl.policy import Policy
from bmrl.sampler import LiveSampler


class OutOfTime(Exception):
    """The part has used its share."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        context: tokens of a full row; also the most of a micro-batch.
        rows: rows of the worst rollout.
        turns: of each of its rows; few, so that the time goes into reading.
        turn_tokens: of an action.
        picked: sampled tokens of a row of the worst update.
        rank: of the adapter.
        abreast, widths, decoded: rows, held tokens and decoded tokens of the comparison of ways to decode.
    """

    context: int
    rows: int
    turns: int
    turn_tokens: int
    picked: int
    rank: int
    abreast: tuple[int, ...]
    widths: tuple[int, ...]
    decoded: int


CARD = Sizes(8192, 0, 4, 32, 30 * 32, 32, (1, 8, 32), (256, 1024, 4096), 24)
REHEARSAL = Sizes(256, 4, 3, 8, 64, 4, (1, 4), (64, 128), 8)


@dataclass(frozen=True, slots=True)
class Clock:
    """When a part has to be over."""

    end: float

    def left(self) -> float:
        return self.end - time.monotonic()

    def check(self) -> None:
        if self.left() <= 0:
            raise OutOfTime


@dataclass(slots=True)
class Transcript:
    """What a row holds, as the update wants it."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def row(self, advantage: float) -> Row:
        weight = 1 / max(len(self.logprobs), 1)
        return Row(tuple(self.ids), tuple(self.mask), tuple(self.logprobs), (advantage,) * len(self.logprobs), weight)


@contextmanager
def peak(device: torch.device, into: dict[str, Any]) -> Iterator[None]:
    """Puts the most memory used within into ``peak_allocated_gb`` and ``peak_reserved_gb``; on a CPU, resident.

    What is no longer torch's at the end, but not free either, is ``outside_gb``.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        start_peak()
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize()
            into["peak_allocated_gb"] = gib(torch.cuda.max_memory_allocated())
            into["peak_reserved_gb"] = gib(torch.cuda.max_memory_reserved())
            free, total = torch.cuda.mem_get_info()
            # CUDA's own, captured graphs, and whatever else runs on the card.
            into["outside_gb"] = gib(total - free - torch.cuda.memory_reserved())
        else:
            into["peak_allocated_gb"] = into["peak_reserved_gb"] = peak_above(0.0) / 1024


def held_gb(device: torch.device) -> float:
    """Memory in use now."""
    return gib(torch.cuda.memory_allocated()) if device.type == "cuda" else start_peak() / 1024


def play(
    sampler: LiveSampler, held: dict[int, Transcript], turn: dict[int, tuple[list[int], int]], seed: int, clock: Clock
) -> list[float]:
    """A turn of some rows, none of which stops by itself; seconds of each token.

    Args:
        turn: row -> the tokens that it adds, and how many it samples.
    """
    random = np.random.default_rng(seed)
    for row, (added, count) in turn.items():
        transcript = held.setdefault(row, Transcript())
        transcript.ids += added
        transcript.mask += [False] * len(added)
        sampler.begin(row, added, random.random(count))
    seconds, waiting = [], set(turn)
    while waiting:
        clock.check()
        began = time.perf_counter()
        for row, completion in sampler.step(temperature=1.0, stop_ids=frozenset()):
            held[row].ids += completion.token_ids
            held[row].mask += [True] * len(completion.token_ids)
            held[row].logprobs += completion.logprobs
            waiting.remove(row)
        seconds.append(time.perf_counter() - began)
    return seconds


def tokens(policy: Policy, count: int, *, seed: int) -> list[int]:
    """Random ones."""
    return np.random.default_rng(seed).integers(3, policy.causal.config.vocab_size, size=count).tolist()

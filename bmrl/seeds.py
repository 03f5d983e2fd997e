"""Random streams: every draw of a run comes from a generator keyed by what it is for.

A stream depends on its key alone: not on shared global state, not on the order in which streams are
made, and not on Python's randomised string hashes.
"""

import hashlib
import json
import random

import numpy as np


def _digest(seed: int, purpose: str, key: tuple[int, ...]) -> bytes:
    # JSON keeps (1, 23) and (12, 3) apart, and a digit in the purpose from a digit of the key.
    text = json.dumps([int(seed), purpose, *(int(part) for part in key)])
    return hashlib.sha256(text.encode()).digest()


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of its own for (seed, purpose, key).

    Args:
        seed: the seed of the run or of the evaluation.
        purpose: what is drawn, e.g. ``"sampling"``; two purposes never share a stream.
        key: what it is drawn for, e.g. step, group, episode.
    """
    # Philox is a counter-based generator: its whole state is this 128-bit key and a counter at 0.
    bits = np.random.Philox(key=int.from_bytes(_digest(seed, purpose, key)[:16], "little"))
    return np.random.Generator(bits)


def python_stream(seed: int, purpose: str, *key: int) -> random.Random:
    """The same for Python's own generator."""
    return random.Random(int.from_bytes(_digest(seed, purpose, key), "little"))

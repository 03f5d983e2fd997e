"""Exact p values of paired differences, and their correction for several tests.

Written out: scipy's permutation test samples where this is exact, and Holm's correction is in statsmodels alone,
which would bring pandas for six lines.
"""

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def sign_flip(differences: NDArray[np.int64]) -> float:
    """Two-sided p of the hypothesis that each task's difference might as well have the other sign. Exact.

    The share of all 2^n choices of signs whose sum is at least as far from 0 as the sum observed, by the distribution
    of the sum, one task added at a time: time n times the sum of sizes, no sampling. Where all sizes are equal it is
    the binomial test of McNemar (1947). Never 0: below the smallest number that a float holds it is that.

    Args:
        differences: (tasks,) whole numbers.
    """
    sizes = np.abs(differences[differences != 0])
    observed = abs(int(differences.sum()))
    if observed == 0:
        return 1.0
    unit = int(np.gcd.reduce(sizes))
    sizes, observed = sizes // unit, observed // unit
    total = int(sizes.sum())
    chances = np.zeros(total + 1)  # of the sum of those that keep their sign; the whole sum is twice it minus total
    chances[0] = 1.0
    for size in sizes:
        chances *= 0.5
        chances[size:] += chances[:-size].copy()
    # Symmetric: both tails are as large; they are apart, because the sum observed is not 0.
    return max(min(1.0, 2 * math.fsum(chances[(total + observed) // 2 :])), sys.float_info.min)


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for as many tests (Holm 1979): that any of them is false by chance has at most this probability."""
    corrected, worst = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = worst
    return corrected

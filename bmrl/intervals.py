"""95 % intervals of shares and means whose unit is the task."""

import numpy as np
from numpy.typing import NDArray

from bmrl.seeds import stream

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
RESAMPLES = 10_000


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); ``successes`` may be fractional."""
    share, spread = successes / trials, Z * Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = (share * (1 - share) * spread + spread * spread / 4) ** 0.5 / (1 + spread)
    # At shares 0 and 1 the formula ends exactly there, rounding errors aside.
    return (
        0.0 if successes == 0 else middle - half,
        1.0 if successes == trials else middle + half,
    )


def bootstrap(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile intervals of the column means of ``values`` (tasks, columns), resampling tasks.

    All columns see the same resamples, which are a fixed function of the number of tasks.

    Returns:
        lower and upper ends, (columns,) each.
    """
    tasks = len(values)
    rng = stream(0, "bootstrap", tasks)
    means = []
    for _ in range(10):  # in slices: the counts of thousands of tasks would fill the memory
        counts = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES // 10)
        means.append(counts @ values / tasks)
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975], axis=0)
    return low, high

"""95 % intervals of shares and means whose unit is the task."""

import math

import numpy as np
from numpy.typing import NDArray

from bmrl.seeds import stream

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
RESAMPLES = 10_000


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); both may be fractional."""
    share, spread = successes / trials, Z * Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = (share * (1 - share) * spread + spread * spread / 4) ** 0.5 / (1 + spread)
    # At shares 0 and 1 the formula ends exactly there, rounding errors aside.
    return (
        0.0 if successes == 0 else middle - half,
        1.0 if successes == trials else middle + half,
    )


def clustered(means: NDArray[np.float64]) -> tuple[float, float]:
    """Interval of a share from the task means of equally many plays: Wilson's on the effective number of plays.

    The effective number is that of independent plays whose share would vary as the mean of the task means does (Korn
    and Graubard 1998, with their correction by Student's t), and never less than the number of tasks. With it
    Wilson's interval keeps what it promises where a bootstrap does not: with few tasks, and near 0 and 1 (Dean and
    Pagano 2015). With one play a task it is Wilson's own.

    Args:
        means: (tasks,), each between 0 and 1.
    """
    tasks, share = len(means), float(means.mean())
    effective = float(tasks)
    if np.ptp(means) > 0:
        variance = float(means.var(ddof=1)) / tasks
        effective = max(effective, share * (1 - share) / variance * (Z / _student(tasks)) ** 2)
    return wilson(share * effective, effective)


def bootstrap(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Intervals of the column means of ``values`` (tasks, columns), resampling tasks; see `bootstrap_difference`."""
    return bootstrap_difference(np.zeros((1, *values.shape)), values[None])


def bootstrap_difference(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Intervals of the column means of ``b`` minus those of ``a``, paired by task.

    Tasks are resampled, the same for both, and runs within each (both at once: Owen 2007); of a single run there is
    nothing to resample, and the interval then is for that run alone. Percentiles, expanded for the number of tasks
    (Hesterberg 2015): a plain percentile interval is too narrow by about the factor sqrt((n - 1) / n) and by what
    Student's t has over the normal distribution.

    All columns see the same resamples, which are a fixed function of the numbers of tasks and runs.

    Args:
        a, b: (runs, tasks, columns); as many tasks and columns in both.

    Returns:
        lower and upper ends, (columns,) each.
    """
    tasks = a.shape[1]
    rng = stream(0, "bootstrap", tasks)
    run_rngs = [stream(0, "bootstrap runs", place, len(values)) for place, values in enumerate((a, b))]
    size = RESAMPLES // 10
    differences = []
    for _ in range(10):  # in slices: the counts of thousands of tasks would fill the memory
        counts = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=size)
        means = []
        for values, run_rng in zip((a, b), run_rngs, strict=True):
            runs = len(values)
            per_run = np.stack([counts @ run for run in values], axis=1) / tasks  # (size, runs, columns)
            weights = run_rng.multinomial(runs, np.full(runs, 1 / runs), size=size) / runs
            means.append((per_run * weights[:, :, None]).sum(axis=1))
        differences.append(means[1] - means[0])
    tail = _expanded_tail(tasks)
    low, high = np.quantile(np.concatenate(differences), [tail, 1 - tail], axis=0)
    return low, high


def _expanded_tail(tasks: int) -> float:
    """Share of resamples to leave out at each end; 0.025 for many tasks."""
    if tasks == 1:
        return 0.025
    return 0.5 * math.erfc((tasks / (tasks - 1)) ** 0.5 * _student(tasks) / 2**0.5)


def _student(tasks: int) -> float:
    """97.5 % quantile of Student's t with one degree of freedom fewer than tasks."""
    from scipy.special import stdtrit  # a tenth of a second that an import of this module need not cost

    return float(stdtrit(tasks - 1, 0.975))

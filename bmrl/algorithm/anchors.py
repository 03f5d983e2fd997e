"""Step-level advantages among the turns of a group that were played in the same state (GiGPO, arXiv:2505.10978)."""

from collections import defaultdict
from collections.abc import Hashable, Sequence


def anchored(
    states: Sequence[Sequence[Hashable]], returns: Sequence[Sequence[float]], *, scale: bool
) -> list[list[float]]:
    """Of each turn its return, less the mean of those from the same state (arXiv:2505.10978).

    Each episode counts once in the mean of a state, by the mean of its own visits: one that goes in circles would
    otherwise set the baseline that the others are held against. A state that one episode alone has visited gives 0:
    within one episode, an earlier visit differs from a later one only in how long it was before the end.

    Args:
        states: of each episode, what its turns saw.
        returns: of each episode, the discounted return of each turn; like ``states``.
        scale: divide by the standard deviation over episodes, too.
    """
    visits: dict[Hashable, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode, (seen, values) in enumerate(zip(states, returns, strict=True)):
        for state, value in zip(seen, values, strict=True):
            visits[state][episode].append(value)
    statistics = {}
    for state, of_episodes in visits.items():
        means = [sum(values) / len(values) for values in of_episodes.values()]
        mean = sum(means) / len(means)
        spread = (sum((m - mean) ** 2 for m in means) / len(means)) ** 0.5 if scale else 1.0
        known = len(means) > 1 and max(means) > min(means)
        statistics[state] = (mean, spread) if known else None
    return [
        [
            0.0 if (found := statistics[state]) is None else (value - found[0]) / found[1]
            for state, value in zip(seen, values, strict=True)
        ]
        for seen, values in zip(states, returns, strict=True)
    ]

"""Long-horizon resilience: success by plan length, errors by turn, the turn at which a game is lost."""

from collections.abc import Mapping, Sequence
from typing import Any

from bmrl.diagnose.figures import Counts, Tally, pair
from bmrl.diagnose.transcripts import Transcript
from bmrl.envs import Task
from bmrl.types import Episode

SLACKS = (1.0, 1.5, 2.0, 3.0, 4.0)  # budget divided by the length of the shortest plan
BINS = 4  # of plan lengths
Range = tuple[int, int]
Played = Sequence[tuple[Episode, Transcript]]


def turn_ranges(most: int) -> list[Range]:
    """1, 2, 3-4, 5-8, ... up to the largest budget: ranges that double, as budgets do."""
    ranges, last = [(1, 1)], 1
    while last < most:
        ranges.append((last + 1, min(2 * last, most)))
        last *= 2
    return ranges


def plan_ranges(lengths: Sequence[int]) -> list[Range]:
    """At most `BINS` ranges of plan lengths with about as many tasks each; equal lengths stay together."""
    ordered = sorted(lengths)
    firsts = dict.fromkeys(ordered[len(ordered) * n // BINS] for n in range(BINS))
    ends = [*[first - 1 for first in list(firsts)[1:]], ordered[-1]]
    return list(zip(firsts, ends, strict=True))


def by_plan_length(
    a: Sequence[Episode], b: Sequence[Episode], tasks: Sequence[Task], place: Mapping[str, int], most: int
) -> list[dict[str, Any]]:
    """Success within ``slack x length`` turns; ``most``: the largest budget, which was played."""
    lengths = {task.task_id: len(task.plan) for task in tasks}
    rows = []
    for low, high in plan_ranges(list(lengths.values())):
        for slack in SLACKS:
            found = []
            for episodes in (a, b):
                tally = Tally(len(place))
                for episode in episodes:
                    length = lengths[episode.task_id]
                    limit = int(slack * length)
                    if low <= length <= high and limit <= most:
                        tally.add(place[episode.task_id], episode.success and len(episode.turns) <= limit)
                found.append(tally.counts())
            rows.append({"lengths": [low, high], "slack": slack, **pair(*found)})
    return rows


def by_turn(a: Played, b: Played, place: Mapping[str, int], ranges: Sequence[Range]) -> list[dict[str, Any]]:
    """Share of errors among the actions of a range of turns."""
    rows = []
    for low, high in ranges:
        found = []
        for played in (a, b):
            tally = Tally(len(place))
            for episode, transcript in played:
                errors = transcript.errors[low - 1 : high]
                tally.add(place[episode.task_id], sum(errors), len(errors))
            found.append(tally.counts())
        rows.append({"turns": [low, high], **pair(*found)})
    return rows


def fatal_turn(distances: Sequence[int | None], budget: int) -> tuple[int, bool]:
    """Turns that an episode was open to be lost at, and whether it was at the last of them.

    The fatal turn is the first after which not even the shortest plan fits into what is left of the budget.

    Args:
        distances: before the first action and after each.
    """
    for turn, distance in enumerate(distances[: budget + 1]):
        if distance is None or distance > budget - turn:
            return turn, turn > 0  # lost before the first: never open
        if distance == 0:
            return turn, False
    return min(len(distances) - 1, budget), False


def hazard(
    a: Played, b: Played, place: Mapping[str, int], ranges: Sequence[Range], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Per turn, the share of the episodes that were open before it for which it is the fatal one."""
    rows = []
    for budget in budgets:
        for low, high in ranges:
            if low > budget:
                continue
            found: list[Counts] = []
            for played in (a, b):
                tally = Tally(len(place))
                for episode, transcript in played:
                    turns, lost = fatal_turn(transcript.distances, budget)
                    at_risk = max(0, min(turns, high) - low + 1)
                    tally.add(place[episode.task_id], lost and low <= turns <= high, at_risk)
                found.append(tally.counts())
            rows.append({"budget": budget, "turns": [low, min(high, budget)], **pair(*found)})
    return rows

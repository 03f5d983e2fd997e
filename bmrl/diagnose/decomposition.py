"""Which phase of the episodes a gain goes with, when two policies are exchanged there.

Phases: the decisions up to and including the first error, the recovery up to and including the first action after it
that is no error, and the survival from there on. ``ABB`` is an episode whose first phase A plays and B the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from bmrl.diagnose.figures import Counts, Tally, combination
from bmrl.diagnose.player import Player
from bmrl.diagnose.transcripts import Referee, Transcript
from bmrl.envs import Task
from bmrl.types import Episode, Play

HANDOVER = 6  # `step` of the plays that take over; one more for each composite
COMPOSITES = tuple("".join(letters) for letters in product("AB", repeat=3))
# The parts as sums of success rates with factors; see docs/diagnosis.md. They add up to the gain.
_HALF, _QUARTER = 0.5, 0.25
PARTS: Mapping[str, Mapping[str, float]] = {
    "gain": {"AAA": 1, "BBB": -1},
    "decisions": {"AAA": _HALF, "BAA": -_HALF, "ABB": _HALF, "BBB": -_HALF},
    "recovery": {f"{x}{y}{z}": _QUARTER * (1 if y == "A" else -1) for x, y, z in product("AB", repeat=3)},
    "survival": {f"{x}{y}{z}": _QUARTER * (1 if z == "A" else -1) for x, y, z in product("AB", repeat=3)},
    "after": {"AAA": _HALF, "ABB": -_HALF, "BAA": _HALF, "BBB": -_HALF},
}


@dataclass(frozen=True, slots=True)
class Source:
    """An episode with its transcript; None where its environment failed, and nobody can take over."""

    episode: Episode
    transcript: Transcript | None

    def first_error(self) -> int | None:
        """Turns up to and including the first error; None without one that is followed by anything."""
        return self._turns(0, wrong=True)

    def recovered(self) -> int | None:
        """Turns up to and including the first action after the first error that is no error."""
        first = self.first_error()
        return None if first is None else self._turns(first, wrong=False)

    def _turns(self, start: int, *, wrong: bool) -> int | None:
        errors = self.transcript.errors if self.transcript else ()
        found = next((turn + 1 for turn in range(start, len(errors)) if errors[turn] is wrong), None)
        # Whoever takes over at the end of an episode has nothing to play.
        over = found is not None and found == len(self.episode.turns)
        return None if over else found


def compose(
    a: tuple[Player, Sequence[Source]],
    b: tuple[Player, Sequence[Source]],
    referee: Referee,
    tasks: Mapping[str, Task],
) -> dict[str, list[Episode]]:
    """The composite episodes, each list in the order of the bases.

    Args:
        a, b: the players, with their own episodes.
    """
    (player_a, base_a), (player_b, base_b) = a, b
    first = {
        "AA": list(base_a),
        "BB": list(base_b),
        "AB": _taken_over(player_b, base_a, [s.first_error() for s in base_a], 0, referee, tasks),
        "BA": _taken_over(player_a, base_b, [s.first_error() for s in base_b], 1, referee, tasks),
    }
    whole: dict[str, list[Episode]] = {}
    for number, name in enumerate(COMPOSITES):
        sources = first[name[:2]]
        if name[1] != name[2]:
            at = [source.recovered() for source in sources]
            sources = _taken_over(player_a if name[2] == "A" else player_b, sources, at, 2 + number, None, tasks)
        whole[name] = [source.episode for source in sources]
    return whole


def _taken_over(
    player: Player,
    sources: Sequence[Source],
    at: Sequence[int | None],
    number: int,
    referee: Referee | None,
    tasks: Mapping[str, Task],
) -> list[Source]:
    """The episodes as they go on with another player after ``at`` turns; as they are where that is None.

    Args:
        referee: reads what came of it, if that is asked for.
    """
    plays = [
        Play(
            HANDOVER + number,
            source.episode.group,
            source.episode.episode,
            tasks[source.episode.task_id],
            source.episode.split,
            source.episode.seed,
            source.episode.budget,
            tuple(turn.action for turn in source.episode.turns[:turns]),
        )
        for source, turns in zip(sources, at, strict=True)
        if turns is not None
    ]
    played = iter(player.play(plays))
    result = []
    for source, turns in zip(sources, at, strict=True):
        if turns is None:
            result.append(source)
            continue
        episode = next(played)
        transcript = None
        if referee and not episode.error:
            transcript = referee.read(tasks[episode.task_id], [turn.action for turn in episode.turns])
        result.append(replace(source, episode=episode, transcript=transcript))
    return result


def parts(
    whole: Mapping[str, Sequence[Episode]], place: Mapping[str, int], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Gain and parts at each budget, from composites that were played with the largest of them."""
    rows = []
    for budget in budgets:
        solved: dict[str, Counts] = {}
        for name, episodes in whole.items():
            tally = Tally(len(place))
            for episode in episodes:
                tally.add(place[episode.task_id], episode.success and len(episode.turns) <= budget)
            solved[name] = tally.counts()
        row: dict[str, Any] = {"budget": budget}
        for part, factors in PARTS.items():
            row[part] = combination([(factor, solved[name]) for name, factor in factors.items()])
        row["s"] = {name: float(c.hits.sum() / c.trials.sum()) for name, c in solved.items()}
        rows.append(row)
    return rows

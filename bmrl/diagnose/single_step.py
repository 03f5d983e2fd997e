"""Single-step decision quality: what policies would do at the states of a bank."""

from collections.abc import Mapping, Sequence
from typing import Any

from bmrl.diagnose.bank import State
from bmrl.diagnose.figures import Counts, Tally, pair
from bmrl.diagnose.player import Player
from bmrl.diagnose.transcripts import ERRORS
from bmrl.envs import Task
from bmrl.envs.base import INVALID, KINDS
from bmrl.types import Episode, Play

GREEDY, SAMPLES = 1, 2  # `step` of the plays: keeps their random streams apart
# Probability of each kind of action, and whether the greedy choice is of it: both by kind.
Choice = tuple[Mapping[str, float], Mapping[str, float]]


def choices(
    player: Player, states: Sequence[State], tasks: Mapping[str, Task], *, split: str, seed: int, samples: int
) -> tuple[list[Choice | None], str]:
    """What a player would do at each state, and how its mass was had: ``exact`` or ``sampled``.

    None stands for a state that the player has no turn in, because its transcript does not fit the context.

    Args:
        samples: actions drawn at each state where the mass cannot be had exactly.
    """

    def plays(step: int, episode: int) -> list[Play]:
        return [
            Play(step, n, episode, tasks[s.task_id], split, seed, len(s.prefix) + 1, s.prefix)
            for n, s in enumerate(states)
        ]

    greedy = player.play(plays(GREEDY, 0), greedy=True)
    acted = [n for n, (state, episode) in enumerate(zip(states, greedy, strict=True)) if _acted(state, episode)]
    masses: dict[int, dict[str, float]] = {}
    exact = player.mass([greedy[n] for n in acted], [tuple(states[n].commands) for n in acted])
    if exact is not None:
        for n, found in zip(acted, exact, strict=True):
            masses[n] = _by_kind(states[n], dict(zip(states[n].commands, found, strict=True)))
    else:
        drawn = player.play([play for episode in range(samples) for play in plays(SAMPLES, episode)])
        for n in acted:
            actions = [e.turns[-1].action for e in drawn[n :: len(states)] if _acted(states[n], e)]
            counts: dict[str, float] = {}
            for action in actions:
                counts[action] = counts.get(action, 0.0) + 1 / len(actions)
            masses[n] = _by_kind(states[n], counts)
    result: list[Choice | None] = [None] * len(states)
    for n in acted:
        result[n] = masses[n], _by_kind(states[n], {greedy[n].turns[-1].action: 1.0})
    return result, "sampled" if exact is None else "exact"


def _acted(state: State, episode: Episode) -> bool:
    return len(episode.turns) > len(state.prefix)


def _by_kind(state: State, mass: Mapping[str, float]) -> dict[str, float]:
    """Probability of each kind of action; what is missing of 1 is said otherwise, and invalid."""
    found = dict.fromkeys(KINDS, 0.0)
    for action, probability in mass.items():
        found[state.kind(action)] += probability
    found[INVALID] += max(0.0, 1.0 - sum(mass.values()))
    return found


def counts(
    states: Sequence[State],
    chosen: Sequence[Choice],
    place: Mapping[str, int],
    *,
    kind: str,
    source: str = "all",
    greedy: bool = False,
) -> Counts:
    """Probability of a kind of action, or of an ``error``, by task.

    Args:
        chosen: what a player would do at each state.
        place: of a task among those played.
    """
    tally = Tally(len(place))
    wanted = ERRORS if kind == "error" else {kind}
    for state, choice in zip(states, chosen, strict=True):
        if source in ("all", state.source):
            found = choice[greedy]
            tally.add(place[state.task_id], sum(found[one] for one in wanted))
    return tally.counts()


def rows(
    states: Sequence[State], a: Sequence[Choice], b: Sequence[Choice], place: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Mass and greedy choice of each kind of action, by source of the states."""
    sources = [s for s in ("expert", "a", "b") if any(state.source == s for state in states)]
    return [
        {
            "source": source,
            "kind": kind,
            "states": sum(source in ("all", state.source) for state in states),
            **{
                name: pair(
                    *(
                        counts(states, chosen, place, kind=kind, source=source, greedy=name == "greedy")
                        for chosen in (a, b)
                    )
                )
                for name in ("mass", "greedy")
            },
        }
        for source in ("all", *sources)
        for kind in (*KINDS, "error")
    ]

"""Recovery: what a policy makes of errors that were forced on it, and of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from bmrl.diagnose.bank import State
from bmrl.diagnose.figures import Counts, Tally, mean_pair, pair, ratio_pair
from bmrl.diagnose.player import Player
from bmrl.diagnose.transcripts import Referee, Transcript
from bmrl.envs import Task
from bmrl.envs.base import INEFFECTIVE, INVALID
from bmrl.seeds import python_stream
from bmrl.types import Episode, Play

MODES = ("random", "harmful")
TWIN, DISTURBED, MATCHED = 3, 4, 5  # `step` of the plays


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Actions forced at a state, the same for every policy.

    Attributes:
        state: its number.
        lost: turns that they took the state away from the goal with full knowledge; 0 where that is not known.
    """

    state: int
    mode: str
    actions: tuple[str, ...]
    lost: int


@dataclass(frozen=True, slots=True)
class Continued:
    """How one policy went on; episodes by (state, budget), and by (disturbance, budget).

    Attributes:
        matched: with as many turns more as the disturbance lost.
        regained: turns until as near to the goal as before, after the disturbance; None: not within the episode.
    """

    twins: Mapping[tuple[int, int], Episode]
    disturbed: Mapping[tuple[int, int], Episode]
    matched: Mapping[tuple[int, int], Episode]
    regained: Mapping[tuple[int, int], int | None]


def disturb(
    referee: Referee, states: Sequence[State], tasks: Mapping[str, Task], *, seed: int, strengths: Sequence[int]
) -> list[Disturbance]:
    """The disturbances of every state, in each mode and strength in which there is one.

    Those of one mode begin alike. A harmful action brings nothing nearer with full knowledge; none ends the game or
    puts the goal out of reach.

    Args:
        strengths: how many actions are forced.
    """
    found = []
    for number, state in enumerate(states):
        for place, mode in enumerate(MODES if referee.plans else MODES[:1]):
            rng = python_stream(seed, "disturb", number, place)
            task, forced, distances = tasks[state.task_id], list[str](), [state.distance]
            while len(forced) < max(strengths):
                before = (*state.prefix, *forced)
                commands = referee.accepted(task, before)
                candidates = rng.sample(commands, len(commands))
                for command, outcome in zip(candidates, referee.outcomes(task, before, candidates), strict=True):
                    lost = referee.plans and outcome.distance is None
                    nearer = referee.plans and not lost and (outcome.distance or 0) < (distances[-1] or 0)
                    if not (outcome.over or lost or (mode == "harmful" and nearer)):
                        forced.append(command)
                        distances.append(outcome.distance)
                        break
                else:
                    break
            for k in strengths:
                if k <= len(forced):
                    lost_turns = max(0, (distances[k] or 0) - (state.distance or 0))
                    found.append(Disturbance(number, mode, tuple(forced[:k]), lost_turns))
    return found


def play_on(
    player: Player,
    states: Sequence[State],
    disturbances: Sequence[Disturbance],
    tasks: Mapping[str, Task],
    referee: Referee,
    *,
    split: str,
    seed: int,
    passes: Sequence[int],
) -> Continued:
    """Lets a player go on from every state, undisturbed and disturbed.

    Args:
        passes: budgets to be played: the largest alone for a player that is not told its budget.
    """

    def play(step: int, number: int, place: int, state: State, actions: tuple[str, ...], turns: int) -> Play:
        prefix = (*state.prefix, *actions)
        return Play(step, number, place, tasks[state.task_id], split, seed, turns, prefix)

    twins, disturbed, matched = {}, {}, {}
    for place, budget in enumerate(passes):
        open_states = [n for n, state in enumerate(states) if len(state.prefix) < budget]
        for n in open_states:
            twins[n, budget] = play(TWIN, n, place, states[n], (), budget)
        allowed = set(open_states)
        for n, one in enumerate(disturbances):
            if one.state in allowed:
                turns = budget + len(one.actions)
                matched[n, budget] = play(MATCHED, n, place, states[one.state], one.actions, turns + one.lost)
                if len(passes) > 1:  # it is told its budget, so that the longer play does not show the shorter one
                    disturbed[n, budget] = play(DISTURBED, n, place, states[one.state], one.actions, turns)
    episodes = player.play([*twins.values(), *matched.values(), *disturbed.values()])
    rest = iter(episodes)
    played = [{key: next(rest) for key in plays} for plays in (twins, matched, disturbed)]
    regained = {
        (n, budget): _regained(referee, states[disturbances[n].state], disturbances[n], tasks, episode)
        for (n, budget), episode in (played[2] or played[1]).items()
        if referee.plans
    }
    return Continued(played[0], played[2] or played[1], played[1], regained)


def _regained(
    referee: Referee, state: State, one: Disturbance, tasks: Mapping[str, Task], episode: Episode
) -> int | None:
    if episode.error:  # not to be played again
        return None
    start = len(state.prefix) + len(one.actions)
    distances = referee.distances(tasks[state.task_id], [turn.action for turn in episode.turns])
    aim = state.distance
    return next((t - start for t, d in enumerate(distances) if t > start and d is not None and d <= (aim or 0)), None)


def rows(
    a: Continued,
    b: Continued,
    states: Sequence[State],
    disturbances: Sequence[Disturbance],
    place: Mapping[str, int],
    *,
    budgets: Sequence[int],
    told: bool,
    plans: bool,
) -> list[dict[str, Any]]:
    """Recovery by mode, strength and budget.

    Args:
        place: of a task among those played.
        told: the players are told their budget, so that each was played.
        plans: distances are known.
    """
    table = []
    for mode in dict.fromkeys(one.mode for one in disturbances):
        for k in sorted({len(one.actions) for one in disturbances}):
            chosen = [n for n, one in enumerate(disturbances) if one.mode == mode and len(one.actions) == k]
            for budget in budgets:
                counted = [
                    _counted(player, states, disturbances, chosen, place, budget, budget if told else max(budgets))
                    for player in (a, b)
                ]
                (ta, da, ma, ra, na), (tb, db, mb, rb, nb) = counted
                table.append(
                    {
                        "mode": mode,
                        "k": k,
                        "budget": budget,
                        "lost": fmean(disturbances[n].lost for n in chosen) if plans else None,
                        "undisturbed": pair(ta, tb),
                        "disturbed": pair(da, db),
                        "ratio": ratio_pair((da, ta), (db, tb)),
                        "slack_matched": ratio_pair((ma, ta), (mb, tb)) if plans else None,
                        "regained": pair(ra, rb) if plans else None,
                        "regain_turns": mean_pair(na, nb) if plans else None,
                    }
                )
    return table


def _counted(
    player: Continued,
    states: Sequence[State],
    disturbances: Sequence[Disturbance],
    chosen: Sequence[int],
    place: Mapping[str, int],
    budget: int,
    played: int,
) -> tuple[Counts, ...]:
    """Undisturbed, disturbed and slack-matched success, distance regained, and turns that took."""
    twin, disturbed, matched, regained, turns = (Tally(len(place)) for _ in range(5))
    for n in chosen:
        one = disturbances[n]
        state = states[one.state]
        if len(state.prefix) >= budget:
            continue
        task, forced = place[state.task_id], len(one.actions)
        twin.add(task, _within(player.twins[one.state, played], budget))
        disturbed.add(task, _within(player.disturbed[n, played], budget + forced))
        matched.add(task, _within(player.matched[n, played], budget + forced + one.lost))
        if one.lost and player.regained:
            took = player.regained[n, played]
            back = took is not None and took <= budget - len(state.prefix)
            regained.add(task, back)
            if took is not None and back:
                turns.add(task, took)
    return twin.counts(), disturbed.counts(), matched.counts(), regained.counts(), turns.counts()


def _within(episode: Episode, turns: int) -> bool:
    return episode.success and len(episode.turns) <= turns


def natural(
    a: Sequence[tuple[Episode, Transcript]], b: Sequence[tuple[Episode, Transcript]], place: Mapping[str, int]
) -> dict[str, Any]:
    """What came of the first action that changed nothing, in undisturbed plays."""
    following, solved = [], []
    for played in (a, b):
        after, success = Tally(len(place)), Tally(len(place))
        for episode, transcript in played:
            idle = [turn for turn, kind in enumerate(transcript.kinds) if kind in (INVALID, INEFFECTIVE)]
            if idle:
                task = place[episode.task_id]
                success.add(task, episode.success)
                if idle[0] + 1 < len(transcript.kinds):
                    after.add(task, not transcript.errors[idle[0] + 1])
        following.append(after.counts())
        solved.append(success.counts())
    return {"next": pair(*following), "success": pair(*solved)}


def loops(a: Sequence[Episode], b: Sequence[Episode], place: Mapping[str, int]) -> dict[str, Any]:
    """Share of turns that answer an observation as before, and of those that repeat the last action."""
    found: dict[str, list[Counts]] = {"loop": [], "repeated": []}
    for played in (a, b):
        loop, repeated = Tally(len(place)), Tally(len(place))
        for episode in played:
            pairs = [(turn.observation, turn.action) for turn in episode.turns]
            task = place[episode.task_id]
            loop.add(task, len(pairs) - len(set(pairs)), len(pairs))
            repeated.add(task, sum(x[1] == y[1] for x, y in pairwise(pairs)), max(len(pairs) - 1, 0))
        found["loop"].append(loop.counts())
        found["repeated"].append(repeated.counts())
    return {name: pair(*both) for name, both in found.items()}

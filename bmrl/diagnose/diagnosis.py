"""The whole diagnosis of two players in one world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bmrl.diagnose import bank as banks
from bmrl.diagnose import decomposition, recovery, resilience, single_step
from bmrl.diagnose.bank import AFTER_ERROR, ON_TRACK, Bank, State
from bmrl.diagnose.figures import Tally, pair
from bmrl.diagnose.player import Player
from bmrl.diagnose.transcripts import Referee, Transcript
from bmrl.diagnose.world import Settings, World, explored
from bmrl.envs import Task
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import plan_plays
from bmrl.types import Episode

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found.

    Attributes:
        result: see docs/diagnosis.md, without the names of the players.
        bank: None where nobody could judge.
        episodes: undisturbed plays of both.
    """

    result: dict[str, Any]
    bank: Bank | None
    episodes: Mapping[str, Sequence[Episode]]


@dataclass(slots=True)
class _Work:
    """What all parts share."""

    world: World
    settings: Settings
    players: Mapping[str, Player]
    referee: Referee
    tasks: Mapping[str, Task]
    place: Mapping[str, int]
    episodes: Mapping[str, Sequence[Episode]] = field(default_factory=dict)
    read: Mapping[str, Sequence[tuple[Episode, Transcript]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def diagnose(
    a: Player, b: Player, world: World, settings: Settings, on_part: Callable[[str], None] = lambda part: None
) -> Diagnosis:
    """Plays both and compares them.

    Args:
        on_part: told what begins (progress).

    Raises:
        UsageError: there is nothing to play.
    """
    if not world.tasks:
        raise UsageError(f"{world.split} of {world.name} holds no tasks; choose another --split")
    work = _Work(
        world,
        settings,
        {"a": a, "b": b},
        Referee(world.env, world.judge, world.tasks),
        {task.task_id: task for task in world.tasks},
        {task.task_id: place for place, task in enumerate(world.tasks)},
    )
    work.missing += _missing(work.referee, world)
    on_part("undisturbed plays")
    plays = plan_plays(world.tasks, world.split, settings.budgets, settings.seeds, settings.announce)
    work.episodes = {name: player.play(plays) for name, player in work.players.items()}
    work.read = {name: _read(work, episodes) for name, episodes in work.episodes.items()}
    bank = None
    if work.referee.by and work.referee.lists:
        on_part("bank of states")
        bank = settings.bank or _bank(work)
    result = {
        "diagnosis_format": FORMAT,
        "env": world.name,
        "split": world.split,
        "split_hash": world.split_hash,
        "seeds": list(settings.seeds),
        "announce": settings.announce,
        "tasks": len(world.tasks),
        "budgets": sorted(settings.budgets),
        "turn_ranges": [list(ends) for ends in resilience.turn_ranges(settings.most)],
        "judge": work.referee.by,
        "errors": sum(bool(episode.error) for played in work.episodes.values() for episode in played),
        "curve": _curve(work),
        **_steps(work, bank, on_part),
        "resilience": _resilience(work),
        "decomposition": _decomposition(work, on_part),
        "missing": work.missing,
    }
    return Diagnosis(result, bank, work.episodes)


def _missing(referee: Referee, world: World) -> list[str]:
    lines = []
    if world.judge is not None and referee.by != "transcript":
        lines.append(f"{world.name}'s judge cannot read the goals of these games: the planner judges in its place")
    if not referee.by:
        lines.append(
            f"{world.name} has neither a judge nor distances: no kinds of actions, so no bank of states, no natural "
            "recovery, no errors by turn, no decomposition"
        )
    if not referee.plans:
        lines.append(f"{world.name} has no distances: no harmful disturbances, no slack-matched recovery, no hazard")
    if not referee.lists:
        lines.append(f"{world.name} does not list the commands it accepts: no bank of states, no disturbances")
    if world.expert is None:
        lines.append(f"{world.name} has no exploring expert: the bank holds states of A and B only")
    if not all(task.plan for task in world.tasks):
        lines.append(f"{world.name} does not know a shortest plan of every task: no success by plan length")
    return lines


def _read(work: _Work, episodes: Sequence[Episode]) -> list[tuple[Episode, Transcript]]:
    """Episodes with their transcripts; without those that the environment broke off."""
    return [
        (episode, work.referee.read(work.tasks[episode.task_id], [turn.action for turn in episode.turns]))
        for episode in episodes
        if not episode.error
    ]


def _at_most(work: _Work, name: str) -> list[tuple[Episode, Transcript]]:
    """Undisturbed plays with the largest budget."""
    return [(episode, read) for episode, read in work.read[name] if episode.budget == work.settings.most]


def _bank(work: _Work) -> Bank:
    world, settings = work.world, work.settings
    played = {name: [transcript for _, transcript in _at_most(work, name)] for name in ("a", "b")}
    if world.expert is not None:
        try:
            found = [explored(world, task, world.expert, settings.most) for task in world.tasks]
        except BmrlError as error:
            work.missing.append(f"the exploring expert cannot play these games ({error}): the bank is of A and B only")
        else:
            read = [work.referee.read(task, actions) for task, actions in zip(world.tasks, found, strict=True)]
            played = {"expert": read, **played}
    ranges = resilience.turn_ranges(settings.most)
    states = banks.draw(played, work.referee, count=settings.states, seed=settings.seeds[0], ranges=ranges)
    return Bank(world.name, world.split, world.split_hash, tuple(states))


def _curve(work: _Work) -> list[dict[str, Any]]:
    rows = []
    for budget in sorted(work.settings.budgets):
        tallies = []
        for name in ("a", "b"):
            tally = Tally(len(work.place))
            for episode in work.episodes[name]:
                if episode.budget == (budget if work.settings.told else work.settings.most):
                    tally.add(work.place[episode.task_id], episode.success and len(episode.turns) <= budget)
            tallies.append(tally.counts())
        rows.append({"budget": budget, **pair(*tallies)})
    return rows


def _steps(work: _Work, bank: Bank | None, on_part: Callable[[str], None]) -> dict[str, Any]:
    """What rests on the bank: single steps and recovery, with the headline of both."""
    judged = work.referee.by is not None
    recovered: dict[str, Any] = {
        "rate": None,
        "forced": None,
        "natural": recovery.natural(_at_most(work, "a"), _at_most(work, "b"), work.place) if judged else None,
        **recovery.loops(_episodes(work, "a"), _episodes(work, "b"), work.place),
    }
    result: dict[str, Any] = {
        "headline": {"single_step": None, "recovery": None},
        "single_step": None,
        "recovery": recovered,
    }
    if bank is None:
        return result
    on_part("single steps")
    single: dict[str, Any] = {"bank": {"hash": bank.hash}, "mass": {}, "samples": work.settings.samples}
    for name in (ON_TRACK, AFTER_ERROR):
        states, chosen, ways = _chosen(work, bank.of(name), name)
        single["mass"] |= ways
        single["bank"][name] = len(states)
        single[name] = single_step.rows(states, chosen[0], chosen[1], work.place)
        error = [single_step.counts(states, one, work.place, kind="error") for one in chosen]
        if name == ON_TRACK:
            result["headline"]["single_step"] = pair(*error)
        else:
            right = [type(one)(one.trials - one.hits, one.trials) for one in error]
            result["headline"]["recovery"] = recovered["rate"] = pair(*right)
    result["single_step"] = single
    if work.settings.strengths:
        on_part("recovery from disturbances")
        recovered["forced"] = _forced(work, bank.of(ON_TRACK))
    return result


def _episodes(work: _Work, name: str) -> list[Episode]:
    return [episode for episode in work.episodes[name] if episode.budget == work.settings.most]


def _chosen(
    work: _Work, states: Sequence[State], name: str
) -> tuple[list[State], list[list[single_step.Choice]], dict[str, str]]:
    """States that both players have a turn in, and what each would do there."""
    found, ways = {}, {}
    for player in ("a", "b"):
        found[player], ways[player] = single_step.choices(
            work.players[player],
            states,
            work.tasks,
            split=work.world.split,
            seed=work.settings.seeds[0],
            samples=work.settings.samples,
        )
    both = [n for n in range(len(states)) if found["a"][n] is not None and found["b"][n] is not None]
    if len(both) < len(states):
        work.missing.append(
            f"{len(states) - len(both)} of {len(states)} states ({name}) do not fit a player's context: left out"
        )
    chosen = [[choice for n in both if (choice := found[player][n]) is not None] for player in ("a", "b")]
    return [states[n] for n in both], chosen, ways


def _forced(work: _Work, states: Sequence[State]) -> list[dict[str, Any]]:
    settings = work.settings
    states = [state for state in states if len(state.prefix) < settings.most]
    disturbances = recovery.disturb(
        work.referee, states, work.tasks, seed=settings.seeds[0], strengths=settings.strengths
    )
    a, b = (
        recovery.play_on(
            work.players[name],
            states,
            disturbances,
            work.tasks,
            work.referee,
            split=work.world.split,
            seed=settings.seeds[0],
            passes=settings.passes,
        )
        for name in ("a", "b")
    )
    return recovery.rows(
        a,
        b,
        states,
        disturbances,
        work.place,
        budgets=sorted(settings.budgets),
        told=settings.told,
        plans=work.referee.plans,
    )


def _resilience(work: _Work) -> dict[str, Any]:
    settings, place = work.settings, work.place
    ranges = resilience.turn_ranges(settings.most)
    a, b = (_at_most(work, name) for name in ("a", "b"))
    result: dict[str, Any] = {"by_plan_length": None, "by_turn": None, "hazard": None}
    if all(task.plan for task in work.world.tasks):
        if settings.told:
            work.missing.append("the players are told their budget: no success by plan length, which needs any budget")
        else:
            result["by_plan_length"] = resilience.by_plan_length(
                _episodes(work, "a"), _episodes(work, "b"), work.world.tasks, place, settings.most
            )
    if work.referee.by:
        result["by_turn"] = resilience.by_turn(a, b, place, ranges)
    if work.referee.plans:
        budgets = [settings.most] if settings.told else sorted(settings.budgets)
        result["hazard"] = resilience.hazard(a, b, place, ranges, budgets)
    return result


def _decomposition(work: _Work, on_part: Callable[[str], None]) -> list[dict[str, Any]] | None:
    settings = work.settings
    if not work.referee.by:
        return None
    on_part("composite plays")
    rows = []
    for limit in settings.passes:
        bases = []
        for name in ("a", "b"):
            texts = {id(episode): transcript for episode, transcript in work.read[name]}
            bases.append(
                [
                    decomposition.Source(episode, texts.get(id(episode)))
                    for episode in work.episodes[name]
                    if episode.budget == limit
                ]
            )
        whole = decomposition.compose(
            (work.players["a"], bases[0]), (work.players["b"], bases[1]), work.referee, work.tasks
        )
        budgets = [limit] if settings.told else sorted(settings.budgets)
        rows += decomposition.parts(whole, work.place, budgets)
    return rows

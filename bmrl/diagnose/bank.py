"""The frozen bank of states: drawn once, stored, the same for every policy."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bmrl.atomic import write_bytes
from bmrl.diagnose.transcripts import ERRORS, Referee, Transcript
from bmrl.envs import Task
from bmrl.envs.base import KINDS
from bmrl.errors import BmrlError, UsageError
from bmrl.seeds import python_stream
from bmrl.strict import loads

FORMAT = 1
ON_TRACK, AFTER_ERROR = "on_track", "after_error"


@dataclass(frozen=True, slots=True)
class State:
    """A place in a game, and what could be done there.

    Attributes:
        bank: ``on_track``, no action so far was an error; ``after_error``, the last one was.
        source: whose play led there: ``expert``, ``a`` or ``b``.
        forced: the last action was forced, for the source had too few states after errors of its own.
        prefix: the actions that led there.
        commands: what the environment would accept here, or did at the opening of the game -> its kind.
        distance: fewest turns to the goal; None where unknown.
    """

    bank: str
    source: str
    task_id: str
    prefix: tuple[str, ...]
    commands: Mapping[str, str]
    distance: int | None
    forced: bool = False

    def kind(self, action: str) -> str:
        """The kind of an action here; what is not among the commands is invalid."""
        return self.commands.get(action, "invalid")


@dataclass(frozen=True, slots=True)
class Bank:
    """All states, and the games they are of."""

    env: str
    split: str
    split_hash: str
    states: tuple[State, ...]

    def of(self, bank: str) -> list[State]:
        """One of the two banks, in order."""
        return [state for state in self.states if state.bank == bank]

    @property
    def hash(self) -> str:
        """Equal only where all states are."""
        return hashlib.sha256("".join(self._lines()).encode()).hexdigest()

    def _lines(self) -> Iterator[str]:
        for state in self.states:
            yield json.dumps(asdict(state)) + "\n"

    def write(self, path: Path) -> None:
        """A line that says what it is, then a line for each state."""
        head = {"bank_format": FORMAT, "env": self.env, "split": self.split, "split_hash": self.split_hash}
        head |= {"states": len(self.states), "hash": self.hash}
        write_bytes(path, (json.dumps(head) + "\n" + "".join(self._lines())).encode())


def read(path: Path, *, env: str, split: str, split_hash: str, tasks: Iterable[str]) -> Bank:
    """A stored bank.

    Args:
        tasks: ids of the tasks that are played.

    Raises:
        UsageError: there is no such file, or it is of other games.
        BmrlError: it is damaged, or of another version.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise UsageError(f"--bank: {path} cannot be read ({reason}); name the .bank.jsonl of a diagnosis") from error
    head = _object(lines[0]) if lines else None
    if head is None or "bank_format" not in head:
        raise BmrlError(f"{path}:1: not the head of a bank; name the .bank.jsonl of a diagnosis, or leave --bank out")
    if head["bank_format"] != FORMAT:
        raise BmrlError(f"{path}: bank format {head['bank_format']}, this bmrl reads {FORMAT}; leave --bank out")
    for key, now in (("env", env), ("split", split), ("split_hash", split_hash)):
        if head.get(key) != now:
            raise UsageError(f"--bank: {path} is of {key} {head.get(key)}, played is {now}; leave --bank out")
    known = set(tasks)
    states = []
    for number, line in enumerate(lines[1:], start=2):
        state = _state(_object(line))
        if state is None:
            raise BmrlError(f"{path}:{number}: damaged, not a state; leave --bank out to draw a new bank")
        if state.task_id not in known:
            raise UsageError(f"--bank: {path}:{number} is of {state.task_id}, which is not played; raise --tasks")
        states.append(state)
    bank = Bank(env, split, split_hash, tuple(states))
    if len(states) != head.get("states") or bank.hash != head.get("hash"):
        raise BmrlError(f"{path}: its states are not those it was written with; leave --bank out to draw a new bank")
    return bank


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _state(raw: dict[str, Any] | None) -> State | None:
    try:
        state = State(**{**(raw or {}), "prefix": tuple((raw or {})["prefix"])})
    except (TypeError, KeyError):
        return None
    sound = state.bank in (ON_TRACK, AFTER_ERROR) and isinstance(state.task_id, str)
    sound = sound and isinstance(state.source, str) and all(isinstance(action, str) for action in state.prefix)
    sound = sound and isinstance(state.commands, dict) and set(state.commands.values()) <= set(KINDS)
    return state if sound else None


@dataclass(frozen=True, slots=True)
class _Place:
    """A state that could be chosen."""

    task: Task
    prefix: tuple[str, ...]

    def stratum(self, ranges: Sequence[tuple[int, int]]) -> tuple[str, int]:
        turn = len(self.prefix) + 1
        return self.task.kind, next((i for i, (_, last) in enumerate(ranges) if turn <= last), len(ranges))


def draw(
    played: Mapping[str, Sequence[Transcript]],
    referee: Referee,
    *,
    count: int,
    seed: int,
    ranges: Sequence[tuple[int, int]],
) -> list[State]:
    """The states of both banks, the same number of each source.

    Strata, kind of task by range of turns, are drawn from in turns, tasks that were drawn less before others. Where a
    source has too few states after errors of its own, an error is forced at its on-track states.

    Args:
        played: transcripts by source.
        count: most states of a source in each bank.
        ranges: first and last turn of each range.
    """
    places = {source: [_places(t, errors=False) for t in texts] for source, texts in played.items()}
    after = {source: [_places(t, errors=True) for t in texts] for source, texts in played.items()}
    count = min([count, *(sum(map(len, found)) for found in places.values())])
    states: list[State] = []
    for number, source in enumerate(played):
        rng = python_stream(seed, "bank", number)
        chosen = _choose([p for found in places[source] for p in found], count, rng.shuffle, ranges)
        on_track = [_state_of(referee, ON_TRACK, source, place) for place in chosen]
        natural = _choose([p for found in after[source] for p in found], count, rng.shuffle, ranges)
        wrong = [_state_of(referee, AFTER_ERROR, source, place) for place in natural]
        tasks = {place.task.task_id: place.task for place in chosen}
        for state in on_track:
            if len(wrong) == count:
                break
            forced = _forced(referee, tasks[state.task_id], state, rng.sample)
            wrong += [forced] if forced else []
        states += on_track + wrong
    # The same number of each source, also where no error could be forced.
    least = min((sum(s.source == source and s.bank == AFTER_ERROR for s in states) for source in played), default=0)
    kept: Counter[str] = Counter()
    balanced = []
    for state in states:
        if state.bank == AFTER_ERROR:
            kept[state.source] += 1
            if kept[state.source] > least:
                continue
        balanced.append(state)
    return balanced


def _places(transcript: Transcript, *, errors: bool) -> list[_Place]:
    """Places of one game that are on track, or right after an error; not where it had ended."""
    found, wrong = [], transcript.errors
    for turn in range(len(transcript.actions)):
        before = wrong[:turn]
        if before[-1:] == (True,) if errors else not any(before):
            found.append(_Place(transcript.task, transcript.actions[:turn]))
    return found


def _choose(places: Sequence[_Place], count: int, shuffle: Any, ranges: Sequence[tuple[int, int]]) -> list[_Place]:
    strata: dict[tuple[str, int], list[_Place]] = {}
    for place in dict.fromkeys(places):
        strata.setdefault(place.stratum(ranges), []).append(place)
    for name in sorted(strata):
        shuffle(strata[name])
    chosen: list[_Place] = []
    used: Counter[str] = Counter()
    while strata and len(chosen) < count:
        for name in sorted(strata)[: count - len(chosen)]:
            left = strata[name]
            place = min(left, key=lambda one: used[one.task.task_id])  # the first of those used least
            left.remove(place)
            used[place.task.task_id] += 1
            chosen.append(place)
            if not left:
                del strata[name]
    return chosen


def _state_of(referee: Referee, bank: str, source: str, place: _Place, *, forced: bool = False) -> State:
    # What was accepted at the opening is judged, too: it may be refused here for a reason that nobody could know.
    now = referee.accepted(place.task, place.prefix)
    commands = list(dict.fromkeys([*now, *referee.accepted(place.task, ())]))
    kinds = [outcome.kind for outcome in referee.outcomes(place.task, place.prefix, commands)]
    distance = referee.distances(place.task, place.prefix)[-1]
    kind_of = dict(zip(commands, kinds, strict=True))
    return State(bank, source, place.task.task_id, place.prefix, kind_of, distance, forced)


def _forced(referee: Referee, task: Task, state: State, sample: Any) -> State | None:
    """The state after an error at this one that leaves the goal in reach; None if there is no such error."""
    wrong = sorted(command for command, kind in state.commands.items() if kind in ERRORS)
    for command in sample(wrong, len(wrong)):
        (outcome,) = referee.outcomes(task, state.prefix, [command])
        if not outcome.over and (outcome.distance is not None or not referee.plans):
            place = _Place(task, (*state.prefix, command))
            return _state_of(referee, AFTER_ERROR, state.source, place, forced=True)
    return None

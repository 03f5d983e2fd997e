"""What the actions of a transcript were, and how far from the goal they led; found by playing them again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bmrl.envs import Env, Judge, Task
from bmrl.envs.base import INEFFECTIVE, INVALID, KINDS, PROGRESS, REDUNDANT, REGRESS, SEARCH, Step
from bmrl.errors import BmrlError, UsageError

ERRORS = frozenset({INVALID, INEFFECTIVE, REDUNDANT, REGRESS})  # honest search is none


@dataclass(frozen=True, slots=True)
class Transcript:
    """One game as far as it was played.

    Attributes:
        kinds: of each action; empty where nobody judges.
        distances: fewest turns to the goal before the first action and after each; None where unknown or out of reach.
    """

    task: Task
    actions: tuple[str, ...]
    kinds: tuple[str, ...]
    distances: tuple[int | None, ...]

    @property
    def errors(self) -> tuple[bool, ...]:
        """Of each action, whether it was an error."""
        return tuple(kind in ERRORS for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action would bring.

    Attributes:
        kind: "" where nobody judges.
        distance: after it.
        over: the game ends with it.
    """

    kind: str
    distance: int | None
    over: bool


class Referee:
    """Plays transcripts again, in one environment, and judges them.

    Args:
        env: gives the same answers whenever it is asked the same.
        judge: makes a judge from an opening text; None where the environment has none.
        tasks: what is to be judged. A judge that cannot read the goal of one of them judges none; the first one
            tells what the environment can do.

    Attributes:
        by: who judges: ``transcript``, ``planner``, or None.
        plans: whether distances are known.
        lists: whether the environment says which commands it would accept.
    """

    def __init__(self, env: Env, judge: Callable[[str], Judge] | None, tasks: Sequence[Task]) -> None:
        self._env = env
        self._judge = judge if judge and _readable(env, judge, tasks) else None
        env.reset(tasks[0])
        self.plans = env.distance() is not None
        self.lists = env.admissible is not None
        self.by = "transcript" if self._judge else "planner" if self.plans else None

    def read(self, task: Task, actions: Sequence[str]) -> Transcript:
        """Judges the actions of an episode."""
        env = self._env
        opening = env.reset(task)
        scribe = Scribe(opening, self._judge, env.distance())
        kinds, distances = [], [scribe.distance]
        for action in actions:
            accepted = env.admissible
            step = env.step(action)
            kinds.append(scribe.take(action, accepted, step, env.distance()))
            distances.append(scribe.distance)
        return Transcript(task, tuple(actions), tuple(kinds) if self.by else (), tuple(distances))

    def distances(self, task: Task, actions: Sequence[str]) -> tuple[int | None, ...]:
        """Fewest turns to the goal before the first action and after each, without a judgement."""
        env = self._env
        env.reset(task)
        found = [env.distance()]
        for action in actions:
            env.step(action)
            found.append(env.distance())
        return tuple(found)

    def accepted(self, task: Task, actions: Sequence[str]) -> tuple[str, ...]:
        """The commands that would be accepted after these actions."""
        self._env.reset(task)
        for action in actions:
            self._env.step(action)
        return self._env.admissible or ()

    def outcomes(self, task: Task, actions: Sequence[str], commands: Sequence[str]) -> Iterator[Outcome]:
        """What each command would bring after these actions, one by one, as far as it is asked for."""
        env, judge = self._env, self._judge
        scribe = Scribe(env.reset(task), judge, env.distance())
        for action in actions:
            accepted = env.admissible
            scribe.take(action, accepted, env.step(action), env.distance())
        accepted = env.admissible
        for number, command in enumerate(commands):
            if number:
                env.reset(task)
                for action in actions:
                    env.step(action)
            branch = scribe.fork()
            step = env.step(command)
            kind = branch.take(command, accepted, step, env.distance())
            yield Outcome(kind if self.by else "", branch.distance, step.terminated)


def _readable(env: Env, judge: Callable[[str], Judge], tasks: Sequence[Task]) -> bool:
    """Whether the judge can read the goals of all tasks."""
    try:
        for task in tasks:
            judge(env.reset(task))
    except BmrlError:
        return False
    return True


class Scribe:
    """Follows one transcript: asks the judge of its texts, or judges by distance where there is none."""

    def __init__(self, opening: str, judge: Callable[[str], Judge] | None, distance: int | None) -> None:
        self._judge = judge(opening) if judge else None
        self._seen = {opening}
        self.distance = distance

    def fork(self) -> "Scribe":
        """An independent copy."""
        other = Scribe.__new__(Scribe)
        other._judge = self._judge.fork() if self._judge else None
        other._seen, other.distance = set(self._seen), self.distance
        return other

    def take(self, action: str, accepted: Sequence[str] | None, step: Step, distance: int | None) -> str:
        """The kind of an action.

        Args:
            accepted: what the environment would have accepted; None if it cannot tell.
            distance: after it.
        """
        before, self.distance = self.distance, distance
        text = step.observation
        new = text not in self._seen
        self._seen.add(text)
        if self._judge is not None:
            return known(self._judge.judge(action, text))
        if not action or (accepted is not None and action not in accepted):
            return INVALID
        if before == distance:
            return SEARCH if new else INEFFECTIVE
        return PROGRESS if distance is not None and (before is None or distance < before) else REGRESS


def known(kind: str) -> str:
    """The kind, if it is one.

    Raises:
        UsageError: the judge of an installed environment made it up.
    """
    if kind not in KINDS:
        raise UsageError(f"the environment's judge called an action {kind!r}; known: {', '.join(KINDS)}")
    return kind

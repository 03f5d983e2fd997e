"""What an action was, judged by what the transcript has revealed; the full-knowledge view beside it.

An omniscient planner would call sensible search an error: here the judge knows of a game only what its
texts have shown. What it has not seen yet but needs is imagined at a place of its own, out of reach, so
that the shortest plan by belief has a length before everything is found, and what was found can be used
meanwhile.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bmrl.envs.alfworld import plan
from bmrl.envs.alfworld.expert import read_goal, without_commands
from bmrl.envs.alfworld.game import Game, Goal, layout
from bmrl.envs.alfworld.memory import Memory, thing_class
from bmrl.envs.alfworld.tables import tables
from bmrl.envs.alfworld.twin import REFUSED, Twin
from bmrl.envs.base import INEFFECTIVE, INVALID, PROGRESS, REDUNDANT, REGRESS, SEARCH

_UNSEEN = "unseen"  # class of the imagined places; ALFWorld has none of that name


def kinds(opening: str, actions: Sequence[str], observations: Sequence[str]) -> list[str]:
    """The kind of each action of a transcript.

    Args:
        opening: the text that starts the game.
        actions: commands in order.
        observations: the answer to each.

    Raises:
        BmrlError: the goal is none of ALFWorld's templates, such as one written by a person.
    """
    judge = Judge(opening)
    return [judge.judge(action, text) for action, text in zip(actions, observations, strict=True)]


def oracle(before: int | None, after: int | None) -> str:
    """The full-knowledge view of an action.

    Args:
        before, after: `plan.distance` around it; None where the goal is out of reach.

    Returns:
        "oracle_progress", "oracle_regress" or "oracle_neutral".
    """
    if before == after:
        return "oracle_neutral"
    nearer = before is None or (after is not None and after < before)
    return "oracle_progress" if nearer else "oracle_regress"


@dataclass(frozen=True, slots=True)
class Judged:
    """An action with both views of it; distances in turns, None where the goal is out of reach."""

    action: str
    kind: str
    oracle_before: int | None
    oracle_after: int | None

    @property
    def oracle(self) -> str:
        """The full-knowledge kind."""
        return oracle(self.oracle_before, self.oracle_after)


def judged(game: Game, actions: Iterable[str]) -> list[Judged]:
    """Plays actions and judges each, up to the one that wins."""
    twin = Twin(game)
    judge = Judge(twin.reset())
    found: list[Judged] = []
    before = plan.distance(twin)
    for action in actions:
        if twin.won:
            break
        kind = judge.judge(action, twin.step(action))
        after = plan.distance(twin)
        found.append(Judged(action, kind, before, after))
        before = after
    return found


class Judge:
    """Follows one transcript.

    Args:
        opening: the text that starts the game; a list of commands at its end is not looked at.

    Raises:
        BmrlError: the goal cannot be read, see `kinds`.
    """

    def __init__(self, opening: str) -> None:
        self._goal = Goal(*read_goal(opening))
        self._memory = Memory(without_commands(opening))
        self._visited: set[str] = set()

    def fork(self) -> "Judge":
        """An independent copy: to judge several actions from one state."""
        other = Judge.__new__(Judge)
        other._goal, other._memory, other._visited = self._goal, self._memory, set(self._visited)
        return other

    def judge(self, action: str, observation: str) -> str:
        """The kind of an action, one of `bmrl.envs.base.KINDS`, by what was known before it; its answer is noted."""
        action, text = action.strip(), without_commands(observation)
        before, after = self._memory, self._memory.fork()
        after.note(action, text)
        self._memory = after
        place = self._looks_at(action)
        # A closed place shows nothing more to one who comes again, or looks at it again.
        again = place in self._visited and not action.startswith("open ")
        could_show = place is not None and place not in before.contents and not again
        # The texts do not tell that two receptacles share a place until a "go to" from one to the other is refused:
        # it is judged as the arrival that it could be taken for. A "go to" to where the agent knows it is is not.
        unknowing = action.startswith("go to ") and place is not None and place not in before.at
        if text == REFUSED and not unknowing:
            return INVALID
        if text != REFUSED and place is not None:
            self._visited.add(place)

        # What a place happened to show is luck: the action is weighed by what was known before.
        shown = (place,) if place is not None and could_show else ()
        was, now = (self._distance(m, shown) for m in (before, after))
        seen = self._seen(before)
        change = 0 if was is None or now is None or not seen else now - was
        missing = seen < self._needed
        if change < 0:
            return PROGRESS
        if place is not None and (missing or not change):
            return SEARCH if could_show else REDUNDANT
        return REGRESS if change else INEFFECTIVE

    def _looks_at(self, action: str) -> str | None:
        """The receptacle that a command would show; None for other commands."""
        for verb in ("go to ", "open ", "examine "):
            if action.startswith(verb) and action.removeprefix(verb) in self._memory.receptacles:
                return action.removeprefix(verb)
        return None

    @property
    def _needed(self) -> int:
        return 2 if self._goal.kind in ("pick_two_obj_and_place", "look_at_obj_in_light") else 1

    def _seen(self, memory: Memory) -> int:
        """How many of the needed objects have been seen."""
        things = [*(thing for inside in memory.contents.values() for thing in inside), memory.held or ""]
        classes = Counter(map(thing_class, things))
        if self._goal.lamp:
            return min(classes[self._goal.object], 1) + min(classes[self._goal.lamp], 1)
        return min(classes[self._goal.object], self._needed)

    def _distance(self, memory: Memory, without: Collection[str]) -> int | None:
        """Fewest turns to the goal if the world is as believed.

        Args:
            without: receptacles whose contents are left out, as if not seen.
        """
        goal = self._goal
        wanted = {goal.object: 2 if goal.kind == "pick_two_obj_and_place" else 1}
        if goal.lamp:
            wanted[goal.lamp] = 1
        left = Counter(wanted)
        left[thing_class(memory.held or "")] -= 1
        inside: dict[str, frozenset[str]] = {}
        for receptacle in memory.receptacles:
            content = () if receptacle in without else memory.contents.get(receptacle, ())
            inside[receptacle] = frozenset(thing for thing in content if thing_class(thing) in wanted)
            left.subtract(map(thing_class, inside[receptacle]))
        for kind in wanted:  # imagined, each at a place of its own
            for number in range(left[kind]):
                inside[f"{_UNSEEN} {kind} {number}"] = frozenset({f"{kind} {-1 - number}"})
        return plan.distance(_believed(goal, memory, inside))


@lru_cache(maxsize=1)
def _classes() -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Openable classes, and which class may hold which, in the player's spelling."""
    table = tables()
    holds = ((place.lower(), thing.lower()) for place, things in table.holds.items() for thing in things)
    return frozenset(map(str.lower, table.openable)), frozenset(holds)


def _believed(goal: Goal, memory: Memory, inside: Mapping[str, frozenset[str]]) -> Twin:
    """The game that a memory describes, in the state that it believes, with what can matter to the goal.

    Args:
        inside: the objects of each receptacle, imagined ones included.
    """
    classes = {receptacle: thing_class(receptacle) for receptacle in inside}
    openable, holds = _classes()
    place: dict[str, Hashable] = {r: memory.beside(r) for r in inside}
    # Where nobody has been yet is a place without receptacles.
    start: Hashable = next((place[r] for r in place if r in memory.at), "start")
    here, travel = layout(place, start)
    things = [thing for content in inside.values() for thing in content] + [memory.held or ""]
    classes |= {thing: thing_class(thing) for thing in things}
    able = frozenset(things)
    clean, hot, cool = (
        frozenset(thing for done, thing in memory.done if done == verb) for verb in ("clean", "heat", "cool")
    )
    doors = frozenset(r for r in inside if classes[r] in openable)
    twin = Twin(
        Game(
            task_id="believed",
            goal=goal,
            rank={thing: number for number, thing in enumerate(sorted(classes))},
            place=place,
            here=here,
            travel=travel,
            start=start,
            classes=classes,
            holds=holds,
            inside=dict(inside),
            objects_at=frozenset((thing, place[r]) for r, content in inside.items() for thing in content),
            nested={},
            portable=able,
            openable=doors,
            cleanable=able,
            heatable=able,
            coolable=able,
            toggleable=able,
            sliceable=(),
            movable=frozenset(),
            initially={
                "opened": frozenset(r for r in doors if not memory.closed(r)),
                "clean": clean,
                "hot": hot,
                "cool": cool,
                "toggled": frozenset(memory.lit),
            },
            sentence="",
            help="",
        )
    )
    twin.held = memory.held
    return twin

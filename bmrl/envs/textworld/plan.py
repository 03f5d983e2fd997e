"""Shortest plans and exact distances.

Everything that a game needs is an errand: one command, in one room or in any, after certain others. How many errands
there are does not depend on the way; what can be shortened is the walk between them and the doors opened on it. So
the search is over walks: an errand that can be run here and is needed is run at once, for it costs a turn whenever it
is run and hinders nothing. TextWorld's own policy is greedy and sometimes longer.
"""

import heapq
from collections.abc import Iterator
from itertools import count

from bmrl.envs.textworld.game import COOKED, CUT, Game
from bmrl.envs.textworld.view import HELD, Goal, View, goal_of, view_of

TOOLS = {"fried": "stove", "roasted": "oven", "grilled": "BBQ"}
VERBS = {"chopped": "chop", "sliced": "slice", "diced": "dice"}
KNIFE = "knife"

# On a walk: the room, bits of the errands that were run, doors that were opened.
State = tuple[str, int, frozenset[str]]
Came = dict[State, tuple[list[str], State | None]]  # by which commands, and from where


class Missing(Exception):
    """Something is needed and nobody knows where it is."""

    def __init__(self, thing: str) -> None:
        super().__init__(thing)
        self.thing = thing


class Errands:
    """What is to be done.

    Attributes:
        commands: of each errand.
        rooms: where each can be run; None: anywhere.
        after: bits of the errands that must be run before each.
        needed: bits of those without which nothing is won; the others only help to pass locked doors.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self.commands: list[str] = []
        self.rooms: list[str | None] = []
        self.after: list[int] = []
        self.needed = 0

    def add(self, command: str, room: str | None, after: int, *, needed: bool = True) -> int:
        """Adds an errand, once; returns its bit."""
        if command not in self.commands:
            self.commands.append(command)
            self.rooms.append(room)
            self.after.append(after)
        bit = 1 << self.commands.index(command)
        self.needed |= bit if needed else 0
        return bit

    def fetch(self, thing: str, *, needed: bool = True) -> int:
        """Take something, and open what it is in; 0 when it is carried."""
        view = self._view
        holder, room = view.where.get(thing), view.room(thing)
        if holder == HELD:
            return 0
        if holder is None or room is None:
            raise Missing(thing)
        if holder == room:
            return self.add(f"take {thing}", room, 0, needed=needed)
        opened = self.opening(holder, room, needed=needed)
        return self.add(f"take {thing} from {holder}", room, opened, needed=needed)

    def opening(self, box: str, room: str | None, *, needed: bool = True) -> int:
        """Open a container or a door; 0 when it is open."""
        if box not in self._view.closed:
            return 0
        after = 0
        if box in self._view.locked:
            key = self._view.locked[box]
            if key is None:
                raise Missing(f"key of {box}")
            after = self.add(f"unlock {box} with {key}", room, self.fetch(key, needed=needed), needed=needed)
        return self.add(f"open {box}", room, after, needed=needed)


def plan(game: Game) -> list[str] | None:
    """A shortest list of commands from here; None when the game cannot be won any more."""
    if game.won or game.lost:
        return [] if game.won else None
    view, goal = view_of(game), goal_of(game)
    try:
        return walk(view, errands(view, goal))
    except Missing:
        return None


def errands(view: View, goal: Goal) -> Errands:
    """All that is left to do.

    Raises:
        Missing: it cannot be said, or not be done.
    """
    todo = Errands(view)
    if goal.take:
        todo.fetch(goal.take)
        return todo
    if view.where.get("meal") is not None:
        todo.add("eat meal", None, todo.fetch("meal"))
        return todo
    ready = 0
    for food, cooking, cutting in goal.recipe:
        ready |= _treat(todo, view, food, cooking, cutting)
    prepared = todo.add("prepare meal", goal.kitchen, ready)
    todo.add("eat meal", None, prepared)
    return todo


def _treat(todo: Errands, view: View, food: str, cooking: str, cutting: str) -> int:
    """Have one ingredient in hand, cooked and cut as it should be."""
    fetched = todo.fetch(food)
    ready, states = fetched, view.states.get(food, set())
    if states & {*COOKED, *CUT} - {cooking, cutting}:
        raise Missing(f"{cooking} {cutting} {food}")  # nothing undoes it
    if cooking in COOKED and cooking not in states:
        room = view.room(TOOLS[cooking])
        if room is None:
            raise Missing(TOOLS[cooking])
        ready |= todo.add(f"cook {food} with {TOOLS[cooking]}", room, fetched)
    if cutting in CUT and cutting not in states:
        ready |= todo.add(f"{VERBS[cutting]} {food} with {KNIFE}", None, fetched | todo.fetch(KNIFE))
    return ready


def walk(view: View, todo: Errands) -> list[str]:
    """The shortest way to run all needed errands.

    Raises:
        Missing: there is none on the known map.
    """
    locks = {door: _unlocking(view, todo, door) for door in view.locked}
    order = count()  # of two ways of one length the one found first, whatever the texts
    start: State = (view.here, 0, frozenset())
    came: Came = {start: ([], None)}
    best, heap, done = {start: 0}, [(0, next(order), start)], set[State]()
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        if state[1] & todo.needed == todo.needed:
            return _path(came, state)
        for commands, after in _steps(view, todo, locks, *state):
            length = cost + len(commands)
            if length < best.get(after, length + 1):
                best[after], came[after] = length, (commands, state)
                heapq.heappush(heap, (length, next(order), after))
    raise Missing("a way")


def _path(came: Came, state: State) -> list[str]:
    commands, before = came[state]
    while before is not None:
        step, before = came[before]
        commands = [*step, *commands]
    return commands


def _unlocking(view: View, todo: Errands, door: str) -> tuple[str, int] | None:
    """Key of a locked door and the errand that fetches it; None where it stays shut."""
    key = view.locked[door]
    if key is None or door in view.where:  # a container
        return None
    try:
        return key, todo.fetch(key, needed=False)
    except Missing:
        return None


def _steps(
    view: View,
    todo: Errands,
    locks: dict[str, tuple[str, int] | None],
    room: str,
    done: int,
    opened: frozenset[str],
) -> Iterator[tuple[list[str], State]]:
    """What may come next: commands, and where they lead."""
    free = []
    for index, command in enumerate(todo.commands):
        bit = 1 << index
        if not done & bit and todo.rooms[index] in (room, None) and todo.after[index] & ~done == 0:
            if todo.needed & bit:
                yield [command], (room, done | bit, opened)
                return
            free.append((command, bit))
    for command, bit in free:
        yield [command], (room, done | bit, opened)
    for direction, (there, door) in view.exits.get(room, {}).items():
        if there is None:
            continue
        go = f"go {direction}"
        if door is None or door not in view.closed or door in opened:
            yield [go], (there, done, opened)
        elif door not in view.locked:
            yield [f"open {door}", go], (there, done, opened | {door})
        elif (lock := locks[door]) is not None and lock[1] & ~done == 0:
            yield [f"unlock {door} with {lock[0]}", f"open {door}", go], (there, done, opened | {door})

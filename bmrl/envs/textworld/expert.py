"""An expert that explores: it knows TextWorld in general, and of a game only what it has read.

General knowledge: meals are prepared in the kitchen by the recipe in the cookbook, what fries, roasts, grills and
cuts, and that a way out that leads nowhere known may lead to what is missing.
"""

import re
from collections.abc import Iterator
from random import Random

from bmrl.envs.textworld.memory import Memory
from bmrl.envs.textworld.plan import Errands, Missing, errands, walk
from bmrl.envs.textworld.view import DIRECTIONS, HELD, Goal
from bmrl.errors import BmrlError

_JITTER = 0.3  # spread of the search order from play to play, as a share of the turns
_TASK = re.compile(r"Your task is to: (?:find the (?P<thing>.+?) and take it\.|cook the meal of the recipe).*")
_NEAR = 1.5  # turns; before it looks for an ingredient farther off, it looks whether it carries it
_NEVER = {"oven"}  # nothing to be found lies in it


class Expert:
    """A player: alternate `act` and `observe`.

    Actions that someone else chose may come in between, as long as `observe` is told of them: the next `act` goes
    on from wherever they led.

    Args:
        opening: the text that starts the game; a list of commands at its end is not looked at.
        rng: its own random stream; it settles the search order.
        tidy: search the nearest place first, of those as near the one that was named first.

    Attributes:
        searching: whether the last action only looked for something.

    Raises:
        BmrlError: the opening names no task that it knows.
    """

    def __init__(self, opening: str, rng: Random, *, tidy: bool = False) -> None:
        text = without_commands(opening)
        found = next((_TASK.fullmatch(line) for line in text.split("\n") if line.startswith("Your task is to:")), None)
        if found is None:
            raise BmrlError("the exploring expert cannot read the task in the opening")
        self.wanted: str | None = found["thing"]
        self.searching = False
        self.memory = Memory(text)
        self._rng = rng
        self._tidy = tidy
        self._weights: dict[tuple[str, str], float] = {}

    def observe(self, action: str, observation: str) -> None:
        """Take note of the answer to an action, its own or a forced one."""
        self.memory.note(action.strip(), without_commands(observation))

    def act(self) -> str:
        """The next command; `searching` then says whether it only looks for something."""
        self.searching = False
        self._guess_keys()
        view, recipe = self.memory.view, self.memory.recipe
        if self.wanted is None and recipe is None:
            return self._read() or self._search()
        goal = self.goal
        try:
            return walk(view, errands(view, goal))[0]
        except Missing:
            return self._at_hand(goal) or self._search()

    def ways(self) -> Iterator[tuple[str, str, list[str]]]:
        """Room, name and all commands from here of each place not yet looked into that can be got to."""
        view = self.memory.view
        for room, place, commands in self._places():
            todo = Errands(view)
            todo.add("", room, 0)
            try:
                yield room, place, [*walk(view, todo)[:-1], *commands]
            except Missing:
                continue

    def distance(self) -> int | None:
        """Fewest turns to the goal by what is known; None where something needed is still to be found."""
        if self.wanted is None and self.memory.recipe is None:
            return None
        try:
            return len(walk(self.memory.view, errands(self.memory.view, self.goal)))
        except Missing:
            return None

    @property
    def goal(self) -> Goal:
        """What wins, as far as it is known."""
        return Goal(self.wanted or "", self.memory.recipe or (), "kitchen")

    def _read(self) -> str | None:
        """Go and read the cookbook, where its place is known."""
        room = self.memory.view.room("cookbook")
        if self.memory.view.where.get("cookbook") == HELD:
            return "examine cookbook"
        return None if room is None else self._first("examine cookbook", room)

    def _at_hand(self, goal: Goal) -> str | None:
        """Something is still to be found; what is needed and lies here is taken all the same."""
        view = self.memory.view
        for food, _, _ in goal.recipe:
            if view.room(food) == view.here:
                todo = Errands(view)
                todo.fetch(food)
                return walk(view, todo)[0]
        return None

    def _search(self) -> str:
        """On to the nearest place not yet looked into."""
        self.searching = True
        view, memory = self.memory.view, self.memory
        if view.locked and not memory.carried:
            return "inventory"
        best: tuple[float, str] | None = None
        for room, place, way in self.ways():
            cost = len(way) * self._weight(room, place)
            if best is None or cost < best[0]:
                best = cost, way[0]
        if memory.recipe is not None and not memory.carried and (best is None or best[0] > _NEAR):
            return "inventory"
        return best[1] if best is not None else self._key() or "look"

    def _key(self) -> str | None:
        """Where only locks are left: a key that lies about, though the wrong thing may lose the game."""
        view = self.memory.view
        for key in sorted(thing for thing in view.where if "key" in thing and view.locked):
            todo = Errands(view)
            try:
                if todo.fetch(key):
                    return walk(view, todo)[0]
            except Missing:
                continue
        return None

    def _places(self) -> list[tuple[str, str, list[str]]]:
        """Room, name and commands of all there is to look into: closed containers first, then ways out."""
        view = self.memory.view
        found = []
        for thing in sorted(view.closed - _NEVER):
            room = view.room(thing)
            if room is not None and thing in view.where:
                found.append((room, thing, self._opening(thing)))
        for room, exits in view.exits.items():
            for direction in DIRECTIONS:
                there, door = exits.get(direction, ("", None))
                if there is None:
                    opening = self._opening(door) if door is not None else []
                    found.append((room, direction, [*opening, f"go {direction}"]))
        return [(room, place, commands) for room, place, commands in found if "" not in commands]

    def _opening(self, box: str) -> list[str]:
        """Commands that open a door or a container; an empty one where it cannot be."""
        view = self.memory.view
        if box not in view.closed:
            return []
        if box not in view.locked:
            return [f"open {box}"]
        key = view.locked[box]
        return [f"unlock {box} with {key}", f"open {box}"] if key is not None else [""]

    def _weight(self, room: str, place: str) -> float:
        if self._tidy:
            return 1.0
        if (room, place) not in self._weights:
            self._weights[room, place] = self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        return self._weights[room, place]

    def _first(self, command: str, room: str) -> str | None:
        """The next command on the way to run one in a room."""
        todo = Errands(self.memory.view)
        todo.add(command, room, 0)
        try:
            return walk(self.memory.view, todo)[0]
        except Missing:
            return None

    def _guess_keys(self) -> None:
        """A lock may fit any key that is carried and was not tried in it."""
        keys = sorted(thing for thing in self.memory.held() if "key" in thing)
        for box in self.memory.view.locked:
            untried = (key for key in keys if (box, key) not in self.memory.tried)
            self.memory.view.locked[box] = next(untried, None)


def without_commands(text: str) -> str:
    """A text without the list of commands that the agent may be shown."""
    return text.partition("\nCommands: ")[0]

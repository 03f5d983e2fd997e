"""What a player can know of a game from the texts alone: the exploring expert's memory."""

import re

from bmrl.envs.textworld.text import RECIPE, REFUSED
from bmrl.envs.textworld.view import HELD, View

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_ROOM = re.compile(r"You are in the (.+)\.")
_SHUT = re.compile(r"The (.+) is (closed|locked)\.")
_HOLDS = re.compile(r"(?:In|On) the (.+?): (.+)\.")
_THERE = re.compile(r"There is a (.+)\.")
_EXIT = re.compile(r"(north|south|east|west)(?: \((open|closed|locked) ([^)]+)\))?")
_THING = re.compile(r"([^,()]+?)(?: \(([^)]*)\))?(?:, |$)")  # "carrot (diced, fried)"
_DONE = re.compile(r"The (.+) is (fried|roasted|grilled|chopped|sliced|diced) now\.")
_VERB = re.compile(r"You (\w+) the (.+?)(?: (?:from|into|on|with) the (.+))?\.")


class Memory:
    """Beliefs about one game, all of them from texts seen; right as long as every answer is noted.

    Attributes:
        view: the map and the things, as far as they are known.
        recipe: ingredients, cooking and cutting, once the cookbook was read; else None.
        carried: whether all that is carried is known.
        tried: pairs of a locked thing and a key that does not fit.
    """

    def __init__(self, opening: str) -> None:
        self.view = View()
        self.recipe: tuple[tuple[str, str, str], ...] | None = None
        self.carried = False
        self.tried: set[tuple[str, str]] = set()
        self.note("look", opening)

    def held(self) -> list[str]:
        """What is known to be carried."""
        return [thing for thing, where in self.view.where.items() if where == HELD]

    def note(self, action: str, text: str) -> None:
        """Learn from the answer to an action, whoever chose it."""
        lines = text.split("\n")
        verb, _, rest = action.partition(" ")
        if lines[0] == REFUSED:
            if verb == "unlock" and " with " in rest:
                box, _, key = rest.partition(" with ")
                self.tried.add((box, key))
            return
        if found := _ROOM.fullmatch(lines[0]):
            self._arrive(found[1], rest if verb == "go" else "")
        elif lines[0].startswith(RECIPE):
            self._read(lines[0].removeprefix(RECIPE))
        elif found := _DONE.fullmatch(lines[0]):
            self.view.states.setdefault(found[1], set()).add(found[2])
        elif lines[0].startswith("You carry: "):
            self._holds(HELD, lines[0].removeprefix("You carry: ").removesuffix("."))
            self.carried = True
        elif verb == "prepare":
            for food, _, _ in self.recipe or ():
                self.view.where.pop(food, None)
            self.view.where["meal"] = HELD
        elif found := _VERB.fullmatch(lines[0]):
            self._act(found[1], found[2], found[3] or "")
        for line in lines:
            self._line(line)

    def _arrive(self, room: str, direction: str) -> None:
        view = self.view
        if direction and room != view.here:
            _, door = view.exits[view.here].get(direction, (None, None))
            view.exits[view.here][direction] = (room, door)
            view.exits.setdefault(room, {})[OPPOSITE[direction]] = (view.here, door)
        view.exits.setdefault(room, {})
        view.here = room

    def _read(self, recipe: str) -> None:
        steps = []
        for food, how in _THING.findall(recipe.removesuffix(". Then prepare meal.")):
            words = how.split(", ")
            cooking = next((w for w in words if w in ("fried", "roasted", "grilled")), "raw")
            steps.append((food, cooking, next((w for w in words if w in ("chopped", "sliced", "diced")), "uncut")))
        self.recipe = tuple(steps)

    def _act(self, verb: str, thing: str, other: str) -> None:
        view = self.view
        if verb == "take":
            view.where[thing] = HELD
        elif verb == "drop":
            view.where[thing] = view.here
        elif verb in ("put", "insert"):
            view.where[thing] = other
        elif verb in ("eat", "drink"):
            view.where.pop(thing, None)
        elif verb == "close":
            view.closed.add(thing)
        elif verb == "open":
            view.closed.discard(thing)
        elif verb == "lock":
            view.locked[thing] = None
        elif verb == "unlock":
            view.locked.pop(thing, None)

    def _line(self, line: str) -> None:
        view = self.view
        if line.startswith("Exits: "):
            for direction, state, door in _EXIT.findall(line):
                there = view.exits[view.here].get(direction, (None, None))[0]
                view.exits[view.here][direction] = (there, door or None)
                if door:
                    self._shut(door, state)
        elif found := _SHUT.fullmatch(line):
            self._shut(found[1], found[2])
            if not any(door == found[1] for _, door in view.exits[view.here].values()):
                view.where[found[1]] = view.here
        elif found := _HOLDS.fullmatch(line):
            if found[1] == "floor":
                self._holds(view.here, found[2])
                return
            view.where[found[1]] = view.here
            view.closed.discard(found[1])
            self._holds(found[1], found[2])
        elif found := _THERE.fullmatch(line):
            view.where[found[1]] = view.here

    def _shut(self, box: str, state: str) -> None:
        view = self.view
        (view.closed.discard if state == "open" else view.closed.add)(box)
        if state == "locked":
            view.locked.setdefault(box, None)
        else:
            view.locked.pop(box, None)

    def _holds(self, holder: str, things: str) -> None:
        for thing, states in _THING.findall("" if things == "nothing" else things):
            self.view.where[thing] = holder
            self.view.states[thing] = {state for state in states.split(", ") if state}

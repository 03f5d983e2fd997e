"""What a player can know of a game from the texts alone: the exploring expert's memory."""

import re

from bmrl.envs.alfworld.tables import tables
from bmrl.envs.alfworld.twin import REFUSED

_LIST = re.compile(r"you see (?P<things>.*)\.")
_ARRIVE = re.compile(r"You arrive at ([^.]+)\. ")
_CONTENT = re.compile(r"(?:On the (?P<on>[^,.]+)|The (?P<open>[^,.]+) is open\. In it), you see (?P<things>[^.]*)\.")
_CLOSED = re.compile(r"(?:The (?P<is>[^,.]+) is closed|You close the (?P<now>[^,.]+))\.")
_TAKE = re.compile(r"You pick up the (.+) from the (.+)\.")
_MOVE = re.compile(r"You move the (.+) to the (.+)\.")
_CHANGE = re.compile(r"You (clean|heat|cool) the (.+) using the .+\.")
_LIGHT = re.compile(r"You turn on the (.+)\.")
_CARRY = re.compile(r"You are carrying: an? (.+)\.")
_FACING = re.compile(r"You are facing the (.+)\. Next to it")


def thing_class(name: str) -> str:
    """Class of a thing by its name: "cabinet 3" is a cabinet."""
    return name.rsplit(" ", 1)[0]


def things(enumeration: str) -> list[str]:
    """Names in one of the engine's enumerations, without articles."""
    if enumeration == "nothing":
        return []
    parts = re.split(r", and |, ", enumeration)
    return [re.sub(r"^an? ", "", part) for part in parts]


class Memory:
    """Beliefs about one game, all of them from texts seen; right as long as every answer is noted.

    Attributes:
        receptacles: all there are, from the opening text.
        at: receptacles known to be within reach now.
        held: the object in hand; None: empty.
        contents: what was seen in each receptacle that has been seen inside.
        open: openable receptacles known to be open; others are taken to be closed.
        done: (verb, object) changes that hold now; heating undoes cooling, and the reverse.
        lit: lamps that are on.
        refused: commands that were answered "Nothing happens.", other than going to a receptacle.
    """

    def __init__(self, opening: str) -> None:
        found = _LIST.search(opening)
        self.receptacles: list[str] = things(found["things"]) if found else []
        self.at: set[str] = set()
        self.held: str | None = None
        self.contents: dict[str, set[str]] = {}
        self.open: set[str] = set()
        self.done: set[tuple[str, str]] = set()
        self.lit: set[str] = set()
        self.refused: set[str] = set()
        # Receptacles that share a place answer "Nothing happens." to a "go to" from one to the
        # other.
        self._together: dict[str, set[str]] = {}
        self._openable = {name.lower() for name in tables().openable}

    def fork(self) -> "Memory":
        """An independent copy: to compare what is known before and after an answer."""
        other = Memory.__new__(Memory)
        other.receptacles, other.held, other._openable = self.receptacles, self.held, self._openable
        other.contents = {receptacle: set(inside) for receptacle, inside in self.contents.items()}
        for name in ("at", "open", "done", "lit", "refused"):
            setattr(other, name, set(getattr(self, name)))
        other._together = dict(self._together)  # its sets are replaced, never changed
        return other

    def closed(self, receptacle: str) -> bool:
        """Whether it has to be opened, as far as is known."""
        return thing_class(receptacle) in self._openable and receptacle not in self.open

    def beside(self, receptacle: str) -> frozenset[str]:
        """Receptacles known to be at the same place, itself among them."""
        return frozenset({receptacle, *self._together.get(receptacle, ())})

    def where(self, thing: str) -> str | None:
        """The receptacle that the object was last seen in."""
        return next((r for r, inside in self.contents.items() if thing in inside), None)

    def note(self, action: str, text: str) -> None:
        """Learn from the answer to an action, whoever chose it."""
        if text == REFUSED:
            # A place that is not there is not shared either.
            if action.startswith("go to ") and (place := action[6:]) in self.receptacles:
                self._share({*self.at, place})
                self.at.add(place)
            else:
                self.refused.add(action)
            return
        if found := _ARRIVE.match(text):
            self.at = {found[1], *self._together.get(found[1], ())}
        elif found := _FACING.match(text):
            self.at = set(things(found[1]))
            self._share(self.at)
        self._note_receptacle(text)
        self._note_object(text)

    def _share(self, receptacles: set[str]) -> None:
        group = set(receptacles)
        for receptacle in receptacles:
            group |= self._together.get(receptacle, set())
        for receptacle in group:
            self._together[receptacle] = group

    def _note_receptacle(self, text: str) -> None:
        if found := _CONTENT.search(text):
            receptacle = found["on"] or found["open"]
            self.contents[receptacle] = set(things(found["things"]))
            if found["open"]:
                self.open.add(receptacle)
        elif found := _CLOSED.search(text):
            self.open.discard(found["is"] or found["now"])

    def _note_object(self, text: str) -> None:
        if found := _TAKE.match(text):
            self.held = found[1]
            self.contents.get(found[2], set()).discard(found[1])
        elif found := _MOVE.match(text):
            self.held = None
            self.contents.setdefault(found[2], set()).add(found[1])
        elif found := _CHANGE.match(text):
            self.done.add((found[1], found[2]))
            undone = {"heat": "cool", "cool": "heat"}.get(found[1], "")
            self.done.discard((undone, found[2]))
        elif found := _LIGHT.match(text):
            self.lit.add(found[1])
        elif found := _CARRY.match(text):
            self.held = found[1]
        elif text == "You are not carrying anything.":
            self.held = None

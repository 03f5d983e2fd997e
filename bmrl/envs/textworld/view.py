"""What is known of a game, all of it or some: the map, where things are, what became of them.

The planner works on a view. The oracle's is made here from the facts of a game; the exploring expert makes its own
from what it has read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bmrl.envs.textworld.game import COOKED, CUT, Game, treatment
from bmrl.envs.textworld.record import Fact

HELD = "I"  # where what the player carries is
DIRECTIONS = ("north", "south", "east", "west")
_AT = {"at", "in", "on"}


@dataclass(slots=True)
class View:
    """Names everywhere, as commands have them.

    Attributes:
        here: room that the player is in.
        exits: room -> direction -> where it leads to (None: not known) and the door in it, if any.
        where: thing -> what it is in or on: a room, a container, a supporter, or `HELD`.
        closed: doors and containers that have to be opened, locked ones included.
        locked: those of them that are locked -> their key; None: not known.
        states: how foods are cooked and cut: "fried", "diced"; nothing of what is raw or uncut.
    """

    here: str = ""
    exits: dict[str, dict[str, tuple[str | None, str | None]]] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    locked: dict[str, str | None] = field(default_factory=dict)
    states: dict[str, set[str]] = field(default_factory=dict)

    def room(self, thing: str) -> str | None:
        """The room that something is in; None: it is carried, or nobody knows."""
        holder = self.where.get(thing)
        while holder is not None and holder not in self.exits:
            holder = self.where.get(holder)
        return holder


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins a game.

    Attributes:
        take: the thing to take; "" where a meal is to be eaten.
        recipe: each ingredient with how it should be cooked and cut.
        kitchen: the room where meals are prepared.
    """

    take: str = ""
    recipe: tuple[tuple[str, str, str], ...] = ()
    kitchen: str = ""


def view_of(game: Game) -> View:
    """Everything that is true now."""
    name = game.names
    view = View()
    facts = game.facts()
    keys = {lock: name[key] for predicate, *ids in facts if predicate == "match" for key, lock in [ids]}
    doors = {(ids[0], ids[2]): name[ids[1]] for predicate, *ids in facts if predicate == "link"}
    for predicate, *ids in facts:
        if predicate.endswith("_of"):
            there, here = ids
            door = doors.get((here, there))
            view.exits.setdefault(name[here], {})[predicate[:-3]] = (name[there], door)
        elif predicate == "at" and ids[0] == "P":
            view.here = name[ids[1]]
        elif predicate in _AT and ids[0] in name and (ids[1] in name or ids[1] == HELD):
            view.where[name[ids[0]]] = name.get(ids[1], HELD)
        elif predicate in ("closed", "locked"):
            view.closed.add(name[ids[0]])
            if predicate == "locked":
                view.locked[name[ids[0]]] = keys.get(ids[0])
        elif predicate in (*COOKED, *CUT) and ids[0] in name:
            view.states.setdefault(name[ids[0]], set()).add(predicate)
    view.exits.setdefault(view.here, {})
    return view


def goal_of(game: Game) -> Goal:
    """What wins the game, from its record."""
    facts, name = game.record.facts, game.names
    kitchen = next((ids[0] for predicate, *ids in facts if predicate == "cooking_location"), None)
    if kitchen is not None:
        return Goal(recipe=tuple(_ingredients(facts, name)), kitchen=name[kitchen])
    (won,), _ = next(quest for quest in game.record.quests if quest[0])
    return Goal(take=next(name[ids[0]] for predicate, *ids in won if predicate == "in" and ids[1] == HELD))


def _ingredients(facts: Iterable[Fact], name: dict[str, str]) -> Iterable[tuple[str, str, str]]:
    known = set(facts)
    for predicate, *ids in sorted(known):
        if predicate == "base":
            yield (name[ids[0]], *treatment(known, ids[1]))

"""A game as the engine needs it: constant facts under the names the player reads. Immutable."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.tables import TOOLS, class_of, tables

# PDDL has no such characters in its names; ALFWorld spells them out.
_SPELLED = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}


def pddl_name(thing: str) -> str:
    """A THOR id as ALFWorld's PDDL spells it."""
    for char, word in _SPELLED.items():
        thing = thing.replace(char, word)
    return thing


def player_names(ids: Iterable[str]) -> dict[str, str]:
    """Names the player reads, by lower-case PDDL id.

    ALFWorld sorts the ids and counts *down*: of three cabinets the first id is "cabinet 3". The
    order of the ids is also the order of every list the engine writes, so the result keeps it.
    """
    ordered = sorted(ids)
    left = Counter(_stem(thing) for thing in ordered if "_bar_" in thing)
    names = {}
    for thing in ordered:
        if "_bar_" in thing:
            stem = _stem(thing)
            names[thing] = f"{stem} {left[stem]}"
            left[stem] -= 1
        else:
            names[thing] = thing + " "
    return names


def _stem(thing: str) -> str:
    return thing.split("_bar_", 1)[0] + ("basin" if "basin" in thing else "")


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins; classes in lower case, "" for the one a kind of task does not have."""

    kind: str
    object: str
    receptacle: str
    lamp: str


@dataclass(frozen=True)
class Game:
    """Constant facts of a game; things are called by the names the player reads.

    Attributes:
        rank: every thing's place in the engine's order, for sorting lists.
        place: location of each receptacle; two receptacles may share one.
        here: receptacles of each location, in the engine's order.
        travel: every "go to" command and the location it leads to, sorted; admissible elsewhere only.
        start: location of the agent at the beginning.
        classes: class of each receptacle and object, in lower case.
        holds: (receptacle class, object class) pairs that the goal's rules allow to put.
        inside: what lies in which receptacle at the beginning.
        objects_at: (object, location) pairs at the beginning.
        nested: what lies in a movable receptacle (a bowl); scenery, no command reaches it.
        initially: clean, hot, cool, sliced, toggled, opened: what is so at the beginning.
        sentence: the goal as the player reads it.
        help: answer to "help"; "" where the game knows no such command.
    """

    task_id: str
    goal: Goal
    rank: dict[str, int]
    place: dict[str, Hashable]
    here: dict[Hashable, tuple[str, ...]]
    travel: tuple[tuple[str, Hashable], ...]
    start: Hashable
    classes: dict[str, str]
    holds: frozenset[tuple[str, str]]
    inside: dict[str, frozenset[str]]
    objects_at: frozenset[tuple[str, Hashable]]
    nested: dict[str, tuple[str, ...]]
    portable: frozenset[str]
    openable: frozenset[str]
    cleanable: frozenset[str]
    heatable: frozenset[str]
    coolable: frozenset[str]
    toggleable: frozenset[str]
    sliceable: tuple[str, ...]
    movable: frozenset[str]  # objects that are receptacles themselves
    initially: dict[str, frozenset[str]]
    sentence: str
    help: str

    def holders(self, thing: str) -> tuple[str, ...]:
        """Receptacles that the object may be put into, in the engine's order."""
        kind = self.classes[thing]
        if kind not in self._holders:
            self._holders[kind] = tuple(r for r in self.place if (self.classes[r], kind) in self.holds)
        return self._holders[kind]

    @cached_property
    def _holders(self) -> dict[str, tuple[str, ...]]:
        return {}

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Receptacles of the goal's class."""
        return tuple(r for r in self.inside if self.classes[r] == self.goal.receptacle != "")

    @cached_property
    def wanted(self) -> frozenset[str]:
        """Objects of the goal's class that can be carried."""
        return frozenset(thing for thing in self.portable if self.classes[thing] == self.goal.object)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Receptacles that the goal asks for, can be reached and hold its objects, in the engine's order."""
        allowed = (self.goal.receptacle, self.goal.object) in self.holds
        return tuple(r for r in self.asked if allowed and r in self.place)

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """Receptacles that change an object as the goal asks, in the engine's order."""
        tool = TOOLS.get(self.goal.kind, ("",))[0]
        return tuple(r for r in self.place if tool and self.classes[r] == tool)

    @cached_property
    def lamps(self) -> frozenset[str]:
        """Objects of the goal's class of lamp that can be switched on."""
        return frozenset(thing for thing in self.toggleable if self.classes[thing] == self.goal.lamp)


def layout(
    place: dict[str, Hashable], start: Hashable
) -> tuple[dict[Hashable, tuple[str, ...]], tuple[tuple[str, Hashable], ...]]:
    """`Game.here` and `Game.travel` of receptacles that are in the engine's order already."""
    here: dict[Hashable, tuple[str, ...]] = {start: ()}
    for receptacle, location in place.items():
        here[location] = (*here.get(location, ()), receptacle)
    return here, tuple(sorted((f"go to {r}", location) for r, location in place.items()))


@lru_cache(maxsize=64)  # a group plays one game many times; a game takes some 100 kB
def game_from_record(record: Record) -> Game:
    """The engine's form of a generated game."""
    table = tables()
    kinds = {thing: class_of(thing) for thing, _ in (*record.receptacles, *record.objects)}
    ids = {thing: pddl_name(thing).lower() for thing in kinds}
    names = player_names(ids.values())
    name = {thing: names[spelled] for thing, spelled in ids.items()}
    classes = {name[thing]: kind.lower() for thing, kind in kinds.items()}

    # The engine's order is that of the PDDL ids, which is not that of THOR's: "|+" and "|-" swap.
    place: dict[str, Hashable] = {
        name[r]: pose for r, pose in sorted(record.receptacles, key=lambda pair: ids[pair[0]])
    }
    things = sorted((thing for thing, _ in record.objects), key=lambda thing: ids[thing])
    inside: dict[str, set[str]] = {receptacle: set() for receptacle in place}
    for thing, index in record.objects:
        inside[name[record.receptacles[index][0]]].add(name[thing])

    def able(members: frozenset[str]) -> list[str]:
        return [name[thing] for thing in things if kinds[thing] in members]

    here, travel = layout(place, record.start)
    present = {kinds[thing] for thing in things}
    return Game(
        task_id=record.task_id,
        goal=Goal(
            kind=record.kind,
            object=record.object.lower(),
            receptacle=record.receptacle.lower(),
            lamp=record.lamp.lower(),
        ),
        rank={shown: i for i, shown in enumerate(names.values())},
        place=place,
        here=here,
        travel=travel,
        start=record.start,
        classes=classes,
        holds=frozenset(
            (kind.lower(), thing.lower())
            for kind in {kinds[r] for r, _ in record.receptacles}
            for thing in table.holds[kind] & present
        ),
        inside={receptacle: frozenset(content) for receptacle, content in inside.items()},
        objects_at=frozenset((o, place[r]) for r, content in inside.items() for o in content),
        nested={},
        portable=frozenset(able(table.portable)),
        openable=frozenset(name[r] for r, _ in record.receptacles if kinds[r] in table.openable),
        cleanable=frozenset(able(table.actions["cleanable"])),
        heatable=frozenset(able(table.actions["heatable"])),
        coolable=frozenset(able(table.actions["coolable"])),
        toggleable=frozenset(able(table.actions["toggleable"])),
        sliceable=tuple(able(table.actions["sliceable"])),
        movable=frozenset(able(table.movable)),
        initially={},
        sentence=record.sentence,
        help=table.help,
    )

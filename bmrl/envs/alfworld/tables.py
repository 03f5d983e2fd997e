"""ALFWorld's tables: what may lie where, what can be done with what, the goals and the rooms."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bmrl.errors import BmrlError
from bmrl.files import data_path

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# Which class of receptacle changes an object, by which verb, and what an object must be for it.
TOOLS = {
    "pick_clean_then_place_in_recep": ("sinkbasin", "clean"),
    "pick_heat_then_place_in_recep": ("microwave", "heat"),
    "pick_cool_then_place_in_recep": ("fridge", "cool"),
}

Pose = tuple[int, int, int, int]  # quarter metres x, z; quarter turns; degrees the head looks down


@dataclass(frozen=True, slots=True)
class Room:
    """One of iTHOR's 120 rooms.

    Attributes:
        type: Kitchen, LivingRoom, Bedroom or Bathroom.
        receptacles: id and pose of the agent in front of it, in the order of the ids.
        classes: every class of thing that the room has, in alphabetical order.
    """

    type: str
    receptacles: tuple[tuple[str, Pose], ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """Contents of ``data/alfworld/tables.json``; classes are spelled as in THOR (CounterTop)."""

    receptacles: frozenset[str]
    objects: tuple[str, ...]
    movable: frozenset[str]
    openable: frozenset[str]
    holds: dict[str, frozenset[str]]
    actions: dict[str, frozenset[str]]  # cleanable, heatable, coolable, sliceable, toggleable
    templates: dict[str, tuple[str, ...]]
    goal_pddl: dict[str, str]
    room_types: dict[str, frozenset[str]]  # by kind of task
    help: str
    rooms: dict[int, Room]
    portable: frozenset[str]  # everything that some receptacle may hold


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Read the tables once per process.

    Raises:
        BmrlError: the file is missing or damaged.
    """
    path = data_path("alfworld", "tables.json")
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BmrlError(f"{path}: cannot be read ({error.strerror}); reinstall bmrl") from error
    except ValueError as error:
        raise BmrlError(f"{path}: damaged ({error}); reinstall bmrl") from error
    holds = {name: frozenset(kinds) for name, kinds in raw["holds"].items()}
    kinds = raw["kinds"]
    return Tables(
        receptacles=frozenset(raw["receptacles"]),
        objects=tuple(raw["objects"]),
        movable=frozenset(raw["movable"]),
        openable=frozenset(raw["openable"]),
        holds=holds,
        actions={name: frozenset(classes) for name, classes in raw["actions"].items()},
        templates={kind: tuple(kinds[kind]["templates"]) for kind in KINDS},
        goal_pddl={kind: kinds[kind]["pddl"] for kind in KINDS},
        room_types={kind: frozenset(kinds[kind]["rooms"]) for kind in KINDS},
        help=raw["help"],
        rooms={int(number): _room(room) for number, room in raw["rooms"].items()},
        portable=frozenset[str]().union(*holds.values()),
    )


def _room(raw: dict[str, Any]) -> Room:
    poses = sorted(raw["receptacles"].items())
    return Room(
        type=raw["type"],
        receptacles=tuple((thing, (p[0], p[1], p[2], p[3])) for thing, p in poses),
        classes=tuple(raw["classes"]),
    )


def class_of(thing: str) -> str:
    """Class of a THOR id: a basin is named by its last part, everything else by its first."""
    parts = thing.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]

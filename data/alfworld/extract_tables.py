"""Write tables.json: what bmrl needs to know of ALFWorld, read from an installed alfworld 0.4.2.

    pip install alfworld==0.4.2 && python data/alfworld/extract_tables.py data/alfworld/tables.json

bmrl itself never imports alfworld. The tables are ALFWorld's (MIT licence): which object class may
lie where, what can be heated, the goal sentences and goal PDDL, and the receptacles of the 120
rooms with the pose an agent takes in front of each.
"""

import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import alfworld.info
from alfworld.gen import constants, goal_library

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
ROOM_TYPES = {"Kitchen": 0, "LivingRoom": 200, "Bedroom": 300, "Bathroom": 400}
HELP = re.compile(r'"rhs": "(\\nAvailable commands:.*?)"\s*\n', re.S)


def class_of(thing: str) -> str:
    """Class of a THOR id: a basin is named by its last part, everything else by its first."""
    parts = thing.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def room(number: int, receptacles: set[str]) -> dict[str, Any]:
    layouts = resources.files("alfworld") / "gen" / "layouts"
    poses = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    classes = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    return {
        "receptacles": {
            # Quarter metres and quarter turns: the form of PDDL's location names.
            thing: [round(x * 4), round(z * 4), round(turn / 90) % 4, round(horizon)]
            for thing, (x, z, turn, horizon) in sorted(poses.items())
            if class_of(thing) in receptacles
        },
        "classes": sorted(set(classes)),
    }


def tables() -> dict[str, Any]:
    movable = set(constants.MOVABLE_RECEPTACLES)
    receptacles = set(constants.RECEPTACLES) - movable
    grammar = Path(alfworld.info.ALFRED_TWL2_PATH).read_text()
    help_text = HELP.search(grammar)
    assert help_text is not None

    def whole(names: Any) -> list[str]:
        # No generated game starts with something already cut into slices.
        return sorted(name for name in names if not name.endswith("Sliced"))

    return {
        "alfworld": alfworld.info.__version__,
        "receptacles": sorted(receptacles),
        "objects": sorted(set(constants.OBJECTS_SET) - receptacles),
        "movable": sorted(movable),
        "openable": sorted(set(constants.OPENABLE_CLASS_LIST) - movable),
        "holds": {r: whole(constants.VAL_RECEPTACLE_OBJECTS.get(r, ())) for r in sorted(receptacles)},
        "actions": {k.lower(): whole(v) for k, v in sorted(constants.VAL_ACTION_OBJECTS.items())},
        "kinds": {
            kind: {
                "rooms": sorted(constants.GOALS_VALID[kind]),
                "templates": goal_library.gdict[kind]["templates"],
                "pddl": goal_library.gdict[kind]["pddl"].replace("#", "-"),
            }
            for kind in KINDS
        },
        "help": help_text.group(1).encode().decode("unicode_escape").lstrip(),
        "rooms": {
            str(base + i): {"type": name, **room(base + i, receptacles)}
            for name, base in ROOM_TYPES.items()
            for i in range(1, 31)
        },
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python extract_tables.py OUTPUT.json")
    Path(sys.argv[1]).write_text(json.dumps(tables(), separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")

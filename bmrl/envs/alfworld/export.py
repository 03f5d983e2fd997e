"""Writes generated games in ALFWorld's on-disk format, so that ALFWorld itself can play them."""

import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bmrl.atomic import disk_errors, temporary_suffix
from bmrl.envs.alfworld.game import pddl_name
from bmrl.envs.alfworld.official import UNKNOWN
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.tables import Pose, class_of, tables
from bmrl.errors import BmrlError


def write_alfworld_format(record: Record, folder: Path) -> Path:
    """Write the three files of an ALFWorld game below ``folder/task_id``.

    The domain and the grammar, which every such file repeats, are read from the installed alfworld.

    Returns:
        Path of the ``game.tw-pddl``.

    Raises:
        BmrlError: alfworld is not installed.
        OSError: the folder cannot be written.
    """
    game = game_data(record)
    target = folder / record.task_id
    target.mkdir(parents=True, exist_ok=True)
    (target / "traj_data.json").write_text(json.dumps(_trajectory(record)), encoding="utf-8")
    (target / "initial_state.pddl").write_text(game["pddl_problem"], encoding="utf-8")
    path = target / "game.tw-pddl"
    path.write_text(json.dumps(game), encoding="utf-8")
    return path


def game_data(record: Record) -> dict[str, Any]:
    """The JSON of the game's ``game.tw-pddl``.

    Raises:
        BmrlError: alfworld is not installed.
    """
    domain, grammar = engine_texts()
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace(UNKNOWN, record.sentence),
        "pddl_problem": problem_pddl(record),
        "solvable": True,  # ALFWorld skips a game that does not say so
        "walkthrough": list(record.plan),
    }


def write_split(records: Sequence[Record], folder: Path) -> None:
    """Write games below ``folder``, which must not exist; it is there whole or not at all.

    Raises:
        BmrlError: alfworld is not installed, or the disk is full or forbidden.
    """
    temporary = folder.with_name(f".{folder.name}{temporary_suffix()}")
    try:
        with disk_errors(str(folder)):
            temporary.mkdir(parents=True)
            for record in records:
                write_alfworld_format(record, temporary)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@lru_cache(maxsize=1)
def engine_texts() -> tuple[str, str]:
    """ALFWorld's domain and grammar, read from the installed alfworld.

    Raises:
        BmrlError: it is not installed.
    """
    # Found, not imported: importing alfworld makes a folder in the home directory and sets
    # $ALFWORLD_DATA, which decides where AlfworldEnv(source="auto") reads from.
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise BmrlError("writing ALFWorld's format needs alfworld; pip install 'bmrl[alfworld]'")
    data = Path(next(iter(spec.submodule_search_locations))) / "data"
    domain = (data / "alfred.pddl").read_text(encoding="utf-8")
    return domain, (data / "alfred.twl2").read_text(encoding="utf-8")


def problem_pddl(record: Record) -> str:
    """The game's PDDL problem, laid out as ALFWorld lays it out."""
    table = tables()
    pad = "\n        "
    places = sorted({record.start, *(pose for _, pose in record.receptacles)})
    listed = [
        "agent1 - agent",
        # ALFWorld lists each class as an object, too; these take part in nothing.
        *(f"{name} - object" for name in table.objects),
        *(f"{name}Type - otype" for name in table.objects),
        *(f"{name}Type - rtype" for name in sorted(table.receptacles)),
        *(f"{pddl_name(thing)} - object" for thing, _ in record.objects),
        *(f"{pddl_name(thing)} - receptacle" for thing, _ in record.receptacles),
        *(f"{_location(pose)} - location" for pose in places),
    ]
    words = {"obj": record.object, "recep": record.receptacle, "toggle": record.lamp}
    # The template closes the bracket of "define" itself.
    goal = table.goal_pddl[record.kind].format(**words)
    name = record.task_id.rpartition("/")[2]
    return (
        f"\n(define (problem plan_{name})\n(:domain alfred)\n"
        f"(:objects{pad}{pad.join(listed)}\n)\n\n"
        f"(:init{pad}{pad.join(_facts(record))}\n        )\n{goal}"
    )


def _facts(record: Record) -> list[str]:
    table = tables()
    receptacles = [(pddl_name(r), class_of(r), _location(pose)) for r, pose in record.receptacles]
    objects = [(pddl_name(o), class_of(o), *receptacles[index][::2]) for o, index in record.objects]
    present = {kind for _, kind, _, _ in objects}
    facts = [f"(receptacleType {r} {kind}Type)" for r, kind, _ in receptacles]
    facts += [f"(objectType {o} {kind}Type)" for o, kind, _, _ in objects]
    facts += [
        f"(canContain {kind}Type {thing}Type)"
        for kind in sorted({kind for _, kind, _ in receptacles})
        for thing in sorted(table.holds[kind] & present)
    ]
    facts += [f"(pickupable {o})" for o, kind, _, _ in objects if kind in table.portable]
    facts += [f"(isReceptacleObject {o})" for o, kind, _, _ in objects if kind in table.movable]
    facts += [f"(openable {r})" for r, kind, _ in receptacles if kind in table.openable]
    facts += [f"(atLocation agent1 {_location(record.start)})"]
    for ability in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        able = table.actions[ability]
        facts += [f"({ability} {o})" for o, kind, _, _ in objects if kind in able]
    facts += [f"(inReceptacle {o} {r})" for o, _, r, _ in objects]
    facts += [f"(receptacleAtLocation {r} {place})" for r, _, place in receptacles]
    facts += [f"(objectAtLocation {o} {place})" for o, _, _, place in objects]
    return facts


def _location(pose: Pose) -> str:
    return pddl_name("loc|{}|{}|{}|{}".format(*pose))


def _trajectory(record: Record) -> dict[str, object]:
    """What ALFWorld's loader and experts read of a trajectory; no trajectory is recorded."""
    x, z, turn, horizon = record.start
    start = {"action": "TeleportFull", "horizon": horizon, "rotateOnTeleport": True}
    return {
        "task_id": record.task_id.rpartition("/")[2],
        "task_type": record.kind,
        "pddl_params": {
            "object_target": record.object,
            "parent_target": record.receptacle,
            "toggle_target": record.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {
            "floor_plan": f"FloorPlan{record.room}",
            "scene_num": record.room,
            "dirty_and_empty": False,
            "object_poses": [],
            "object_toggles": [],
            "init_action": {**start, "rotation": turn * 90, "x": x / 4, "y": 0.9, "z": z / 4},
        },
        "turk_annotations": {"anns": [{"task_desc": record.sentence, "high_descs": [], "votes": [1]}]},
        "images": [],
        "plan": {"high_pddl": [], "low_actions": []},
    }

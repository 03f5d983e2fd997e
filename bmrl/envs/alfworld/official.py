"""Reads games in ALFWorld's own on-disk format: ``<folder>/<split>/**/game.tw-pddl``."""

import json
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from bmrl.envs.alfworld.game import Game, Goal, layout, player_names
from bmrl.envs.alfworld.plan import shortest_plan
from bmrl.envs.alfworld.reference import search_turns
from bmrl.envs.alfworld.tables import KINDS
from bmrl.envs.alfworld.twin import Twin
from bmrl.envs.base import Task
from bmrl.errors import BmrlError, UsageError

_HELP = re.compile(r'"rhs": "(\\nAvailable commands:.*?)"\s*\n', re.S)
_ATOM = re.compile(r"\((\w+)((?:\s+\w+)*)\s*\)")
_GOAL_TYPE = re.compile(r"\(objecttype \?(\w+) (\w+)type\)")
_GOAL_RECEPTACLE = re.compile(r"\(receptacletype \?r (\w+)type\)")
_STATES = {"clean": "isclean", "hot": "ishot", "cool": "iscool"}
_ALSO = {"sliced": "issliced", "toggled": "istoggled", "opened": "opened"}


def tasks(folder: Path, split: str) -> Sequence[Task]:
    """Every playable game of a split, sorted by its path.

    Games with movable receptacles or sliced objects, and those without a known solution, are left
    out, as ALFWorld itself leaves them out. Plans and search references are computed here: some
    ten milliseconds a game.

    Raises:
        UsageError: no such split in the folder.
        BmrlError: files that cannot be read, all named in one line.
    """
    root = folder / split
    if not root.is_dir():
        found = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        raise UsageError(f"{root}: no such split; the folder has: {', '.join(found) or 'none'}")
    result: list[Task] = []
    damaged: list[str] = []
    for path in sorted(root.rglob("game.tw-pddl")):
        task_id = path.parent.relative_to(root).as_posix()
        if "movable" in task_id or "Sliced" in task_id:
            continue
        try:
            raw = _read(path)
            if not raw.get("solvable", True):
                continue
            game = parse(raw, task_id)
        except BmrlError as error:
            damaged.append(str(error))
            continue
        result.append(
            Task(
                task_id=task_id,
                kind=game.goal.kind,
                plan=shortest_plan(Twin(game)) or (),
                # Asked for in evaluations only; thousands of training games would take a minute.
                search_turns=() if split == "train" else _search_turns(game, task_id),
                data=str(path),
            )
        )
    if damaged:
        shown = "; ".join(damaged[:5]) + (f"; and {len(damaged) - 5} more" if damaged[5:] else "")
        raise BmrlError(f"{root}: {len(damaged)} unreadable games: {shown}; download them again")
    if not result:
        raise BmrlError(f"{root}: holds no game.tw-pddl that can be played")
    return result


def _search_turns(game: Game, task_id: str) -> tuple[int | None, ...]:
    try:
        return search_turns(game, task_id)
    except BmrlError:  # a sentence written by a person, which the expert cannot read
        return ()


def read_game(path: Path) -> Game:
    """Read one ``game.tw-pddl``.

    Raises:
        BmrlError: it is missing, damaged, or its goal is of no known kind.
    """
    return parse(_read(path), path.parent.as_posix())


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BmrlError(f"{path}: cannot be read ({error})") from error
    if not isinstance(raw, dict):
        raise BmrlError(f"{path}: not a JSON object")
    return raw


def parse(raw: dict[str, Any], task_id: str) -> Game:
    """Read the JSON of a ``game.tw-pddl``.

    Raises:
        BmrlError: a part is missing, or the goal is of no known kind.
    """
    try:
        text, grammar = raw["pddl_problem"].lower(), raw["grammar"]
        init, goal_text = text.split("(:init", 1)[1].split("(:goal", 1)
        sentence = grammar.split("Your task is to: ", 1)[1].split('."', 1)[0]
        return _game(task_id, init, _goal(goal_text), sentence, grammar)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise BmrlError(f"{task_id}: not a game.tw-pddl ({error!r})") from error


def _goal(text: str) -> Goal:
    types = dict(_GOAL_TYPE.findall(text))
    if "istoggled" in text:
        return Goal("look_at_obj_in_light", types["o"], "", types["ot"])
    receptacle = _GOAL_RECEPTACLE.search(text)
    if receptacle is None or "forall" in text or "inreceptacleobject" in text:
        raise ValueError("a goal of no known kind")
    kind = "pick_two_obj_and_place" if "o2" in types else KINDS[0]
    for state, verb in (("isclean", "clean"), ("ishot", "heat"), ("iscool", "cool")):
        if f"({state} " in text:
            kind = f"pick_{verb}_then_place_in_recep"
    return Goal(kind, types["o1"] if "o1" in types else types["o"], receptacle.group(1), "")


def _game(task_id: str, init: str, goal: Goal, sentence: str, grammar: str) -> Game:
    facts: dict[str, list[tuple[str, ...]]] = {}
    for predicate, arguments in _ATOM.findall(init):
        facts.setdefault(predicate, []).append(tuple(arguments.split()))
    name = player_names({thing for rows in facts.values() for row in rows for thing in row})

    def named(predicate: str) -> frozenset[str]:
        return frozenset(name[row[0]] for row in facts.get(predicate, ()))

    spots = sorted(facts["receptacleatlocation"])
    place: dict[str, Hashable] = {name[row[0]]: row[1] for row in spots}
    kinds = [*facts["receptacletype"], *facts.get("objecttype", [])]
    # Scenery may have no type: it has a place in the lists, and no class that a goal could ask for.
    classes = dict.fromkeys(name.values(), "")
    classes.update((name[thing], kind.removesuffix("type")) for thing, kind in kinds)
    inside: dict[str, set[str]] = {receptacle: set() for receptacle in place}
    for thing, receptacle in facts.get("inreceptacle", ()):
        inside.setdefault(name[receptacle], set()).add(name[thing])
    nested: dict[str, tuple[str, ...]] = {}
    for inner, outer in sorted(facts.get("inreceptacleobject", ())):
        nested[name[outer]] = (*nested.get(name[outer], ()), name[inner])
    start = facts["atlocation"][0][1]
    here, travel = layout(place, start)
    found = _HELP.search(grammar)
    return Game(
        task_id=task_id,
        goal=goal,
        rank={shown: i for i, shown in enumerate(name.values())},
        place=place,
        here=here,
        travel=travel,
        start=start,
        classes=classes,
        holds=frozenset(
            (row[0].removesuffix("type"), row[1].removesuffix("type")) for row in facts.get("cancontain", ())
        ),
        inside={receptacle: frozenset(content) for receptacle, content in inside.items()},
        objects_at=frozenset((name[o], at) for o, at in facts.get("objectatlocation", ())),
        nested=nested,
        portable=named("pickupable"),
        openable=named("openable"),
        cleanable=named("cleanable"),
        heatable=named("heatable"),
        coolable=named("coolable"),
        toggleable=named("toggleable"),
        sliceable=tuple(name[row[0]] for row in sorted(facts.get("sliceable", ()))),
        movable=named("isreceptacleobject"),
        initially={k: named(v) for k, v in (_STATES | _ALSO).items()},
        sentence=sentence,
        help=found.group(1).encode().decode("unicode_escape").lstrip() if found else "",
    )

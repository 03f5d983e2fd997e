"""Reads a game in ALFWorld's own on-disk format: one ``game.tw-pddl``.

ALFWorld's games were published for three versions of its grammar. Those before ALFWorld 0.4 have
``put X in/on Y`` where later ones have ``move X to Y``, say "You arrive at loc 11." where these name the
receptacle, and know no ``help``. `read` brings such a game up to date, as ALFWorld did with its own, so that
there is one set of commands and answers whatever the version of the data.
"""

import json
import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

from bmrl.envs.alfworld.game import Game, Goal, layout, player_names
from bmrl.envs.alfworld.tables import KINDS, tables
from bmrl.errors import BmrlError

COMPILED = "game.tw-pddl"  # the file's name
OLDER, CURRENT = "put {o} in/on {r}", "move {o} to {r}"
UNKNOWN = "UNKNOWN GOAL"  # stands in ALFWorld's grammar for the sentence of a game

_REPLACED = (
    (OLDER, CURRENT),
    ("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}."),
    ("You arrive at {lend.name}.", "You arrive at {r.name}."),
)
_HELP_ACTION = "(:action help :parameters (?a - agent) :precondition () :effect (and (checked ?a)))"
_HELP_GRAMMAR = '''
action help {
    template :: "help";
    feedback :: "#help.feedback#";
    grammar :: """
        {"help.feedback": [{"rhs": %s}]}
    """;
}
'''
_GOAL = '"Your task is to: '
_STRING = re.compile(r'(?:[^"\\]|\\.)*(?=")')  # the rest of a JSON string; quotes in it are escaped
_PUT = re.compile(r'\baction\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"')
_HELP = re.compile(r'"\s*(?:\\n)?(Available commands:[^"]*)"')
_ATOM = re.compile(r"\((\w+)((?:\s+\w+)*)\s*\)")
_GOAL_TYPE = re.compile(r"\(objecttype \?(\w+) (\w+)type\)")
_GOAL_RECEPTACLE = re.compile(r"\(receptacletype \?r (\w+)type\)")
_STATES = {"clean": "isclean", "hot": "ishot", "cool": "iscool"}
_ALSO = {"sliced": "issliced", "toggled": "istoggled", "opened": "opened"}


def read(path: Path) -> dict[str, Any]:
    """The JSON of a ``game.tw-pddl``, brought up to date.

    Raises:
        BmrlError: it is missing or damaged, or its grammar is of no known version.
    """
    return up_to_date(decode(content(path), path), path)


def content(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        BmrlError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BmrlError(f"{path}: cannot be read ({error.strerror})") from error


def decode(text: bytes, path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        BmrlError: it is not one.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BmrlError(f"{path}: cannot be read ({error})") from error
    if not isinstance(raw, dict):
        raise BmrlError(f"{path}: not a JSON object")
    return raw


def put_template(grammar: str) -> str:
    """How a grammar says to put a thing somewhere; "" if it does not.

    Raises:
        ValueError: it has no task.
    """
    return _constant(without_sentence(grammar))[0]


@lru_cache(maxsize=16)
def _constant(grammar: str) -> tuple[str, str]:
    """What does not differ from game to game: how to put, and the answer to "help", each "" if there is none."""
    put, told = _PUT.search(grammar), _HELP.search(grammar)
    return put.group(1) if put else "", told.group(1).replace("\\n", "\n") if told else ""


def up_to_date(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same game with today's grammar.

    Raises:
        BmrlError: it was made for a grammar of no known version.
    """
    try:
        grammar, domain = str(raw["grammar"]), str(raw.get("pddl_domain", ""))
        put = put_template(grammar)
    except (KeyError, ValueError) as error:
        raise BmrlError(f"{path}: not a {COMPILED} ({error!r})") from error
    if put not in (OLDER, CURRENT, ""):
        raise BmrlError(f"{path}: its grammar says {put!r} for {CURRENT!r}; no version of ALFWorld does")
    if put != OLDER:
        return raw
    for old, new in _REPLACED:
        grammar = grammar.replace(old, new)
    if not re.search(r"\baction\s+help\b", grammar):
        grammar += _HELP_GRAMMAR % json.dumps("\n" + tables().help)
    if not re.search(r"\(:action\s+help\b", domain):
        head, _, tail = domain.rpartition(")")
        domain = f"{head}{_HELP_ACTION}\n){tail}"
    return {**raw, "grammar": grammar, "pddl_domain": domain}


def sentence_of(grammar: str) -> str:
    """A game's goal as the player reads it, without the full stop.

    Raises:
        ValueError: the grammar has none.
    """
    start, end = _sentence(grammar)
    return str(json.loads(f'"{grammar[start:end]}"')).removesuffix(".")


def without_sentence(grammar: str) -> str:
    """The grammar before the game's goal was written into it: the same for many games.

    Raises:
        ValueError: the grammar has none.
    """
    start, end = _sentence(grammar)
    return f"{grammar[:start]}{UNKNOWN}.{grammar[end:]}"


def _sentence(grammar: str) -> tuple[int, int]:
    start = grammar.find(_GOAL) + len(_GOAL)
    found = _STRING.match(grammar, start)
    if start < len(_GOAL) or found is None:
        raise ValueError("its grammar has no task")
    return start, found.end()


def read_game(path: Path) -> Game:
    """Read one ``game.tw-pddl``.

    Raises:
        BmrlError: it is missing, damaged, or its goal is of no known kind.
    """
    return parse(read(path), path.parent.as_posix())


def parse(raw: dict[str, Any], task_id: str) -> Game:
    """Read the JSON of a ``game.tw-pddl``.

    Raises:
        BmrlError: a part is missing, or the goal is of no known kind.
    """
    try:
        text, grammar = raw["pddl_problem"].lower(), raw["grammar"]
        init, goal_text = text.split("(:init", 1)[1].split("(:goal", 1)
        return _game(task_id, init, _goal(goal_text), sentence_of(grammar), grammar)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise BmrlError(f"{task_id}: not a {COMPILED} ({error!r})") from error


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
        help=_constant(without_sentence(grammar))[1],
    )

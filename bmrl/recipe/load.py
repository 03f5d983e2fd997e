"""A recipe file and its overrides -> a valid recipe, or every mistake at once."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bmrl.errors import RecipeError
from bmrl.recipe import messages
from bmrl.recipe.reader import apply, read_file, shown
from bmrl.recipe.rules import Key, Problem
from bmrl.recipe.schema import Recipe

# Contradictions are looked for even when some keys are wrong; these stand in for keys without a default that
# are missing or wrong. A contradiction that touches a wrong key is not reported.
_STAND_IN: dict[Key, Any] = {
    ("name",): "x",
    ("budget",): {"train": {"kind": "fixed", "turns": 1}},
    ("budget", "train"): {"kind": "fixed", "turns": 1},
    ("train", "steps"): 1,
    ("sft", "episodes"): 1,
}


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        path: a YAML file.
        overrides: ``a.b=value`` texts, applied in order; a value is a YAML scalar, list or section.

    Raises:
        RecipeError: with every mistake of the file and the overrides, each one line, in the order of the
            lines and then of the overrides.
    """
    source = read_file(path)
    if isinstance(source.data, dict):
        apply(source, overrides)
        recipe, problems = _validated(source.data)
        if recipe is None:
            problems += _contradictions(source.data, [key for key, _ in problems])
        problems += _environment(source.data)
        for key, text in problems:
            source.add(source.place(key), key, text)
        if recipe is not None and not source.problems:
            return recipe
    ordered = sorted(source.problems, key=lambda problem: problem[0])
    raise RecipeError(list(dict.fromkeys(line for _, line in ordered)))


def _validated(data: Any) -> tuple[Recipe | None, list[Problem]]:
    try:
        return Recipe.model_validate(data), []
    except ValidationError as error:
        return None, messages.problems(error.errors(include_url=False), data)


def _contradictions(data: Any, wrong: Sequence[Key]) -> list[Problem]:
    """Contradictions among the keys that are valid, found on a copy with the wrong ones replaced."""
    repaired = deepcopy(data)
    for key in wrong:
        _repair(repaired, key)
    _fill(repaired)
    _, problems = _validated(repaired)
    return [
        (key, text) for key, text in problems if not any(_related(key, other) for other in wrong)
    ]


def _repair(data: Any, key: Key) -> None:
    """Removes a wrong key, and as much around it as has no default."""
    named = key[: next((n for n, part in enumerate(key) if isinstance(part, int)), len(key))]
    named = next((k for k in _STAND_IN if k == named[: len(k)] and len(k) > 1), named)
    *around, last = named
    for part in around:
        data = data.get(part) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(last, None)


def _fill(data: Any) -> None:
    """Puts a stand-in wherever a section lacks a key that it needs."""
    for (*around, last), value in _STAND_IN.items():
        inside = data
        for part in around:
            inside = inside.get(part) if isinstance(inside, dict) else None
        if isinstance(inside, dict):
            inside.setdefault(last, deepcopy(value))


def _related(one: Key, other: Key) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _environment(data: Any) -> list[Problem]:
    """An environment that bmrl does not have."""
    section = data.get("env")
    name = section.get("name", "alfworld") if isinstance(section, dict) else None
    names = _environments()
    if not isinstance(name, str) or name in names:
        return []
    return [
        (("env", "name"), f"unknown environment {shown(name, 40)}; {messages.choose(name, names)}")
    ]


def _environments() -> list[str]:
    return ["alfworld"]

"""A recipe file and its overrides -> a valid recipe, or every mistake at once."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bmrl.budgets import largest
from bmrl.envs import beyond_own_limit, environment, make, missing, names, parameters, takes_any
from bmrl.envs.alfworld.splits import SPLITS
from bmrl.errors import BmrlError, RecipeError, UsageError
from bmrl.recipe import messages
from bmrl.recipe.reader import apply, read_file, shown
from bmrl.recipe.rules import Key, Problem
from bmrl.recipe.schema import Recipe

# Contradictions are looked for even when some keys are wrong; these stand in for keys without a
# default that are missing or wrong. A contradiction that touches a wrong key is not reported.
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
        RecipeError: with every mistake of the file and the overrides, each one line, in the order
        of the
            lines and then of the overrides.
    """
    source = read_file(path)
    if isinstance(source.data, dict):
        apply(source, overrides)
        recipe, problems = _validated(source.data)
        if recipe is None:
            problems += _contradictions(source.data, [key for key, _ in problems])
        wrong = {key for key, _ in problems}
        problems += [problem for problem in _environment(source.data) if problem[0] not in wrong]
        problems += _own_limit(recipe) if recipe is not None and not problems else []
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
    """Contradictions among the keys that are valid, found on a copy with the wrong ones
    replaced."""
    repaired = deepcopy(data)
    for key in wrong:
        _repair(repaired, key)
    _fill(repaired)
    _, problems = _validated(repaired)
    return [(key, text) for key, text in problems if not any(_related(key, other) for other in wrong)]


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
    """An unknown environment, arguments that it does not take, splits that it does not have."""
    section = data.get("env", {})
    if not isinstance(section, dict):
        return []
    name, args = section.get("name", "alfworld"), section.get("args")
    args = args if isinstance(args, dict) else {}
    if not isinstance(name, str):
        return []
    if name not in (known := names()):
        problem = f"unknown environment {shown(name, 40)}; {messages.choose(name, known)}"
        return [(("env", "name"), problem)]
    try:
        environment(name)
    except UsageError as error:
        return [(("env", "name"), str(error))]
    problems = list(argument_problems(name, args))
    if not problems:
        try:
            make(name, **args).close()
        except (UsageError, RuntimeError) as error:  # RuntimeError: no such home folder
            at = next((arg for arg in args if arg in str(error)), None)
            problems.append((("env", "args", at) if at else ("env", "args"), shown(str(error), 200)))
        except BmrlError:
            pass  # valid, but cannot run on this machine; `check.missing` says so
    return [*problems, *unknown_splits(name, args, section)]


def argument_problems(name: str, args: Mapping[str, Any]) -> Iterator[Problem]:
    """Arguments of an environment that it does not know, needs, or has as another type."""
    known = parameters(environment(name))
    for arg in missing(known, args):
        yield ("env", "args"), f"{name} needs the argument {arg}; add it"
    for arg, value in args.items():
        key: Key = ("env", "args", arg)
        if arg not in known:
            if not takes_any(known):
                yield key, f"{name} has no such argument; {messages.choose(arg, list(known))}"
            continue
        parameter = known[arg]
        expected = messages.PLAIN_TYPES.get(parameter.annotation)
        whole = parameter.annotation is float and type(value) is int  # 1 is a number, too
        if expected and type(value) is not parameter.annotation and not whole:
            fix = (
                f"; the default is {messages.got(parameter.default)}"
                if parameter.default is not parameter.empty
                else ""
            )
            yield key, f"expected {expected}, got {messages.got(value)}{fix}"


def _own_limit(recipe: Recipe) -> list[Problem]:
    """Budgets that the environment would cut short by itself."""
    asked = [(("budget", "eval"), max(recipe.budget.eval))]
    if recipe.train is not None:
        asked.insert(0, (("budget", "train"), largest(recipe.budget.train)))
    try:
        told = [(key, beyond_own_limit(recipe.env.name, recipe.env.args, turns)) for key, turns in asked]
    except BmrlError:
        return []  # what it lacks is told elsewhere
    return [(key, problem) for key, problem in told if problem is not None]


def unknown_splits(name: str, args: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[Problem]:
    """Splits of an `env` section that the environment's games do not have; nothing where it cannot tell."""
    try:
        env = make(name, **args)
    except (BmrlError, RuntimeError):
        return  # told with the arguments
    try:
        known: list[str] = getattr(env, "splits", list)()
    except UsageError as error:  # a folder without games
        yield ("env", "args"), shown(str(error), 200)
        return
    finally:
        env.close()
    for key in ("train_split", "eval_split"):
        split = section.get(key)
        if known and isinstance(split, str) and split not in known:
            where = "the games' folder has"
            if tuple(known) == SPLITS:
                where = "the embedded games have"
            elif name != "alfworld":
                where = f"{name} has"
            yield ("env", key), f"{where} no split {shown(split, 40)}; {messages.choose(split, known)}"

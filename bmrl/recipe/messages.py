"""Words for what pydantic found: plain, one line, with a hint."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args

from pydantic_core import ErrorDetails, PydanticUndefined

from bmrl.recipe.reader import dotted, scalar, shown
from bmrl.recipe.rules import Contradictions, Key, Problem
from bmrl.recipe.schema import Recipe, Section

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section",
    "model_type": "a section",
    "model_attributes_type": "a section",
    "none_required": "null",
}
# Types that an environment's argument may have.
PLAIN_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}


def problems(errors: Sequence[ErrorDetails], data: Any) -> list[Problem]:
    """One problem per place, in the order of the errors."""
    grouped: dict[Key, list[ErrorDetails]] = {}
    contradictions: list[Problem] = []
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            contradictions += cause.problems
        else:
            grouped.setdefault(_key(error, data), []).append(error)
    # A value of several allowed types is refused by each; the mistake inside it says more.
    outer = {key[:n] for key in grouped for n in range(len(key))}
    found = {
        key: _worded(key, group, data)
        for key, group in grouped.items()
        if key not in outer or group[0]["type"] == "extra_forbidden"
    }
    meant = {
        (*key[:-1], match)
        for key, group in grouped.items()
        if group[0]["type"] == "extra_forbidden" and (match := _close(key[-1], _names(key, data)))
    }
    missing = {key for key, group in grouped.items() if group[0]["type"] == "missing"}
    return [(k, text) for k, text in found.items() if k not in meant & missing] + contradictions


def _key(error: ErrorDetails, data: Any) -> Key:
    """The error's path in the data: pydantic's also names the alternatives of a union."""
    key: list[str | int] = []
    inside = data
    for part in error["loc"]:
        known = isinstance(inside, dict) and part in inside
        if known or (isinstance(inside, list) and isinstance(part, int)):
            inside = inside[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        key.append(part)
    if error["type"].startswith("union_tag"):
        key.append("kind")
    return tuple(key)


def _worded(key: Key, errors: Sequence[ErrorDetails], data: Any) -> str:
    error = errors[0]
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return f"missing; add it: {_about(key, data)}"
    if kind == "extra_forbidden":
        return f"unknown key; {_known(key, data)}"
    if kind.startswith("union_tag"):
        kinds = ", ".join(tags(field_at(key[:-1], data)))
        tag = context.get("tag")
        if tag is None:
            return f"missing; add one of: {kinds}"
        return f"unknown kind {shown(str(tag), 40)}; {_choose(str(tag), kinds.split(', '))}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = got(context[name])
        return f"must be {words} {bound.removesuffix('.0')}, got {got(value)}; {_about(key, data)}"
    if kind == "too_short":
        return f"the list is empty; {_about(key, data)}"
    if kind == "string_too_short":
        return f"the text is empty; {_about(key, data)}"
    if kind == "string_pattern_mismatch":
        return f"letters, digits, `.`, `_` and `-` only, a letter or digit first, got {got(value)}; {_about(key, data)}"
    if kind == "finite_number":
        return f"must be a finite number, got {got(value)}; {_about(key, data)}"
    if kind == "literal_error" and len(errors) == 1:
        choices = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"expected one of {', '.join(choices)}, got {got(value)}; " + (
            _choose(value, choices, "") or _about(key, data)
        )
    expected = list(dict.fromkeys(_expected(e) for e in errors))
    return f"expected {' or '.join(expected)}, got {got(value)}; {_fix(expected, value, key, data)}"


def _expected(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"]).replace("'", "")
    return _EXPECTED.get(error["type"], shown(error["msg"], 100))


def got(value: Any) -> str:
    """A value as a reader of YAML would name it."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return f'text "{shown(value, 40)}"'
        case float():
            return repr(value)
        case list():
            return "a list"
        case dict():
            return "a section"
    return shown(str(value), 40)


def _fix(expected: Sequence[str], value: Any, key: Key, data: Any) -> str:
    """The most likely cure of a wrong type."""
    if isinstance(value, str) and {"a number", "a whole number"} & {*expected}:
        number = scalar(value.strip().replace("_", "").replace(",", ""))
        if type(number) in (int, float):
            return f"write {got(number)}"
    if isinstance(value, float) and "a whole number" in expected and value.is_integer():
        return f"write {int(value)}"
    if "true or false" in expected and isinstance(value, str | int) and not isinstance(value, bool):
        truth = {
            "on": "true",
            "yes": "true",
            "off": "false",
            "no": "false",
            "1": "true",
            "0": "false",
        }
        if str(value).lower() in truth:
            return f"write {truth[str(value).lower()]}"
    if expected == ["text"] and isinstance(value, int | float):
        return f'put it in quotes: "{got(value)}"'
    if expected == ["a list"] and isinstance(value, str | int | float):
        return f"write [{shown(str(value), 40)}]"
    return _about(key, data)


def _about(key: Key, data: Any) -> str:
    """What a key means, and its default."""
    while (field := field_at(key, data)) is None and key:
        key = key[:-1]
    text: str = (field.description if field is not None else None) or "see the recipe reference"
    default = None if field is None else field.get_default(call_default_factory=True)
    if default in (None, PydanticUndefined, {}) or isinstance(default, Section):
        return text
    default = str(default).replace("'", "") if isinstance(default, list) else got(default)
    return f"{text} (default {default.removeprefix('text ').strip(chr(34))})"


def _known(key: Key, data: Any) -> str:
    """What may have been meant by an unknown key."""
    names = _names(key, data)
    match = _close(key[-1], names)
    if match:
        return f"did you mean {match}?"
    others = [k for k in schema_keys() if k[:-1] != key[:-1]]
    close = get_close_matches(str(key[-1]), [str(k[-1]) for k in others], n=1, cutoff=0.75)
    if close:
        return f"did you mean {' or '.join(dotted(k) for k in others if k[-1] == close[0])}?"
    return f"known here: {', '.join(names)}"


def _names(key: Key, data: Any) -> list[str]:
    section = _section_at(key[:-1], data)
    return list(section.model_fields) if section is not None else []


def _close(word: object, names: Sequence[str]) -> str | None:
    text = str(word).lower()
    starts = [n for n in names if len(n) > 2 and text.startswith(n)]
    matches = starts or get_close_matches(text, names, n=1, cutoff=0.6)
    return matches[0] if matches else None


def _choose(word: object, choices: Sequence[str], otherwise: str | None = None) -> str:
    match = _close(word, choices) if isinstance(word, str) else None
    if match:
        return f"did you mean {match}?"
    return f"choose one of: {', '.join(choices)}" if otherwise is None else otherwise


def choose(word: str, choices: Sequence[str]) -> str:
    """Hint for a name that is none of the choices."""
    return _choose(word, choices)


def field_at(key: Key, data: Any) -> Any:
    """The schema's field for a key, a list's own for its entries; None where there is no such
    key."""
    while key and isinstance(key[-1], int):
        key = key[:-1]
    if not key:
        return None
    section = _section_at(key[:-1], data)
    return section.model_fields.get(str(key[-1])) if section is not None else None


def _section_at(key: Key, data: Any) -> type[Section] | None:
    section: type[Section] | None = Recipe
    for part in key:
        field = section.model_fields.get(str(part)) if section is not None else None
        data = data.get(part) if isinstance(data, Mapping) else None
        candidates = list(sections(field.annotation)) if field is not None else []
        kind = data.get("kind") if isinstance(data, Mapping) else None
        chosen = [s for s in candidates if len(candidates) == 1 or kind in kinds(s)]
        section = chosen[0] if chosen else None
    return section


def kinds(section: type[Section]) -> tuple[Any, ...]:
    """The names by which a recipe chooses this section among several."""
    return get_args(section.model_fields["kind"].annotation)


def tags(field: Any) -> list[str]:
    """The kinds that a key with several sections can have."""
    return [kind for section in sections(field.annotation) for kind in kinds(section)]


def sections(annotation: Any) -> Iterator[type[Section]]:
    """The section classes an annotation allows."""
    if isinstance(annotation, type) and annotation is not NoneType and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from sections(inner)


def schema_keys(section: type[Section] = Recipe, key: Key = ()) -> list[Key]:
    """Every key of the schema, sections included; those of alternatives once."""
    keys: dict[Key, None] = {}
    for name, field in section.model_fields.items():
        keys[(*key, name)] = None
        for inner in sections(field.annotation):
            keys |= dict.fromkeys(schema_keys(inner, (*key, name)))
    return list(keys)

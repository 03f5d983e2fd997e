"""YAML text -> plain data that remembers where every key was written.

A recipe is a small part of YAML, read by the rules of YAML 1.2: `1e-5` is a number, only `true` and
`false` are booleans, and nothing refers to anything else (no anchors, aliases, merge keys or tags).
PyYAML does the parsing; its own reading of scalars follows YAML 1.1 and is not used.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

from bmrl.errors import RecipeError
from bmrl.recipe.rules import Key

MAX_BYTES = 32_000  # a recipe has about 3,000; more would take seconds to parse
MAX_DEPTH = 12
_INT = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something was written: its position among all places, and its text for a message."""

    order: tuple[int, int]  # (0, line) in the file, (1, index) of an override
    text: str = field(compare=False)


@dataclass(slots=True)
class Source:
    """What was read so far: the data, the place of every key, and finished lines about mistakes."""

    file: str
    data: Any = None
    places: dict[Key, Place] = field(default_factory=dict)
    problems: list[tuple[Place, str]] = field(default_factory=list)

    def place(self, key: Key) -> Place:
        """The place of a key; of the nearest section around it when the key itself is not there."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, Place((0, 1), f"{self.file}:1"))

    def add(self, place: Place, key: Key, problem: str) -> None:
        """Adds a finished line, `place: key.path: problem; hint`."""
        prefix = f"{place.text}: {dotted(key)}: " if key else f"{place.text}: "
        self.problems.append((place, prefix + problem))


PlaceOf = Callable[[int], Place]


class _Stop(Exception):
    """Nothing after this mistake can be read."""


def dotted(key: Key) -> str:
    """A key's path as a recipe's reader writes it."""
    return ".".join(shown(str(part)) for part in key)


def shown(text: str, limit: int = 60) -> str:
    """Text for a one-line message: control characters escaped, long text cut."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_file(path: Path) -> Source:
    """Reads a recipe file.

    Raises:
        RecipeError: the file cannot be read or is not text.
    """
    source = Source(shown(str(path), 200))
    text = _text(path)
    _parse(text, source, (), lambda line: Place((0, line), f"{source.file}:{line}"))
    if source.data is None and not source.problems:
        _refuse(source.file, "is empty", "start from a packaged recipe: bmrl new NAME")
    if not isinstance(source.data, dict) and not source.problems:
        kind = "a list" if isinstance(source.data, list) else "a single value"
        _refuse(f"{source.file}:1", f"the file holds {kind}", "a recipe is `key: value` lines")
    return source


def apply(source: Source, overrides: Sequence[str]) -> None:
    """Sets keys of `source` from `a.b=value` texts, in their order; mistakes go to its problems."""
    for index, override in enumerate(overrides):
        place = Place((1, index), f"--set {shown(override, 80)}")
        path, equals, text = override.partition("=")
        key: Key = tuple(path.strip().split("."))
        if not equals or "" in key:
            source.add(place, (), "expected KEY=VALUE; for example --set train.steps=3")
        elif not text.strip() or text.lstrip().startswith("#"):  # YAML would read a comment, that is nothing
            source.add(place, key, "no value after `=`; write null to unset a key")
        else:
            value = Source(source.file)
            _parse(text, value, key, partial(_same, place))
            source.problems += value.problems
            if not value.problems:
                _set(source, key, value, place)


def _set(source: Source, key: Key, value: Source, place: Place) -> None:
    inside = source.data
    real: list[str | int] = []  # the key, with positions in lists as numbers
    for depth, part in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(inside, list):
            if not str(part).isdecimal() or len(str(part)) > 9 or int(part) >= len(inside):
                problem = f"no such entry; the list has {len(inside)}, counted from 0"
                source.add(place, key[: depth + 1], problem)
                return
            part = int(part)
        elif not isinstance(inside, dict):
            source.add(place, key[:depth], "has no keys; set it as a whole")
            return
        real.append(part)
        if not last:
            if isinstance(inside, dict) and inside.get(part) is None:
                inside[part] = {}
                source.places[tuple(real)] = place
            inside = inside[part]
    inside[real[-1]] = value.data
    whole = tuple(real)
    for old in [k for k in source.places if k[: len(whole)] == whole]:
        del source.places[old]
    source.places |= {(*whole, *k[len(key) :]): place for k in value.places}


def _same(place: Place, line: int) -> Place:
    """An override has no lines: everything in it has its place."""
    return place


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse(str(path), "no such file", "bmrl recipes lists the packaged ones")
    except IsADirectoryError:
        _refuse(str(path), "is a folder", "name a recipe file in it")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(str(path), f"cannot be read ({reason.lower()})", "check the path and its permissions")
    if len(raw) > MAX_BYTES:
        _refuse(str(path), f"larger than {MAX_BYTES:,} bytes", "this is no recipe")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        _refuse(f"{path}:{line}", "not UTF-8 text", "save the recipe as UTF-8")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        _refuse(f"{path}:{line}", "a binary file", "a recipe is YAML text")
    return text


def _refuse(place: str, problem: str, hint: str) -> NoReturn:
    raise RecipeError([f"{shown(place, 200)}: {problem}; {hint}"])


def _parse(text: str, source: Source, key: Key, place_of: PlaceOf) -> None:
    """Parses one document into `source.data`, whose own key is `key`; stops where YAML itself
    ends."""
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        next(events)  # stream start
        if isinstance(next(events), yaml.StreamEndEvent):
            return
        source.data = _value(next(events), events, source, key, place_of)
        next(events)  # document end
        extra: Any = next(events)
        if not isinstance(extra, yaml.StreamEndEvent):
            place = place_of(extra.start_mark.line + 1)
            source.add(place, key, "a second document starts; remove `---` and the rest")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = place_of(mark.line + 1 if mark else 1)
        problem = shown(error.problem or error.context or "broken", 100)
        source.add(place, key, f"not valid YAML ({problem}); {_yaml_hint(problem)}")
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        source.add(place_of(line), key, f"control character (code {error.character}); remove it")
    except _Stop:
        pass


def _yaml_hint(problem: str) -> str:
    if "'\\t'" in problem:
        return "indent with spaces, not tabs"
    if "cannot start any token" in problem:
        return "put the text in quotes"
    if "mapping values are not allowed" in problem:
        return "put a text that holds `: ` in quotes, or check the indentation"
    return "check brackets, quotes and indentation"


def _value(event: Any, events: Iterator[Any], source: Source, key: Key, place_of: PlaceOf) -> Any:
    line = event.start_mark.line + 1
    place = place_of(line)
    source.places.setdefault(key, place)
    if isinstance(event, yaml.AliasEvent):
        source.add(
            place,
            key,
            f"refers to another place (*{shown(str(event.anchor))}); write the value out",
        )
        return None
    if event.anchor is not None:
        source.add(
            place,
            key,
            f"has an anchor (&{shown(str(event.anchor))}); write values out and remove it",
        )
    if event.tag is not None:
        source.add(place, key, f"has a tag ({shown(str(event.tag))}); a recipe is plain data, remove it")
    if isinstance(event, yaml.ScalarEvent):
        plain = event.style is None and event.tag is None
        return scalar(event.value) if plain else event.value
    if len(key) > MAX_DEPTH:
        source.add(place, key[:MAX_DEPTH], "nested too deeply; a recipe has no such key")
        raise _Stop
    if isinstance(event, yaml.SequenceStartEvent):
        values: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            values.append(_value(event, events, source, (*key, len(values)), place_of))
        return values
    return _section(events, source, key, place_of)


def _section(events: Iterator[Any], source: Source, key: Key, place_of: PlaceOf) -> dict[str, Any]:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        place = place_of(line)
        if not isinstance(event, yaml.ScalarEvent):
            source.add(place, key, "a key must be a single word; check brackets and colons")
            raise _Stop
        if event.anchor is not None or event.tag is not None:
            source.add(place, (*key, event.value), "a key has an anchor or a tag; remove it")
        name, inner = event.value, (*key, event.value)
        if name == "<<" and event.style is None:
            source.add(place, key, "a merge key (<<); a recipe is complete in itself, write the keys out")
            _value(next(events), events, Source(source.file), inner, place_of)
            continue
        if name in values:
            source.add(place, inner, f"is set twice, first on line {lines[name]}; keep one")
            _value(next(events), events, Source(source.file), inner, place_of)
            continue
        lines[name] = line
        source.places[inner] = place
        values[name] = _value(next(events), events, source, inner, place_of)
    return values


def scalar(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text

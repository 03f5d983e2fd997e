"""The compact record of a TextWorld game: its facts, its names and what wins or loses it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

Fact = tuple[str, ...]  # predicate, then ids: ("at", "P", "r_0")
Events = tuple[tuple[Fact, ...], ...]  # any one of them, with all of its facts


@dataclass(frozen=True, slots=True)
class Record:
    """One game made by a generator of TextWorld.

    Attributes:
        task_id: ``<world>-<kind>-<seed>``.
        kind: family of the game within its world.
        settings: what its generator was asked for, sorted by name.
        seed: of the generator.
        facts: all that is true at the start, sorted.
        names: id and name of what has one, sorted by id.
        quests: what each quest is won and failed by; the game is won when all that can be won are.
        plan: a shortest list of commands that wins, found with full knowledge.
        search_turns: turns the exploring expert needed in seeded plays; None: not solved.
    """

    task_id: str
    kind: str
    settings: tuple[tuple[str, Any], ...]
    seed: int
    facts: tuple[Fact, ...]
    names: tuple[tuple[str, str], ...]
    quests: tuple[tuple[Events, Events], ...]
    plan: tuple[str, ...] = ()
    search_turns: tuple[int | None, ...] = ()

    @property
    def content(self) -> str:
        """What makes two games the same game, whatever their seeds."""
        return hashlib.sha256(json.dumps([self.facts, self.names]).encode()).hexdigest()

    def to_json(self) -> str:
        """One line of JSON; equal records give equal lines."""
        raw = {name: getattr(self, name) for name in self.__dataclass_fields__}
        raw["facts"] = [" ".join(fact) for fact in self.facts]
        raw["quests"] = [[[[" ".join(f) for f in e] for e in events] for events in quest] for quest in self.quests]
        return json.dumps(raw, separators=(",", ":"))


def record_from_json(line: str) -> Record:
    """Read one line that `Record.to_json` wrote.

    Raises:
        ValueError: the line is not such a record (TypeError and KeyError are turned into it).
    """
    try:
        raw: dict[str, Any] = json.loads(line)
        raw["facts"] = tuple(tuple(fact.split()) for fact in raw["facts"])
        for key in ("settings", "names"):
            raw[key] = tuple((name, value) for name, value in raw[key])
        raw["quests"] = tuple((_events(won), _events(lost)) for won, lost in raw["quests"])
        for key in ("plan", "search_turns"):
            raw[key] = tuple(raw[key])
        return Record(**raw)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a game record: {error}") from error


def _events(raw: Any) -> Events:
    return tuple(tuple(tuple(fact.split()) for fact in event) for event in raw)

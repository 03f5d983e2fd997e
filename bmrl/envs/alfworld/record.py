"""The compact record of a game: enough to play it or to write it in ALFWorld's own format."""

import json
from dataclasses import dataclass
from typing import Any

from bmrl.envs.alfworld.tables import Pose


@dataclass(frozen=True, slots=True)
class Record:
    """One generated ALFWorld-format game.

    Attributes:
        task_id: ``<kind>-<object>-None-<target>-<room>/<trial>``: ALFWorld's folder names.
        room: number of the iTHOR room.
        seed: the text its random draws are keyed by.
        object: class to be found, as THOR spells it.
        receptacle: class it must be placed in; "" for `look_at_obj_in_light`.
        lamp: class of the lamp for `look_at_obj_in_light`; else "".
        sentence: the goal as the player reads it.
        start: pose the agent starts at; no receptacle is there.
        receptacles: id and pose, in the order of the ids.
        objects: id and the index of its receptacle, in the order of the ids.
        plan: a shortest list of commands that wins, found with full knowledge.
        search_turns: turns the exploring expert needed in seeded plays; None: not solved.
    """

    task_id: str
    kind: str
    room: int
    seed: str
    object: str
    receptacle: str
    lamp: str
    sentence: str
    start: Pose
    receptacles: tuple[tuple[str, Pose], ...]
    objects: tuple[tuple[str, int], ...]
    plan: tuple[str, ...] = ()
    search_turns: tuple[int | None, ...] = ()

    @property
    def content(self) -> tuple[Any, ...]:
        """What makes two games the same game, whatever their names and wording."""
        return (
            *(self.kind, self.room, self.object, self.receptacle, self.lamp),
            *(self.start, self.receptacles, self.objects),
        )

    def to_json(self) -> str:
        """One line of JSON; equal records give equal lines."""
        raw = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(raw, separators=(",", ":"))


def _pose(raw: Any) -> Pose:
    x, z, turn, horizon = raw
    return x, z, turn, horizon


def record_from_json(line: str) -> Record:
    """Read one line that `Record.to_json` wrote.

    Raises:
        ValueError: the line is not such a record (TypeError and KeyError are turned into it).
    """
    try:
        raw: dict[str, Any] = json.loads(line)
        raw["start"] = _pose(raw["start"])
        raw["receptacles"] = tuple((thing, _pose(pose)) for thing, pose in raw["receptacles"])
        raw["objects"] = tuple((thing, index) for thing, index in raw["objects"])
        raw["plan"] = tuple(raw["plan"])
        raw["search_turns"] = tuple(raw["search_turns"])
        record = Record(**raw)
        texts = (record.task_id, record.kind, record.object, record.receptacle, record.lamp, record.sentence)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text is none")
        if not all(index in range(len(record.receptacles)) for _, index in record.objects):
            raise TypeError("an object lies in no receptacle")
        return record
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a game record: {error}") from error

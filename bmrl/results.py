"""The two files of an evaluation: its episodes, a line each, and its result."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bmrl import run_folder
from bmrl.atomic import write_json
from bmrl.types import Episode


def write(folder: Path, name: str, episodes: Sequence[Episode], answer: Mapping[str, Any]) -> None:
    """``name.jsonl``, then ``name.json``: where the second stands, both are whole."""
    run_folder.write_lines(folder / f"{name}.jsonl", episodes)
    write_json(folder / f"{name}.json", answer)


def name_of(answer: Mapping[str, Any], *parts: str | None) -> str:
    """A file name that two evaluations share only if all their settings are equal.

    Args:
        parts: more to be read in it, such as the checkpoint.
    """
    settings = {key: answer[key] for key in ("target", "split_hash", "seeds", "announce", "sampling", "tasks")}
    settings["budgets"] = [point["budget"] for point in answer["budgets"]]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return "-".join(part for part in (answer["split"], *parts, digest) if part)

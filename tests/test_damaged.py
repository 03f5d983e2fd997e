"""Files that are read back, with every value replaced: one line that names the file, or a sound value; no traceback."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_run

from bmrl import strict
from bmrl.episodes import read_episodes
from bmrl.errors import BmrlError
from bmrl.evaluations import read as read_evaluation
from bmrl.metrics import MetricsFile
from bmrl.report.read import read as read_report
from bmrl.run_folder import load_resolved, load_system

GONE = object()
JUNK = (None, "x", float("nan"), float("inf"), -1, [], {}, 10**400, True, [[]], {"a": 1}, [None], 3.5, GONE)
HEAD, PLAYED = "eval/step-000010.json", "eval/step-000010.jsonl"
# File, which of its lines (None: it is one value), and who reads it.
READERS = {
    "evaluation": (HEAD, None, lambda run: read_evaluation(run / HEAD)),
    "episodes": (PLAYED, 0, lambda run: read_episodes(run / PLAYED)),
    "metrics": ("metrics.jsonl", 1, lambda run: MetricsFile(run / "metrics.jsonl").read()),
    "recipe": ("recipe.resolved.json", None, load_resolved),
    "system": ("system.json", None, load_system),
    "report": (HEAD, None, lambda run: read_report([run])),
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value has values, itself first; of a list, its first three."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], junk: Any) -> Any:
    if not at:
        return junk
    value = copy.deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    if junk is GONE:
        del inner[at[-1]]
    else:
        inner[at[-1]] = junk
    return value


@pytest.mark.parametrize("name", READERS)
def test_any_value_may_be_damaged(name: str, tmp_path: Path) -> None:
    file, line, read = READERS[name]
    run = report_run.make(tmp_path)
    path = run / file
    whole = path.read_text()
    parts = [whole] if line is None else whole.splitlines()
    value = json.loads(parts[line or 0])
    refused = 0
    for at in places(value):
        for junk in JUNK:
            if not at and junk is GONE:
                continue
            damaged = [*parts]
            damaged[line or 0] = json.dumps(replaced(value, at, junk))
            path.write_text("\n".join(damaged) + "\n")
            try:
                read(run)
            except BmrlError as error:
                refused += 1
                assert str(path) in str(error) or str(run) in str(error), (at, junk)
                assert "\n" not in str(error)
    assert refused > 20
    path.write_text(whole)
    read(run)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "9" * 400, "[" * 100_000, "{", "", "\x00"])
def test_what_is_no_json_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        strict.loads(text)


def test_true_is_no_number() -> None:
    values = [0, -1.5, 10**300, True, float("nan"), float("inf"), "1", None]
    assert [strict.is_number(value) for value in values] == [True, True, True, False, False, False, False, False]

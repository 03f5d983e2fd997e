"""The file that the numbers of each training step are written to."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bmrl.atomic import append_json, write_text
from bmrl.errors import BmrlError
from bmrl.glossary import metric
from bmrl.strict import is_number, loads


def evaluation_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """What trackers are told of an evaluation, see ``evaluate.result``."""
    curve = {f"eval_success_at_{row['budget']}": float(row["success"]) for row in result["budgets"]}
    return {"eval_area": float(result["area"]), **curve}


class MetricsFile:
    """``metrics.jsonl`` of a run: one line of JSON per training step.

    A number that is not finite is written as null, which JSON has and NaN it has not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, float | None]) -> None:
        """Write one step's line.

        Raises:
            KeyError: a key is not in the glossary.
            BmrlError: the disk is full or forbidden.
        """
        unknown = [key for key in record if metric(key) is None]
        if unknown:
            raise KeyError(f"not in the metrics glossary: {', '.join(unknown)}")
        finite = {key: value if value is not None and math.isfinite(value) else None for key, value in record.items()}
        append_json(self.path, finite)

    def read(self) -> list[dict[str, float | None]]:
        """All lines; half a line at the end, left by a kill, is passed over.

        Raises:
            BmrlError: a whole line is damaged; the message names file and line.
        """
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = loads(line)
                sound = isinstance(record["step"], int)
                sound = sound and all(value is None or is_number(value) for value in record.values())
            except (ValueError, KeyError, TypeError, AttributeError):
                sound = False
            if not sound:
                raise BmrlError(f"{self.path}:{number}: damaged, not a step's metrics; remove the line")
            records.append(record)
        return records

    def truncate_after(self, step: int) -> None:
        """Forget the steps after ``step``, to be played again by a resumed run."""
        kept = [record for record in self.read() if (record["step"] or 0) <= step]
        if self.path.exists():
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))

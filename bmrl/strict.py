"""JSON as bmrl writes it, read back: nothing that a reader would have to fear."""

import json
import math
from typing import Any, TypeGuard


def loads(text: str | bytes) -> Any:
    """As ``json.loads``, for files that may be damaged.

    Raises:
        ValueError: it is no JSON, nests too deep to be read, or holds NaN, infinity or a number that no float holds.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(digits: str) -> int:
    if len(digits) > 300:  # the largest float has 309 digits
        raise ValueError("a number too large")
    return int(digits)

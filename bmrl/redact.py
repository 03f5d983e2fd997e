"""What leaves the machine in a report or to a tracker: no folders of its owner, no secrets."""

import re
from collections.abc import Mapping
from typing import Any

# A path from the root or from a home folder, inside a text; an address (https://...) is none.
_PATH = re.compile(r"(?<![\w/.~-])~?/(?:[^\s'\":,;()/]+/)*([^\s'\":,;()/]+)/?")
_SECRET = re.compile(r"token$|secret|password|passwd|api_?key|credential", re.IGNORECASE)


def redacted(value: Any) -> Any:
    """The same plain data with of each path only its last name, and with no value of a key that names a secret."""
    if isinstance(value, str):
        return _PATH.sub(r"…/\1", value) if "/" in value else value
    if isinstance(value, Mapping):
        return {
            key: "(hidden)" if isinstance(one, str) and _SECRET.search(str(key)) else redacted(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(one) for one in value]
    return value

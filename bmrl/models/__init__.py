"""Models on this disk, without torch: where a name leads (`find`), what is wrong with what lies there (`problem`)."""

from bmrl.models.folder import read_json
from bmrl.models.source import PACKAGES, Source, exists, find, problem, writes_plain

__all__ = ["PACKAGES", "Source", "exists", "find", "problem", "read_json", "writes_plain"]

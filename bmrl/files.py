"""Where the files that ship with bmrl are: beside the package in a clone, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# A wheel carries both folders inside the package; a clone has them at its root.
_ROOT = _PACKAGE / "_data" if (_PACKAGE / "_data").is_dir() else _PACKAGE.parent


def data_path(*parts: str) -> Path:
    """Path of a file or folder below ``data/``; it need not exist."""
    return _ROOT.joinpath("data", *parts)


def recipes_path(*parts: str) -> Path:
    """Path of a file or folder below ``recipes/``; it need not exist."""
    return _ROOT.joinpath("recipes", *parts)

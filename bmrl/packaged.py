"""Recipes that ship with bmrl: find, list, copy."""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bmrl.atomic import refuse_unwritable, write_text
from bmrl.errors import UsageError
from bmrl.files import recipes_path
from bmrl.recipe import load

_WORDS = {"true", "false", "null"}  # what YAML 1.2 does not read as text


@dataclass(frozen=True, slots=True)
class Header:
    """The comment at the top of a packaged recipe."""

    name: str
    about: str
    hardware: str


def find(name: str) -> Path:
    """The recipe file that a command means: a path, or a packaged recipe's name or path.

    Raises:
        UsageError: a plain name that is neither.
    """
    path = Path(name)
    if os.path.exists(name):  # noqa: PTH110 - pathlib raises for a name that is too long
        return path
    if len(name) > 200:
        raise UsageError("the recipe's name is too long for a file")
    inside = recipes_path(f"{path.stem}.yaml")
    # `quickstart`, `quickstart.yaml` and `recipes/quickstart.yaml`, but no other folder.
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".yaml") and inside.is_file():
        return inside
    if path.parent == Path() and not path.suffix:
        close = get_close_matches(name, [header.name for header in headers()], n=1)
        hint = f"did you mean {close[0]}?" if close else "bmrl recipes lists them"
        raise UsageError(f"{name} is neither a file nor a packaged recipe; {hint}")
    return path


def headers() -> list[Header]:
    """The packaged recipes in the order of their names."""
    return [_header(path) for path in sorted(recipes_path().glob("*.yaml"))]


def _header(path: Path) -> Header:
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    hardware = next((c for c in comments if c.startswith("Hardware:")), "Hardware: not stated")
    return Header(path.stem, comments[0] if comments else "", hardware)


def copy(name: str, original: Path, out: Path) -> Path:
    """Writes a recipe's text under a new name; comments stay.

    Raises:
        UsageError: the name is no recipe name, the file exists, or the original is no valid recipe.
    """
    recipe = load(original)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(f"{name} is no recipe name; use at most 100 letters, digits, `.`, `_` and `-`")
    if os.path.lexists(out):
        raise UsageError(f"{out} exists; name another file with --out")
    refuse_unwritable(out.absolute().parent)
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out} cannot be written (no such file or directory)")
    text = original.read_text(encoding="utf-8-sig")
    # In quotes, or a name such as 123 or true would be a number or a boolean.
    told = name if re.match("[A-Za-z_]", name) and name.lower() not in _WORDS else f'"{name}"'
    text, found = re.subn(r"(?m)^name:[ \t]*\S.*$", lambda _: f"name: {told}", text, count=1)
    if not found:
        raise UsageError(f"{original} has no line `name: {recipe.name}`; copy it by hand")
    text = re.sub(rf"(?m)^(#.*?)recipes/{re.escape(recipe.name)}\.yaml", lambda m: f"{m[1]}{out}", text)
    try:
        write_text(out, text)
    except UnicodeEncodeError as error:
        raise UsageError("--out: the file's name is no text; choose another") from error
    return out

"""The embedded splits: generated ALFWorld-format games that ship with bmrl, checked when read."""

import difflib
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bmrl.atomic import write_bytes
from bmrl.envs.alfworld import generator, reference
from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.record import Record, record_from_json
from bmrl.envs.alfworld.tables import KINDS
from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path

MANIFEST = "manifest.json"
SEED = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a split is made."""

    games: int
    rooms: tuple[int, ...] | None  # None: the rooms that the training split uses


_PLANS = {
    "train": _Plan(600, generator.TRAIN_ROOMS),
    "valid_seen": _Plan(120, None),
    "valid_unseen": _Plan(120, generator.UNSEEN_ROOMS),
}
SPLITS = tuple(_PLANS)


def read_split(split: str, folder: Path | None = None) -> tuple[Record, ...]:
    """The games of a split in their fixed order, verified against the manifest.

    Args:
        split: one of `SPLITS`, or of what the folder has.
        folder: where the files are; None: the ones that ship with bmrl.

    Raises:
        UsageError: no such split.
        BmrlError: a file is missing or damaged; the line says which, how, and what to do.
    """
    known = SPLITS if folder is None else splits_of(folder)
    if split not in known:
        near = difflib.get_close_matches(split, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"unknown split {split!r} of {folder or 'the embedded games'}; {hint}")
    return _read_split(split, folder or data_path("alfworld"))


def splits_of(folder: Path) -> tuple[str, ...]:
    """Names of the splits that a folder's manifest lists.

    Raises:
        BmrlError: the manifest is missing or damaged.
    """
    found = tuple(_manifest(folder)["splits"])
    if not found:
        raise BmrlError(f"{folder / MANIFEST}: lists no split; make one: bmrl games make {folder}")
    return found


@lru_cache(maxsize=8)
def _read_split(split: str, folder: Path) -> tuple[Record, ...]:
    entry = _manifest_entry(split, folder)
    path = folder / entry["file"]
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise BmrlError(f"{path}: missing; {_remedy(folder)}") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: the file's name
        raise BmrlError(f"{path}: cannot be unpacked ({error}); {_remedy(folder)}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        raise BmrlError(
            f"{path}: content has sha256 {found[:12]}, {MANIFEST} says {entry['sha256'][:12]}; {_remedy(folder)}"
        )
    try:
        records = tuple(record_from_json(line) for line in content.decode("utf-8").splitlines())
    except ValueError as error:
        raise BmrlError(f"{path}: {error}; {_remedy(folder)}") from error
    if len(records) != entry["games"]:
        raise BmrlError(f"{path}: {len(records)} games, {MANIFEST} says {entry['games']}; {_remedy(folder)}")
    if not records:
        raise BmrlError(f"{path}: holds no game; {_remedy(folder)}")
    twice = [name for name, count in Counter(record.task_id for record in records).items() if count > 1]
    if twice:
        raise BmrlError(f"{path}: {len(twice):,} task ids are there twice, such as {twice[0]}; {_remedy(folder)}")
    return records


def split_hash(split: str, folder: Path | None = None) -> str:
    """sha256 of a split's uncompressed content, as the manifest has it; for run records.

    Raises:
        BmrlError: the manifest is missing or damaged, or has no such split.
    """
    return str(_manifest_entry(split, folder or data_path("alfworld"))["sha256"])


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest["splits"], dict):
            raise TypeError("splits is not an object")
    except FileNotFoundError as error:
        raise BmrlError(f"{path}: missing; {_remedy(folder)}") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BmrlError(f"{path}: damaged ({error!r}); {_remedy(folder)}") from error
    return dict(manifest)


def _manifest_entry(split: str, folder: Path) -> dict[str, Any]:
    try:
        entry = _manifest(folder)["splits"][split]
        return {"file": str(entry["file"]), "sha256": str(entry["sha256"]), "games": int(entry["games"])}
    except (KeyError, TypeError, ValueError) as error:
        raise BmrlError(f"{folder / MANIFEST}: damaged ({error!r}); {_remedy(folder)}") from error


def _remedy(folder: Path) -> str:
    if folder == data_path("alfworld"):
        return f"reinstall bmrl, or make it anew: bmrl games make --embedded {folder}"
    return f"make it anew: bmrl games make {folder}, with the options that its manifest tells"


def embedded_contents() -> frozenset[tuple[object, ...]]:
    """`Record.content` of every embedded game, for `generator.games(avoid=...)`."""
    return frozenset(record.content for split in SPLITS for record in read_split(split))


def make_split(split: str, rooms: Collection[int], avoid: Collection[tuple[object, ...]] = ()) -> Iterator[Record]:
    """Make the games of a split, with the turns that the exploring expert needs for each."""
    namespace, count = f"embedded/{split}", _PLANS[split].games
    for made in generator.games(SEED, count, rooms, namespace=namespace, avoid=avoid):
        yield replace(made, search_turns=reference.search_turns(game_from_record(made), made.task_id))


def write_embedded(folder: Path) -> None:
    """Make all embedded splits and their manifest anew, bit for bit; takes some seconds.

    Raises:
        BmrlError: the folder cannot be written.
    """
    known: set[tuple[object, ...]] = set()
    entries: dict[str, Any] = {}
    seen_rooms: set[int] = set()
    for split, plan in _PLANS.items():
        records = list(make_split(split, plan.rooms or seen_rooms, known))
        known |= {record.content for record in records}
        if split == "train":
            seen_rooms = {record.room for record in records}
        entries[split] = _write_split(folder, split, records, {"seed": f"embedded/{split}/{SEED}"})
    _write_manifest(folder, entries)


def further_games(
    split: str,
    *,
    count: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
    rooms: Collection[int] = generator.TRAIN_ROOMS,
    difficulty: generator.Difficulty = generator.PLAIN,
) -> list[Record]:
    """Games for a split of one's own; none is embedded. The same arguments give the same games.

    Raises:
        UsageError: there are no such games.
    """
    made = generator.games(
        seed,
        count,
        rooms,
        namespace=f"games/{split}",
        avoid=embedded_contents(),
        kinds=kinds,
        difficulty=difficulty,
    )
    return [replace(r, search_turns=reference.search_turns(game_from_record(r), r.task_id)) for r in made]


def refuse_existing(folder: Path, split: str) -> None:
    """Refuses a split that a folder has already, in either format, and a name that leads out of it.

    Raises:
        UsageError: it has, or the name is none.
    """
    if not split.isprintable() or split.startswith(".") or {"/", "\\"} & {*split} or not split:
        raise UsageError(f"--split: {split!r} cannot be the name of a folder; use letters, digits and _")
    if (folder / split).exists() or ((folder / MANIFEST).exists() and split in _manifest(folder)["splits"]):
        raise UsageError(f"{folder} has a split {split}; choose another --split or folder")


def add_split(folder: Path, split: str, records: Sequence[Record], told: Mapping[str, Any]) -> None:
    """Write a split beside those that a folder has.

    Args:
        told: how it was made, for the manifest.

    Raises:
        BmrlError: the folder cannot be written.
    """
    entries: dict[str, Any] = _manifest(folder)["splits"] if (folder / MANIFEST).exists() else {}
    _write_manifest(folder, entries | {split: _write_split(folder, split, records, told)})


def _write_split(folder: Path, split: str, records: Sequence[Record], told: Mapping[str, Any]) -> dict[str, Any]:
    """The file of a split; returns its entry in the manifest."""
    content = "".join(record.to_json() + "\n" for record in records).encode()
    name = f"{split}.jsonl.gz"
    write_bytes(folder / name, _compress(content))
    return {
        "file": name,
        "games": len(records),
        **told,
        "rooms": sorted({record.room for record in records}),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _write_manifest(folder: Path, entries: Mapping[str, Any]) -> None:
    manifest = {
        "about": "Generated ALFWorld-format games; not ALFWorld's own set of games.",
        "generator": generator.VERSION,
        "splits": dict(entries),
    }
    write_bytes(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _compress(content: bytes) -> bytes:
    # No time and no file name in the header: equal content gives equal files.
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()

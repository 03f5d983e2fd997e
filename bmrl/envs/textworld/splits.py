"""Splits of TextWorld games: the embedded ones that ship with bmrl, and further ones made on demand."""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bmrl.atomic import write_bytes
from bmrl.envs.textworld import generator
from bmrl.envs.textworld.record import Record, record_from_json
from bmrl.envs.worker import describe
from bmrl.errors import BmrlError
from bmrl.files import data_path

MANIFEST = "manifest.json"
WORLDS = ("cooking", "coin", "treasure")
# Split -> how many games are embedded. Those of valid_unseen are what `generator.unseen` makes of the settings.
SPLITS = {"train": 300, "valid_seen": 100, "valid_unseen": 100}


@dataclass(frozen=True, slots=True)
class Asked:
    """Games to be made: how many in each split, from which seed, how difficult."""

    games: int
    seed: int
    settings: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        """Equal only where the games are."""
        return hashlib.sha256(repr((generator.VERSION, self)).encode()).hexdigest()


@lru_cache(maxsize=16)
def embedded(world: str, split: str) -> tuple[Record, ...]:
    """The embedded games of a split in their fixed order, verified against the manifest.

    Raises:
        BmrlError: a file is missing or damaged; the line says which and what to do.
    """
    entry = _entry(world, split)
    path = data_path("textworld", entry["file"])
    remedy = "reinstall bmrl"
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BmrlError(f"{path}: cannot be unpacked ({error}); {remedy}") from error
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise BmrlError(f"{path}: is not what {MANIFEST} says; {remedy}")
    return tuple(record_from_json(line) for line in content.decode().splitlines())


def embedded_hash(world: str, split: str) -> str:
    """SHA-256 of a split's uncompressed content, as the manifest has it.

    Raises:
        BmrlError: the manifest is missing or damaged.
    """
    return str(_entry(world, split)["sha256"])


@lru_cache(maxsize=1)
def _manifest(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["worlds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BmrlError(f"{path}: damaged or missing ({error!r}); reinstall bmrl") from error


def _entry(world: str, split: str) -> dict[str, Any]:
    path = data_path("textworld", MANIFEST)
    try:
        return dict(_manifest(path)[world][split])
    except (KeyError, TypeError) as error:
        raise BmrlError(f"{path}: damaged ({error!r}); reinstall bmrl") from error


def known(world: str) -> frozenset[str]:
    """`Record.content` of every embedded game of a world."""
    return frozenset(record.content for split in SPLITS for record in embedded(world, split))


@lru_cache(maxsize=16)
def generated(world: str, split: str, asked: Asked) -> tuple[Record, ...]:
    """Games by these settings, none of them embedded; made once, then read from the user's cache.

    Raises:
        UsageError: there are no such games.
        BmrlError: textworld is not installed, or the cache cannot be written.
    """
    path = cache_folder() / f"{world}-{split}-{asked.key[:16]}.jsonl.gz"
    try:
        said, _, lines = gzip.decompress(path.read_bytes()).partition(b"\n")
        if said.decode() == hashlib.sha256(lines).hexdigest():
            return tuple(record_from_json(line) for line in lines.decode().splitlines())
    except (OSError, EOFError, ValueError, zlib.error):
        pass  # not there yet, or damaged: made anew
    made = generator.games(
        world,
        f"generated/{split}",
        asked.games,
        seed=asked.seed,
        settings=dict(asked.settings),
        larger=split == "valid_unseen",
        avoid=known(world),
    )
    records = [_searched(record) for record in made]
    lines = _lines(records)
    try:
        write_bytes(path, _compress(f"{hashlib.sha256(lines).hexdigest()}\n".encode() + lines))
    except (OSError, BmrlError) as error:
        raise BmrlError(
            f"{path}: generated games cannot be kept ({describe(error)}); XDG_CACHE_HOME says in which folder"
        ) from error
    return tuple(records)


def cache_folder() -> Path:
    """Where generated games are kept: ``$XDG_CACHE_HOME/bmrl/textworld``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bmrl" / "textworld"


def write_embedded(folder: Path) -> None:
    """Make all embedded splits and their manifest anew, bit for bit; takes some minutes.

    Raises:
        BmrlError: textworld is not installed, or the folder cannot be written.
    """
    worlds: dict[str, Any] = {}
    for world in WORLDS:
        seen: set[str] = set()
        worlds[world] = {}
        for split, count in SPLITS.items():
            made = generator.games(world, f"embedded/{split}", count, larger=split == "valid_unseen", avoid=seen)
            records = [_searched(record) for record in made]
            seen |= {record.content for record in records}
            name = f"{world}_{split}.jsonl.gz"
            write_bytes(folder / name, _compress(_lines(records)))
            worlds[world][split] = {"file": name, "games": count, "sha256": content_hash(records)}
    about = "Games by TextWorld 1.7's generators, with shortest plans; made by data/textworld/make.py."
    manifest = {"about": about, "generator": generator.VERSION, "worlds": worlds}
    write_bytes(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def content_hash(records: Sequence[Record]) -> str:
    """SHA-256 of the lines of a split."""
    return hashlib.sha256(_lines(records)).hexdigest()


def _compress(lines: bytes) -> bytes:
    """A split's file; equal lines give equal files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(lines)
    return buffer.getvalue()


def _lines(records: Sequence[Record]) -> bytes:
    return "".join(record.to_json() + "\n" for record in records).encode()


def _searched(record: Record) -> Record:
    from bmrl.envs.textworld.reference import search_turns

    return replace(record, search_turns=search_turns(record))

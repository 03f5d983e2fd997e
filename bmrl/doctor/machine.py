"""Python, memory, disks, and what ships with bmrl."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bmrl.doctor.finding import Finding, note, ok, problem
from bmrl.errors import BmrlError
from bmrl.system import memory_gb

GIB = 2**30
PYTHON = (3, 11)
# Below that even the embedded policy is at risk: its process takes about one.
LEAST_MEMORY_GB, LEAST_DISK_GB = 2.0, 1.0


def examine_machine() -> Iterator[Finding]:
    """Python, memory, disks."""
    version = platform.python_version()
    if sys.version_info[:2] < PYTHON:
        yield problem("python", f"Python {version}", "bmrl needs Python 3.11 or newer", blocks=True)
    else:
        yield ok("python", f"{version}, {platform.system()} {platform.machine()}")
    free, total = free_memory_gb(), memory_gb()
    if free is None or total is None:
        yield note("memory", "this system does not tell how much is free")
    elif free < LEAST_MEMORY_GB:
        text = f"{free:.1f} of {total:.1f} GiB are free"
        yield problem("memory", text, f"end other programs until {LEAST_MEMORY_GB:g} GiB are free")
    else:
        yield ok("memory", f"{free:.1f} of {total:.1f} GiB are free")
    for name, (folder, move) in folders().items():
        yield _disk(name, folder, move)


def folders() -> dict[str, tuple[Path, str]]:
    """Where things are kept: name -> folder, and how to keep them elsewhere."""
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    return {
        "runs": (Path("runs"), "start in a folder on another disk, or name one with --run"),
        "hub cache": (Path(os.environ.get("HF_HUB_CACHE") or hub / "hub"), "set HF_HOME to a folder on another disk"),
        "bmrl's cache": (Path("~/.cache/bmrl"), "make ~/.cache a link to a folder on another disk"),
    }


def free_disk_gb(folder: Path) -> float:
    """GiB free where a folder lies or would lie.

    Raises:
        OSError: nothing can be read there.
    """
    return shutil.disk_usage(_nearest(folder)).free / GIB


def _disk(name: str, folder: Path, move: str) -> Finding:
    try:
        free, writable = free_disk_gb(folder), os.access(_nearest(folder), os.W_OK)
    except (OSError, RuntimeError) as error:  # pathlib's, of a home that there is not
        return problem("disk", f"{name}: cannot be looked at ({_reason(error)})", move)
    if not writable:
        return problem("disk", f"{name}: nothing can be written there", f"change the folder's permissions, or {move}")
    if free < LEAST_DISK_GB:
        return problem("disk", f"{name}: {free:.2f} GiB are free", f"free {LEAST_DISK_GB:g} GiB, or {move}")
    return ok("disk", f"{name}: {free:,.1f} GiB are free")


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__).lower()


def free_memory_gb() -> float | None:
    """Memory that programs can still get, GiB; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(kib) / 2**20 if kib else None


def examine_pocket() -> Iterator[Finding]:
    """Whether the embedded policy is the one it should be."""
    from bmrl import models

    wrong = models.problem(models.find("pocket"))
    if wrong is None:
        yield ok("pocket", "the embedded policy has the hash of its card")
    else:
        yield problem("pocket", wrong, blocks=True)


def examine_games() -> Iterator[Finding]:
    """ALFWorld games: those of $ALFWORLD_DATA if it is set, else the embedded ones."""
    from bmrl.envs import make
    from bmrl.envs.alfworld.env import OFFICIAL
    from bmrl.envs.alfworld.official import COMPILED

    data = os.environ.get("ALFWORLD_DATA")
    name = "$ALFWORLD_DATA" if data else "the embedded ones"
    try:
        env = make("alfworld", source="auto")
        folder = Path(data or "").expanduser()
        folder = folder / OFFICIAL if (folder / OFFICIAL).is_dir() else folder
        counts = {}
        for split in env.splits():  # type: ignore[attr-defined]
            # ALFWorld's own are counted, not read: there are thousands of files.
            games = sum(1 for _ in (folder / split).rglob(COMPILED)) if data else 0
            counts[split] = games or len(env.tasks(split))
    except (BmrlError, OSError) as error:
        yield problem("games", f"ALFWorld: {name}: {error}", "run alfworld-download, or unset ALFWORLD_DATA")
        return
    told = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    if any(counts.values()):
        yield ok("games", f"ALFWorld: {name}: {told}")
    else:
        yield problem("games", f"ALFWorld: {name}: no games", "run alfworld-download, or unset ALFWORLD_DATA")

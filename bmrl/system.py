"""What a result was made on: hardware and versions, nothing that names the user or the machine."""

import contextlib
import ctypes
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE = -1, -3, 1 << 20  # glibc's names of its settings; bytes
_LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "safetensors", "numpy", "bitsandbytes")


def system_info() -> dict[str, Any]:
    """Hardware and versions as JSON data.

    Versions are looked up without importing anything. Left out on purpose: host and user names,
    paths, and the values of environment variables.
    """
    return {
        "bmrl": _version("bmrl"),
        "commit": _commit(Path(__file__).resolve().parent.parent),
        "python": platform.python_version(),
        "os": platform.system(),
        "os_release": platform.release(),
        "machine": platform.machine(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cores": _cores(),
        "memory_gb": memory_gb(),
        "gpus": _gpus(),
        "versions": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit(root: Path) -> str | None:
    # Only bmrl's own clone: an installed copy may lie inside a repository of something else.
    if not ((root / ".git").exists() and (root / "bmrl" / "system.py").is_file()):
        return None
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _cores() -> int | None:
    # The cores this process may use, which a container makes fewer than the machine's.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory_gb() -> float | None:
    """Physical memory, GiB."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    return round(size / 2**30, 1)


def resident_gb(*, peak: bool = False) -> float | None:
    """Memory of this process now, or the most since it began or ``forget_peak``, GiB; None where none tells."""
    told = _field("/proc/self/status", "VmHWM" if peak else "VmRSS")
    return int(told.split()[0]) / 2**20 if told else None


def forget_peak() -> bool:
    """Starts ``resident_gb(peak=True)`` anew; whether the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def return_large_blocks() -> None:
    """Lets the C library give large blocks back as soon as they are free, so that memory is what is in use.

    Otherwise it keeps them and cuts them up. Beside the alignment that ``bmrl/__init__.py`` asks for, it takes some
    more time of the kernel: the pages of each block are new ones.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.mallopt(M_TRIM_THRESHOLD, 4 * LARGE)


def return_free_memory() -> None:
    """Gives what the C library keeps of freed blocks back to the system, which it would not always find again."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _gpus() -> list[str]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [model for file in files if (model := _field(str(file), "Model"))]


def _field(path: str, name: str) -> str | None:
    """Value of the first ``name : value`` line of a file of the kernel's."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)

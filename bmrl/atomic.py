"""Files that are whole or absent, whatever happens while they are written.

A file is written under a temporary name in its own folder, synced to the disk, and renamed. A
program that is killed leaves at most a temporary file behind, never half of a real one.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bmrl.errors import BmrlError, UsageError

TEMPORARY = ".tmp-"  # every temporary file or folder of bmrl has this in its name
# EFBIG is what a limit on file sizes gives: for the user, as good as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def disk_errors(name: str, remedy: str = "resume with --resume") -> Iterator[None]:
    """Turn a full or forbidden disk into one line that names the file.

    Args:
        remedy: what to do once there is space.

    Raises:
        BmrlError: in place of the ``OSError``; others pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            problem = f"disk full: could not write {name}; free space and {remedy}"
        elif error.errno in _FORBIDDEN:
            problem = f"no permission to write {name}; choose a folder you may write to"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            problem = f"cannot write {name}: {os.strerror(error.errno)}; choose another path"
        else:
            raise
        raise BmrlError(problem) from error


def refuse_unwritable(folder: Path) -> None:
    """Refuses a folder for results before the work for them is done; it need not exist yet.

    Raises:
        UsageError: it, or what it would be made in, is no folder or may not be written to.
    """
    found = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not found.is_dir():
        raise UsageError(f"{folder}: {found.name} is no folder; choose another path")
    if not os.access(found, os.W_OK | os.X_OK):
        raise UsageError(f"no permission to write {folder}; choose a folder you may write to")


def temporary_suffix() -> str:
    """What to append to a name to make it temporary; never the same twice."""
    return TEMPORARY + secrets.token_hex(4)


def remove_temporary(folder: Path) -> None:
    """Remove temporary files and folders that killed programs left in ``folder`` and below."""
    for path in sorted(folder.rglob(f"*{TEMPORARY}*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` (what was created, renamed or removed) survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; its folder is made when missing.

    Raises:
        BmrlError: the disk is full or forbidden; the old file, if any, is untouched.
    """
    with disk_errors(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}{temporary_suffix()}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, newlines as they are."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON atomically. NaN and infinity are not JSON and raise ``ValueError``."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def append_json(path: Path, record: dict[str, Any]) -> None:
    """Append one line of JSON. Half a line at the end, left by a kill, is cut away first.

    Raises:
        BmrlError: the disk is full or forbidden; the file is as before.
    """
    line = (json.dumps(record, allow_nan=False) + "\n").encode()
    with disk_errors(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_partial_line(path)
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                if written != len(line):  # a disk that fills up takes the first part only
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise


def _cut_partial_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

"""Files are whole or absent: kills, full disks, missing rights."""

import json
import os
import resource
import stat
import subprocess
import sys
import textwrap

import pytest

from bmrl.atomic import (
    append_json,
    disk_errors,
    remove_temporary,
    temporary_suffix,
    write_bytes,
    write_json,
    write_text,
)
from bmrl.errors import BmrlError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_and_replace(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_text(path, "a\r\nä\n")
    assert path.read_bytes() == "a\r\nä\n".encode()
    write_bytes(path, b"other")
    assert path.read_bytes() == b"other"
    assert names(path.parent) == ["file.txt"]


def test_files_get_the_usual_rights(tmp_path):
    mask = os.umask(0o022)
    try:
        write_text(tmp_path / "file", "")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_json_is_readable_and_has_no_nan(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, "ä"]})
    assert (tmp_path / "a.json").read_text() == '{\n  "b": [\n    1,\n    "ä"\n  ]\n}\n'
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"b": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, "ä"]}
    assert names(tmp_path) == ["a.json"]


def run_limited(code, folder, limit):
    """Run code in a program that may write files of at most ``limit`` bytes, and return its output."""

    def lower():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    answer = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(code), str(folder)],
        preexec_fn=lower,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


FULL = """
import sys
from pathlib import Path
from bmrl.atomic import append_json, write_bytes
from bmrl.errors import BmrlError
try:
    {call}
except BmrlError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path):
    write_bytes(tmp_path / "x.bin", b"old")
    call = "write_bytes(Path(sys.argv[1]) / 'x.bin', b'0' * 10000)"
    message = run_limited(FULL.format(call=call), tmp_path, 4096)
    assert message == "disk full: could not write x.bin; free space and resume with --resume"
    assert (tmp_path / "x.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["x.bin"]


def test_a_full_disk_leaves_no_half_line(tmp_path):
    # The limit falls inside the second line: what fits of it is taken back.
    append_json(tmp_path / "m.jsonl", {"step": 1})
    call = "append_json(Path(sys.argv[1]) / 'm.jsonl', {'step': 2, 'pad': 'x' * 500})"
    message = run_limited(FULL.format(call=call), tmp_path, 200)
    assert message.startswith("disk full: could not write m.jsonl;")
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(("number", "start"), [("ENOSPC", "disk full"), ("EDQUOT", "disk full"), ("EACCES", "no perm")])
def test_disk_errors_name_the_file(number, start):
    import errno

    with pytest.raises(BmrlError, match=f"{start}.*thing") as caught, disk_errors("thing"):
        raise OSError(getattr(errno, number), "x")
    assert "\n" not in str(caught.value)
    with pytest.raises(BrokenPipeError), disk_errors("thing"):
        raise BrokenPipeError(errno.EPIPE, "not a matter of the disk")


def test_a_folder_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BmrlError, match="choose another path"):
        write_text(tmp_path / "file" / "x", "")


def test_append_cuts_away_the_half_line_of_a_kill(tmp_path):
    path = tmp_path / "m.jsonl"
    append_json(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "succ')
    append_json(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"st')
    append_json(path, {"step": 1})
    assert path.read_text() == '{"step": 1}\n'


def test_a_kill_while_writing_leaves_the_old_file(tmp_path):
    # Killed between the write and the rename: os.fsync is where it stands then.
    write_text(tmp_path / "x", "old")
    code = (
        "import os, sys, signal, pathlib; from bmrl import atomic;"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL);"
        "atomic.write_text(pathlib.Path(sys.argv[1]) / 'x', 'new')"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert answer.returncode == -9
    assert (tmp_path / "x").read_text() == "old"
    assert len(names(tmp_path)) == 2
    remove_temporary(tmp_path)
    assert names(tmp_path) == ["x"]


def test_remove_temporary_takes_only_what_is_temporary(tmp_path):
    write_text(tmp_path / "deep" / "keep.txt", "")
    write_text(tmp_path / f"folder{temporary_suffix()}" / "x", "")
    write_text(tmp_path / "deep" / f".x{temporary_suffix()}", "")
    remove_temporary(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "keep.txt"]

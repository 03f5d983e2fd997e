"""Trackers are guests: what they are told, that a failing one costs a line, that a resumed run stays one run."""

import json
import os
import socket
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from bmrl import trackers
from bmrl.recipe import load
from bmrl.redact import redacted
from bmrl.trackers import Tracked, Trackers

RECIPE = {"name": "demo", "model": {"name": "/home/ann/models/small"}, "env": {"args": {"api_key": "s3cret"}}}


@pytest.fixture
def guests(monkeypatch):
    """Trackers of our own: one that writes down, and some that fail."""
    told: list[object] = []

    def good(run: Tracked):
        told.append((run.name, run.config, run.step))
        return lambda record, step: told.append((step, record)), lambda: told.append("closed")

    def absent(run: Tracked):
        raise ImportError("no such package")

    def breaking(run: Tracked):
        def log(record, step):
            if step == 2:
                raise SystemExit("cannot write /home/ann/secret/place")

        return log, lambda: told.append("never")

    monkeypatch.setattr(trackers, "OPENERS", {"good": good, "absent": absent, "breaking": breaking})
    return told


def test_a_tracker_is_told_numbers_and_a_recipe_without_paths_and_secrets(guests, tmp_path):
    opened = Trackers(["jsonl", "good"], tmp_path / "run", RECIPE, 0, pytest.fail)
    opened.log({"step": 1, "success": 0.5, "kl": None}, 1)
    opened.close()
    config = {"name": "demo", "model": {"name": "…/small"}, "env": {"args": {"api_key": "(hidden)"}}}
    assert guests == [("run", config, 0), (1, {"success": 0.5}), "closed"]


def test_one_that_fails_says_so_once_and_the_others_go_on(guests, tmp_path):
    lines: list[str] = []
    opened = Trackers(["absent", "breaking", "good"], tmp_path / "run", RECIPE, 0, lines.append)
    for step in (1, 2, 3):
        opened.log({"success": 0.0}, step)
    opened.close()
    assert [step for step, _ in guests[1:-1]] == [1, 2, 3] and guests[-1] == "closed" and "never" not in guests
    assert [line.split(",")[0] for line in lines] == ["warning: absent failed", "warning: breaking failed"]
    assert "/home" not in lines[1] and "…/place" in lines[1]


def test_without_trackers_nothing_is_written(tmp_path):
    opened = Trackers(["jsonl"], tmp_path, RECIPE, 0, pytest.fail)
    opened.log({"success": 0.0}, 1)
    opened.close()
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_has_the_id_it_had(guests, tmp_path):
    for step in (0, 5):
        Trackers(["good"], tmp_path, RECIPE, step, pytest.fail).close()
    assert json.loads((tmp_path / trackers.FILE).read_text())["id"]
    before = (tmp_path / trackers.FILE).read_bytes()
    Trackers(["good"], tmp_path, RECIPE, 6, pytest.fail).close()
    assert (tmp_path / trackers.FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/ann/models/small", "…/small"),
        ("~/runs/first", "…/first"),
        ("cannot open '/data/x/y.json': gone", "cannot open '…/y.json': gone"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
        ("runs/first/adapter", "runs/first/adapter"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("go and/or stay", "go and/or stay"),
    ],
)
def test_of_a_path_only_the_last_name_is_kept(text, kept):
    assert redacted([text]) == [kept]


def test_numbers_of_tokens_are_no_secrets():
    assert redacted({"context_tokens": 512, "turn_tokens": "a", "hub_token": "x"}) == {
        "context_tokens": 512,
        "turn_tokens": "a",
        "hub_token": "(hidden)",
    }


def test_check_says_which_package_is_missing(tmp_path):
    from bmrl.check import missing

    path = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"
    lines = missing(load(path, ["tracking=[jsonl, tensorboard, wandb, trackio]"]))
    absent = [name for name in ("tensorboard", "wandb", "trackio") if find_spec(name) is None]
    assert lines == [f"tracking: the package {n} is not installed: pip install 'bmrl[{n}]'" for n in absent]


def _twice(name: str, folder: Path) -> None:
    """Three steps, killed after the second's checkpoint: the third is played again."""
    first = Trackers([name], folder, RECIPE, 0, pytest.fail)
    for step in (1, 2, 3):
        first.log({"step": step, "success": step / 10}, step)
    first.close()
    time.sleep(1.1)  # W&B names what it keeps by the second
    second = Trackers([name], folder, RECIPE, 2, pytest.fail)
    for step in (3, 4):
        second.log({"step": step, "success": step / 10}, step)
    second.close()


def _private(data: bytes) -> None:
    """Nothing of the machine or its owner is in it."""
    assert data and b"s3cret" not in data and b"/home/ann" not in data
    assert str(Path.cwd()).encode() not in data
    # A short name may well be part of a random one. As a value it stands in quotes, or behind its length (protobuf).
    host = os.fsencode(socket.gethostname())
    assert b'"%b"' % host not in data and bytes([len(host)]) + host not in data


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_holds_every_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _twice("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("success")
    assert [(one.step, round(one.value, 6)) for one in scalars] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    _private(b"".join(path.read_bytes() for path in (tmp_path / "run" / "tensorboard").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline_is_one_run_and_says_nothing_of_the_machine(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    _twice("wandb", tmp_path / "run")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    made = json.loads((tmp_path / "run" / trackers.FILE).read_text())["id"]
    assert {path.name for path in files} == {f"run-run-{made}.wandb"} and len(files) == 2
    _private(b"".join(path.read_bytes() for path in files))
    assert b"success" in files[0].read_bytes()
    assert capfd.readouterr().out == ""  # stdout is for results


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_is_one_run(tmp_path, monkeypatch, capfd):
    import subprocess
    import sys

    # In a process of its own: trackio reads TRACKIO_DIR when it is imported.
    code = (
        "import sys; sys.path[:0] = ['tests']; from pathlib import Path; import test_trackers as t;"
        f"t._twice('trackio', Path({str(tmp_path / 'run')!r}))"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (database,) = (tmp_path / "kept").rglob("*.db")
    import sqlite3

    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step FROM metrics ORDER BY step").fetchall()
    assert len({name for name, _ in rows}) == 1
    assert sorted({step for _, step in rows}) == [1, 2, 3, 4]

"""The run folder: whole or absent, one process at a time, readable or refused in one line."""

import getpass
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bmrl import run_folder
from bmrl.episodes import read_episodes, write_episodes
from bmrl.errors import BmrlError, UsageError
from bmrl.types import EndReason, Episode, Turn

RESOLVED = {"name": "demo", "seed": 0}
SYSTEM = {"bmrl": "0.1.0"}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def create(base, explicit=None):
    return run_folder.create(base, "name: demo\n", RESOLVED, SYSTEM, explicit)


def test_create_writes_the_three_files(tmp_path):
    folder = create(tmp_path / "runs")
    assert folder == tmp_path / "runs" / "demo"
    assert names(folder) == ["recipe.resolved.json", "recipe.yaml", "system.json"]
    assert (folder / "recipe.yaml").read_text() == "name: demo\n"
    assert run_folder.load_resolved(folder) == RESOLVED
    assert json.loads((folder / "system.json").read_text()) == {"run_format": 1, "bmrl": "0.1.0"}
    assert run_folder.is_run(folder)
    assert names(tmp_path / "runs") == ["demo"]


def test_taken_names_are_numbered(tmp_path):
    (tmp_path / "demo-2").mkdir()  # an empty folder is taken too
    created = [create(tmp_path).name for _ in range(3)]
    assert created == ["demo", "demo-3", "demo-4"]
    assert names(tmp_path / "demo-2") == []


def test_an_explicit_folder_is_never_reused(tmp_path):
    folder = create(tmp_path, tmp_path / "deep" / "mine")
    assert folder == tmp_path / "deep" / "mine"
    before = names(folder.parent)
    with pytest.raises(UsageError, match="mine exists; choose another --run or pass --resume"):
        create(tmp_path, folder)
    assert names(folder.parent) == before


def test_nothing_is_left_when_creating_fails(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BmrlError):
        create(tmp_path, tmp_path / "file" / "run")
    with pytest.raises(ValueError):
        run_folder.create(tmp_path, "", {"name": "x", "rate": float("nan")}, SYSTEM)
    assert names(tmp_path) == ["file"]


def test_newest_is_the_run_created_last(tmp_path):
    assert run_folder.newest(tmp_path / "none") is None
    (tmp_path / "no-run").mkdir()
    assert run_folder.newest(tmp_path) is None
    first, second = create(tmp_path), create(tmp_path)
    os.utime(first / "recipe.resolved.json", (1000, 1000))
    os.utime(second / "recipe.resolved.json", (900, 900))
    (second / "metrics.jsonl").write_text("")  # being used later does not make it newer
    assert run_folder.newest(tmp_path) == first


def hold(folder, ready):
    with run_folder.lock(folder):
        ready.set()
        time.sleep(60)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    folder = create(tmp_path)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(folder, ready))
    holder.start()
    try:
        assert ready.wait(30)
        words = rf"another process \(pid {holder.pid}\) uses"
        with pytest.raises(BmrlError, match=words), run_folder.lock(folder):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(30)
    with run_folder.lock(folder):
        pass
    with run_folder.lock(folder):  # released at the end of the block
        pass


def test_the_lock_clears_what_a_kill_left(tmp_path):
    folder = create(tmp_path)
    (folder / "episodes").mkdir()
    (folder / "episodes" / ".step-000001.jsonl.tmp-0a1b2c3d").write_text("half")
    with run_folder.lock(folder):
        assert names(folder / "episodes") == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recipe.resolved.json", "{", "recipe.resolved.json: damaged"),
        ("recipe.resolved.json", "[]", "not a JSON object"),
        ("system.json", "\udcff", "system.json: damaged"),
        ("system.json", '{"run_format": 2, "bmrl": "9.0"}', "run format 2 of bmrl 9.0"),
        ("system.json", None, "system.json: missing"),
    ],
)
def test_damage_is_one_line(tmp_path, name, content, words):
    folder = create(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(BmrlError, match=words) as caught:
        run_folder.load_resolved(folder)
    assert "\n" not in str(caught.value)


def test_no_folder_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="is not a run folder"):
        run_folder.load_resolved(tmp_path / "none")


EPISODE = Episode(
    step=100,
    group=2,
    episode=1,
    task_id="pick-1",
    split="train",
    seed=7,
    budget=8,
    end_reason=EndReason.SUCCESS,
    turns=(
        Turn(
            "You see\u2028a door.\n",
            (1, 2, 3),
            "open door",
            "open door",
            (4, 5),
            (-0.1, -0.2),
            True,
            0.0,
        ),
        Turn("Open.", (6,), "hm", "", (7, 8, 9), (-1.0, -1.0, -1.0), False, 1.0),
    ),
    final_observation="You won.",
)


def test_an_episode_line_is_the_contract(tmp_path):
    path = write_episodes(tmp_path, 100, iter([EPISODE, EPISODE]))
    assert path == tmp_path / "episodes" / "step-000100.jsonl"
    first, second = read_episodes(path)
    assert (
        first
        == second
        == {
            "step": 100,
            "group": 2,
            "episode": 1,
            "task_id": "pick-1",
            "split": "train",
            "seed": 7,
            "budget": 8,
            "end_reason": "success",
            "success": True,
            "turns": [
                {
                    "observation": "You see\u2028a door.\n",
                    "action": "open door",
                    "valid": True,
                    "reward": 0.0,
                    "observation_tokens": 3,
                    "action_tokens": 2,
                    "logprob": -0.3,
                },
                {
                    "observation": "Open.",
                    "action": "",
                    "valid": False,
                    "reward": 1.0,
                    "observation_tokens": 1,
                    "action_tokens": 3,
                    "logprob": -3.0,
                },
            ],
            "final_observation": "You won.",
            "error": "",
        }
    )
    assert len(path.read_text().splitlines()) == 2  # U+2028 must not look like the end of a line


@pytest.mark.parametrize("damage", ["{", "[]", '{"task_id": 1}', ""])
def test_a_damaged_episode_is_named(tmp_path, damage):
    path = write_episodes(tmp_path, 1, [EPISODE])
    with path.open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(BmrlError, match=r"step-000001\.jsonl:2: damaged") as caught:
        read_episodes(path)
    assert "\n" not in str(caught.value)


def test_episode_files_may_be_empty_but_not_missing(tmp_path):
    assert read_episodes(write_episodes(tmp_path, 1, [])) == []
    with pytest.raises(BmrlError, match=r"step-000002\.jsonl: cannot be read"):
        read_episodes(tmp_path / "episodes" / "step-000002.jsonl")


def test_system_info_names_versions_and_no_person_or_place():
    secret = "s3cret-value"
    code = "import json; from bmrl.run_folder import system_info; print(json.dumps(system_info()))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MY_TOKEN": secret},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    info = json.loads(answer)
    assert info["python"] == platform.python_version()
    assert info["cores"] >= 1 and info["memory_gb"] > 0
    assert info["versions"]["torch"]
    hidden = [secret, platform.node(), str(Path.cwd()), str(Path.home())]
    if len(getpass.getuser()) > 4:  # "root" may stand in a CPU's name
        hidden.append(getpass.getuser())
    assert not [text for text in hidden if text and text in answer]


def test_system_info_imports_nothing_heavy():
    code = "import sys; from bmrl.run_folder import system_info; system_info(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"

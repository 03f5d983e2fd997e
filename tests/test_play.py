"""`bmrl play`: a person, a player without a model, a policy; turns left and the distance beside each command."""

import io
import re

import pytest

from bmrl.cli import main
from bmrl.envs import make


@pytest.fixture
def run(capsys, monkeypatch):
    def play(*line: str, said: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        with pytest.raises(SystemExit) as done:
            main([*line])
        return (int(done.value.code), *capsys.readouterr())

    return play


def task(number):
    return make("alfworld", source="embedded").tasks("valid_seen")[number - 1]


def test_the_oracle_comes_nearer_with_every_turn(run):
    plan = task(3).plan
    code, out, _ = run("play", "oracle", "--task", "3", "--budget", "20", "--show-distance")
    assert code == 0
    n = len(plan)
    # Before the turn i, counted from 0, 20 - i are left, and the rest of a shortest plan is to go.
    told = re.findall(r"^\[(\d+) left, (\d+) turns? to the goal\] > (.*)$", out, re.M)
    assert told == [(str(20 - i), str(n - i), plan[i]) for i in range(n)]
    assert out.splitlines()[-1] == f"won after {n} turns; a shortest plan takes {n}"


def test_a_person_asks_for_commands_and_distance_without_a_turn(run):
    n = len(task(3).plan)
    for line in (("play",), ("games", "play")):
        code, out, _ = run(*line, "--task", "3", "--budget", "2", said="??\n?\nlook\nlook\n")
        assert code == 0
        assert f"[2 left] > {n} turns to the goal\n" in out and "\nlook\n" in out
        assert out.count("[1 left] > ") == 1 and out.endswith("the budget of 2 turns is used up\n")


def test_the_expert_plays_alike_for_a_seed(run):
    line = ("play", "expert", "--task", "4", "--budget", "6")
    assert run(*line, "--seed", "1") == run(*line, "--seed", "1")
    assert run(*line, "--seed", "1") != run(*line, "--seed", "2")


def test_a_policy_plays_what_an_evaluation_would_see(run, tmp_path, capsys):
    code, out, err = run("play", "pocket", "--task", "2", "--budget", "5", "--temperature", "0", "--show-distance")
    assert code == 0 and "pocket plays" in err
    told = re.findall(r"^\[(\d) left, .* to the goal\] > (.*)$", out, re.M)
    # The same game, greedily, by `bmrl eval`: the second of its two tasks.
    line = ("eval", "pocket", "--budget", "5", "--tasks", "2", "--temperature", "0", "--out", str(tmp_path))
    assert run(*line)[0] == 0
    from bmrl.episodes import read_episodes

    episode = read_episodes(next(tmp_path.glob("*.jsonl")))[1]
    assert [command for _, command in told] == [turn["action"] or "(no command)" for turn in episode["turns"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("nowhere/at/all",), "neither a run"),
        (("expert", "--task", "121"), "--task: valid_seen has no game 121"),
        (("expert", "--split", "valid"), "valid"),
        (("random", "--temperature", "0"), "random is no model"),
        (("pocket", "--checkpoint", "3"), "pocket is no run folder"),
        (("expert", "--env", "chess"), "unknown environment"),
        (("--env", "chess"), "unknown environment"),
    ],
)
def test_wrong_use_is_one_line(run, line, words):
    code, out, err = run("play", *line)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1) and words in err

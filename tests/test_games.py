"""`bmrl games`: what it says of games, what it finds wrong with them, and playing one by hand."""

import io
import json

import pytest
import tiny

from bmrl.cli import main
from bmrl.envs import Task, make
from bmrl.games import replay, summary


@pytest.fixture
def run(capsys, monkeypatch):
    def play(*line: str, said: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        with pytest.raises(SystemExit) as done:
            main(["games", *line])
        return (int(done.value.code), *capsys.readouterr())

    return play


def test_every_embedded_plan_wins(run):
    code, out, _ = run("verify")
    assert code == 0
    assert out.splitlines() == [
        "train: 600 of 600 games won by their plans",
        "valid_seen: 120 of 120 games won by their plans",
        "valid_unseen: 120 of 120 games won by their plans",
    ]


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (("go", "go"), None),
        ((), "it has no plan"),
        (("go",), "its plan does not win"),
        (("go", "go", "go"), "it is won at turn 2 of 3"),
        (("go", "fall"), "it is lost at turn 2 of 2"),
    ],
)
def test_a_plan_must_win_with_its_last_command(plan, fault):
    # The corridor of length 2 is won by two "go", and "fall" loses it.
    assert replay(tiny.Corridor(), Task("two", "corridor", plan=plan, data=2)) == fault


def test_a_split_in_numbers():
    # Corridors of 1 to 8: the mean plan is (1 + 8) / 2.
    found = summary(tiny.Corridor(), "any")
    assert found == {
        "games": 8,
        "hash": "corridors",
        "kinds": {"corridor": 8},
        "plan": {"min": 1, "mean": 4.5, "max": 8},
    }


def test_info_of_one_split_as_json(run):
    code, out, _ = run("info", "--split", "valid_seen", "--json")
    assert code == 0
    (split,) = json.loads(out).values()
    assert split["games"] == 120 and set(split["kinds"].values()) == {20}


def test_a_game_is_won_by_hand(run):
    task = make("alfworld", source="embedded").tasks("valid_seen")[4]
    for name in ("5", task.task_id):
        code, out, _ = run("play", "--task", name, said="?\n" + "".join(line + "\n" for line in task.plan))
        assert code == 0
        n = len(task.plan)
        assert out.splitlines()[-1] == f"won after {n} turns; a shortest plan takes {n}"


def test_a_game_ends_with_its_budget_or_the_input(run):
    _, out, _ = run("play", "--budget", "2", said="look\nlook\nlook\n")
    assert out.splitlines()[-1] == "the budget of 2 turns is used up"
    _, out, _ = run("play", said="look\n")
    assert out.splitlines()[-1] == "stopped after 1 turns"


@pytest.mark.parametrize(
    "line",
    [
        ("play", "--task", "0"),
        ("play", "--task", "121"),
        ("play", "--split", "valid"),
        ("info", "--split", "valid"),
        ("verify", "--source", "nowhere"),
    ],
)
def test_wrong_names_are_one_line(run, line):
    code, out, err = run(*line)
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1

"""`bmrl games`: what it says of games, what it finds wrong with them, and playing one by hand."""

import io
import json
from importlib.util import find_spec

import pytest
import tiny

from bmrl.cli import main
from bmrl.cli.games import replay, summary
from bmrl.envs import Task, make
from bmrl.envs.alfworld import generator
from bmrl.envs.alfworld.tables import class_of, tables


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


class Stumbling(tiny.Corridor):
    """Fails at what a command says."""

    def step(self, action):
        if action == "raise":
            raise RuntimeError("stumbled")
        if action == "garbage":
            return None
        return super().step(action)


def test_a_plan_that_an_environment_stumbles_over():
    for command, fault in (("raise", "raised RuntimeError: stumbled"), ("garbage", "answered the answer is NoneType")):
        task = Task("two", "corridor", plan=("go", command, "go"), data=2)
        found = replay(Stumbling(), task)
        assert found is not None and found.startswith(f"at turn 2 of 3 it {fault}")


def test_a_split_in_numbers():
    # Corridors of 1 to 8: the mean plan is (1 + 8) / 2.
    found = summary(tiny.Corridor(), "any")
    assert found == {
        "games": 8,
        "hash": "corridors",
        "kinds": {"corridor": 8},
        "plan": {"min": 1, "mean": 4.5, "max": 8},
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["info", "--env", "textworld_con"], "unknown environment 'textworld_con'; did you mean 'textworld_coin'?"),
        (["verify", "--env", "textworld_coin", "--engine", "fast"], "env.args.engine: textworld_coin has no such"),
        (["play", "--env", "textworld_coin", "--source", "/no"], "source '/no'; known: embedded, generated"),
        (["info", "--arg", "admissible=x"], '--arg admissible: expected true or false, got text "x"'),
        (["check", "textworld_coin", "--arg", "games=x"], '--arg games: expected a whole number, got text "x"'),
        (["info", "--env", "textworld_coin", "--arg", "game=3"], "--arg game: textworld_coin has no such argument"),
    ],
)
def test_an_environment_that_is_not_so_is_one_line(run, line, words):
    code, out, err = run(*line)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1


@pytest.mark.skipif(find_spec("textworld") is None, reason="needs textworld: pip install 'bmrl[textworld]'")
@pytest.mark.slow
def test_games_of_another_world(run):
    more = (
        "--env",
        "textworld_coin",
        "--arg",
        "source=generated",
        "--arg",
        "games=2",
        "--arg",
        "length=2",
        "--arg",
        "rooms=4",
    )
    code, out, _ = run("info", *more, "--split", "train")
    assert code == 0 and out.startswith("train: 2 games, shortest plans 2 to 2, mean 2.0\n")
    assert run("verify", *more, "--split", "train")[1] == "train: 2 of 2 games won by their plans\n"
    code, out, _ = run("play", *more, "--split", "train", "--budget", "1", said="?\nlook\n")
    assert code == 0 and "\nlook\n" in out and out.endswith("the budget of 1 turns is used up\n")


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


def test_games_made_again_are_the_same_and_play(run, tmp_path):
    for folder in ("a", "b"):
        line = ("make", str(tmp_path / folder), "--split", "few", "--count", "12", "--seed", "7")
        assert run(*line) == (0, f"{tmp_path / folder}\n", "")
    for name in ("few.jsonl.gz", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert run("verify", "--source", str(tmp_path / "a"))[1] == "few: 12 of 12 games won by their plans\n"


def test_a_split_is_made_beside_others_and_never_over_one(run, tmp_path):
    folder = str(tmp_path / "games")
    for name in ("one", "two"):
        assert run("make", folder, "--split", name, "--count", "3")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "games").iterdir()}
    code, _, err = run("make", folder, "--split", "one", "--count", "3")
    assert code == 2 and "has a split one" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "games").iterdir()} == before
    env = make("alfworld", source=folder)
    assert env.splits() == ["one", "two"] and len(env.tasks("two")) == 3
    assert {task.task_id for task in env.tasks("one")} != {task.task_id for task in env.tasks("two")}


def test_the_knobs_do_what_they_say():
    asked = generator.Difficulty(receptacles=6, closed=0.5, copies=2, distractors=4, plan=(5, 8))
    for kind in ("pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep"):
        made = generator.make_game(kind, "knobs", difficulty=asked)
        assert len(made.receptacles) == 6
        assert sum(class_of(thing) in tables().openable for thing, _ in made.receptacles) == 3
        classes = [class_of(thing) for thing, _ in made.objects]
        assert classes.count(made.object) == 2 and len(classes) == 2 + 4
        assert 5 <= len(made.plan) <= 8


@pytest.mark.parametrize("turns", [4, 5, 6])
def test_both_ends_of_a_range_of_turns_are_meant(turns):
    made = generator.make_game("pick_and_place_simple", "range", difficulty=generator.Difficulty(plan=(turns, turns)))
    assert len(made.plan) == turns


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--plan", "9-10", "--tasks", "look_at_obj_in_light"), "none of 58 rooms can have a task"),
        (("--plan", "6-4"), "no number of turns"),
        (("--plan", "x"), "no range"),
        (("--tasks", "look"), "none of pick_and_place_simple"),
        (("--closed", "2"), "0<=x<=1"),
    ],
)
def test_games_that_cannot_be_are_one_line_and_leave_nothing(run, tmp_path, more, words):
    code, out, err = run("make", str(tmp_path / "games"), "--count", "6", *more)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1) and words in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/tmp/x", "a\\b", ".hidden", "new\nline"])
@pytest.mark.parametrize("form", ["compact", "both"])
def test_the_name_of_a_split_leads_nowhere_else(run, tmp_path, name, form):
    (tmp_path / "in").mkdir()
    code, out, err = run("make", str(tmp_path / "in" / "games"), "--count", "1", "--split", name, "--format", form)
    assert (code, out, len(err.splitlines())) == (2, "", 1) and repr(name) in err
    assert [*tmp_path.rglob("*")] == [tmp_path / "in"]


@pytest.mark.skipif(find_spec("alfworld") is not None, reason="alfworld is installed")
def test_alfworlds_format_needs_alfworld_and_says_so(run, tmp_path):
    code, _, err = run("make", str(tmp_path / "games"), "--count", "6", "--format", "both")
    assert code == 1 and "bmrl[alfworld]" in err
    assert list(tmp_path.iterdir()) == []

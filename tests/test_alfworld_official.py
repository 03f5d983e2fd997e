"""Folders of games in ALFWorld's own format: what is listed, left out, refused and brought up to date."""

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from bmrl.cli import main
from bmrl.envs.alfworld import listing, official, splits
from bmrl.envs.alfworld.env import AlfworldEnv
from bmrl.envs.alfworld.export import problem_pddl
from bmrl.errors import BmrlError, UsageError

RECORDS = splits.read_split("valid_seen")[:6]
PUT = 'action PutObject {\n    template :: "%s";\n}\n'
TASK = '"rhs": "Your task is to: %s."\n'


def game(number: int, put: str = official.CURRENT) -> dict[str, object]:
    """A game file, of whose grammar only what bmrl reads is there."""
    record = RECORDS[number]
    grammar = TASK % record.sentence + PUT % put
    return {"pddl_problem": problem_pddl(record), "grammar": grammar, "solvable": True}


def write(folder: Path, name: str, raw: object) -> Path:
    path = folder / name / official.COMPILED
    path.parent.mkdir(parents=True)
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """Three good games."""
    for number in range(3):
        write(tmp_path / "train", RECORDS[number].task_id, game(number))
    return tmp_path / "train"


def complaint(folder: Path, split: str = "train") -> str:
    with pytest.raises(BmrlError) as caught:
        AlfworldEnv(str(folder)).tasks(split)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_not_played_is_listed_with_the_reason(train, capsys):
    write(train, "a-unsolvable/trial", {**game(3), "solvable": False})
    unchecked = game(4)
    del unchecked["solvable"]
    write(train, "b-unchecked/trial", unchecked)
    write(train, "pick_and_place_with_movable_recep-x/trial", game(5))
    write(train, "look-AppleSliced-x/trial", "{")  # not even read
    (train / "c-uncompiled" / "trial").mkdir(parents=True)
    (train / "c-uncompiled" / "trial" / listing.TRAJECTORY).write_text("{}")
    expected = {
        listing.UNSOLVABLE: ("a-unsolvable/trial",),
        listing.UNCHECKED: ("b-unchecked/trial",),
        listing.UNCOMPILED: ("c-uncompiled/trial",),
        listing.SORT: ("look-AppleSliced-x/trial", "pick_and_place_with_movable_recep-x/trial"),
    }
    env = AlfworldEnv(str(train.parent))
    assert env.left_out("train") == expected
    assert [task.task_id for task in env.tasks("train")] == sorted(record.task_id for record in RECORDS[:3])
    assert len(env.notes("train")) == 1
    with pytest.raises(SystemExit) as done:
        main(["games", "info", "--source", str(train.parent), "--json"])
    told = json.loads(capsys.readouterr().out)["train"]
    assert done.value.code == 0
    assert told["games"] == 3
    assert {reason: tuple(ids) for reason, ids in told["left_out"].items()} == expected
    with pytest.raises(SystemExit):
        main(["games", "info", "--source", str(train.parent)])
    out = capsys.readouterr().out
    assert all(f"{reason}: {name}" in out for reason, ids in expected.items() for name in ids)


def test_games_of_an_older_grammar_are_played_with_todays(tmp_path):
    for number in range(2):
        write(tmp_path / "train", RECORDS[number].task_id, game(number, official.OLDER))
    env = AlfworldEnv(str(tmp_path))
    assert "put X in/on Y" in env.notes("train")[0]
    for task in env.tasks("train"):
        env.reset(task)
        assert env.step("help").observation.startswith("Available commands:")
        won = []
        for command in task.plan:
            assert command in (env.admissible or ())
            won.append(env.step(command).won)
        assert won[-1]
        assert not any(command.startswith("put ") for command in env.admissible or ())


def test_games_of_two_grammars_are_refused(train):
    write(train, "older/trial", game(3, official.OLDER))
    text = complaint(train.parent)
    assert "two grammars" in text
    assert "1 of 4 are older" in text
    assert "older/trial" in text
    write(train, "unheard/trial", game(4, "place {o} at {r}"))
    assert "'place {o} at {r}'" in complaint(train.parent)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"grammar": ""}', "not a game.tw-pddl"),
        ('{"solvable": true}', "not a game.tw-pddl"),
        ('{"grammar": "\\"Your task is to: x.\\"", "pddl_problem": "(:init (:goal"}', "not a game.tw-pddl"),
    ],
)
def test_unreadable_games_are_one_line(train, text, words):
    write(train, "odd/trial", text)
    told = complaint(train.parent)
    assert "1 unreadable games" in told
    assert words in told
    assert "odd/trial" in told


def test_a_file_that_is_gone_is_named(train):
    path = write(train, "link/trial", game(3))
    path.unlink()
    path.symlink_to(train / "nowhere")
    assert "link/trial" in complaint(train.parent)


def test_what_is_no_file_is_named_and_not_waited_for(train):
    (train / "pipe").mkdir()
    os.mkfifo(train / "pipe" / official.COMPILED)
    (train / "folder" / official.COMPILED).mkdir(parents=True)
    told = complaint(train.parent)
    assert "2 unreadable games" in told
    assert f"pipe/{official.COMPILED}: is no file" in told
    assert f"folder/{official.COMPILED}: is no file" in told


def test_links_to_folders_are_listed_and_not_followed(train):
    (train / "again").symlink_to(train)
    (train / RECORDS[0].task_id / "up").symlink_to(train)
    env = AlfworldEnv(str(train.parent))
    assert env.left_out("train") == {listing.LINKED: ("again", f"{RECORDS[0].task_id}/up")}
    assert len(env.tasks("train")) == 3


def test_games_that_no_plan_wins_are_listed(train):
    lost, won = game(3), game(4)
    lost["pddl_problem"] = str(lost["pddl_problem"]).replace("(pickupable ", "(heavy ")
    # Won where it begins: asked for is an object in a receptacle, and one is there.
    problem = str(game(0)["pddl_problem"]).partition("(:goal")[0]
    thing, place = next(f.split()[1:] for f in problem.replace(")", "").split("(") if f.startswith("inReceptacle "))
    kinds = [name.partition("_bar_")[0] for name in (thing, place)]
    asked = "(:goal (exists (?r ?o) (and (objectType ?o {}Type) (receptacleType ?r {}Type))))".format(*kinds)
    won["pddl_problem"] = f"{problem}{asked}"
    write(train, "lost/trial", lost)
    write(train, "won/trial", won)
    assert AlfworldEnv(str(train.parent)).left_out("train") == {listing.UNWINNABLE: ("lost/trial", "won/trial")}


@pytest.mark.parametrize("name", ["new\nline", "tab\t", os.fsdecode(b"latin-1 \xff")])
def test_names_that_are_no_text_on_one_line_are_refused(train, name):
    odd = write(train, f"{name}/trial", game(3)).parent.parent
    assert ascii(f"{name}/trial") in complaint(train.parent)
    odd.rename(train.parent / name)
    with pytest.raises(UsageError) as caught:
        AlfworldEnv(str(train.parent)).splits()
    assert ascii(name) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        AlfworldEnv(str(train.parent / name))
    assert "\n" not in str(caught.value)


def test_names_that_are_unusual_are_played(train):
    write(train.parent / "my split", "caf\u00e9 \u6f22/it's [1]*", game(3))
    (train.parent / ".train.tmp-1").mkdir()
    write(train.parent / ".train.tmp-1", "half/trial", game(4))  # what a killed `games make` leaves
    env = AlfworldEnv(str(train.parent))
    assert env.splits() == ["my split", "train"]
    assert [task.task_id for task in env.tasks("my split")] == ["caf\u00e9 \u6f22/it's [1]*"]


def test_the_home_of_nobody_is_one_line(monkeypatch):
    for source in ("~nobody of this name/games", "official", "auto"):
        monkeypatch.setenv("ALFWORLD_DATA", "~nobody of this name/games")
        with pytest.raises(UsageError, match=r"no such folder|there is no"):
            AlfworldEnv(source)


def test_a_game_that_is_there_twice_is_refused(train):
    shutil.copytree(train / RECORDS[0].task_id, train / "copy" / "trial")
    text = complaint(train.parent)
    assert "1 games are there twice" in text
    assert "copy/trial" in text
    assert RECORDS[0].task_id in text


def test_empty_splits_and_wrong_folders_are_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "train").mkdir()
    assert "holds no game.tw-pddl that can be played" in complaint(tmp_path)
    (tmp_path / "train" / "x").mkdir()
    (tmp_path / "train" / "x" / listing.TRAJECTORY).write_text("{}")
    assert "1 without a compiled game" in complaint(tmp_path)
    assert "no such split" in complaint(tmp_path, "valid_seen")
    for line in (["games", "info", "--source", str(tmp_path)], ["games", "info", "--source", "official"]):
        monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
        with pytest.raises(SystemExit) as done:
            main(line)
        out, err = capsys.readouterr()
        assert (done.value.code, out, len(err.splitlines())) == (2, "", 1), line
    recipe = ["check", "quickstart", "--set", f"env.args.source={tmp_path}"]
    with pytest.raises(SystemExit) as done:
        main(recipe)
    out, err = capsys.readouterr()
    assert done.value.code == 2
    assert "holds no games" in err


def test_official_games_are_where_the_variable_says(train, monkeypatch):
    data = train.parent
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(UsageError, match="ALFWORLD_DATA is not set"):
        AlfworldEnv("official")
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    with pytest.raises(UsageError, match=r"there is no .*json_2\.1\.1"):
        AlfworldEnv("official")
    (data / "json_2.1.1").mkdir()
    train.rename(data / "json_2.1.1" / "train")
    env = AlfworldEnv("official")
    assert env.splits() == ["train"]
    assert len(env.tasks("train")) == 3
    assert env.split_hash("train") == AlfworldEnv(str(data)).split_hash("train") == AlfworldEnv().split_hash("train")


def test_the_hash_and_the_list_follow_the_files(train):
    env = AlfworldEnv(str(train.parent))
    before, tasks = env.split_hash("train"), env.tasks("train")
    assert env.split_hash("train") == before
    # Another sentence, of equal length: nothing but the content differs.
    path = Path(tasks[0].data)
    state, text = path.stat(), path.read_text()
    changed = text.replace("Your task is to: ", "Your task is to: ").replace('.\\"\\n', '!\\"\\n', 1)
    assert changed != text and len(changed) == len(text)
    path.write_text(changed)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert env.split_hash("train") != before
    path.unlink()
    assert len(env.tasks("train")) == 2


def test_the_hash_knows_the_ids(train):
    before = AlfworldEnv(str(train.parent)).split_hash("train")
    (train / RECORDS[2].task_id).rename(train / "zzz")  # the same games in the same order
    (train / RECORDS[1].task_id).rename(train / "yyy")
    (train / RECORDS[0].task_id).rename(train / "xxx")
    assert AlfworldEnv(str(train.parent)).split_hash("train") != before


def test_the_first_five_are_named_and_the_others_counted(tmp_path):
    for number in range(6):
        write(tmp_path / "train", f"{number}/trial", "{")
    told = complaint(tmp_path)
    assert "6 unreadable games" in told and "4/trial" in told
    assert "5/trial" not in told and "; and 1 more" in told


def test_what_is_read_of_a_game_is_what_it_was_made_from(tmp_path):
    """All six kinds: what is asked for, a shortest plan, and, where it is evaluated, how long a search takes."""
    assert len({record.kind for record in RECORDS}) == 6
    for split in ("train", "other"):
        for number, record in enumerate(RECORDS):
            write(tmp_path / split, record.task_id, game(number))
    env = AlfworldEnv(str(tmp_path))
    for split in ("train", "other"):
        found = {task.task_id: task for task in env.tasks(split)}
        for record in RECORDS:
            task = found[record.task_id]
            assert (task.kind, len(task.plan)) == (record.kind, len(record.plan))
            assert task.search_turns == (() if split == "train" else record.search_turns)


def test_each_file_is_read_once(train, monkeypatch):
    env = AlfworldEnv(str(train.parent))
    env.tasks("train")
    read = []
    monkeypatch.setattr(official, "content", lambda path: read.append(path))
    assert len(env.tasks("train")) == 3
    assert env.split_hash("train") and not env.notes("train")
    assert read == []


def test_a_sentence_with_quotes_and_accents(tmp_path):
    raw = game(0)
    raw["grammar"] = '"rhs": "Your task is to: say \\"caf\\u00e9\\" on it."\n' + PUT % official.CURRENT
    write(tmp_path / "train", "a/trial", raw)
    env = AlfworldEnv(str(tmp_path))
    assert env.reset(env.tasks("train")[0]).endswith('Your task is to: say "caf\u00e9" on it.')


@pytest.mark.parametrize(("copies", "words"), [(0, "holds no game"), (2, "1 task ids are there twice")])
def test_compact_splits_hold_each_game_once(tmp_path, copies, words):
    content = (RECORDS[0].to_json() + "\n").encode() * copies
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(content))
    entry = {"file": "train.jsonl.gz", "games": copies, "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps({"splits": {"train": entry}}))
    assert words in complaint(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"object": 7},
        {"lamp": None},
        {"objects": [["Apple|+1|+1|+1", 99]]},
        {"objects": [["Apple|+1|+1|+1", -1]]},
        {"receptacles": []},
        {"extra": 1},
        {"plan": 3},
    ],
)
def test_a_record_that_is_none_is_one_line(tmp_path, change):
    content = (json.dumps(json.loads(RECORDS[0].to_json()) | change) + "\n").encode()
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(content))
    entry = {"file": "train.jsonl.gz", "games": 1, "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps({"splits": {"train": entry}}))
    assert "not a game record" in complaint(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"splits": {}}',
        '{"splits": []}',
        '{"splits": {"train": null}}',
        *(json.dumps({"splits": {"train": {"file": "f", "sha256": "0", "games": 1} | odd}}) for odd in (
            {"file": "a\0b"}, {"file": "."}, {"sha256": 5}, {"games": "many"}, {"games": None},
        )),
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_one_line(tmp_path, text, capsys):
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "f").write_bytes(gzip.compress(b""))
    with pytest.raises(SystemExit) as done:
        main(["games", "info", "--source", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (done.value.code, out, len(err.splitlines())) == (1, "", 1)
    assert "internal error" not in err

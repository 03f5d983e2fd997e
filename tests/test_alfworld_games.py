"""The embedded games, their manifest, and the generator."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from bmrl.envs.alfworld import generator, splits
from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.record import Record, record_from_json
from bmrl.envs.alfworld.reference import MOST_TURNS, PLAYS, search_turns
from bmrl.envs.alfworld.tables import KINDS
from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path

GAMES = {split: splits.read_split(split) for split in splits.SPLITS}
ALL = [record for records in GAMES.values() for record in records]


def test_splits_have_all_kinds_equally() -> None:
    assert {split: len(records) for split, records in GAMES.items()} == {
        "train": 600,
        "valid_seen": 120,
        "valid_unseen": 120,
    }
    for records in GAMES.values():
        kinds = [record.kind for record in records]
        assert {kinds.count(kind) for kind in KINDS} == {len(records) // 6}


def test_no_game_twice() -> None:
    assert len({record.task_id for record in ALL}) == len(ALL)
    assert len({record.content for record in ALL}) == len(ALL)


def test_rooms_of_the_splits() -> None:
    rooms = {split: {record.room for record in records} for split, records in GAMES.items()}
    assert rooms["valid_unseen"] == {10, 219, 308, 424}
    assert not rooms["valid_unseen"] & rooms["train"]
    assert rooms["valid_seen"] <= rooms["train"]


def test_references_are_recorded() -> None:
    for record in ALL:
        assert len(record.search_turns) == PLAYS
        # Whoever knows everything needs no more turns than whoever must search.
        for turns in record.search_turns:
            assert turns is None or len(record.plan) <= turns <= MOST_TURNS
    for record in ALL[::50]:
        assert search_turns(game_from_record(record), record.task_id) == record.search_turns


def test_records_survive_json() -> None:
    for record in ALL[::20]:
        assert record_from_json(record.to_json()) == record
    with pytest.raises(ValueError, match="not a game record"):
        record_from_json('{"task_id": "x"}')


def test_a_split_is_made_again_bit_for_bit() -> None:
    split = "valid_unseen"
    lines = [record.to_json() for record in splits.make_split(split, generator.UNSEEN_ROOMS)]
    packed = data_path("alfworld", f"{split}.jsonl.gz").read_bytes()
    assert gzip.decompress(packed).decode() == "".join(line + "\n" for line in lines)
    assert packed[4:8] == bytes(4)  # no time in the header


def test_the_manifest_knows_the_generator() -> None:
    manifest = json.loads(data_path("alfworld", "manifest.json").read_text())
    assert manifest["generator"] == generator.VERSION
    for split, entry in manifest["splits"].items():
        assert entry["rooms"] == sorted({record.room for record in GAMES[split]})
        assert splits.split_hash(split) == entry["sha256"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "games"
    shutil.copytree(data_path("alfworld"), folder)
    return folder


def complaint(folder: Path, split: str = "train") -> str:
    with pytest.raises(BmrlError) as caught:
        splits.read_split(split, folder)
    text = str(caught.value)
    assert "\n" not in text
    assert "bmrl games make" in text
    return text


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "train.jsonl.gz").unlink()
    assert "train.jsonl.gz: missing" in complaint(copy)
    (copy / "manifest.json").unlink()
    assert "manifest.json: missing" in complaint(copy)


def test_a_damaged_file_is_named(copy: Path) -> None:
    path = copy / "train.jsonl.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:5000])
    assert "train.jsonl.gz: cannot be unpacked" in complaint(copy)
    path.write_bytes(whole[:5000] + b"\xff" * 50 + whole[5050:])
    assert "train.jsonl.gz" in complaint(copy)
    content = gzip.decompress(whole)
    path.write_bytes(gzip.compress(content.replace(b"Apple", b"Mango", 1)))
    assert "sha256" in complaint(copy)
    (copy / "manifest.json").write_text("{")
    assert "manifest.json: damaged" in complaint(copy)


def test_an_unknown_split_is_a_wrong_use() -> None:
    with pytest.raises(UsageError, match="did you mean 'valid_seen'"):
        splits.read_split("valid_sen")


def test_the_generator_is_a_function_of_its_arguments() -> None:
    for kind in KINDS:
        one = generator.make_game(kind, "again")
        assert one == generator.make_game(kind, "again")
        assert one.content != generator.make_game(kind, "another").content
    with pytest.raises(UsageError, match="unknown kind"):
        generator.make_game("pick", "x")
    with pytest.raises(UsageError, match="none of the rooms"):
        generator.make_game("pick_heat_then_place_in_recep", "x", [401])


def test_further_games_repeat_no_embedded_game() -> None:
    embedded = splits.embedded_contents()
    made: list[Record] = list(generator.games(0, 120))
    assert not embedded & {record.content for record in made}
    assert not {record.task_id for record in ALL} & {record.task_id for record in made}
    assert not {record.room for record in made} & set(generator.UNSEEN_ROOMS)
    # With the training split's own namespace the games would be the same: the check does look.
    same = list(generator.games(splits.SEED, 6, namespace="embedded/train"))
    assert {record.content for record in same} <= embedded
    other = generator.games(splits.SEED, 6, namespace="embedded/train", avoid=embedded)
    assert not embedded & {record.content for record in other}

"""`bmrl diagnose` with a real policy: the embedded one against itself."""

import json
from pathlib import Path

import pytest

from bmrl.cli import main
from bmrl.episodes import read_episodes

pytestmark = pytest.mark.slow

SMALL = "--tasks 3 --states 2 --budget 3 --budget 4 --force 1 --json"


def diagnosed(capsys, *arguments: str) -> dict:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "pocket", "--against", "pocket", *SMALL.split(), *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return json.loads(captured.out)


def test_a_policy_is_no_better_than_itself_and_the_files_are_those_of_the_docs(capsys, tmp_path: Path):
    first = diagnosed(capsys, "--out", str(tmp_path / "one"))
    assert first["judge"] == "transcript"
    assert first["missing"] == []
    assert first["single_step"]["mass"] == {"a": "exact", "b": "exact"}
    assert {row["difference"]["value"] for row in first["curve"]} == {0}
    for name in ("on_track", "after_error"):
        rows = first["single_step"][name]
        assert all(abs(row["mass"]["difference"]["value"]) < 1e-9 for row in rows)
        whole = [r["mass"]["a"]["value"] for r in rows if r["source"] == "all" and r["kind"] != "error"]
        assert sum(whole) == pytest.approx(1)
    (path,) = (tmp_path / "one").glob("*.json")
    assert json.loads(path.read_text()) == first
    stem = path.name.removesuffix(".json")
    assert first["single_step"]["bank"]["file"] == f"{stem}.bank.jsonl"
    assert [len(read_episodes(path.with_name(f"{stem}.{who}.jsonl"))) for who in "ab"] == [3, 3]

    # The stored bank gives the same figures; the name is the same, for so are the settings and the states.
    again = diagnosed(capsys, "--out", str(tmp_path / "two"), "--bank", str(tmp_path / "one" / f"{stem}.bank.jsonl"))
    assert again == first
    assert (tmp_path / "two" / path.name).is_file()


def test_a_bank_of_other_games_is_one_line(capsys, tmp_path: Path):
    bank = tmp_path / "b.jsonl"
    bank.write_text('{"bank_format": 1, "env": "alfworld", "split": "train", "split_hash": "x"}\n')
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "pocket", "--against", "pocket", "--bank", str(bank)])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert "is of split train, played is valid_seen; leave --bank out" in line

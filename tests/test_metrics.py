"""The glossary is complete, the page is current, the file survives kills."""

import json
from pathlib import Path

import pytest

from bmrl.errors import BmrlError
from bmrl.glossary import GLOSSARY, markdown, metric
from bmrl.metrics import MetricsFile
from bmrl.types import EndReason


def test_documentation_is_current():
    page = Path(__file__).parent.parent / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == markdown(), "write markdown() to docs/metrics.md"


def test_page_lists_every_key_in_one_row_each():
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(GLOSSARY)
    assert all(row.count("|") == 6 for row in rows)


def test_patterns():
    assert metric("success_at_8") is GLOSSARY["success_at_{budget}"]
    assert all(metric(f"end_{reason}") is GLOSSARY["end_{reason}"] for reason in EndReason)
    for key in (
        "success_at_x",
        "success_at_08",
        "success_at_{budget}_",
        "end_boredom",
        "end_",
        "los",
    ):
        assert metric(key) is None


def test_times_and_only_times_have_their_ending():
    for key, entry in GLOSSARY.items():
        assert key.endswith(("_s", "_per_s")) == (entry.unit in ("s", "tokens/s")), key


def test_append_and_read(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.read() == []
    file.append({"step": 1, "success": 0.5, "success_at_4": 0.25, "end_budget": 0.5})
    file.append({"step": 2, "loss": float("nan"), "kl": float("inf"), "entropy": None})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == file.read()
    assert file.read()[1] == {"step": 2, "loss": None, "kl": None, "entropy": None}


def test_unknown_keys_are_refused_and_nothing_is_written(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(KeyError, match="sucess"):
        file.append({"step": 1, "sucess": 0.5})
    assert not file.path.exists()


def test_truncate_after_forgets_later_steps_and_half_a_line(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.truncate_after(0)
    assert not file.path.exists()
    for step in range(1, 6):
        file.append({"step": step, "success": 0.1 * step})
    as_if_nothing_happened = file.path.read_bytes()
    with file.path.open("a") as handle:
        handle.write('{"step": 6, "suc')
    file.truncate_after(3)
    assert [record["step"] for record in file.read()] == [1, 2, 3]
    for step in (4, 5):
        file.append({"step": step, "success": 0.1 * step})
    assert file.path.read_bytes() == as_if_nothing_happened
    file.truncate_after(0)
    assert file.path.read_bytes() == b""


def test_a_damaged_line_is_named(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(BmrlError, match=r"metrics\.jsonl:2: damaged"):
        file.read()

"""Plots from the files of a run: drawn, the same each time, or refused in one line."""

import json
import os

import pytest
from matplotlib.figure import Figure

from bmrl import run_folder
from bmrl.atomic import write_json
from bmrl.errors import BmrlError, UsageError
from bmrl.metrics import MetricsFile
from bmrl.report import _budgets_plot, _training_plot, evaluations, write


def result(step, successes):
    return {
        "target": "demo",
        "checkpoint": None if step is None else f"step-{step:06d}",
        "split": "valid_seen",
        "seeds": [0],
        "announce": "none",
        "tasks": 120,
        "area": 0.4,
        "budgets": [
            {
                "budget": budget,
                "success": success,
                "low": max(0.0, success - 0.1),
                "high": min(1.0, success + 0.1),
                "ceiling": 0.9,
                "search_reference": None if step is None else 0.8,
            }
            for budget, success in zip((4, 8, 30), successes, strict=True)
        ],
    }


@pytest.fixture
def run(tmp_path):
    folder = run_folder.create(tmp_path / "runs", "", {"name": "demo"}, {})
    write_json(folder / "eval" / "step-000000.json", result(0, (0.0, 0.2, 0.5)))
    write_json(folder / "eval" / "step-000005.json", result(5, (0.1, 0.3, 0.6)))
    write_json(folder / "eval" / "step-000010.json", result(10, (0.1, 0.4, 1.0)))
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, 11):
        metrics.append({"step": step, "success": 0.05 * step})
    return folder


def drawn(draw):
    axes = Figure().add_subplot()
    draw(axes)
    return axes


def test_plots_are_written_and_repeat_byte_for_byte(run):
    paths = write([run])
    assert [p.name for p in paths] == ["success_over_budgets.png", "success_over_training.png"]
    first = [p.read_bytes() for p in paths]
    assert all(data.startswith(b"\x89PNG") for data in first)
    assert all(b"Software" not in data and b"tIME" not in data for data in first)
    assert [p.read_bytes() for p in write([run])] == first


def test_budgets_plot_shows_first_and_last_evaluation_and_the_references(run):
    axes = drawn(_budgets_plot("demo", evaluations(run)))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "8", "30"]
    assert axes.get_title() == "demo: success over budgets\nvalid_seen, 120 tasks"
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == [
        "after step 10 (95 % interval)",
        "before training (95 % interval)",
        "ceiling: shortest plan fits",
        "exploring expert",
    ]
    curves = {c.get_label(): c.lines[0].get_ydata().tolist() for c in axes.containers}
    assert curves == {
        "before training (95 % interval)": [0.0, 0.2, 0.5],
        "after step 10 (95 % interval)": [0.1, 0.4, 1.0],
    }


def test_training_plot_shows_every_step_and_every_evaluation(run):
    steps = MetricsFile(run / "metrics.jsonl").read()
    axes = drawn(_training_plot("demo", evaluations(run), steps))
    training, areas = axes.lines
    assert training.get_ydata() == pytest.approx([0.05 * step for step in range(1, 11)])
    assert list(areas.get_xdata()) == [0, 5, 10]


def test_one_evaluation_by_hand_is_enough(run):
    for path in (run / "eval").glob("step-*"):
        path.unlink()
    (run / "metrics.jsonl").unlink()
    write_json(run / "eval" / "valid_seen-0a1b.json", result(None, (0.0, 0.2, 0.5)))
    assert [p.name for p in write([run])] == ["success_over_budgets.png"]
    axes = drawn(_budgets_plot("demo", evaluations(run)))
    # An unknown search reference is left out, not drawn as 0.
    assert sorted(axes.get_legend_handles_labels()[1]) == [
        "ceiling: shortest plan fits",
        "success (95 % interval)",
    ]


def test_a_run_without_evaluation_says_what_to_run_and_nothing_is_drawn(run, tmp_path):
    other = run_folder.create(tmp_path / "runs", "", {"name": "bare"}, {})
    with pytest.raises(BmrlError, match=f"{other}: no evaluation to plot; run: bmrl eval {other}"):
        write([run, other])
    assert not (run / "plots").exists()


def test_no_run_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="is not a run folder"):
        write([tmp_path])


def test_only_what_was_measured_alike_shares_a_plot(tmp_path):
    run = run_folder.create(tmp_path / "runs", "", {"name": "demo"}, {})
    seen, unseen = result(3, (0.1, 0.2, 0.3)), {**result(3, (0.2, 0.3, 0.4)), "split": "valid_unseen", "tasks": 10}
    for age, (name, value) in enumerate((("a", seen), ("b", unseen))):
        write_json(run / "eval" / f"{name}.json", value)
        os.utime(run / "eval" / f"{name}.json", (age, age))
    assert [found["split"] for _, found in evaluations(run)] == ["valid_unseen"]


def test_every_key_of_an_evaluation_is_missed_by_name_not_by_accident(run):
    path = run / "eval" / "step-000010.json"
    whole = json.loads(path.read_text())
    for key in whole:
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        _sound_or_named(run)
    for key in whole["budgets"][0]:
        rows = [{k: v for k, v in row.items() if k != key} for row in whole["budgets"]]
        path.write_text(json.dumps({**whole, "budgets": rows}))
        _sound_or_named(run)


def _sound_or_named(run):
    try:
        write([run])
        evaluations(run)
    except BmrlError as error:
        assert "step-000010.json: damaged" in str(error)


@pytest.mark.parametrize("text", ["{", "[]", '{"checkpoint": null, "budgets": []}', json.dumps({"budgets": 3})])
def test_a_damaged_evaluation_is_named(run, text):
    (run / "eval" / "step-000005.json").write_text(text)
    with pytest.raises(BmrlError, match=r"step-000005\.json: damaged") as caught:
        write([run])
    assert "\n" not in str(caught.value)

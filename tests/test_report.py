"""The report from the files of a run: plots and one page; the same each time, or refused in one line."""

import base64
import html
import json
import math
import os
import re
import zlib

import pytest
import report_run
from matplotlib.figure import Figure
from report_run import episode, evaluation, lines

from bmrl import report, run_folder
from bmrl.atomic import write_json
from bmrl.cli import main
from bmrl.errors import BmrlError, UsageError
from bmrl.metrics import MetricsFile
from bmrl.report import curves, diagnosis, episodes, evaluations, training
from bmrl.report.charts import smoothed
from bmrl.report.figure import inline, svg


@pytest.fixture
def run(tmp_path):
    return report_run.make(tmp_path / "runs")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run and what was written for it."""
    run = report_run.make(tmp_path_factory.mktemp("written"))
    return run, report.write(report.read([run]))


def drawn(draw):
    axes = Figure().add_subplot()
    draw(axes)
    return axes


def write(runs):
    return report.write(report.read(runs))


def embedded(page):
    """The episodes of a page."""
    data = re.search(r'<script id="data" type="text/plain">([^<]*)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(data)))


def test_page_and_plots_are_written_and_repeat_byte_for_byte(written):
    run, paths = written
    names = (
        "success_over_budgets",
        "gain_over_budgets",
        "turns_used",
        "success_over_training",
        "learning_by_budget",
        "end_reasons",
        "turns_over_training",
    )
    assert [p.name for p in paths] == ["report.html", *(f"{n}.{form}" for n in names for form in ("png", "svg"))]
    first = {p: p.read_bytes() for p in paths}
    pngs = [data for p, data in first.items() if p.suffix == ".png"]
    assert all(data.startswith(b"\x89PNG") and b"Software" not in data and b"tIME" not in data for data in pngs)
    assert {p: p.read_bytes() for p in write([run])} == first


def test_the_page_loads_nothing_and_names_no_place_of_the_machine(written):
    run, (path, *_) = written
    page = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in html.unescape(page) and "unsafe" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page) and "@import" not in page and " style=" not in page
    assert str(run.parent) not in page and "/home/ann" not in page and "…/small" in page


def test_budgets_chart_shows_first_and_last_evaluation_and_the_references(run):
    chart = curves.budgets_chart(evaluations(run))
    axes = drawn(chart.draw)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "8", "30"]
    assert "120 tasks of valid_seen" in chart.note
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == ["after step 10", "before training", "ceiling", "exploring expert"]
    shown = {c.get_label(): c.lines[0].get_ydata().tolist() for c in axes.containers}
    assert shown == {"before training": [0.0, 0.2, 0.5], "after step 10": [0.1, 0.4, 1.0]}
    assert chart.table[1] == ("4", "0.0 %", "10.0 %", "0.0 % to 20.0 %", "90.0 %", "80.0 %", "–")


def test_gains_are_paired_by_task(run):
    (source,) = report.read([run])
    # Task one is solved with its fifth action after training, two never: at 4 turns no gain, at 8 and 30 half.
    assert [(row["budget"], row["difference"]) for row in source.gains["budgets"]] == [(4, 0.0), (8, 0.5), (30, 0.5)]
    # From 4 to 8 is one octave, of mean gain 0.25; from 8 to 30 are log2(30 / 8), of 0.5.
    octaves = math.log2(30 / 8)
    assert source.gains["area"]["difference"] == pytest.approx((0.25 + 0.5 * octaves) / (1 + octaves))
    chart = next(chart for chart in curves.charts(source) if chart.name == "gain_over_budgets")
    (bars,) = drawn(chart.draw).containers
    assert bars.lines[0].get_ydata().tolist() == [0.0, 50.0, 50.0]


def test_training_chart_shows_every_step_and_every_evaluation(run):
    steps = MetricsFile(run / "metrics.jsonl").read()
    axes = drawn(training.success_chart(evaluations(run), steps).draw)
    episodes_line, areas = axes.lines
    assert episodes_line.get_ydata() == pytest.approx([0.05 * step for step in range(1, 11)])
    assert list(areas.get_xdata()) == [0, 5, 10]


def test_what_is_smoothed_looks_back_only():
    # Window of 10: the twelfth value's mean is that of 2 to 11, (2 + 11) / 2.
    at, means = smoothed([(float(n), float(n)) for n in range(12)])
    assert at[-1] == 11 and means[0] == 0 and means[1] == 0.5 and means[-1] == 6.5


def test_many_budgets_share_few_lines():
    assert training.budget_groups([4, 8]) == [[4], [8]]
    assert training.budget_groups([]) == []
    groups = training.budget_groups(range(1, 31))
    assert [len(group) for group in groups] == [6] * 5 and groups[0] == [1, 2, 3, 4, 5, 6]


def test_a_picture_in_the_page_has_no_style_and_ids_of_its_own(run):
    picture = svg(curves.budgets_chart(evaluations(run)).draw)
    text = inline(picture, 'a "title" <b>', key="k")
    assert "style" not in text and "<metadata" not in text and 'role="img"' in text and "&lt;b&gt;" in text
    ids = set(re.findall(r' id="([^"]*)"', text))
    used = set(re.findall(r'(?:href="|url\()#([^")]*)', text))
    assert used == ids and all(one.startswith("k-") for one in ids)


def test_one_evaluation_by_hand_is_enough(run):
    for path in (run / "eval").glob("step-*"):
        path.unlink()
    (run / "metrics.jsonl").unlink()
    write_json(run / "eval" / "valid_seen-0a1b.json", evaluation(None, (0.0, 0.2, 0.5)))
    assert [p.name for p in write([run])] == ["report.html", "success_over_budgets.png", "success_over_budgets.svg"]
    axes = drawn(curves.budgets_chart(evaluations(run)).draw)
    # An unknown search reference is left out, not drawn as 0.
    assert sorted(axes.get_legend_handles_labels()[1]) == ["ceiling", "success"]


def test_a_run_without_evaluation_shows_its_training(tmp_path):
    run = run_folder.create(tmp_path / "runs", "", {"name": "taught"}, {})
    metrics = MetricsFile(run / "metrics.jsonl")
    for step in (1, 2):
        metrics.append({"step": step, "action_loss": 2.0 / step, "tokens": 10})
    page, *plots = write([run])
    assert [p.name for p in plots] == ["loss_over_training.png", "loss_over_training.svg"]
    assert "Diagnosis" not in page.read_text(encoding="utf-8")


def test_a_run_with_nothing_says_what_to_run_and_nothing_is_drawn(run, tmp_path):
    other = run_folder.create(tmp_path / "runs", "", {"name": "bare"}, {})
    with pytest.raises(BmrlError, match=f"{other}: no evaluation to plot; run: bmrl eval {other}"):
        write([run, other])
    assert not (run / "plots").exists() and not (run / "report.html").exists()


def test_no_run_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="is not a run folder"):
        write([tmp_path])


def test_several_runs_share_a_page_and_are_called_by_their_folders(run, tmp_path, capsys):
    other = report_run.make(tmp_path / "runs", steps=2)
    assert other.name == "demo-2"
    with pytest.raises(SystemExit) as done:
        main(["report", str(run), str(other), str(run), "--out", str(tmp_path / "out" / "both.html")])
    assert done.value.code == 0
    lines_out = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "out" / "both.html") in lines_out
    page = (tmp_path / "out" / "both.html").read_text(encoding="utf-8")
    assert "<h1>demo · demo-2</h1>" in page and "side by side" in page
    assert embedded(page)["runs"] == ["demo", "demo-2"]
    assert (tmp_path / "out" / "plots" / "runs_over_budgets.svg").is_file() and (other / "plots").is_dir()
    assert not (run / "report.html").exists()


def test_only_what_was_measured_alike_shares_a_plot(tmp_path):
    run = run_folder.create(tmp_path / "runs", "", {"name": "demo"}, {})
    seen = evaluation(3, (0.1, 0.2, 0.3))
    unseen = evaluation(3, (0.2, 0.3, 0.4), split="valid_unseen", tasks=10)
    for age, (name, value) in enumerate((("a", seen), ("b", unseen))):
        write_json(run / "eval" / f"{name}.json", value)
        os.utime(run / "eval" / f"{name}.json", (age, age))
    assert [one.result["split"] for one in evaluations(run)] == ["valid_unseen"]
    (source,) = report.read([run])
    assert [one.result["split"] for one in source.others] == ["valid_seen"]


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
        (source,) = report.read([run])
        for chart in [*curves.charts(source), *training.charts(source)]:
            drawn(chart.draw)
        report.progress(source)
    except BmrlError as error:
        assert "step-000010.json: damaged" in str(error)


@pytest.mark.parametrize("text", ["{", "[]", '{"checkpoint": null, "budgets": []}', json.dumps({"budgets": 3})])
def test_a_damaged_evaluation_is_named(run, text):
    (run / "eval" / "step-000005.json").write_text(text)
    with pytest.raises(BmrlError, match=r"step-000005\.json: damaged") as caught:
        write([run])
    assert "\n" not in str(caught.value)


def test_a_damaged_episode_is_named_and_nothing_is_half_written(run):
    (run / "eval" / "step-000010.jsonl").write_text(json.dumps(episode("one", [{"observation": "x"}])) + "\n")
    lines(run / "eval" / "step-000000.jsonl", [episode("one", [])])
    with pytest.raises(BmrlError, match=r"step-000010\.jsonl:1: damaged, not an episode"):
        write([run])
    assert not (run / "report.html").exists()


def test_episodes_are_chosen_evenly_and_counted(run):
    (source,) = report.read([run])
    whole = episodes.pack([source], 1000)
    # Two episodes of the first and of the last evaluation, and two of each of ten steps.
    assert whole.total == len(whole.episodes) == 24
    few = episodes.pack([source], 9)
    # The evaluations' four, and one of each of the first of every two steps: 5 left for 10 steps.
    assert few.total == 24 and [row[1] for row in few.episodes] == [None] * 4 + [1, 3, 5, 7, 9]
    assert episodes.pack([source], 0).episodes == [] and episodes.pack([source], 0).total == 24


def test_each_text_is_there_once_and_no_longer_than_it_may_be(run):
    long = "x" * (episodes.TEXT + 5)
    lines(run / "eval" / "step-000010.jsonl", [episode("one", [(long, "go"), (long, "go")]), episode("two", [])])
    packed = episodes.pack(report.read([run]), 1000)
    assert len(packed.texts) == len(set(packed.texts))
    assert [len(text) for text in packed.texts if text.startswith("xx")] == [
        episodes.TEXT + len(" … (5 characters more)")
    ]


def test_distances_come_from_playing_again(run):
    from bmrl.envs import make

    env = make("alfworld", source="embedded")
    task = env.tasks("valid_seen")[0]
    seen, turns = env.reset(task), []
    for action in task.plan:
        turns.append((seen, action))
        seen = env.step(action).observation
    changed = [(turns[0][0], turns[0][1]), ("another game", turns[1][1])]
    played = [episode(task.task_id, turns, reason="success"), episode(task.task_id, changed), episode("gone", turns)]
    lines(run / "eval" / "step-000010.jsonl", played)
    for step in (0, 5):  # they played other tasks
        (run / "eval" / f"step-{step:06d}.json").unlink()
    packed = episodes.pack(report.read([run]), 1000)
    first, second, third = packed.episodes[:3]
    n = len(task.plan)
    # A shortest plan brings the goal nearer by one with each turn, from n to 0.
    assert first[9] == n and [turn[6] for turn in first[10]] == list(range(n - 1, -1, -1))
    assert second[9] is None and third[9] is None and third[10][0][6] is None


FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6, "tasks": 10}
NONE = {"value": None, "low": None, "high": None, "tasks": 0}
PAIR = {"a": FIGURE, "b": {**FIGURE, "value": 0.25, "low": 0.2, "high": 0.3}, "difference": FIGURE}


def diagnosed(**other):
    forced = [
        {"mode": mode, "k": k, "budget": budget, "ratio": PAIR if k < 8 else {**PAIR, "b": NONE}}
        for budget in (8, 30)
        for mode in ("random", "harmful")
        for k in (1, 2, 4, 8)
    ]
    return {
        "diagnosis_format": 1,
        "a": {"name": "demo", "checkpoint": "step-000010"},
        "b": {"name": "demo", "checkpoint": None},
        "tasks": 10,
        "split": "valid_seen",
        "missing": [],
        "single_step": {"on_track": [{"source": "all", "kind": kind, "mass": PAIR} for kind in ("progress", "error")]},
        "recovery": {"rate": PAIR, "forced": forced},
        "resilience": {
            "by_plan_length": [{"lengths": [4, 6], "slack": slack, **PAIR} for slack in (1, 2, 4)],
            "by_turn": [{"turns": [1, 1], **PAIR}, {"turns": [2, 4], **PAIR}],
        },
        "decomposition": [
            {"budget": budget, "decisions": FIGURE, "recovery": FIGURE, "survival": NONE} for budget in (4, 8)
        ],
        **other,
    }


def test_a_diagnosis_is_drawn_and_one_that_is_not_there_is_said_how_to_make(run):
    charts = diagnosis.charts(run)
    assert all(chart.draw is None and "bmrl diagnose runs/demo" in chart.note for chart in charts)
    write_json(run / "diagnosis" / "d.json", diagnosed())
    charts = {chart.name: chart for chart in diagnosis.charts(run)}
    assert list(charts) == [*diagnosis.PARTS]
    shown = {c.get_label(): c.lines[0].get_ydata().tolist() for c in drawn(charts["recovery"].draw).containers}
    # Of the largest budget; the last ratio of b was not to be had.
    assert shown == {
        "demo step-000010, random": [0.5] * 4,
        "demo, random": [0.25] * 3,
        "demo step-000010, harmful": [0.5] * 4,
        "demo, harmful": [0.25] * 3,
    }
    assert charts["plan_length"].table[1] == ("4–6", "50.0 % (40.0 % to 60.0 %)", "25.0 % (20.0 % to 30.0 %)")
    assert "2 times" in charts["plan_length"].note  # the middle one of three slacks
    assert charts["decomposition"].table[1][1:] == ("+50.0 (+40.0 to +60.0)", "+50.0 (+40.0 to +60.0)", "–")
    for chart in charts.values():
        drawn(chart.draw)


def test_a_figure_without_an_interval_is_drawn_without_one(run):
    bare = {"value": 0.75, "low": None, "high": None, "tasks": 1}
    whole = diagnosed()
    whole["recovery"]["forced"] = [{**row, "ratio": {**PAIR, "a": bare}} for row in whole["recovery"]["forced"]]
    whole["decomposition"] = [{**row, "decisions": bare} for row in whole["decomposition"]]
    write_json(run / "diagnosis" / "d.json", whole)
    charts = {chart.name: chart for chart in diagnosis.charts(run)}
    for name in ("recovery", "decomposition"):
        drawn(charts[name].draw)
        assert any("(no interval)" in cell for row in charts[name].table for cell in row)
        svg(charts[name].draw)


def test_parts_that_a_diagnosis_lacks_say_why(run):
    lacking = diagnosed(single_step=None, decomposition=None, missing=["no planner here"])
    write_json(run / "diagnosis" / "d.json", lacking)
    charts = {chart.name: chart for chart in diagnosis.charts(run)}
    for name in ("single_step", "decomposition"):
        assert charts[name].draw is None and "no planner here" in charts[name].note


def test_every_key_of_a_diagnosis_is_missed_by_name(run):
    for key in diagnosed():
        write_json(run / "diagnosis" / "d.json", {k: v for k, v in diagnosed().items() if k != key})
        with pytest.raises(BmrlError, match=r"d\.json: damaged, not a"):
            diagnosis.charts(run)
    write_json(run / "diagnosis" / "d.json", diagnosed(diagnosis_format=2))
    with pytest.raises(BmrlError, match="diagnosis format 2, this bmrl reads 1"):
        diagnosis.charts(run)

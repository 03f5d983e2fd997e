"""One pass at the largest budget holds the shorter episodes, if nothing is announced; and what is told if not."""

import json
from dataclasses import replace

import pytest
import scripted
import tiny
from scripted import Road, Scripted, Speaker

from bmrl.cli import main
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.evaluate import curve, plan_plays
from bmrl.rollout import rollout
from bmrl.sampler import LiveSampler
from bmrl.truncation import check, cut, faults, table
from bmrl.types import EndReason, Episode, Turn

BUDGETS = [1, 2, 4, 8]
TURN = Turn("You see a door.", (), "open", "open", (), (), True, 0.0)


def test_curve_from_one_pass_equals_separate_runs_per_budget_episode_by_episode():
    # A model with random weights, sampled, of whose words every third stops a turn; 16 rows in flight at once.
    chat = tiny.chat()
    lively = replace(chat, stop_ids=chat.stop_ids | set(range(10, len(chat.tokenizer), 3)))
    policy = tiny.policy()
    with Pool("corridor", {}, workers=0, timeout_s=60, slots=16, make=tiny.make) as pool:
        tasks = pool.tasks("valid")

        def play(plays):
            sampler = LiveSampler(policy, rows=16, context_tokens=512)
            settings = {"turn_tokens": 6, "context_tokens": 512, "temperature": 1.0, "purpose": "eval"}
            return rollout(plays, sampler=sampler, chat=lively, pool=pool, **settings)

        found = check(play, tasks, "valid", BUDGETS, [0, 1], "none")
        assert found["different"] == [] and faults(found) == []
        whole = play(plan_plays(tasks, "valid", BUDGETS, [0, 1], "none"))
        texts = {turn.text for episode in whole for turn in episode.turns}
        assert len(texts) > 20  # it does sample
        for row, point in zip(found["budgets"], curve(whole, tasks, BUDGETS, "none"), strict=True):
            assert (row["budget"], row["episodes"]) == (point.budget, 16)
            assert row["one_pass"] == row["anew"] == point.success


def test_a_scripted_policy_through_the_rollout_has_the_same_curve_and_the_right_one():
    policy, chat = Scripted(0.2, 0.5), scripted.chat()
    with Pool("road", {"games": 300}, workers=0, timeout_s=60, slots=50, make=scripted.make) as pool:
        tasks = pool.tasks("valid_seen")

        def play(plays):
            speaker = Speaker(policy, chat, rows=50)
            return rollout(
                plays, sampler=speaker, chat=chat, pool=pool, turn_tokens=4, context_tokens=2048, temperature=1.0
            )

        found = check(play, tasks, "valid_seen", [4, 8, 16], [0], "none")
    assert found["different"] == []
    for row in found["budgets"]:
        truth = scripted.population(policy, row["budget"], Road().lengths)
        # Three standard errors of 300 plays: at most 3 * 0.5 / sqrt(300) = 0.087.
        assert row["anew"] == pytest.approx(truth, abs=0.087)


def hurried(plays):
    """A policy that peeks at its budget: with few turns it errs more."""
    env = Road(20)
    return [Scripted(0.1 if play.budget > 4 else 0.9, 0.5).play(env, play) for play in plays]


def test_a_policy_that_looks_at_its_budget_is_found_out_and_named():
    tasks = Road(20).tasks("train")
    found = check(hurried, tasks, "train", [4, 8], [0], "none")
    four, eight = found["budgets"]
    assert four["different"] > 0 and four["anew"] < four["one_pass"] and eight["different"] == 0
    first = found["different"][0]
    assert first["budget"] == 4 and first["turn"] >= 1
    lines = faults(found)
    assert len(lines) == four["different"]
    assert lines[0].startswith(f"one pass is not {first['task_id']} with seed 0 at 4 turns: {first['one_pass']}, ")
    # If it is told, that is no fault but what the telling did.
    told = check(hurried, tasks, "train", [4, 8], [0], "total")
    assert told["different"] == found["different"] and faults(told) == []
    assert "what the telling did" in table(told)


def test_many_faults_are_counted():
    found = check(hurried, Road(200).tasks("train"), "train", [4, 8], [0], "none")
    lines = faults(found)
    assert len(lines) == 21 and lines[-1] == f"… and {len(found['different']) - 20} more; --json lists all"


@pytest.mark.parametrize(
    ("turns", "end", "budget", "expected"),
    [
        (4, "success", 8, "success"),
        (4, "success", 4, "success"),
        (4, "success", 3, "budget"),
        (4, "failure", 4, "failure"),
        (4, "context", 5, "context"),
        (4, "context", 4, "budget"),  # with its 4 turns used up, nobody asks whether a fifth would fit
        (8, "budget", 4, "budget"),
        (2, "env_error", 4, "env_error"),
    ],
)
def test_cut(turns, end, budget, expected):
    whole = Episode(0, 0, 0, "a", "valid", 0, 8, EndReason(end), (TURN,) * turns, "the end")
    short = cut(whole, budget)
    assert (short.end_reason, len(short.turns)) == (EndReason(expected), min(turns, budget))
    if budget < turns:
        assert short.final_observation == TURN.observation


def test_errors_and_tasks_are_compared_too():
    task = Task("a", "kind")

    def play(plays):
        (one,) = plays
        end = EndReason.SUCCESS if one.budget == 8 else EndReason.ENV_ERROR
        return [one.ended(end, (TURN,), "", "" if one.budget == 8 else "gone")]

    found = check(play, [task], "train", [4, 8], [0], "none")
    assert found["different"] == [
        {"task_id": "a", "seed": 0, "budget": 4, "one_pass": "success", "anew": "env_error", "turn": 2}
    ]


def invoke(*arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["eval", *map(str, arguments)])
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err


def test_the_command_says_that_they_are_equal(tmp_path, capsys):
    line = ["expert", "--budget", 5, "--budget", 12, "--tasks", 3, "--out", tmp_path, "--check-truncation"]
    code, out, _ = invoke(*line, capsys=capsys)
    assert code == 0 and "0 of 3" in out
    code, out, _ = invoke(*line, "--json", capsys=capsys)
    found = json.loads(out)["truncation"]
    assert code == 0 and found["different"] == [] and [row["budget"] for row in found["budgets"]] == [5, 12]
    # What is checked is no part of the evaluation: its file is that of one without the check.
    (path,) = tmp_path.glob("*.json")
    assert "truncation" not in json.loads(path.read_text())


def test_the_command_fails_where_they_differ(capsys, monkeypatch):
    from bmrl import baselines

    honest = baselines._played

    def peeking(name, world, table, play):
        return honest("random" if play.budget < 12 else name, world, table, play)

    monkeypatch.setattr(baselines, "_played", peeking)
    code, out, err = invoke("oracle", "--budget", 11, "--budget", 12, "--tasks", 2, "--check-truncation", capsys=capsys)
    assert code == 1 and "2 of 2" in out
    assert err.count("bmrl: one pass is not ") == 2 and "they part at turn" in err

"""Guards: what they count, and that runs made to fail stop with one line and go on from the last good checkpoint."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from test_run import content, finish, train

from bmrl import checkpoint, run_folder
from bmrl.guards import COUNTERS, Guards, holding, watch
from bmrl.recipe.schema import GuardsSection
from bmrl.run.compose import starting_policy

FINE = {
    "skipped_nonfinite": 0.0,
    "skipped_gap": 0.0,
    "logprob_gap": 1e-6,
    "entropy": 0.4,
    "repeat_share": 0.1,
    "invalid_share": 0.2,
    "groups_played": 3,
    "groups_dropped": 1,
}
# counter -> (a step that is bad for it, the setting of how many in a row stop)
BAD = {
    "guard_nonfinite": ({"skipped_nonfinite": 1.0}, "nonfinite_steps"),
    "guard_gap": ({"skipped_gap": 1.0, "logprob_gap": 0.3}, "gap_steps"),
    "guard_entropy": ({"entropy": 0.001}, "patience"),
    "guard_repeats": ({"repeat_share": 0.96}, "patience"),
    "guard_invalid": ({"invalid_share": 0.99}, "patience"),
    "guard_dead": ({"groups_dropped": 3}, "dead_steps"),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_a_guard_stops_after_so_many_bad_steps_in_a_row_and_a_good_one_starts_anew(name):
    values, setting = BAD[name]
    guards, counters, lines = Guards(**{setting: 2}), {}, []
    for step in (values, {}, values, values):
        counters, line = watch(guards, counters, {**FINE, **step})
        lines.append((counters[name], line is not None))
    assert lines == [(1, False), (0, False), (1, False), (2, True)]
    assert sum(counters.values()) == 2  # no other guard counts
    assert "\n" not in line and "2 steps in a row" in line and f"guards.{setting} 2" in line


def test_each_guard_can_be_switched_off():
    off = Guards(None, None, None, None, None, 1, None)
    bad = {key: value for values, _ in BAD.values() for key, value in values.items()}
    counters, line = watch(off, {}, {**FINE, **bad})
    assert line is None
    # Steps are skipped and groups are dead all the same, and that is counted; of the collapses none is told.
    assert {name for name, count in counters.items() if count} == {"guard_nonfinite", "guard_dead"}


def test_a_step_without_an_update_leaves_the_counters_of_the_update():
    counters = dict.fromkeys(COUNTERS, 1)
    no_update = {key: FINE[key] for key in ("repeat_share", "invalid_share", "groups_played")} | {"groups_dropped": 3}
    new, _ = watch(Guards(gap_steps=2), counters, no_update)
    assert new == {**counters, "guard_repeats": 0, "guard_invalid": 0, "guard_dead": 2}
    # But an entropy that only sampling knows counts.
    sure, _ = watch(Guards(), counters, {**no_update, "sampled_entropy": 0.001})
    assert sure["guard_entropy"] == 2
    assert holding(new) and not holding({"guard_dead": 4})


def test_thresholds_of_code_and_recipe_are_the_same_and_may_change_on_resume():
    assert Guards(**GuardsSection().model_dump()) == Guards()
    assert {f"guards.{key}" for key in GuardsSection.model_fields} <= run_folder.FREE
    assert "rollout.max_logprob_gap" not in run_folder.FREE


SETTINGS = {"train.steps": 6, "guards.patience": 2, "guards.nonfinite_steps": 2, "guards.gap_steps": 2}


def spoilt(monkeypatch, change) -> None:
    """Runs get a policy whose last states go through ``change(module, states)``."""

    def made(*given):
        policy = starting_policy(*given)
        policy.causal.get_decoder().norm.register_forward_hook(lambda module, _, states: change(module, states))
        return policy

    # by sys.modules: the package has a function of the module's name
    monkeypatch.setattr(sys.modules["bmrl.run.train"], "starting_policy", made)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(train(folder / "run", **SETTINGS), folder)
    return folder / "run"


def one_word(module, states):
    """States that say the same token over and over, for sure."""
    direction = torch.zeros_like(states)
    direction[..., 0] = 1000.0
    return direction


CASES = {
    "an update that is not finite": (
        lambda module, states: states * float("nan") if module.training else states,
        {},
        "not finite in 2 steps in a row, skipped (guards.nonfinite_steps 2)",
        "guard_nonfinite",
    ),
    "a policy that is not finite": (
        lambda module, states: states * float("nan"),
        {},
        "guards.nonfinite_steps 2",
        "guard_nonfinite",
    ),
    "a sampler that is another policy": (
        lambda module, states: states * 0.5 if module.training else states,
        {},
        "above rollout.max_logprob_gap in 2 steps in a row, skipped (guards.gap_steps 2)",
        "guard_gap",
    ),
    "no entropy": (
        lambda module, states: states * 1000,
        {},
        "below guards.min_entropy 0.005 for 2 steps in a row (guards.patience 2)",
        "guard_entropy",
    ),
    "the same again and again": (
        lambda module, states: one_word(module, states),
        {"guards.max_invalid_share": "null", "guards.min_entropy": "null"},
        "100% of turns say what the turn before said, above guards.max_repeat_share 0.95",
        "guard_repeats",
    ),
    "actions that are refused": (
        lambda module, states: one_word(module, states),
        {"guards.max_repeat_share": "null", "guards.min_entropy": "null"},
        "actions are refused: 100%, above guards.max_invalid_share 0.98",
        "guard_invalid",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_spoilt_policy_stops_the_run_which_goes_on_from_the_last_good_checkpoint(
    case, tmp_path, monkeypatch, undisturbed
):
    change, settings, words, counter = CASES[case]
    run = tmp_path / "run"

    def from_step_3(module, states):
        return change(module, states) if (run / "checkpoints" / "step-000002").exists() else states

    with monkeypatch.context() as patched:
        spoilt(patched, from_step_3)
        _, err = finish(train(run, **SETTINGS, **settings), tmp_path, code=1)
    last = err.strip().splitlines()[-1]
    assert last.startswith("bmrl: stopped by a guard at step 4: ") and words in last, last
    assert last.endswith(f"Go on from the checkpoint of step 2 with --resume --run {run}")
    assert "Traceback" not in err
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record[counter] for record in records] == [0, 0, 1, 2]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]  # and none at step 4
    # With a policy that is well again the run becomes the one that nothing disturbed.
    finish(train(run, "--resume", **SETTINGS), tmp_path)
    assert content(run) == content(undisturbed)


def test_groups_that_are_dead_stop_the_run_and_another_threshold_lets_it_go_on(tmp_path):
    # No task of ALFWorld is solved in one turn, and a refused action costs nothing: all rewards are 0.
    hopeless = {"budget.train": "{kind: fixed, turns: 1}", "reward.invalid_action": 0.0, "train.steps": 4}
    run = tmp_path / "run"
    _, err = finish(train(run, **hopeless, **{"guards.dead_steps": 3}), tmp_path, code=1)
    last = err.strip().splitlines()[-1]
    assert "at step 3: no group had a signal in 3 steps in a row (guards.dead_steps 3)" in last
    assert "checkpoint of step 2" in last
    finish(train(run, "--resume", **hopeless, **{"guards.dead_steps": "null"}), tmp_path)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["guard_dead"] for record in records] == [1, 2, 3, 4]


def test_an_interrupt_saves_while_a_guard_counts_and_the_good_checkpoint_outlives_it(tmp_path, monkeypatch):
    run = tmp_path / "run"
    settings = {**SETTINGS, "guards.nonfinite_steps": 3, "train.keep_checkpoints": 1}
    killed = []

    def change(module, states):
        if not (run / "checkpoints" / "step-000002").exists():
            return states
        if not killed and len((run / "metrics.jsonl").read_text().splitlines()) == 3:
            killed.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return states * float("nan") if module.training else states

    spoilt(monkeypatch, change)
    finish(train(run, **settings), tmp_path, code=130)
    saved = run / "checkpoints"
    assert sorted(run_folder.checkpoints(saved)) == [2, 3]
    assert checkpoint.load(saved / "step-000003").state["guards"]["guard_nonfinite"] == 1
    _, err = finish(train(run, "--resume", **settings), tmp_path, code=1)
    # It went on counting: steps 3, 4 and 5.
    assert re.search(r"at step 5: .*in 3 steps in a row.* Go on from the checkpoint of step 2 ", err)
    assert sorted(run_folder.checkpoints(saved)) == [2]


def test_a_guard_that_stops_before_any_checkpoint_says_so(tmp_path, monkeypatch):
    spoilt(monkeypatch, lambda module, states: states * 0.5 if module.training else states)
    _, err = finish(train(tmp_path / "run"), tmp_path, code=1)  # gap_steps is 1: at once
    assert "at step 1: the sampler is not the policy" in err and "from the start, for no checkpoint is good" in err


def test_a_checkpoint_of_a_version_without_guards_is_gone_on_with(undisturbed, tmp_path):
    run = tmp_path / "run"
    finish(train(run, **SETTINGS, **{"train.max_hours": 1e-9}), tmp_path)
    found = checkpoint.load(run / "checkpoints" / "step-000001")
    state = {key: found.state[key] for key in ("step", "env_turns", "elapsed_s", "rows")}
    checkpoint.save(
        run / "checkpoints",
        1,
        adapter=found.adapter,
        adapter_config=found.adapter_config,
        optimizer=found.optimizer,
        state=state,
    )
    finish(train(run, "--resume", **SETTINGS), tmp_path)
    assert content(run) == content(undisturbed)

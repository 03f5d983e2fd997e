"""Whole runs through the command line: what they leave, how they stop, how they go on."""

import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bmrl import run_folder
from bmrl.cli import main
from bmrl.envs.alfworld import splits
from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path, recipes_path
from bmrl.recipe import load, resolved
from bmrl.run.compose import starting_policy
from bmrl.target import find

SMALL = {
    "train.steps": 4,
    "train.eval_every": 0,
    "train.checkpoint_every": 2,
    "rollout.tasks_per_step": 3,
    "rollout.group_size": 4,
    "reward.invalid_action": -0.1,  # so that every step has something to learn from
    "budget.train": "{kind: mix, turns: [3, 8]}",
    "budget.eval": "[3, 8]",
}


def command(*args: str, **settings: object) -> list[str]:
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return [*args, *sets]


def train(folder: Path, *args: str, **settings: object) -> list[str]:
    recipe = str(recipes_path("quickstart.yaml"))
    return command("train", recipe, "--run", str(folder), *args, **{**SMALL, **settings})


def start(line: list[str], cwd: Path) -> subprocess.Popen:
    """A process of its own, to be killed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-m", "bmrl", *line],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(line: list[str], cwd: Path, code: int = 0) -> tuple[str, str]:
    """The same command in this process, which has loaded torch already."""
    out, err = io.StringIO(), io.StringIO()
    here, streams = contextlib.chdir(cwd), (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err))
    with here, streams[0], streams[1], pytest.raises(SystemExit) as done:
        main(line)
    assert done.value.code == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def without_clock(value):
    """JSON data without the fields that depend on the clock or on what else ran."""
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if not k.endswith("_s") and k != "peak_memory_gb"}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


def content(run: Path) -> dict[str, object]:
    """What must be equal between a run and its interrupted, resumed twin."""
    files = [*run.glob("episodes/*"), *run.glob("adapter/*"), *run.glob("eval/*")]
    found: dict[str, object] = {str(p.relative_to(run)): p.read_bytes() for p in files}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {**found, "metrics": [without_clock(json.loads(line)) for line in lines]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    out, _ = finish(train(folder / "run", **{"train.eval_every": 4, "train.eval_tasks": 5}), folder)
    assert out.splitlines()[-1] == str(folder / "run")
    return folder / "run"


def test_a_run_leaves_what_the_documentation_says(whole):
    names = {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()}
    assert {
        "recipe.yaml",
        "recipe.resolved.json",
        "system.json",
        "metrics.jsonl",
        "episodes/step-000001.jsonl",
        "episodes/step-000004.jsonl",
        "eval/step-000000.jsonl",
        "eval/step-000004.json",
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "checkpoints/step-000004/state.json",
    } <= names
    assert not [n for n in names if "tmp" in n]


def test_episode_lines_keep_the_contract_and_the_budget(whole):
    lines = [json.loads(line) for line in (whole / "episodes/step-000001.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert {
            "step",
            "group",
            "episode",
            "task_id",
            "split",
            "seed",
            "budget",
            "end_reason",
            "success",
            "turns",
        } <= set(line)
        assert 1 <= len(line["turns"]) <= line["budget"]
        assert line["budget"] in (3, 8)
        for turn in line["turns"]:
            assert {"observation", "action", "valid", "reward", "observation_tokens", "action_tokens"} <= set(turn)
    groups = {(line["group"], line["task_id"], line["budget"]) for line in lines}
    assert len(groups) == 3  # one task and one budget to a group


def test_the_adapter_changes_and_any_peft_user_can_load_it(whole):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(data_path("pocket"))
    model = PeftModel.from_pretrained(base, whole / "adapter")
    moved = [n for n, p in model.named_parameters() if "lora_B" in n and p.abs().sum() > 0]
    assert moved, "B starts at 0: nothing was learned"


def test_no_path_of_the_machine_and_no_secret_in_a_run(whole, tmp_path):
    home = str(Path.home())
    for path in whole.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl"):
            text = path.read_text()
            assert str(whole) not in text and str(tmp_path.parent) not in text
            assert str(data_path().parent) not in text
            assert home == "/" or home + "/" not in text


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_kill_and_resume_equals_an_undisturbed_run(kills, tmp_path):
    settings = {"train.steps": 4 if kills == 1 else 12, "train.eval_every": 3, "train.eval_tasks": 4}
    finish(train(tmp_path / "whole", **settings), tmp_path)
    rng = random.Random(kills)
    run = tmp_path / "killed"
    for n in range(kills):
        process = start(train(run, *(["--resume"] if n else []), **settings), tmp_path)
        deadline = time.monotonic() + 120
        # At a random moment after it began to write, or has gone on from where it was.
        while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1 if n == 0 else 6))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, "it was done before the kill"
    finish(train(run, "--resume", **settings), tmp_path)
    assert content(run) == content(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_exits_130(number, tmp_path):
    run = tmp_path / "run"
    process = start(train(run, **{"train.steps": 50, "train.checkpoint_every": 50}), tmp_path)
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    saved = [p.name for p in (run / "checkpoints").iterdir()]
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert saved == [f"step-{steps:06d}"]
    last = err.strip().splitlines()[-1]
    assert "saved after step" in last and "--resume" in last and "Traceback" not in err


def test_a_second_process_on_the_run_is_refused(tmp_path):
    run = tmp_path / "run"
    first = start(train(run, **{"train.steps": 50}), tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not (run / ".lock").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        _, err = finish(train(run, "--resume", **{"train.steps": 50}), tmp_path, code=1)
        assert f"another process (pid {first.pid})" in err
    finally:
        first.kill()
        first.communicate()


def test_a_run_in_use_is_told_before_the_policy_is_loaded(whole, monkeypatch):
    monkeypatch.setattr(sys.modules["bmrl.run.train"], "starting_policy", lambda *_: pytest.fail("loaded"))
    with run_folder.lock(whole):
        line = train(whole, "--resume", **{"train.eval_every": 4, "train.eval_tasks": 5})
        _, err = finish(line, whole.parent, code=1)
    assert "another process" in err


def test_other_games_than_those_of_the_run_are_refused(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    system = json.loads((run / "system.json").read_text())
    assert system["games"]["train"] == splits.split_hash("train")
    system["games"]["train"] = "0" * 64  # as if ALFWORLD_DATA had been set then
    (run / "system.json").write_text(json.dumps(system))
    line = train(run, "--resume", **{"train.eval_every": 4, "train.eval_tasks": 5})
    _, err = finish(line, tmp_path, code=2)
    assert "the games of train are not those" in err and len(err.strip().splitlines()) == 1


def test_a_resumed_run_that_stops_early_has_nothing_of_later_steps(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "step-000004")  # as if killed before it was saved
    more = {"train.eval_every": 4, "train.eval_tasks": 5, "train.max_hours": 1e-9}
    finish(train(run, "--resume", **more), tmp_path)
    assert sorted(p.name for p in (run / "episodes").iterdir()) == ["step-000001.jsonl", "step-000002.jsonl"]
    assert sorted(p.name for p in (run / "eval").iterdir()) == ["step-000000.json", "step-000000.jsonl"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "budget",
    [
        "{kind: curriculum, turns: [3, 8], every: 3}",
        "{kind: adaptive, turns: [3, 12], memory: 0.5}",
        "{kind: relative, factors: [1, 2], low: 3, high: 12}",
    ],
    ids=lambda budget: budget.split()[1].strip(","),
)
def test_a_run_resumed_amid_changing_budgets_equals_an_undisturbed_one(budget, tmp_path):
    settings = {"budget.train": budget, "train.steps": 6, "rollout.tasks_per_step": 4}
    finish(train(tmp_path / "whole", **settings), tmp_path)
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", run)
    for step in (4, 6):  # as if killed in step 3 or 4: what came after step 2 is forgotten
        shutil.rmtree(run / "checkpoints" / f"step-{step:06d}")
    finish(train(run, "--resume", **settings), tmp_path)
    assert content(run) == content(tmp_path / "whole")
    state = json.loads((run / "checkpoints/step-000006/state.json").read_text())["state"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if "adaptive" not in budget:
        assert not state["learnability"]
        return
    assert [lines[0]["budget_chance_3"], lines[0]["budget_chance_12"]] == [0.5, 0.5]  # nothing is measured yet
    assert lines[5]["budget_chance_3"] != lines[2]["budget_chance_3"], "nothing changed on the way: this shows nothing"
    assert set(state["learnability"]) == {"3", "12"}


def test_a_curriculum_changes_the_budget_at_its_step(tmp_path):
    settings = {"budget.train": "{kind: curriculum, turns: [2, 4], every: 2}", "rollout.tasks_per_step": 2}
    finish(train(tmp_path / "run", **{**settings, "train.steps": 3}), tmp_path)
    played = [
        {json.loads(line)["budget"] for line in path.read_text().splitlines()}
        for path in sorted((tmp_path / "run" / "episodes").iterdir())
    ]
    assert played == [{2}, {2}, {4}]


def test_a_run_ends_at_its_turns_if_these_come_first(tmp_path):
    # A step is 3 groups of 4 episodes: 24 turns at most. Step 1 cannot reach 25, and three steps of them are enough.
    settings = {"budget.train": "{kind: fixed, turns: 2}", "train.steps": 50, "train.env_turns": 25}
    more = {"train.checkpoint_every": 50, "train.eval_every": 50, "train.eval_tasks": 2}
    _, err = finish(train(tmp_path / "run", **settings, **more), tmp_path)
    turns = [json.loads(line)["env_turns"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert turns[-2] < 25 <= turns[-1]
    last = len(turns)
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == [f"step-{last:06d}"]
    assert (tmp_path / f"run/eval/step-{last:06d}.json").exists()
    said = f"train.env_turns 25 is reached at step {last}, with {turns[-1]} turns played; saved"
    assert err.count(said) == 1
    before = content(tmp_path / "run")
    finish(train(tmp_path / "run", "--resume", **settings, **more), tmp_path)
    assert content(tmp_path / "run") == before


def test_relative_budgets_need_plans(tmp_path, monkeypatch):
    tasks = sys.modules["bmrl.envs.pool"].Pool.tasks
    monkeypatch.setattr(
        sys.modules["bmrl.envs.pool"].Pool,
        "tasks",
        lambda pool, split: [dataclasses.replace(task, plan=()) for task in tasks(pool, split)],
    )
    settings = {"budget.train": "{kind: relative, factors: [1], low: 2, high: 9}"}
    _, err = finish(train(tmp_path / "run", **settings), tmp_path, code=2)
    (line,) = err.strip().splitlines()
    assert "budget.train: relative, but 600 of 600 tasks of train have no plan" in line
    assert not (tmp_path / "run").exists()


def test_an_unfinished_new_model_is_no_target_yet(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    recipe = resolved(load(recipes_path("pocket_sft.yaml")))
    (run / "recipe.resolved.json").write_text(json.dumps(recipe))
    with pytest.raises(UsageError, match="written when its run ends"):
        find(str(run), "last")


def test_an_existing_run_is_never_overwritten(whole):
    before = content(whole)
    _, err = finish(train(whole), whole.parent, code=2)
    assert "exists" in err and "--resume" in err and len(err.strip().splitlines()) == 1
    assert content(whole) == before


def test_every_difference_to_the_run_is_told_with_both_values(whole):
    other = {"optimizer.learning_rate": 0.5, "train.steps": 9, "train.keep_checkpoints": 1}
    _, err = finish(train(whole, "--resume", **other), whole.parent, code=2)
    lines = err.strip().splitlines()
    # these two, and eval_every and eval_tasks, with which the run was made; not keep_checkpoints
    assert len(lines) == 4
    assert "optimizer.learning_rate is 0.001 in the run and 0.5 in this recipe" in lines[0]
    assert "train.steps is 4 in the run and 9 in this recipe" in lines[3]


@pytest.mark.parametrize(
    "line",
    [
        ("train", "quickstart", "--run", "."),
        ("train", "quickstart", "--resume"),
        ("eval", "pocket", "--out", "file"),
        ("eval", "pocket", "--split", "valid_sen"),
        ("eval", "pocket", "--checkpoint", "best"),
        ("eval", "nowhere"),
        ("eval", "./nowhere"),
        ("eval", "pocket_sft"),
        ("eval", "quickstrat.yaml"),
        ("train", "quickstart", "--run", "file/run"),
        ("train", "quickstart", "--set", f"name={'a' * 300}"),
        *(
            ("train", "quickstart", "--set", f"{key}={value}")
            for key, value in (
                ("train.steps", 10**34),
                ("lora.rank", 10**12),
                ("env.workers", 10**6),
                ("budget.eval", [10**23]),
                ("optimizer.learning_rate", 1e300),
                ("rollout.tasks_per_step", 10**12),
                ("lora.targets", []),
            )
        ),
    ],
)
def test_a_wrong_command_is_told_before_torch_is_imported(line, tmp_path):
    (tmp_path / "file").write_text("")
    program = f"""
import sys
from bmrl import run_folder
from bmrl.cli import main
from bmrl.envs.alfworld import splits
try:
    main({list(line)!r})
except SystemExit as done:
    sys.exit(f"{{done.code}} {{'torch' in sys.modules}}")
"""
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    *told, ended = done.stderr.strip().splitlines()
    assert ended == "2 False" and len(told) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_signal_while_the_policy_loads_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return starting_policy(*given)

    # by sys.modules: the package has a function of the module's name
    monkeypatch.setattr(sys.modules["bmrl.run.train"], "starting_policy", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    _, err = finish(train(tmp_path / "run"), tmp_path, code=130)
    assert err.strip().splitlines()[-1] == "bmrl: stopped by SIGTERM"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_dropout_of_supervised_learning_is_the_same_on_resume(tmp_path):
    settings = {"model.adapter": "null", "lora": "{rank: 4, alpha: 8, dropout: 0.5}", "train": "null"}
    settings["sft"] = "{episodes: 8, max_turns: 8, batch_tokens: 512}"
    adapters = []
    for name in ("a", "b"):
        torch.manual_seed(len(adapters))  # what ran before must not matter
        line = command("sft", str(recipes_path("quickstart.yaml")), "--run", str(tmp_path / name), **settings)
        finish(line, tmp_path)
        adapters.append((tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes())
    assert adapters[0] == adapters[1]


def test_a_run_and_a_file_of_chats_are_learned_from(tmp_path):
    run = tmp_path / "run"
    finish(train(run, **{"train.steps": 1, "budget.train": "{kind: mix, turns: [16, 20]}"}), tmp_path)
    chats = tmp_path / "chats.jsonl"
    roles = [("user", "You are in a room."), ("assistant", "look"), ("user", "You see a desk 1."), ("assistant", "go")]
    messages = [{"role": role, "content": text} for role, text in roles]
    chats.write_text("".join(json.dumps({"messages": messages}) + "\n" for _ in range(3)))
    common = {"model.adapter": "null", "lora": "{rank: 4, alpha: 8}", "train": "null", "optimizer.warmup_steps": 0}
    for source, path, epochs in (("run", run, 3), ("file", chats, 3)):
        target = tmp_path / f"from_{source}"
        section = f"{{source: {source}, path: {path}, episodes: 8, epochs: {epochs}, batch_tokens: 4096}}"
        finish(
            command("sft", str(recipes_path("quickstart.yaml")), "--run", str(target), **common, sft=section), tmp_path
        )
        losses = [json.loads(line)["action_loss"] for line in (target / "metrics.jsonl").read_text().splitlines()]
        assert len(losses) > 1 and losses[-1] < losses[0]
        assert (target / "adapter" / "adapter_model.safetensors").exists()


def test_a_resumed_run_plays_as_many_episodes_at_once_as_it_did(tmp_path, monkeypatch):
    run, settings = tmp_path / "run", {"train.steps": 2, "train.checkpoint_every": 1}
    monkeypatch.setattr("bmrl.run.compose.memory_gb", lambda: 0.4)
    _, err = finish(train(run, **settings, **{"train.max_hours": 1e-9}), tmp_path)
    # A quarter of 0.4 GiB; a token of the embedded policy takes keys and values of 4 layers of 192 float32.
    rows = int(0.1 * 2**30 / (2 * 4 * 192 * 4 * 2048))
    assert rows < 12 and f", {rows} episodes at once" in err
    monkeypatch.setattr("bmrl.run.compose.memory_gb", lambda: 16.0)
    _, err = finish(train(run, "--resume", **settings), tmp_path)
    assert f", {rows} episodes at once" in err


def test_a_cache_that_holds_no_episode_is_one_line(tmp_path):
    _, err = finish(train(tmp_path / "run", **{"rollout.kv_cache_gb": 0.001}), tmp_path, 2)
    (line,) = [line for line in err.splitlines() if "kv_cache_gb" in line]
    # 2 x 4 layers x 192 x 4 bytes x 2,048 tokens: 12.6 MB.
    assert "one episode of model.context_tokens 2048 needs 0.012 GiB, there are 0.001; raise it" in line


def test_max_hours_stops_after_a_saved_checkpoint(tmp_path):
    run = tmp_path / "run"
    _, err = finish(train(run, **{"train.max_hours": 1e-6, "train.steps": 9}), tmp_path)
    assert "train.max_hours" in err
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000001"]
    finish(train(run, "--resume", **{"train.max_hours": 1e-6, "train.steps": 9}), tmp_path)
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000001"]


def test_the_best_checkpoint_is_never_pruned(tmp_path):
    settings = {"train.eval_every": 1, "train.eval_tasks": 2, "train.checkpoint_every": 1}
    finish(train(tmp_path / "run", **settings, **{"train.keep_checkpoints": 1}), tmp_path)
    areas = {
        step: json.loads((tmp_path / "run" / "eval" / f"step-{step:06d}.json").read_text())["area"]
        for step in (1, 2, 3)
    }
    best = max(areas, key=lambda step: (areas[step], step))  # of those evaluated before the last was saved
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{best:06d}", "step-000004"]


def test_keep_checkpoints_prunes(tmp_path):
    run = tmp_path / "run"
    finish(train(run, **{"train.checkpoint_every": 1, "train.keep_checkpoints": 2}), tmp_path)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000003", "step-000004"]


def test_evaluation_of_a_run_and_of_the_pocket_policy(whole, tmp_path):
    out, err = finish(command("eval", str(whole), "--budget", "3", "--budget", "8", "--tasks", "6", "--json"), tmp_path)
    result = json.loads(out)
    assert {
        "target",
        "checkpoint",
        "split",
        "split_hash",
        "seeds",
        "announce",
        "sampling",
        "tasks",
        "errors",
        "budgets",
    } <= set(result)
    assert (result["checkpoint"], result["split"], result["tasks"]) == ("step-000004", "valid_seen", 6)
    assert [
        set(b) >= {"budget", "success", "low", "high", "ceiling", "search_reference"} for b in result["budgets"]
    ] == [True] * 2
    out, err = finish(command("eval", "--budget", "4", "--tasks", "4", "--out", "out"), tmp_path)
    assert "pocket" in err and "budget" in out
    (episodes,) = (tmp_path / "out").glob("*.jsonl")
    assert len({json.loads(line)["task_id"] for line in episodes.read_text().splitlines()}) == 4


def test_one_pass_equals_a_pass_for_each_budget(tmp_path):
    """When nothing is announced, a prefix of an episode is the shorter episode."""
    options = ("--tasks", "12", "--json", "--seed", "3")
    once = json.loads(finish(command("eval", "pocket", "--budget", "3", "--budget", "9", *options), tmp_path)[0])
    for budget, point in zip((3, 9), once["budgets"], strict=True):
        alone = json.loads(finish(command("eval", "pocket", "--budget", str(budget), *options), tmp_path)[0])
        assert alone["budgets"] == [point]


def test_greedy_evaluation_is_byte_identical(tmp_path):
    for name in ("a", "b"):
        finish(
            command("eval", "pocket", "--budget", "6", "--tasks", "8", "--temperature", "0", "--out", name), tmp_path
        )
    (a,), (b,) = (list((tmp_path / name).glob("*.jsonl")) for name in "ab")
    assert a.name == b.name and a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize(
    ("target", "more", "words"),
    [
        ("nowhere", (), "neither a run"),
        ("pocket", ("--checkpoint", "best"), "no run folder"),
        ("pocket", ("--split", "valid_sen"), "valid_seen"),
    ],
)
def test_bad_targets_are_one_line(target, more, words, tmp_path):
    _, err = finish(command("eval", target, "--budget", "4", *more), tmp_path, code=2)
    line = err.strip().splitlines()[-1]
    assert words in line and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_is_found_by_its_name_and_in_no_other_folder(tmp_path):
    with contextlib.chdir(tmp_path):
        assert find("quickstart", "last").name == "quickstart"
        assert find("recipes/quickstart.yaml", "last").name == "quickstart"
        with pytest.raises(UsageError, match="elsewhere/quickstart"):
            find("elsewhere/quickstart.yaml", "last")


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_damaged_adapter_folder_is_one_line(text, tmp_path):
    (tmp_path / "adapter_config.json").write_text(text, encoding="latin-1")
    with pytest.raises(BmrlError, match=r"adapter_config\.json: damaged"):
        find(str(tmp_path), "last")


def test_damaged_files_of_a_run_are_named(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for text in ("{", "[]", "{}"):
        (run / "eval" / "step-000004.json").write_text(text)
        with pytest.raises(BmrlError, match=r"step-000004\.json: damaged"):
            find(str(run), "best")
    (run / "recipe.resolved.json").write_text("{}")
    with pytest.raises(BmrlError, match=r"recipe\.resolved\.json: no recipe"):
        find(str(run), "last")


def test_a_run_without_an_undamaged_checkpoint_is_left_as_it_is(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for path in (run / "checkpoints").glob("*/optimizer.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    before = content(run)
    line = train(run, "--resume", **{"train.eval_every": 4, "train.eval_tasks": 5})
    _, err = finish(line, tmp_path, code=1)
    assert "every checkpoint is damaged" in err.strip().splitlines()[-1]
    assert content(run) == before


def test_results_of_two_policies_do_not_share_a_file(whole, tmp_path):
    shutil.copytree(whole / "adapter", tmp_path / "adapter")
    for target in ("pocket", "adapter"):
        finish(command("eval", target, "--budget", "3", "--tasks", "1", "--out", "same"), tmp_path)
    assert len(list((tmp_path / "same").iterdir())) == 4


def test_supervised_learning_without_a_step_is_refused(tmp_path):
    line = command("sft", "pocket_sft", "--run", "run", **{"sft.episodes": 2, "sft.epochs": 0.001})
    _, err = finish(line, tmp_path, code=2)
    assert "raise sft.epochs" in err.strip().splitlines()[-1]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    damaged = run / "checkpoints" / "step-000004" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = content(run)
    _, err = finish(train(run, "--resume", **{"train.eval_every": 4, "train.eval_tasks": 5}), tmp_path)
    assert "step-000004" in err and "damaged" in err
    assert content(run) == before


def test_a_template_that_cannot_be_spoken_with_leaves_no_run(tmp_path):
    shutil.copytree(data_path("pocket"), tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}")
    _, err = finish(train(tmp_path / "run", **{"model.name": tmp_path / "model"}), tmp_path, code=2)
    assert "chat template" in err
    assert not (tmp_path / "run").exists()


def test_the_peak_of_memory_is_not_that_of_who_started_the_program():
    child = "from bmrl.run.train import peak_memory_gb; print(peak_memory_gb())"
    held = f"import subprocess, sys; held = b'x' * 2**31; subprocess.run([sys.executable, '-c', {child!r}])"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", held], env=env, capture_output=True, text=True)
    assert 0.1 < float(done.stdout) < 1.5, done.stderr  # of the 2 GiB nothing

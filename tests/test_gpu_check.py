"""The check of a card, rehearsed on the CPU; and that its table passes nothing over."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gpu_judge import judged, table
from gpu_models import SHAPES

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "benchmarks/gpu_check.py"]
CHECKS = ["made", "rollout", "rollout memory", "update", "update memory", "graphs captured", "graphs: same tokens"]
CHECKS += ["graphs: speed", "sampler against update", "sampler against update, full rows", "resume", "growth"]


def run(*arguments: str, command=COMMAND, **environment: str):
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )


def rows_of(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {(model, check): (result, figure) for model, check, result, figure in cells[2:]}


# --- the table ------------------------------------------------------------------------------------------------------


def model() -> dict:
    """Figures of a card, all as they should be."""
    memory = {"peak_allocated_gb": 10.0, "peak_reserved_gb": 11.0, "outside_gb": 0.5}
    case = {"rows": 8, "held": 256, "token_s": {"free": 0.03, "fixed": 0.04, "graphs": 0.01}, "same_as_fixed": True}
    case |= {"share_as_free": 0.9, "captured": [[8, 256]], "capture_s": 0.2}
    steps = [{"held_gb": held, "peak_reserved_gb": 4.0, "seconds": 2.0} for held in (2.0, 3.0, 3.0, 3.0, 3.0)]
    gap = {"mean_gap": 0.01, "max_gap": 0.2, "tokens": 100, "rows": 2, "longest": 8192}
    return {
        "estimate": {"rows": 45, "rollout_gb": 12.0, "update_gb": 12.0},
        "made": {**memory, "part_s": 4.0},
        "rollout": {
            **memory,
            "rows": 45,
            "context_tokens": 8192,
            "complete": True,
            "tokens_read": 368_000,
            "prefill_tokens_per_s": 30_000.0,
            "decode_tokens_per_s": 1500.0,
            "captured": [[45, 8193]],
        },
        "update": {**memory, "tokens": 8192, "optimizer": "adamw8bit", "tokens_per_s": 5000.0, "packs": True},
        "graphs": {"cases": [case], "warnings": [], "complete": True},
        "agreement": gap,
        "agreement_long": gap,
        "resume": {"optimizer": "adamw8bit", "restored": True, "loss_difference": 0.0, "step_difference": 0.02},
        "growth": {"steps": steps},
    }


def results(changed: dict, *, rehearsal: bool = False) -> dict[str, str]:
    found = {"rehearsal": rehearsal, "models": {"m": changed}, "system": {}}
    return {line.check: line.result for line in judged(found)}


def test_a_card_that_does_what_it_should():
    found = {"rehearsal": False, "models": {"m": model()}, "seconds": 300.0}
    found["system"] = {
        "card": "RTX 4090",
        "total_gb": 23.5,
        "cap_gb": 24,
        "cuda": "12.8",
        "versions": {"torch": "2.13.0"},
    }
    lines = judged(found)
    assert [line.check for line in lines] == CHECKS
    assert {line.result for line in lines} == {"pass"}
    text = table(found, lines)
    assert text.startswith("RTX 4090, 24 GiB; at most 24 GiB used; CUDA 12.8; torch 2.13.0\n\n| model |")
    assert text.endswith("12 pass, 0 fail, 0 not run; 300 s")
    told = {check: figure for (_, check), (_, figure) in rows_of(text).items()}
    # 11 that torch keeps and 0.5 of CUDA's, of 12
    assert told["rollout memory"] == (
        "10.00 GiB allocated, 11.50 with what torch and CUDA keep; estimate 12.00, measured / estimate 0.96"
    )
    assert told["graphs: speed"].startswith(
        "3.00 times as fast as eager (3.00 .. 3.00); 8 rows of 256: 10.0 ms a token"
    )


@pytest.mark.parametrize(
    ("part", "figure", "value", "failed"),
    [
        ("rollout", "peak_reserved_gb", 11.6, "rollout memory"),
        ("update", "outside_gb", 1.5, "update memory"),
        ("update", "packs", False, "update"),
        ("graphs", "warnings", ["decoding goes on without CUDA graphs: no"], "graphs captured"),
        ("agreement", "mean_gap", 0.06, "sampler against update"),
        ("agreement_long", "mean_gap", float("nan"), "sampler against update, full rows"),
        ("resume", "restored", False, "resume"),
        ("resume", "step_difference", 0.2, "resume"),
        ("made", "error", "RuntimeError: no", "made"),
    ],
)
def test_what_is_not_as_it_should_be_fails(part, figure, value, failed):
    changed = model()
    changed[part][figure] = value
    assert results(changed)[failed] == "fail"


@pytest.mark.parametrize(
    ("figure", "value", "failed"),
    [
        ("captured", [], {"graphs captured", "graphs: same tokens", "graphs: speed"}),
        ("same_as_fixed", False, {"graphs: same tokens"}),
        ("token_s", {"free": 0.01, "fixed": 0.01, "graphs": 0.02}, {"graphs: speed"}),
    ],
)
def test_graphs_that_are_not_captured_wrong_or_slow_fail(figure, value, failed):
    changed = model()
    changed["graphs"]["cases"][0][figure] = value
    assert {check for check, result in results(changed).items() if result == "fail"} == failed


def test_memory_that_grows_fails():
    changed = model()
    changed["growth"]["steps"][-1]["held_gb"] += 0.01
    assert results(changed)["growth"] == "fail"
    changed = model()
    changed["growth"]["steps"][-1]["peak_reserved_gb"] *= 1.06
    assert results(changed)["growth"] == "fail"


def test_what_was_not_run_is_told():
    changed = model()
    changed["rollout"]["complete"] = False
    changed["graphs"]["complete"] = False
    changed["update"] = {"not_run": "time"}
    changed["estimate"] = {"rows": 45, "missing": "the estimate needs pydantic"}
    del changed["resume"]
    found = results(changed)
    for check in ("rollout", "rollout memory", "update", "resume", "graphs: the rest"):
        assert found[check] == "not run"
    lines = judged(
        {"rehearsal": False, "system": {}, "models": {"7B NF4": {"missing": "bitsandbytes is not installed"}}}
    )
    assert lines == [("7B NF4", "all", "not run", "bitsandbytes is not installed")]


# --- the command ----------------------------------------------------------------------------------------------------


def test_a_machine_that_lacks_torch_is_told_in_a_line():
    # Without site-packages, into which pip would install.
    done = run("--rehearse", command=[sys.executable, "-S", *COMMAND[1:]], PYTHONPATH="")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "gpu_check: missing: torch, transformers, peft, numpy, safetensors, "
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_without_a_card_it_says_so():
    done = run()
    assert done.returncode == 2
    assert done.stderr == (
        "gpu_check: no CUDA device is visible; --rehearse runs all of it on the CPU with tiny models\n"
    )


@pytest.mark.slow
def test_the_rehearsal_passes(tmp_path):
    out = tmp_path / "figures.json"
    done = run("--rehearse", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    whole = [shape.name for shape in SHAPES if not shape.quantized or find_spec("bitsandbytes")]
    for name in whole:
        assert [check for model, check in rows if model == name] == CHECKS
    for (name, check), (result, figure) in rows.items():
        if name in whole:
            assert result == "pass" or figure.startswith("rehearsal: "), (name, check, figure)
        else:
            assert (check, result, figure) == ("all", "not run", "bitsandbytes is not installed")
    found = json.loads(out.read_text())
    assert len(found["table"]) == len(rows)
    assert found["seconds"] < 360


@pytest.mark.slow
def test_time_that_is_up_is_told_and_not_overrun():
    done = run("--rehearse", "--seconds", "0")
    assert done.returncode == 0
    assert {result for result, _ in rows_of(done.stdout).values()} == {"not run"}


BARE = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "tokenizers",
    "safetensors",
    "numpy",
    "huggingface_hub",
    "hf_xet",
)
BARE += (
    "httpx",
    "httpcore",
    "anyio",
    "h11",
    "certifi",
    "idna",
    "sniffio",
    "psutil",
    "packaging",
    "yaml",
    "pyyaml",
    "_yaml",
)
BARE += ("regex", "requests", "urllib3", "charset_normalizer", "tqdm", "filelock", "fsspec", "typing_extensions")
BARE += ("sympy", "mpmath", "networkx", "functorch", "torchgen", "typer", "rich", "pygments", "shellingham", "click")


@pytest.mark.slow
def test_a_bare_machine_will_do(tmp_path):
    """Of what is installed, only torch, transformers, peft, and what these need."""
    site = Path(torch.__file__).parents[1]
    for path in site.iterdir():
        name = path.name.partition("-")[0].partition(".")[0].lower()
        if name in BARE or path.name.endswith(".libs"):
            (tmp_path / path.name).symlink_to(path)
    bare = [sys.executable, "-S", "benchmarks/gpu_check.py"]
    done = run("--rehearse", command=bare, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    code = "import sys; sys.path[:0] = ['.', 'benchmarks']\n"
    code += "from gpu_judge import planned; from gpu_models import SHAPES; from gpu_play import CARD\n"
    code += "print([planned(shape, CARD, 24.0) for shape in SHAPES])"
    told = run(command=[sys.executable, "-S", "-c", code], PYTHONPATH=str(tmp_path)).stdout
    # 10 GiB of keys and values; 28 layers x 2 x 256 x 2 bytes x 8,192 tokens a row, and 28 x 2 x 512 x 2 x 8,192
    assert told == (
        "[{'missing': 'the estimate needs pydantic', 'rows': 45}, {'missing': 'the estimate needs pydantic', 'rows': 22}]\n"
    )

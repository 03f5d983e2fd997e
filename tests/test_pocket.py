"""The embedded policy is what its card says, and stands without bmrl."""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from bmrl.errors import BmrlError
from bmrl.files import data_path, recipes_path
from bmrl.models import source as models
from bmrl.policy import load
from bmrl.recipe import load as recipe_from

CARD = json.loads(data_path("pocket", "card.json").read_text())


def test_weights_are_those_of_the_card_and_small():
    weights = data_path("pocket", "model.safetensors")
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == CARD["sha256"]
    assert sum(p.stat().st_size for p in data_path("pocket").glob("*") if p.is_file()) < 12e6


def test_damaged_weights_are_named(tmp_path, monkeypatch):
    shutil.copytree(data_path("pocket"), tmp_path / "pocket")
    weights = bytearray((tmp_path / "pocket" / "model.safetensors").read_bytes())
    weights[-1000] ^= 1
    (tmp_path / "pocket" / "model.safetensors").write_bytes(weights)
    monkeypatch.setattr(models, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    with pytest.raises(BmrlError, match=r"model\.safetensors has sha256 .*; reinstall bmrl"):
        load("pocket", dtype="float32")
    for text in ("", "{", "[]", "{}"):
        (tmp_path / "pocket" / "card.json").write_text(text)
        with pytest.raises(BmrlError, match=r"card\.json is missing or damaged"):
            load("pocket", dtype="float32")


def test_card_page_is_made_from_the_cards_data():
    spec = importlib.util.spec_from_file_location("freeze", data_path("pocket", "freeze.py"))
    freeze = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(freeze)
    assert data_path("pocket", "README.md").read_text() == freeze.render(CARD)


def test_good_enough_to_learn_from_and_bad_enough_to_improve():
    seen = next(curve for curve in CARD["curves"] if curve["split"] == "valid_seen")
    assert (seen["tasks"], seen["seeds"], seen["sampling"]["temperature"]) == (120, [0, 1, 2, 3], 1.0)
    at = {point["budget"]: point["success"] for point in seen["budgets"]}
    assert 0.30 <= at[30] <= 0.75


def test_card_tells_the_recipe_as_it_stands():
    recipe = recipe_from(recipes_path("pocket_sft.yaml")).model_dump(mode="json")
    assert CARD["settings"] == {key: recipe[key] for key in CARD["settings"]}
    assert set(CARD["settings"]) == {"model", "optimizer", "sft"}


def test_games_of_the_card_are_the_embedded_ones():
    from bmrl.envs.alfworld import splits

    assert CARD["curves"]
    for curve in CARD["curves"]:
        assert curve["split_hash"] == splits.split_hash(curve["split"])


def test_loads_with_transformers_and_nothing_of_ours():
    program = f"""
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = {str(data_path("pocket"))!r}
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
text = tokenizer.apply_chat_template(
    [dict(role="user", content="You are in the middle of a room.")], tokenize=False, add_generation_prompt=True)
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
out = model.generate(**ids, max_new_tokens=8, do_sample=False)
assert out.shape[1] > ids["input_ids"].shape[1]
assert not [name for name in sys.modules if name.split(".")[0] == "bmrl"]
print(model.config.model_type)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "llama"

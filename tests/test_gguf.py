"""GGUF files as models: what is seen before one is read, and what becomes of it."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gguf_files
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from bmrl import check
from bmrl import target as targets
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.models import find, gguf
from bmrl.models import source as models
from bmrl.policy import load
from bmrl.policy.gguf import plain_folder
from bmrl.policy.gguf_tokenizer import tokenizer as tokenizer_of
from bmrl.recipe import load as load_recipe

CHATS = Path(__file__).parent / "fixtures" / "chat"
# family of a configuration -> its tokenizer, how that cuts text
KINDS = {"llama": ("llama3", "llama-bpe"), "qwen2": ("qwen2.5", "qwen2"), "qwen3": ("qwen3", "qwen2")}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BMRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)


def with_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: object())


def tiny(family: str = "llama", *, tied: bool = True):
    """A model with random weights and the settings of a file that holds it."""
    chat, cut = KINDS[family]
    settings = gguf_files.tokenizer_settings(CHATS / chat, cut)
    more = {"head_dim": 8} if family == "qwen3" else {}
    config = CONFIGS[family](
        **SIZES,
        **more,
        num_key_value_heads=2,
        vocab_size=len(settings["tokenizer.ggml.tokens"]),
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in causal.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return causal, {**gguf_files.model_settings(config), **settings}


def put(path: Path, family: str = "llama", *, tied: bool = True, kind: int = 0, **changes):
    """A file with a tiny model; a setting that is changed to None is left out."""
    causal, settings = tiny(family, tied=tied)
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    settings = {key: value for key, value in {**settings, **changed}.items() if value is not None}
    return causal, gguf_files.write(path, settings, gguf_files.weights(causal), kind=kind)


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^there is no file some/where\.gguf$"):
        targets.find("some/where.gguf", "last")
    with pytest.raises(BmrlError, match=r"^model\.name: there is no file some/where\.gguf$"):
        load("some/where.gguf", dtype="float32")


def test_the_package_that_reads_it_is_named(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch)
    words = r"needs the package gguf: pip install 'bmrl\[gguf\]'$"
    with pytest.raises(UsageError, match=words):
        targets.find(str(damaged), "last")
    with pytest.raises(BmrlError, match=words):
        load(str(damaged), dtype="float32")
    recipe = load_recipe(recipes_path("quickstart.yaml"), [f"model.name={damaged}"])
    (line,) = check.missing(recipe)
    assert line == f"model.name: {damaged} needs the package gguf: pip install 'bmrl[gguf]'"


def test_a_file_is_played_with_the_sizes_of_a_chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_package(monkeypatch)
    _, path = put(tmp_path / "model.gguf")
    found = targets.find(str(path), "last")
    assert (found.name, found.kind) == ("model.gguf", "model")
    chat = load_recipe(recipes_path("alfworld_mix.yaml"))
    assert found.recipe.model.context_tokens == chat.model.context_tokens > 2048
    assert found.recipe.rollout.turn_tokens == chat.rollout.turn_tokens > 16
    assert targets.find("pocket", "last").recipe.rollout.turn_tokens == 16


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"general__architecture": "mamba"},
            "is of the architecture mamba, read here are gemma2, gemma3, llama, qwen2, ",
        ),
        ({"general__architecture": None}, "is of the architecture (none), read here are "),
        (
            {"tokenizer__chat_template": None},
            "has no chat template, as base models have none; use the file of an instruct",
        ),
        ({"tokenizer__ggml__tokens": None}, "holds no tokenizer; take the model itself"),
        ({"tokenizer__ggml__pre": "martian"}, "has a tokenizer (gpt2, martian) that is not read here"),
        ({"tokenizer__ggml__model": "bert"}, "has a tokenizer (bert, llama-bpe) that is not read here"),
        ({"llama__rope__scaling__type": "yarn"}, "stretches its positions (yarn), which is not read here"),
        ({"split__count": 3}, "is one part of several; join them with llama.cpp's llama-gguf-split --merge"),
    ],
)
def test_what_cannot_be_trained_is_one_line_before_anything_is_read(tmp_path, monkeypatch, change, problem) -> None:
    with_package(monkeypatch)
    _, path = put(tmp_path / "model.gguf", **change)
    (line,) = check.missing(load_recipe(recipes_path("quickstart.yaml"), [f"model.name={path}"]))
    assert line.startswith(f"model.name: {path} {problem}")
    assert "\n" not in line and "; " in line  # with the way out


def test_damage_is_one_line(tmp_path: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_package(monkeypatch)
    again = "; download it again"
    with pytest.raises(BmrlError) as caught:
        load(str(damaged), dtype="float32")
    assert str(caught.value) == f"model.name: {damaged} is damaged, or only a part of it is there{again}"
    _, path = put(tmp_path / "whole.gguf")
    whole = path.read_bytes()
    assert gguf.problem(path) is None
    assert gguf.read(path).size <= len(whole) < gguf.read(path).size + 32  # but for what fills up the last line
    path.write_bytes(whole[:-100])
    assert gguf.problem(path) == f"is only partly there: {len(whole) - 100:,} of {gguf.read(path).size:,} bytes{again}"
    # Wherever the first part is cut off or overwritten, a line comes out and never anything else.
    begin = gguf.read(path).begin
    for at in range(0, begin, 997):
        path.write_bytes(whole[:at])
        assert gguf.problem(path) is not None
        path.write_bytes(whole[:at] + b"\xff" * 12 + whole[at + 12 :])
        found = gguf.problem(path)
        assert found is None or "\n" not in found
    path.write_bytes(b"PK\x03\x04" + whole[4:])
    assert gguf.problem(path) == f"is no GGUF file{again}"
    path.write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:])
    assert gguf.problem(path) == f"is of version 1 of the format, read here are 2 and 3{again}"


def test_sizes_of_packed_weights_are_those_of_the_package() -> None:
    sizes = pytest.importorskip("gguf").GGML_QUANT_SIZES
    assert {kind: sizes[kind] for kind in gguf.BLOCKS} == gguf.BLOCKS


TEXTS = [
    "You are in the middle of a room. Looking quickly around you, you see a desk 12, and a garbagecan 1.",
    "<action>go to desk 1</action>",
    "It's 2026: 1234567 naïve 世界 🎲\n\n  two  blanks\tand\r\nmore!!",
]


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("smollm2", "smollm"),
        ("qwen2.5", "qwen2"),
        ("qwen3", "qwen2"),
        ("llama3", "llama-bpe"),
        ("gemma", None),
        ("mistral_v3", None),
    ],
)
def test_the_tokenizer_is_the_one_that_was_written(name, cut) -> None:
    original = AutoTokenizer.from_pretrained(CHATS / name)
    made = tokenizer_of(gguf_files.tokenizer_settings(CHATS / name, cut), "a-model")
    messages = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    texts = [*TEXTS, original.apply_chat_template(messages, tokenize=False), "".join(original.all_special_tokens)]
    for text in texts:
        ids = made.encode(text, add_special_tokens=False)
        assert ids == original.encode(text, add_special_tokens=False)
        assert made.decode(ids) == original.decode(ids)
    assert (made.eos_token, made.bos_token) == (original.eos_token, original.bos_token)
    assert made.pad_token == (original.pad_token or original.eos_token)
    assert made.get_added_vocab() == original.get_added_vocab()
    assert {t.content: t.special for t in made.added_tokens_decoder.values()} == {
        t.content: t.special for t in original.added_tokens_decoder.values()
    }


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen2", False), ("qwen3", True)])
def test_a_file_becomes_the_model_that_it_was_made_of(tmp_path, cache, family, tied) -> None:
    pytest.importorskip("gguf")
    causal, path = put(tmp_path / "model.gguf", family, tied=tied)
    policy = load(str(path), dtype="float32")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(policy.causal(ids).logits, causal(ids).logits, atol=1e-5)
    assert policy.name == policy.tokenizer.name_or_path == str(path)
    (folder,) = (p for p in cache.iterdir() if p.is_dir())
    told = json.loads((folder / "generation_config.json").read_text())
    assert policy.tokenizer.convert_ids_to_tokens(told["eos_token_id"]) == [policy.tokenizer.eos_token]
    # In plain transformers, too, without this program.
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), policy.causal.parameters(), strict=True))


def test_plain_numbers_stay_exact_and_it_is_read_once(tmp_path, cache) -> None:
    pytest.importorskip("gguf")
    causal, path = put(tmp_path / "model.gguf", kind=1)
    policy = load(str(path), dtype="float32")
    assert torch.equal(policy.causal.get_input_embeddings().weight, causal.get_input_embeddings().weight.half().float())
    folder = plain_folder(find(str(path)))
    before = (folder / "model.safetensors").stat().st_mtime_ns
    load(str(path), dtype="bfloat16")
    # The same content under another name is the same model; damage is mended.
    moved = path.rename(tmp_path / "other.gguf")
    shutil.copy(moved, path)
    assert plain_folder(find(str(path))) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    for damage in (lambda f: f.write_bytes(f.read_bytes()[:-1]), Path.unlink):
        damage(folder / "model.safetensors")
        assert plain_folder(find(str(path))) == folder
        load(str(path), dtype="float32")
    assert (folder / "model.safetensors").stat().st_mtime_ns != before
    assert sorted(p.name for p in cache.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, cache) -> None:
    pytest.importorskip("gguf")
    _, path = put(tmp_path / "model.gguf")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))  # the weights are larger, its JSON files are not
    try:
        with pytest.raises(BmrlError) as caught:
            load(str(path), dtype="float32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not be written to" in str(caught.value) and "BMRL_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [p for p in cache.iterdir() if p.is_dir()]


def test_weights_that_are_not_of_the_model_are_refused(tmp_path, cache) -> None:
    pytest.importorskip("gguf")
    causal, settings = tiny()
    tensors = gguf_files.weights(causal)
    extra = gguf_files.write(tmp_path / "extra.gguf", settings, {**tensors, "blk.0.odd.weight": torch.ones(3, 3)})
    del tensors["blk.1.ffn_up.weight"]
    less = gguf_files.write(tmp_path / "less.gguf", settings, tensors)
    for path in (extra, less):
        with pytest.raises(BmrlError, match="weights that are not those of a llama model; take the model itself"):
            load(str(path), dtype="float32")


def test_positions_of_llama_3_1_are_stretched_as_the_file_says(tmp_path, cache) -> None:
    pytest.importorskip("gguf")
    causal, settings = tiny()
    settings["llama.rope.freq_base"] = 500_000.0  # as theirs: the slowest of 4 pairs turns less than once in 8192
    told = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500_000.0, "low_freq_factor": 1.0}
    told |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = causal.config
    config.rope_parameters = told
    stretched = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    stretched.load_state_dict(causal.state_dict())
    plain = 1 / 500_000.0 ** (torch.arange(0, 8, 2) / 8)
    divisors = plain / stretched.model.rotary_emb.inv_freq
    assert divisors.tolist()[0] == 1 and abs(divisors.max() - 8) < 1e-3
    tensors = gguf_files.weights(causal)
    path = gguf_files.write(tmp_path / "model.gguf", settings, {**tensors, "rope_freqs.weight": divisors})
    policy = load(str(path), dtype="float32")
    assert torch.allclose(policy.causal.model.rotary_emb.inv_freq, stretched.model.rotary_emb.inv_freq, rtol=1e-3)
    path = gguf_files.write(tmp_path / "odd.gguf", settings, {**tensors, "rope_freqs.weight": divisors.flip(0)})
    with pytest.raises(BmrlError, match="stretches its positions in a way that is not read here"):
        load(str(path), dtype="float32")


def test_two_processes_at_once_make_one_folder(tmp_path, cache) -> None:
    pytest.importorskip("gguf")
    _, path = put(tmp_path / "model.gguf")
    code = f"from bmrl.models import find; from bmrl.policy.gguf import plain_folder; print(plain_folder(find({str(path)!r})))"
    line = [sys.executable, "-c", code]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ}) for _ in range(2)]
    said = {process.communicate(timeout=300)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert said == {str(folder) for folder in cache.iterdir() if folder.is_dir()} and len(said) == 1

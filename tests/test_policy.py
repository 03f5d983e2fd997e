"""Loading: one line for whatever is wrong; the adapter: nothing before training, exactly what is trained."""

import json
import resource
from functools import partial

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM as AutoModel
from transformers import (
    BartConfig,
    GPTJConfig,
    HyperCLOVAXConfig,
    Lfm2Config,
    Llama4TextConfig,
    MambaConfig,
    Qwen3NextConfig,
    T5Config,
)

from bmrl.errors import BmrlError, UsageError
from bmrl.policy import (
    add_reference,
    load,
    new_model,
    reference,
    save_model,
    seeded,
    token_logprobs,
    with_adapter,
    with_new_adapter,
)

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
MASK = torch.tensor([[False, True, True, True, True, True]])
fresh = partial(with_new_adapter, rank=4, alpha=8, dropout=0.0, targets="all-linear", seed=0)


def scores(policy):
    with torch.no_grad():
        return token_logprobs(policy, IDS, MASK)[0]


@pytest.fixture
def model(tmp_path):
    """A folder with a model and its tokenizer."""
    save_model(tiny.policy(adapter=False), tmp_path / "model", dtype="float32")
    return tmp_path / "model"


@pytest.fixture
def adapter(tmp_path):
    """A folder with an adapter of that model, rank 4."""
    tiny.policy().model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def change_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def change_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(error, function, *args, **options):
    """The one line of an error."""
    with pytest.raises(error) as caught:
        function(*args, **options)
    assert type(caught.value) is error
    line = str(caught.value)
    assert line and "\n" not in line and len(line) < 500
    return line


def test_a_saved_model_comes_back_and_carries_no_path(model):
    loaded = load(str(model), dtype="float32")
    assert torch.equal(scores(loaded), scores(tiny.policy(adapter=False)))
    again = model.parent / "again"
    save_model(loaded, again, dtype="float32")
    for file in again.iterdir():
        assert str(model.parent).encode() not in file.read_bytes(), file.name


def test_a_full_disk_leaves_the_model_that_was_there(model):
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the weights are larger, its JSON files are not
    try:
        with pytest.raises(BmrlError) as told:
            save_model(tiny.policy(adapter=False), model, dtype="float32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "resume" in str(told.value) and "\n" not in str(told.value)
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["model"]


WEIGHT = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: (d / "config.json").write_text("{"), "has a damaged config.json: copy it again"),
        (lambda d: change_json(d / "config.json", model_type="martian"), "model type `martian`"),
        (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer, tokenizer.json is missing: copy it again"),
        (
            lambda d: (d / "model.safetensors").unlink(),
            "is only partly there, model.safetensors is missing (1 of 1 files)",
        ),
        (
            lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-9]),
            "is damaged, model.safetensors has ",
        ),
        (
            lambda d: (d / "model.safetensors").write_bytes(b""),
            "is damaged, model.safetensors is cut off after 0 bytes",
        ),
        (lambda d: change_tensors(d / "model.safetensors", lambda t: t.pop(WEIGHT)), f"{WEIGHT} is missing"),
        (lambda d: change_json(d / "config.json", intermediate_size=50), "proj.weight is of another shape"),
        (
            lambda d: change_json(d / "config.json", num_hidden_layers=3),
            "model.layers.2.input_layernorm.weight is missing",
        ),
    ],
)
def test_a_damaged_model_folder_is_one_line(model, damage, problem):
    damage(model)
    line = refused(BmrlError, load, str(model), dtype="float32")
    assert line.startswith(f"model.name: {model} ")
    assert problem in line


def test_weights_in_pickles_are_not_read(model):
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    assert "has its weights as pickles, which are not read" in refused(BmrlError, load, str(model), dtype="float32")


def test_a_model_that_is_nowhere_is_one_line(tmp_path):
    nothing = str(tmp_path / "nothing")
    assert refused(BmrlError, load, nothing, dtype="float32") == f"model.name: there is no {nothing} on this disk"
    (tmp_path / "nothing").mkdir()
    line = refused(BmrlError, load, nothing, dtype="float32")
    assert line == f"model.name: {nothing} is no model folder: it has no config.json"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (MambaConfig(), "(mamba) remembers more than keys and values"),
        (Qwen3NextConfig(), "(qwen3_next) remembers more than keys and values"),
        (Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2), "(lfm2) remembers more"),
        (Llama4TextConfig(), "(llama4_text) remembers more than keys and values"),
        (T5Config(), "(t5) is no decoder-only language model"),
        (BartConfig(), "(bart) is no decoder-only language model"),
        (GPTJConfig(), "(gptj) has an attention that torch's scaled_dot_product_attention cannot do"),
    ],
)
def test_kinds_without_a_plain_cache_are_refused_by_name_before_weights_are_read(tmp_path, config, problem):
    config.save_pretrained(tmp_path)
    line = refused(UsageError, load, str(tmp_path), dtype="float32")
    assert line.startswith(f"model.name: {tmp_path} {problem}")


def test_a_model_that_does_more_to_its_logits_than_we_know_of_is_refused(tmp_path):
    # It multiplies by what Granite, under the same name, divides by.
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = HyperCLOVAXConfig(vocab_size=400, num_key_value_heads=2, head_dim=8, logits_scaling=3.0, **sizes)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    line = refused(UsageError, load, str(tmp_path), dtype="float32")
    assert "(hyperclovax) gives other logits than its output layer" in line


def test_a_new_adapter_changes_nothing_and_is_exactly_what_is_trained():
    base = tiny.policy(adapter=False)
    before = scores(base)
    policy = fresh(base)
    assert torch.equal(scores(policy), before)
    # 2 layers of q, k, v, o, gate, up, down, each an A and a B
    assert len(policy.trainable) == 2 * 7 * 2
    assert all("lora_A" in name or "lora_B" in name for name in policy.trainable)
    assert [tuple(p.shape) for p in policy.trainable.values()] == [
        tuple(t.shape) for t in policy.adapter_tensors().values()
    ]
    tiny.shake(policy, 0)
    assert not torch.allclose(scores(policy), before)


def test_the_seed_decides_a_new_adapter():
    first, same, other = (fresh(tiny.policy(adapter=False), seed=seed).adapter_tensors() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_targets_are_exactly_those_named():
    policy = fresh(tiny.policy(adapter=False), targets=["q_proj", "up_proj"])
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in policy.trainable} == {"q_proj", "up_proj"}


@pytest.mark.parametrize("targets", [["nope"], ["q_proj", "nope"]])
def test_a_target_that_is_no_module_is_refused_although_others_are(targets):
    line = refused(UsageError, fresh, tiny.policy(adapter=False), targets=targets)
    assert line.startswith("lora.targets: tiny has no module nope; it has down_proj, gate_proj, k_proj,")


def test_adapter_config_is_plain_json_without_machine_paths(model):
    config = fresh(load(str(model), dtype="float32")).adapter_config()
    text = json.dumps(config)
    assert str(model.parent) not in text
    assert (config["base_model_name_or_path"], config["r"]) == ("model", 4)
    assert tiny.policy().adapter_config()["base_model_name_or_path"] == "tiny"


def test_a_stored_adapter_comes_back_trainable(adapter):
    loaded = with_adapter(tiny.policy(adapter=False), adapter, rank=4)
    trained = tiny.policy()
    assert torch.equal(scores(loaded), scores(trained))
    assert loaded.trainable.keys() == trained.trainable.keys()


def small(layers=2, hidden=32):
    sizes = {"layers": layers, "hidden": hidden, "heads": 4, "kv_heads": 2, "intermediate": 48, "context_tokens": 512}
    return new_model(tiny.tokenizer(), **sizes, seed=0, name="other")


@pytest.mark.parametrize(
    ("damage", "base", "problem"),
    [
        (lambda d: (d / "adapter_config.json").unlink(), small, "holds no adapter_config.json"),
        (lambda d: (d / "adapter_config.json").write_text("{"), small, "does not fit other"),
        (lambda d: (d / "adapter_model.safetensors").unlink(), small, "holds no adapter_model.safetensors"),
        (lambda d: (d / "adapter_model.safetensors").write_bytes(b"\0" * 99), small, "does not fit other"),
        (lambda d: change_json(d / "adapter_config.json", peft_type="IA3"), small, "only LoRA works here"),
        (lambda d: change_json(d / "adapter_config.json", target_modules=["c_attn"]), small, "c_attn"),
        # Of a narrower model; of a deeper one, where peft would leave the new layers as they are; of a shallower one.
        (lambda d: None, partial(small, hidden=16), "does not fit the model: base_model.model.model.layers"),
        (
            lambda d: change_json(d / "adapter_config.json", target_modules=["q_proj", "k_proj"]),
            partial(small, layers=3),
            "stands only on one side",
        ),
        (lambda d: None, partial(small, layers=1), "stands only on one side"),
        (
            lambda d: change_tensors(d / "adapter_model.safetensors", lambda t: t.pop(min(t))),
            small,
            "stands only on one side",
        ),
    ],
)
def test_an_adapter_that_is_damaged_or_of_another_model_is_one_line(adapter, damage, base, problem):
    damage(adapter)
    with pytest.raises(BmrlError) as caught:
        with_adapter(base(), adapter)
    line = str(caught.value)
    assert line.startswith(f"model.adapter: {adapter} ")
    assert problem in line and "\n" not in line


def test_another_rank_than_the_recipes_is_refused(adapter):
    line = refused(UsageError, with_adapter, tiny.policy(adapter=False), adapter, rank=8)
    assert line == f"lora.rank: the recipe says 8, the adapter in {adapter} has 4; set lora.rank=4"


def test_a_checkpoint_that_does_not_fit_is_refused_and_one_that_does_comes_back_bit_for_bit():
    source, target = tiny.policy(), fresh(tiny.policy(adapter=False))
    target.load_adapter_tensors(source.adapter_tensors())
    assert torch.equal(scores(target), scores(source))

    other = fresh(tiny.policy(adapter=False), rank=2)
    line = refused(BmrlError, other.load_adapter_tensors, source.adapter_tensors())
    assert "the checkpoint does not fit the model" in line and "is (4, 32), the model has (2, 32)" in line
    other = fresh(tiny.policy(adapter=False), targets=["q_proj"])
    line = refused(BmrlError, other.load_adapter_tensors, source.adapter_tensors())
    assert "stands only on one side; was the recipe changed?" in line


def test_the_reference_is_where_training_started(adapter):
    policy = with_adapter(tiny.policy(adapter=False), adapter)
    add_reference(policy, adapter)
    start = scores(policy)
    tiny.shake(policy, 1)
    moved = scores(policy)
    with reference(policy):
        assert torch.equal(scores(policy), start)
    assert torch.equal(scores(policy), moved) and not torch.equal(moved, start)
    assert all("default" in name for name in policy.trainable)


def test_seeded_leaves_the_global_generator_as_it_was(adapter):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1):
        first = torch.rand(3)
    with seeded(1):
        assert torch.equal(torch.rand(3), first)
    with pytest.raises(ZeroDivisionError), seeded(2):
        _ = 1 / 0
    fresh(tiny.policy(adapter=False))
    with_adapter(tiny.policy(adapter=False), adapter)
    assert torch.equal(torch.rand(3), expected)

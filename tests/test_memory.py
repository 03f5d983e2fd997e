"""The estimate of memory: parts by hand, against a real model, and that its advice does what it says."""

import json
import subprocess
import sys
from random import Random

import pytest
import tiny
import torch

from bmrl import memory
from bmrl.architecture import find, names, parse
from bmrl.batch import Row
from bmrl.cuda_graphs import LEAST_WIDTH
from bmrl.errors import BmrlError
from bmrl.files import recipes_path
from bmrl.memory import advice, estimate
from bmrl.memory import formulas as f
from bmrl.optimizer import make_optimizer
from bmrl.policy import token_logprobs
from bmrl.policy.logprobs import HEAD_BYTES
from bmrl.policy.packed import packed_hidden
from bmrl.recipe import Recipe, load
from bmrl.sampler import FORWARD_TOKENS

SMOL = find("smollm2-135m")
FP32, BF16, NF4 = f.Kind(4, False, False), f.Kind(2, False, False), f.Kind(2, True, False)
RECIPES = sorted(path.stem for path in recipes_path().glob("*.yaml"))
CARD = [name for name in RECIPES if name.startswith("alfworld")]


def recipe(name: str, *overrides: str) -> Recipe:
    return load(recipes_path(f"{name}.yaml"), overrides)


def test_what_is_named_twice_is_the_same():
    # The estimate runs without torch, which those modules import.
    assert (f.FORWARD_TOKENS, f.HEAD_BYTES, f.LEAST_WIDTH) == (FORWARD_TOKENS, HEAD_BYTES, LEAST_WIDTH)


def test_weights_in_four_bit_by_hand():
    linear = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert f.weights(SMOL, BF16) == 2 * 134_515_008
    assert f.weights(SMOL, NF4) == linear // 2 + 2 * (134_515_008 - linear)
    # q: 331,776 weights, 5,184 blocks of 64, 21 blocks of 256 of these; k: 1,728 and 7; gate: 13,824 and 54.
    tables = 4 * (16 + 256 + 1)
    layer = 2 * (5184 + 4 * 21) + 2 * (1728 + 4 * 7) + 3 * (13_824 + 4 * 54) + 7 * tables
    assert f.quantization(SMOL) == 30 * layer


def test_the_state_of_optimizers_by_hand():
    assert f.optimizer("adamw", [10, 6]) == 2 * 4 * 16 + 2 * 4
    tables = 2 * 4 * 256
    # below 4,096 entries in 32 bit; 5,000 entries are two bytes each and 20 blocks of 256 with two constants each
    assert f.optimizer("adamw8bit", [4095, 5000]) == 8 * 4095 + 2 * (5000 + 4 * 20) + tables
    # paged from 100,000 entries on, of which only the constants of 391 blocks stay
    assert f.optimizer("paged_adamw8bit", [5000, 100_000]) == 2 * (5000 + 4 * 20) + 2 * 4 * 391 + tables


def test_layers_with_an_adapter():
    assert len(f.adapted(SMOL, "all-linear")) == 7 * 30
    assert len(f.adapted(SMOL, ["q_proj", "mlp.up_proj"])) == 2 * 30
    assert [linear.name for linear in f.adapted(SMOL, ["lm_head", "layers.3.mlp.up_proj"])] == [
        "model.layers.3.mlp.up_proj",
        "lm_head",
    ]
    assert f.adapter(f.adapted(SMOL, ["layers.3.mlp.up_proj"]), 4) == [4 * 576, 4 * 1536]


def test_graphs_by_hand():
    # 1, 2, 4, 8 rows; 256, 512, 1024 positions, and what is left of the cache
    assert f.graph_shapes(rows=8, context_tokens=1024) == 4 * 4
    assert f.graph_shapes(rows=1, context_tokens=100) == 1


def test_a_real_model_takes_what_is_predicted():
    policy = tiny.policy()
    a = parse(policy.causal.config.to_dict(), "tiny")
    frozen = [p for p in policy.causal.parameters() if not p.requires_grad]
    assert f.weights(a, FP32) == sum(p.nbytes for p in frozen)
    tensors = f.adapter(f.adapted(a, "all-linear"), 4)
    assert [p.numel() for p in policy.trainable.values()] == tensors
    assert 4 * sum(tensors) == sum(p.nbytes for p in policy.trainable.values())
    optimizer = make_optimizer("adamw", policy.trainable.values(), learning_rate=0.1, weight_decay=0.0, beta2=0.99)
    ids = torch.arange(40)[None] % 60
    token_logprobs(policy, ids, ids > 3)[0].sum().backward()
    assert 4 * sum(tensors) == sum(p.grad.nbytes for p in policy.trainable.values())
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    assert f.optimizer("adamw", tensors) == sum(value.nbytes for value in state)


def test_activations_that_a_layer_keeps_are_what_autograd_saves():
    """Beside the layers, the last norm keeps 4 x 32 + 4 bytes a token, and the rotary angles 2 x 8 x 4."""
    policy = tiny.policy()
    a = parse(policy.causal.config.to_dict(), "tiny")
    own = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        states = packed_hidden(policy, torch.arange(200)[None] % 60, [200])
    measured = sum(storage.nbytes() for at, storage in saved.items() if at not in own)
    assert states.requires_grad
    counted = 200 * (2 * f.kept(a, FP32, 4) + 4 * 32 + 4 + 2 * 8 * 4)
    assert counted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("vram", [8, 12, 16, 24])
@pytest.mark.parametrize("name", CARD)
def test_following_the_advice_fits(name, vram):
    asked = recipe(name)
    overrides, card = advice(asked, memory.figures(asked), vram)
    assert card is None
    assert bool(overrides) != bool(estimate(asked, memory.figures(asked), vram_gb=vram).fits)
    changed = recipe(name, *overrides)
    assert estimate(changed, memory.figures(changed), vram_gb=vram).fits


def drawn(random: Random) -> list[str]:
    """Overrides of a random recipe for a card."""
    context = random.choice([512, 2048, 8192, 16_384, 32_768])
    return [
        f"model.name={random.choice(list(names()))}",
        "model.adapter=null",
        f"model.dtype={random.choice(['bfloat16', 'float32'])}",
        f"model.quantization={random.choice(['none', 'nf4'])}",
        f"model.context_tokens={context}",
        f"model.gradient_checkpointing={random.choice(['true', 'false'])}",
        f"lora.rank={random.choice([4, 32, 128])}",
        f"rollout.kv_cache_gb={random.choice(['auto', 0.5, 4, 30])}",
        f"rollout.tasks_per_step={random.choice([1, 8, 64])}",
        f"rollout.turn_tokens={random.choice([16, 256])}",
        f"budget.train={{kind: fixed, turns: {random.choice([1, 4, 30])}}}",
        f"algorithm.kl_coef={random.choice([0.0, 0.01])}",
        f"optimizer.name={random.choice(['adamw', 'adamw8bit', 'paged_adamw8bit'])}",
        f"train.micro_batch_tokens={random.choice([256, 4096, 65_536])}",
    ]


def test_following_the_advice_fits_whatever_the_recipe_says():
    random, fitted = Random(6), 0
    for _ in range(25):
        chosen, vram = drawn(random), random.choice([3, 6, 8, 12, 24, 48])
        asked = recipe("alfworld_mix", *chosen)
        overrides, card = advice(asked, memory.figures(asked), vram)
        if card is not None:
            assert not overrides
            assert card > vram
            continue
        changed = recipe("alfworld_mix", *chosen, *overrides)
        assert estimate(changed, memory.figures(changed), vram_gb=vram).fits, (chosen, vram, overrides)
        fitted += bool(overrides)
    assert fitted > 8


def test_the_mildest_change_comes_first():
    heavy = recipe("alfworld_mix", "model.gradient_checkpointing=false")
    assert advice(heavy, memory.figures(heavy), 24)[0] == ["model.gradient_checkpointing=true"]
    full = recipe("alfworld_mix", "rollout.kv_cache_gb=40", "rollout.tasks_per_step=64")
    assert advice(full, memory.figures(full), 24)[0] == ["rollout.kv_cache_gb=auto"]


@pytest.mark.parametrize("vram", [12, 16])
def test_what_helps_behind_a_larger_phase_is_not_given_up(vram):
    # The update is the larger phase at first, so that a smaller cache alone changes no total; together they do.
    chosen = ["train.micro_batch_tokens=16384"]
    asked = recipe("alfworld_7b_mix", *chosen)
    overrides, card = advice(asked, memory.figures(asked), vram)
    assert card is None
    assert not [override for override in overrides if override.startswith("model.name=")]
    changed = recipe("alfworld_7b_mix", *chosen, *overrides)
    assert estimate(changed, memory.figures(changed), vram_gb=vram).fits


def test_where_nothing_helps_the_smallest_card_is_named():
    asked = recipe("alfworld_7b_mix")
    overrides, card = advice(asked, memory.figures(asked), 1)
    assert overrides == []
    # 6.7 GB are always held, and an update of the 2,048 tokens that 30 turns take needs 1.6 more.
    assert card == 10


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("model.context_tokens=4096", "model.context_tokens=8192"),
        ("model.gradient_checkpointing=true", "model.gradient_checkpointing=false"),
        ("model.quantization=nf4", "model.quantization=none"),
        ("model.dtype=bfloat16", "model.dtype=float32"),
        ("model.name=Qwen/Qwen2.5-1.5B-Instruct", "model.name=Qwen/Qwen2.5-3B-Instruct"),
        ("lora.rank=16", "lora.rank=64"),
        ("algorithm.kl_coef=0.0", "algorithm.kl_coef=0.01"),
        ("optimizer.name=paged_adamw8bit", "optimizer.name=adamw8bit"),
        ("optimizer.name=adamw8bit", "optimizer.name=adamw"),
        ("train.micro_batch_tokens=16384", "train.micro_batch_tokens=32768"),
        ("rollout.kv_cache_gb=2", "rollout.kv_cache_gb=9"),
        ("rollout.cuda_graphs=false", "rollout.cuda_graphs=true"),
    ],
)
def test_more_never_takes_less(less, more):
    for cpu in (False, True):
        pair = [recipe("alfworld_mix", *(["rollout.kv_cache_gb=4"] if "kv" not in s else []), s) for s in (less, more)]
        small, large = (estimate(r, memory.figures(r), cpu=cpu) for r in pair)
        for phase in ("rollout", "update"):
            assert small.phase(phase) <= large.phase(phase)
        assert small.total_gb <= large.total_gb


def test_the_total_is_what_is_always_held_and_the_larger_phase():
    found = estimate(recipe("alfworld_mix"), find("Qwen/Qwen2.5-1.5B-Instruct"), vram_gb=24)
    parts = {phase: sum(p.gb for p in found.parts if p.phase == phase) for phase in ("always", "rollout", "update")}
    assert found.total_gb == pytest.approx(parts["always"] + max(parts["rollout"], parts["update"]))
    assert all(part.gb > 0 for part in found.parts)


def test_open_cache_takes_what_a_card_has_left_and_no_more():
    asked = recipe("alfworld_mix", "rollout.kv_cache_gb=auto")
    rows = [estimate(asked, memory.figures(asked), vram_gb=vram).rows for vram in (8, 16, 24, 200)]
    assert rows == sorted(rows)
    step = asked.rollout.tasks_per_step * asked.rollout.group_size
    assert rows[-1] == max(64, step) > rows[0]
    one_more = memory.most_rows(asked, memory.figures(asked), 16, cpu=False)
    given = recipe(
        "alfworld_mix",
        f"rollout.kv_cache_gb={(one_more + 1.5) * asked.model.context_tokens * 28 * 2 * 256 * 2 / 2**30}",
    )
    assert not estimate(given, memory.figures(given), vram_gb=16).fits


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bmrl", "check", *arguments], capture_output=True, text=True)


def test_the_command_answers_with_its_exit_code():
    done = check("alfworld_mix", "--vram", "24", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["fits"], found["advice"], found["vram_gb"]) == (True, [], 24.0)
    assert found["total_gb"] <= 24
    assert {part["phase"] for part in found["parts"]} == {"always", "rollout", "update"}
    done = check("alfworld_7b_mix", "--vram", "8")
    assert done.returncode == 1
    assert "fits      no" in done.stdout
    chosen = [line.split("--set ")[1] for line in done.stdout.splitlines() if line.startswith("advice")]
    assert chosen
    done = check("alfworld_7b_mix", "--vram", "8", *(part for text in chosen for part in ("--set", text)))
    assert done.returncode == 0
    assert "fits      yes" in done.stdout


def test_without_a_card_nothing_is_judged():
    done = check("pocket_mix", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert (found["fits"], found["device"], found["rows"]) == (None, "cpu", 96)


def test_a_model_of_unknown_size():
    done = check("alfworld_mix", "--set", "model.name=some/model")
    assert done.returncode == 0
    assert "memory    no estimate: model.name: neither data/models/some--model.json" in done.stdout
    done = check("alfworld_mix", "--set", "model.name=some/model", "--vram", "24")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_rows_of_a_dry_run_are_whole():
    from bmrl.run.dry_run import _Transcript

    made = _Transcript([5, 6, 7, 8], [False, True, False, True], [-0.1, -0.2])
    assert made.row(3, 1.0) == Row((5, 6, 7), (False, True, False), (-0.1,), (1.0,), 1.0)


def test_a_card_that_is_too_small_is_told_before_a_model_is_loaded():
    asked = recipe("alfworld_mix")
    line = memory.too_small(asked, 8)
    assert line.startswith("alfworld_mix takes ") and "this card has 8.0: --set " in line and "\n" not in line
    overrides = [text for text in line.partition(": ")[2].split("--set ") if text]
    assert memory.too_small(recipe("alfworld_mix", *(text.strip() for text in overrides)), 8) is None
    assert memory.too_small(asked, 24) is None
    assert "a card of " in memory.too_small(recipe("alfworld_7b_mix"), 1)
    # What nothing is known of is tried.
    assert memory.too_small(recipe("alfworld_mix", "model.name=nobody/nothing"), 1) is None


def test_a_card_that_torch_cannot_use_is_no_reason_to_train_on_the_processor(monkeypatch):
    from bmrl.run.compose import refuse_card

    monkeypatch.setattr("bmrl.run.compose.has_gpu", lambda: True)
    with pytest.raises(BmrlError, match=r"needs the NVIDIA GPU .* bmrl doctor alfworld_mix says which$"):
        refuse_card(recipe("alfworld_mix"))
    refuse_card(recipe("quickstart"))

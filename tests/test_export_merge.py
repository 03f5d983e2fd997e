"""Merging an adapter, and the gap that is reported."""

from dataclasses import replace

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from bmrl.errors import UsageError
from bmrl.export.gap import Row, gap, judge, row
from bmrl.export.merge import merge
from bmrl.policy import Policy, with_new_adapter

IDS = torch.tensor([[2, 7, 9, 4, 11, 30]])


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.logits(policy.hidden(input_ids=IDS, use_cache=False))


def adapted(*targets: str, dtype: torch.dtype = torch.float32, **options) -> Policy:
    """The tiny policy with an adapter that does something."""
    base = tiny.policy(adapter=False)
    base.causal.to(dtype)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), task_type="CAUSAL_LM", **options)
    policy = replace(base, model=get_peft_model(base.causal, config))
    tiny.shake(policy, 1)
    return policy


def test_the_sum_is_made_in_float32_and_rounded_once():
    policy = adapted("q_proj", "up_proj", dtype=torch.bfloat16)
    layer = policy.causal.model.layers[0].self_attn.q_proj
    up, down = layer.lora_B["default"].weight, layer.lora_A["default"].weight
    assert up.dtype == torch.float32  # peft keeps adapters so
    weight = layer.base_layer.weight.float()
    expected = weight + 8 / 4 * (up @ down)
    other = policy.causal.model.layers[0].self_attn.k_proj.weight.clone()
    merged = merge(policy, torch.bfloat16).causal.model.layers[0].self_attn
    assert type(merged.q_proj) is torch.nn.Linear
    assert torch.equal(merged.q_proj.weight, expected.bfloat16())
    twice = weight.bfloat16() + (expected - weight).bfloat16()
    assert not torch.equal(merged.q_proj.weight, twice), "rounding twice would be seen"
    assert torch.equal(merged.k_proj.weight, other)


def test_float32_weights_keep_what_sixteen_bits_would_round_away():
    policy = adapted("down_proj", dtype=torch.bfloat16)
    before = policy.causal.model.layers[1].mlp.down_proj.base_layer.weight.float()
    merged = merge(policy, torch.float32).causal.model.layers[1].mlp.down_proj.weight
    assert merged.dtype == torch.float32
    assert not torch.equal(merged, merged.bfloat16().float()) and not torch.equal(merged, before)


@pytest.mark.parametrize(
    ("targets", "options"),
    [
        (("q_proj", "v_proj", "gate_proj", "down_proj"), {}),
        (("q_proj",), {"use_rslora": True}),
        (("q_proj", "down_proj"), {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 32}}),
        (("q_proj", "up_proj"), {"use_dora": True}),
        (("o_proj",), {"modules_to_save": ["lm_head"]}),
        (("lm_head",), {}),
        (("embed_tokens",), {}),
        (("embed_tokens", "lm_head"), {}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_the_merged_model_computes_what_the_adapted_one_did(targets, options, tmp_path):
    policy = adapted(*targets, **options)
    expected, plain = logits(policy), logits(tiny.policy(adapter=False))
    merged = merge(policy, torch.float32)
    assert not merged.adapted and not [name for name, _ in merged.causal.named_modules() if "lora" in name]
    torch.testing.assert_close(logits(merged), expected, atol=2e-5, rtol=1e-5)
    assert (expected - plain).abs().max() > 1e-2, "the adapter does nothing"
    merged.causal.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, expected, atol=2e-5, rtol=1e-5)
    tied = not {"lm_head", "embed_tokens"} & {*targets, *options.get("modules_to_save", [])}
    assert again.config.tie_word_embeddings is tied


def test_biases_stay_and_those_of_an_adapter_are_added(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    causal = Qwen2ForCausalLM(config)
    for layer in causal.model.layers:  # which begin as zeros
        torch.nn.init.normal_(layer.self_attn.q_proj.bias)
    adapter = LoraConfig(r=4, target_modules=["q_proj"], lora_bias=True, task_type="CAUSAL_LM")
    policy = replace(tiny.policy(adapter=False), causal=causal, model=get_peft_model(causal, adapter))
    tiny.shake(policy, 1)
    expected = logits(policy)
    torch.testing.assert_close(logits(merge(policy, torch.float32)), expected, atol=2e-5, rtol=1e-5)


def test_a_whole_model_is_only_rounded():
    policy = tiny.policy(adapter=False)
    weight = policy.causal.model.layers[0].mlp.up_proj.weight.clone()
    frequencies = policy.causal.model.rotary_emb.inv_freq.clone()
    merged = merge(policy, torch.bfloat16)
    assert torch.equal(merged.causal.model.layers[0].mlp.up_proj.weight, weight.bfloat16())
    assert torch.equal(merged.causal.model.rotary_emb.inv_freq, frequencies)
    assert merged.causal.config.tie_word_embeddings


def test_quantized_weights_are_refused():
    policy = with_new_adapter(tiny.policy(adapter=False), rank=2, alpha=2, dropout=0.0, targets=["q_proj"], seed=0)
    policy.causal.is_quantized = True
    with pytest.raises(UsageError, match=r"quantized weights, into which nothing can be merged.*--format adapter"):
        merge(policy, torch.bfloat16)


def turn(observation: str, action: str) -> dict[str, str]:
    return {"observation": observation, "action": action}


def test_an_episode_is_read_as_it_was_played():
    chat = tiny.chat()
    turns = [turn("You are at place 2.", "go"), turn("You are at place 1.", "stay"), turn("Nothing", "")]
    read = row(chat, turns, most=500)
    opening, first = chat.opening("You are at place 2."), chat.answer("go")
    later, second = chat.following("You are at place 1.", stopped=True), chat.answer("stay")
    assert read is not None and read.ids == (*opening, *first, *later, *second)
    assert [i for i, picked in zip(read.ids, read.picked, strict=True) if picked] == [*first, *second]
    assert row(chat, turns, most=len(read.ids) - 1).ids == (*opening, *first)
    assert row(chat, [turn("You", "")], most=500) is None


def test_the_gap_is_of_the_picked_tokens_at_the_temperature():
    a, b = tiny.policy(seed=0), tiny.policy(seed=3)
    rows = [Row((2, 7, 9, 4), (False, True, False, True)), Row((2, 11, 30), (False, False, True))]

    def by_hand(policy, ids, place):
        with torch.no_grad():
            logits = policy.causal(torch.tensor([ids])).logits[0, place - 1]
        return (logits / 0.5).log_softmax(-1)[ids[place]], logits.argmax()

    places = [((2, 7, 9, 4), 1), ((2, 7, 9, 4), 3), ((2, 11, 30), 2)]
    (la, ca), (lb, cb) = (zip(*(by_hand(p, *place) for place in places), strict=True) for p in (a, b))
    differences = (torch.stack(la) - torch.stack(lb)).abs()
    found = gap(rows, *(judge(policy, rows, temperature=0.5) for policy in (a, b)))
    assert (found.episodes, found.tokens) == (2, 3)
    assert found.mean == pytest.approx(float(differences.mean()), rel=1e-5)
    assert found.highest == pytest.approx(float(differences.max()), rel=1e-5)
    assert found.same_choice == sum(int(x == y) for x, y in zip(ca, cb, strict=True))
    same = gap(rows, *(judge(a, rows, temperature=0.5) for _ in range(2)))
    assert same.mean == same.highest == 0 and same.same_choice == 3

"""Linear layers that are quicker than torch's and peft's: what they compute, and that the model stays what it is."""

import functools
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import tiny
import torch
from gpu_models import SHAPES, TINY, make

from bmrl.policy import for_sampling, reference, swapped, token_logprobs, with_new_adapter

IDS = torch.randint(0, 60, (1, 40), generator=torch.Generator().manual_seed(1))
PICKED = torch.arange(40)[None] % 3 == 1


def adapted(dtype: torch.dtype, *, dropout: float = 0.0, quick: bool = True, monkeypatch=None):
    """The tiny policy in a data type, its adapter float32 and off its start."""
    base = tiny.policy(adapter=False)
    base.causal.to(dtype)
    if not quick:
        monkeypatch.setattr("bmrl.policy.linear._compiled", lambda weight: False)
    policy = with_new_adapter(base, rank=4, alpha=8, dropout=dropout, targets="all-linear", seed=0)
    monkeypatch.undo()
    tiny.shake(policy, 0)
    return policy


def outcome(policy):
    """Log-probabilities of some tokens, and their sum's gradient."""
    policy.model.zero_grad()
    logprobs, _ = token_logprobs(policy, IDS, PICKED)
    logprobs.sum().backward()
    return logprobs.detach(), torch.cat([p.grad.flatten() for p in policy.trainable.values()])


def laid_out(policy) -> int:
    return sum("forward" in vars(module) for module in policy.model.modules())


def far(one, other) -> float:
    return float((one - other).norm() / other.norm())


bfloat16 = pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="a processor without bfloat16")


@bfloat16
def test_a_laid_out_model_is_as_near_to_the_exact_one_as_the_plain_one(monkeypatch):
    exact = outcome(adapted(torch.float32, monkeypatch=monkeypatch))
    plain = adapted(torch.bfloat16, quick=False, monkeypatch=monkeypatch)
    quick = adapted(torch.bfloat16, monkeypatch=monkeypatch)
    # Two layers of seven with an adapter, and the output layer.
    assert (laid_out(plain), laid_out(quick)) == (0, 15)
    for one, other, true in zip(outcome(quick), outcome(plain), exact, strict=True):
        assert far(one, true) < 1.5 * far(other, true) < 0.1
    assert {p.grad.dtype for p in quick.trainable.values()} == {torch.float32}


@bfloat16
def test_a_laid_out_adapter_counts_until_it_is_switched_off(monkeypatch):
    quick = adapted(torch.bfloat16, monkeypatch=monkeypatch)
    plain = adapted(torch.bfloat16, quick=False, monkeypatch=monkeypatch)
    with torch.no_grad():
        off = []
        for policy in (quick, plain):
            on = token_logprobs(policy, IDS, PICKED)[0]
            with reference(policy):
                off.append(token_logprobs(policy, IDS, PICKED)[0])
            assert far(on, off[-1]) > 0.05
            assert torch.equal(token_logprobs(policy, IDS, PICKED)[0], on)
        assert far(off[0], off[1]) < 0.02
        for p in quick.trainable.values():
            p.mul_(2)  # what is learned counts at once
        assert far(token_logprobs(quick, IDS, PICKED)[0], on) > 0.05


@bfloat16
def test_dropout_is_left_to_peft(monkeypatch):
    policy = adapted(torch.bfloat16, dropout=0.5, monkeypatch=monkeypatch)
    policy.model.train()
    seeds = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        seeds.append(outcome(policy)[1])
    assert torch.equal(seeds[0], seeds[1])
    assert far(seeds[2], seeds[0]) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=bfloat16)])
@pytest.mark.parametrize("by_torch", [False, True])
def test_sampling_computes_what_the_layers_are(dtype, by_torch, monkeypatch):
    policy = adapted(dtype, quick=False, monkeypatch=monkeypatch)
    if by_torch:  # as on a card
        monkeypatch.setattr("bmrl.policy.linear._lays_out", lambda weight: False)
    generator = torch.Generator().manual_seed(0)
    found = for_sampling(policy)
    assert len(found) == 14 + (not by_torch)
    one, other = (torch.randn(1, 5, 128, generator=generator).to(dtype) for _ in range(2))
    # Each layer something of its own; all the same, as in a model; the same in the other order; something else.
    for order, inputs in ((1, None), (1, one), (-1, one), (1, other)):
        for layer, forward in found[::order]:
            width = layer.in_features
            x = torch.randn(1, 5, width, generator=generator).to(dtype) if inputs is None else read_of(inputs, width)
            with torch.no_grad():
                assert far(forward(x).float(), layer(x).float()) < 4 * torch.finfo(dtype).eps


@functools.cache
def read_of(inputs, width: int):
    """The same object for all layers that read so much."""
    return inputs[..., :width]


def test_layers_that_read_the_same_are_one_product_which_nothing_holds_on_to(monkeypatch):
    policy = adapted(torch.float32, monkeypatch=monkeypatch)
    calls = []
    monkeypatch.setattr(
        "bmrl.policy.linear._laid_out", lambda weight, bias: lambda x: (calls.append(1), x @ weight.t())[1]
    )
    x = torch.randn(1, 5, policy.causal.config.hidden_size)
    held = sys.getrefcount(x)
    with swapped(for_sampling(policy)), torch.no_grad():
        for block in policy.causal.get_decoder().layers:
            before = len(calls)
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(block.self_attn, name)(x)
            assert len(calls) == before + 1
    assert sys.getrefcount(x) == held


def test_a_layer_without_an_adapter_among_layers_with_one(monkeypatch):
    policy = tiny.policy(adapter=False)
    policy = with_new_adapter(policy, rank=4, alpha=8, dropout=0.0, targets=["q_proj", "v_proj"], seed=0)
    tiny.shake(policy, 0)
    with torch.no_grad():
        before = token_logprobs(policy, IDS, PICKED)[0]
        with swapped(for_sampling(policy)):
            assert far(token_logprobs(policy, IDS, PICKED)[0], before) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=bfloat16)])
def test_swapped_layers_are_as_before_also_after_an_error(dtype, monkeypatch):
    policy = adapted(dtype, monkeypatch=monkeypatch)
    before = outcome(policy)
    own = [vars(module).get("forward") for module in policy.model.modules()]
    found = for_sampling(policy)
    with pytest.raises(ZeroDivisionError), swapped(found):
        assert all(layer.forward is forward for layer, forward in found)
        _ = 1 / 0
    assert [vars(module).get("forward") for module in policy.model.modules()] == own
    assert all(torch.equal(one, other) for one, other in zip(outcome(policy), before, strict=True))


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_adapters_on_four_bit_layers_are_computed_apart_too():
    shape = replace(SHAPES[1], sizes=TINY)
    policy = make(shape, torch.device("cpu"), rank=4, context_tokens=64)
    assert {type(layer).__name__ for layer, _ in for_sampling(policy)} == {"Linear4bit", "Linear"}
    policy.model.eval()
    with torch.no_grad():
        plain = policy.hidden(input_ids=IDS, use_cache=False)
        with swapped(for_sampling(policy)):
            quick = policy.hidden(input_ids=IDS, use_cache=False)
    # Two layers of seven with an adapter, and the output layer; both in float32.
    assert len(for_sampling(policy)) == 15
    torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)

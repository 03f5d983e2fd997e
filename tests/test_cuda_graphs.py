"""Whether what a card would capture can be captured, seen without one.

On the device "meta" tensors have shapes and no values: whatever looks at a value fails there, as it does in a capture.
What it would let pass, data of the host on its way to the card, is refused by ``Capturing``.
"""

from copy import deepcopy

import numpy as np
import pytest
import tiny
import torch
from test_sampler_models import CONFIGS, TINY
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig

from bmrl.cuda_graphs import FixedDecode
from bmrl.kv_cache import LiveCache
from bmrl.policy import Policy, for_sampling, with_new_adapter
from bmrl.sampler import LiveSampler

CARD = torch.device("meta")


class NotCaptured(RuntimeError):
    pass


class Kernels(TorchDispatchMode):
    """Refuses operations that take a tensor of the host, but for single numbers, which a kernel gets as an argument."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.device != CARD and leaf.dim():
                raise NotCaptured(f"{func} reads {tuple(leaf.shape)} of the host")
        return func(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    """Refuses tensors made of Python's or numpy's numbers on the card, and the way back."""

    MADE = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy)
    BACK = (torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        device = torch.device((kwargs or {}).get("device") or "cpu")
        if func in self.BACK or (func in self.MADE and device == CARD):
            raise NotCaptured(f"{func.__name__} with {args}")
        return func(*args, **(kwargs or {}))


def captured(policy: Policy, *, places: int = 4, width: int = 33) -> torch.Tensor:
    """What a graph of that shape would compute, as far as shapes go."""
    sampler = LiveSampler(policy, rows=places, context_tokens=64, fixed=True)
    sampler._forwards = for_sampling(policy)
    cache = LiveCache(policy.causal.config.get_text_config().num_hidden_layers, places, 64, spare=1)
    fixed = FixedDecode(policy, cache, graphs=False)
    inputs = torch.zeros(2, places, dtype=torch.long, device=CARD)
    with torch.inference_mode(), sampler._sampling():
        fixed.forward(inputs, width)  # as on the card, where the first run is not captured
        with Calls(), Kernels():
            return fixed.forward(inputs, width)


def made(config) -> Policy:
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    with CARD:
        causal = AutoModelForCausalLM.from_config(
            deepcopy(config), attn_implementation=attention, dtype=torch.bfloat16
        ).eval()
    return Policy(causal, causal, None, CARD, "meta")


@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_can_be_captured(name):
    policy = made(CONFIGS[name])
    assert captured(policy).shape == (4, 32)
    adapted = with_new_adapter(policy, rank=2, alpha=4, dropout=0.0, targets="all-linear", seed=0)
    assert captured(adapted, places=1, width=65).shape == (1, 32)


def test_frequencies_that_follow_the_length_cannot_be_captured():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(RuntimeError, match="meta"):  # it compares the largest position with a number
        captured(made(LlamaConfig(**TINY, rope_parameters=rope)))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * torch.tensor([1.0] * 32, device=CARD),
        lambda x: x * torch.as_tensor(np.ones(32), device=CARD),
        lambda x: x + torch.ones(32).to(CARD),
        lambda x: x.new_empty(32).copy_(torch.ones(32)),
        lambda x: x[x > 0],
        lambda x: x * x.max().item(),
        lambda x: x if x.max() > 0 else -x,
    ],
)
def test_what_cannot_be_captured_is_seen(read):
    policy = made(CONFIGS["llama"])
    policy.causal.model.norm.register_forward_hook(lambda module, args, out: read(out))
    with pytest.raises((RuntimeError, NotImplementedError)):
        captured(policy)
    with Calls(), Kernels():  # a number is passed on with the call that starts the kernel
        assert (torch.ones(3, device=CARD) * torch.tensor(2.0)).shape == (3,)


def said(policy: Policy, **ways) -> tuple[LiveSampler, list[tuple[int, ...]]]:
    sampler = LiveSampler(policy, rows=2, context_tokens=64, **ways)
    for row in range(2):
        sampler.begin(row, (20 + row, 21, 22), np.linspace(0.1, 0.9, 6))
    completed = [done for _ in range(6) for done in sampler.step(temperature=1.0, stop_ids=frozenset())]
    return sampler, [completion.token_ids for _, completion in sorted(completed, key=lambda done: done[0])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_a_card_captures_and_says_the_same():
    policy = tiny.policy()
    graphs, captured = said(policy)
    assert graphs.captured == [(2, 65)]  # both places, and all positions of so short a row
    assert captured == said(policy, cuda_graphs=False, fixed=True)[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_a_card_goes_on_without_graphs_where_the_host_looks_at_a_value():
    policy = tiny.policy()
    policy.causal.get_decoder().norm.register_forward_hook(lambda module, args, out: out * float(out.max() > -1e9))
    with pytest.warns(UserWarning, match="decoding goes on without CUDA graphs"):
        sampler, found = said(policy)
    assert sampler.captured == []
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.get_sync_debug_mode() == 0
    assert found == said(policy, cuda_graphs=False, fixed=True)[1]

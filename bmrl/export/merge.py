"""The adapter added to the weights it was trained on."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bmrl.errors import UsageError
from bmrl.policy import Policy


def merge(policy: Policy, dtype: torch.dtype) -> Policy:
    """The policy as one model, without an adapter: W + scale B A, computed in float32 and rounded once.

    Tensor by tensor and in place: the policy given is used up. An output layer whose weights are the embeddings gets
    weights of its own where the adapter changes one of the two.

    Args:
        dtype: of all weights afterwards.

    Raises:
        UsageError: the weights are quantized.
    """
    from peft.tuners.lora import LoraLayer

    causal = policy.causal
    if getattr(causal, "is_quantized", False):
        raise UsageError(
            f"{policy.name} is stored in quantized weights, into which nothing can be merged exactly; "
            "export the adapter alone: --format adapter"
        )
    with torch.no_grad():
        for layer in [module for module in causal.modules() if isinstance(module, LoraLayer)]:
            base = layer.get_base_layer()
            for name, parameter in list(base.named_parameters(recurse=False)):
                # A parameter of its own: embeddings and output layer may share theirs.
                copied = parameter.to(torch.float32, copy=True)
                setattr(base, name, nn.Parameter(copied, requires_grad=False))
            layer.float().merge(adapter_names=["default"])
            base.to(dtype)
        if policy.adapted:
            causal = policy.model.unload()
        for tensor in causal.parameters():
            tensor.data = tensor.data.to(dtype)  # not ``to``, which would round the rotary frequencies as well
    _untie(causal)
    return replace(policy, model=causal, causal=causal)


def _untie(causal: Any) -> None:
    """Says in the configuration that embeddings and output layer differ, where they do now."""
    head = causal.get_output_embeddings()
    if head.weight is not causal.get_input_embeddings().weight:
        for config in (causal.config, causal.config.get_text_config()):
            config.tie_word_embeddings = False

"""Models with random weights, made on the device in the type that they are used in: nothing is downloaded."""

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from bmrl.policy import Policy, seeded, with_new_adapter, with_packing

STD = 0.02  # of the weights, as transformers starts them
SHAKEN = 0.01  # of the adapter's second factor, which otherwise starts at 0 and has no effect
QWEN = {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model to check with.

    Attributes:
        name: how the table calls it.
        recipe: the packaged recipe that it is used in, whose estimate is compared.
        quantized: NF4 with double quantization; otherwise 16 bit.
        sizes: of its configuration.
    """

    name: str
    recipe: str
    quantized: bool
    sizes: dict[str, Any]


SHAPES = (
    Shape(
        "1.5B bf16",
        "alfworld_mix",
        False,
        {
            "vocab_size": 151_936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    Shape(
        "7B NF4",
        "alfworld_7b_mix",
        True,
        {
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        },
    ),
)
TINY = {  # layers of 4 bit are at least 64 wide
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def has_bitsandbytes() -> bool:
    """Whether NF4 and the 8-bit optimizer can be had."""
    return find_spec("bitsandbytes") is not None


def make(shape: Shape, device: torch.device, *, rank: int, context_tokens: int, seed: int = 0) -> Policy:
    """The model with an adapter on all linear layers, with activation checkpointing."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    # On a CPU in float32, where a few tokens of bfloat16 prove nothing but rounding.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = Qwen2Config(**shape.sizes, **QWEN, max_position_embeddings=max(context_tokens, 512), pad_token_id=None)
    with torch.device("meta"):
        causal = Qwen2ForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")
    with seeded(seed), torch.no_grad():
        if shape.quantized:
            for parent, name, layer in list(_linears(causal.get_decoder())):
                setattr(parent, name, _quantized(layer, device, dtype))
            causal.is_loaded_in_4bit = True  # by which peft knows
        for module in causal.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.device.type == "meta":
                    setattr(module, name, nn.Parameter(_weights(name, module, parameter.shape, device, dtype)))
        causal.tie_weights()
    decoder = causal.get_decoder()
    with torch.device(device):
        decoder.rotary_emb = type(decoder.rotary_emb)(config=config)
    policy = with_packing(Policy(causal.eval(), causal, None, device, shape.name))
    causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = with_new_adapter(policy, rank=rank, alpha=2 * rank, dropout=0.0, targets="all-linear", seed=seed)
    with seeded(seed), torch.no_grad():
        for name, parameter in policy.trainable.items():
            if "lora_B" in name:
                parameter.normal_(std=SHAKEN)
    return policy


def _linears(model: nn.Module) -> Any:
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                yield module, name, child


def _weights(name: str, module: nn.Module, shape: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    if name == "bias" or "Norm" in type(module).__name__:
        return torch.full(shape, float(name != "bias"), device=device, dtype=dtype)
    return torch.empty(shape, device=device, dtype=dtype).normal_(std=STD)


def _quantized(layer: nn.Linear, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The same layer in 4 bit, its whole weights no longer there than that takes."""
    import bitsandbytes as bnb

    with torch.device("meta"):
        made = bnb.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=dtype,
            compress_statistics=True,
            quant_type="nf4",
        )
    whole = torch.empty(layer.weight.shape, device=device, dtype=dtype).normal_(std=STD)
    made.weight = bnb.nn.Params4bit(
        whole, requires_grad=False, compress_statistics=True, quant_type="nf4", module=made
    ).to(device)
    if layer.bias is not None:
        made.bias = nn.Parameter(torch.zeros(layer.out_features, device=device, dtype=dtype), requires_grad=False)
    # On a CPU it would reorder its weights at the first rollout, and gradients would be wrong from then on.
    made.support_avx512bf16_for_cpu = False
    return made


def gib(count: float) -> float:
    """Bytes in GiB."""
    return count / math.pow(2, 30)

"""Models through unsloth: loaded by it, and on a card updated by its kernels; sampled as transformers does.

Without a card unsloth is transformers and peft with its own choice of settings, and nothing below but
``from_pretrained`` does anything. On a card it gives four families of models forwards of their own, which know
nothing of what the sampler needs: they attend by themselves, past transformers' attention interface; they take a
cache apart into tuples; and in training they drop the attention mask. They serve the update, which asks for nothing
but plain rows. In evaluation mode the same modules go transformers' own ways.
"""

import contextlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import nn

from bmrl import backend
from bmrl.errors import BmrlError, UsageError
from bmrl.policy.model import Policy

ORIGINALS = "_unsloth_pre_patch_originals"  # what unsloth keeps, in a module of transformers, of what it replaced
ABSENT = object()


def from_pretrained(
    where: str,
    *,
    config: Any,
    device: Any,
    attn_implementation: str,
    dtype: Any,
    quantization_config: Any = None,
    **_: Any,
) -> tuple[Any, dict[str, Any]]:
    """The model of a folder or hub id, and what transformers reports of its weights.

    Args:
        config: of the model; the result keeps its special tokens.
        quantization_config: whether to quantize; unsloth's own settings are the same.

    Raises:
        UsageError: on a card, a family that unsloth has no forwards for.
        BmrlError: unsloth is not there, or loads in a way of its own.
    """
    backend.start()
    if device.type == "cuda" and config.model_type not in backend.FAMILIES:
        raise UsageError(
            f"model.backend: unsloth is used for {', '.join(backend.FAMILIES)}, not for {config.model_type}; "
            "set model.backend=transformers"
        )
    from unsloth import FastLanguageModel

    with _reported() as found, contextlib.redirect_stdout(io.StringIO()):
        causal, _tokenizer = FastLanguageModel.from_pretrained(
            where,
            max_seq_length=config.get_text_config().max_position_embeddings,  # longer rows it would cut
            dtype=dtype,
            load_in_4bit=quantization_config is not None,
            use_exact_model_name=True,  # it would take weights of its own that are quantized already
            use_gradient_checkpointing=False,  # which is ours to switch, and leaves torch's own as it is
            attn_implementation=attn_implementation,
            device_map={"": device},
            fix_tokenizer=False,
        )
    if not found:
        raise BmrlError(f"model.backend: unsloth did not load {where} through transformers; use backend transformers")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(causal.config, key, getattr(config, key, None))
    return by_mode(causal), found


@contextmanager
def _reported() -> Iterator[dict[str, Any]]:
    """Asks transformers, inside, which weights were missing: unsloth does not hand that on."""
    from transformers import AutoModelForCausalLM

    found: dict[str, Any] = {}
    original = vars(AutoModelForCausalLM).get("from_pretrained", ABSENT)
    plain = AutoModelForCausalLM.from_pretrained

    def asked(*args: Any, **options: Any) -> Any:
        causal, report = plain(
            *args,
            **{**options, "output_loading_info": True, "ignore_mismatched_sizes": True, "use_safetensors": True},
        )
        found.update(report)
        return causal

    AutoModelForCausalLM.from_pretrained = asked
    try:
        yield found
    finally:
        if original is ABSENT:
            del AutoModelForCausalLM.from_pretrained
        else:
            AutoModelForCausalLM.from_pretrained = original


def adapted(policy: Policy) -> Policy:
    """The policy, whose adapter is computed by unsloth's kernels in the update, where there is a card."""
    if policy.backend == "unsloth" and policy.device.type == "cuda":
        from unsloth import FastLanguageModel

        checkpointing = policy.causal.is_gradient_checkpointing
        with contextlib.redirect_stdout(io.StringIO()):
            FastLanguageModel.patch_peft_model(policy.model, use_gradient_checkpointing=False)
        if checkpointing:
            policy.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        by_mode(policy.causal)
    return policy


def fast(causal: Any) -> bool:
    """Whether the model has forwards of unsloth's own."""
    return any(_by_mode(module) for module in causal.modules())


def by_mode(causal: Any) -> Any:
    """The model, whose modules take unsloth's forward in training mode and transformers' own in evaluation mode."""
    for module, own in list(_replaced(causal)):
        module.forward = partial(_forward, module, module.forward, own)
    return causal


def _forward(module: Any, quick: Any, own: Any, *args: Any, **inputs: Any) -> Any:
    if not module.training:
        return own(*args, **inputs)
    if inputs.get("past_key_values") is not None or inputs.get("attention_mask") is not None:
        raise ValueError("unsloth's forwards know neither our cache nor our masks; the model is in training mode")
    return quick(*args, **inputs)


def _by_mode(module: Any) -> bool:
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func is _forward


def _replaced(causal: Any) -> Iterator[tuple[nn.Module, Any]]:
    """Modules whose forward unsloth replaced, and transformers' own, bound to the module."""
    family = sys.modules.get(type(causal).__module__)
    names, methods = cast(tuple[dict[str, Any], dict[Any, Any]], getattr(family, ORIGINALS, ({}, {})))
    for module in causal.modules():
        if _by_mode(module):
            continue
        if (own := methods.get((type(module), "forward"))) is not None:
            yield module, partial(own, module)
        elif module is not causal and _of_unsloth(vars(module).get("forward")):
            yield module, partial(type(module).forward, module)
        elif _of_unsloth(type(module)) and type(module).__name__.endswith("RotaryEmbedding"):
            # It takes a call of transformers, but looks at a value on the card, which no captured graph can.
            plain = next(kind for name, kind in names.items() if name.endswith("RotaryEmbedding"))
            yield module, plain(config=causal.config).to(causal.device)


def _of_unsloth(code: Any) -> bool:
    return (getattr(code, "__module__", None) or "").partition(".")[0] in ("unsloth", "unsloth_zoo")

"""Models: found, read and checked; made from nothing; written."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from bmrl.atomic import disk_errors, sync_folder, temporary_suffix
from bmrl.errors import BmrlError, UsageError
from bmrl.models import find
from bmrl.policy import quantized, unsloth
from bmrl.policy.model import Policy, one_line, seeded
from bmrl.policy.packed import with_packing
from bmrl.policy.read import quiet, read

# Standard deviation of a new model's embeddings: well above what one layer adds to them.
EMBEDDING_STD = 0.5


def best_device() -> torch.device:
    """The CUDA card if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(
    name: str,
    *,
    dtype: str,
    quantization: str = "none",
    gradient_checkpointing: bool = False,
    backend: str = "transformers",
    device: torch.device | None = None,
) -> Policy:
    """Loads a model without an adapter; its weights are frozen only once an adapter is added.

    Args:
        name: see `bmrl.models.find`; weights in a ``.gguf`` file are made whole again.
        dtype: ``float32`` or ``bfloat16``.
        quantization: ``none`` or ``nf4`` (bitsandbytes, double quantization).
        gradient_checkpointing: recompute activations in the backward pass.
        backend: ``transformers`` or ``unsloth``, see ``bmrl.backend``.

    Raises:
        UsageError: the model is of a kind that does not work here.
        BmrlError: the model is not there, or its files are damaged.
    """
    quiet()
    device = device or best_device()
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if quantization == "nf4":
        options["quantization_config"] = quantized.settings(dtype)
        options["device_map"] = {"": device}
    tokenizer, causal = read(find(name), options, backend, device)
    if quantization == "nf4":
        quantized.keep_order(causal, name)
    else:
        causal = causal.to(device)
    policy = Policy(causal, causal, tokenizer, device, name, backend=backend)
    _check_logits(policy)
    if not unsloth.fast(causal):
        policy = with_packing(policy)
    if gradient_checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def _check_logits(policy: Policy) -> None:
    """Refuses a model that does to its logits what ``Policy.logits`` does not know of."""
    ids = torch.arange(4, device=policy.device)[None]
    with torch.no_grad():
        theirs = policy.causal(input_ids=ids, use_cache=False).logits.float()
        ours = policy.logits(policy.hidden(input_ids=ids, use_cache=False))
    # The model may scale in its own precision, we do in fp32: a rounding or two apart.
    allowed = 4 * torch.finfo(policy.causal.dtype).eps * theirs.abs().max()
    if not (ours - theirs).abs().max() <= allowed:
        raise UsageError(
            f"model.name: {policy.name} ({policy.causal.config.model_type}) gives other logits than its output layer; "
            "it cannot be trained here"
        )


def new_model(
    tokenizer: Any,
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    context_tokens: int,
    seed: int,
    name: str,
) -> Policy:
    """A Llama-architecture model with random weights, fp32, embeddings tied.

    transformers' standard deviation of 0.02 suits a width of thousands. A small model so started sees its own tokens
    only faintly beside what attention averages, and hardly learns to match one word with another. Here the products
    keep the size of what comes in (one over the root of the width), and embeddings stand out.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        initializer_range=hidden**-0.5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    with seeded(seed):
        causal = LlamaForCausalLM(config)
        nn.init.normal_(causal.get_input_embeddings().weight, std=EMBEDDING_STD)
    causal.to(best_device())
    return with_packing(Policy(causal, causal, tokenizer, best_device(), name))


def save_model(policy: Policy, folder: Path, *, dtype: str) -> None:
    """Writes model and tokenizer in plain transformers format, whole or not at all.

    The weights of ``policy`` become ``dtype`` for good. What stood in ``folder`` is replaced.

    Raises:
        BmrlError: the disk is full or forbidden.
    """
    quiet()
    new, old = (folder.with_name(folder.name + temporary_suffix()) for _ in range(2))
    try:
        with disk_errors(folder.name):
            new.mkdir(parents=True)
            policy.causal.to(getattr(torch, dtype)).save_pretrained(new)
            policy.tokenizer.save_pretrained(new)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except SafetensorError as error:  # wraps the system's error
        raise BmrlError(f"could not write {folder.name}: {one_line(error)}; free space and resume") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)

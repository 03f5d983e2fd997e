"""Models: found, read and checked; made from nothing; written."""

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from bmrl.atomic import disk_errors, sync_folder, temporary_suffix
from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path, gguf_problem
from bmrl.policy import quantized, unsloth
from bmrl.policy.model import Policy, one_line, seeded
from bmrl.policy.packed import with_packing

# Standard deviation of a new model's embeddings: well above what one layer adds to them.
EMBEDDING_STD = 0.5


def best_device() -> torch.device:
    """The CUDA card if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def locate(name: str) -> str:
    """The folder or hub id behind a model name; ``pocket`` is the embedded policy."""
    if name != "pocket":
        return name
    folder = data_path("pocket")
    if not (folder / "model.safetensors").is_file():
        raise BmrlError(
            "data/pocket/model.safetensors is missing; reinstall bmrl, or train the pocket policy with: "
            "bmrl sft recipes/pocket_sft.yaml"
        )
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    try:
        told = str(json.loads((folder / "card.json").read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BmrlError("data/pocket/card.json is missing or damaged; reinstall bmrl") from error
    if found != told:
        raise BmrlError(
            f"data/pocket/model.safetensors has sha256 {found[:12]}, card.json says {told[:12]}; reinstall bmrl"
        )
    return str(folder)


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
        name: ``pocket``, a local folder, a ``.gguf`` file, whose weights are made whole again, or a hub id.
        dtype: ``float32`` or ``bfloat16``.
        quantization: ``none`` or ``nf4`` (bitsandbytes, double quantization).
        gradient_checkpointing: recompute activations in the backward pass.
        backend: ``transformers`` or ``unsloth``, see ``bmrl.backend``.

    Raises:
        UsageError: the model is of a kind that does not work here.
        BmrlError: the model is not there, or its files are damaged.
    """
    _quiet()
    device = device or best_device()
    where = locate(name)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if quantization == "nf4":
        options["quantization_config"] = quantized.settings(dtype)
        options["device_map"] = {"": device}
    tokenizer, causal = _read(name, where, options, backend, device)
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


def _read(name: str, where: str, options: dict[str, Any], backend: str, device: torch.device) -> tuple[Any, Any]:
    """Tokenizer and model of a folder, GGUF file or hub id; everything that is wrong with them is one line."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    file: dict[str, str] = {}
    if where.endswith(".gguf"):
        if backend == "unsloth":
            raise UsageError(f"model.backend: unsloth does not read {name}; set model.backend=transformers")
        if (problem := gguf_problem(where)) is not None:
            raise BmrlError(f"model.name: {problem}")
        path = Path(where).expanduser()
        where, file = str(path.parent), {"gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(where, **file)
        _check_kind(name, config)
        # SDPA leaves out the capping of attention scores (Gemma 2).
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        tokenizer = AutoTokenizer.from_pretrained(where, **file)
        read = AutoModelForCausalLM.from_pretrained
        if backend == "unsloth":
            read = partial(unsloth.from_pretrained, config=config, device=device)
        causal, found = read(
            where,
            attn_implementation="eager" if capped else "sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the name
            **file,
            **options,
        )
    except BmrlError:
        raise
    except Exception as error:  # hub, tokenizer, config and safetensors errors have no common class
        if Path(where).is_dir():
            problem = one_line(error).replace(where, str(Path(name).parent) if file else name)
            raise BmrlError(f"model.name: {name} cannot be loaded: {problem}; are its files complete?") from error
        raise BmrlError(
            f"model.name: {name} is neither on this disk nor to be had from the hub; without network run: "
            "bmrl train recipes/quickstart.yaml"
        ) from error
    # transformers would go on with random weights in their place.
    if odd := sorted(found["missing_keys"]) or sorted(key for key, *_ in found["mismatched_keys"]):
        raise BmrlError(
            f"model.name: {name} cannot be loaded: its weights do not fit its config.json; {odd[0]} is "
            f"{'missing' if found['missing_keys'] else 'of another shape'}; download the model again"
        )
    if file:  # whole weights, whatever the configuration remembers of their quantization
        causal.hf_quantizer, causal.is_quantized = None, False
        causal.config.__dict__.pop("quantization_config", None)
    return tokenizer, causal


def _check_kind(name: str, config: Any) -> None:
    """Refuses kinds of models that the sampler's cache of keys and values cannot serve."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if kind is None or config.is_encoder_decoder:
        reason = "is no decoder-only language model"
    elif kind._is_stateful or layers - {"full_attention", "sliding_attention"}:
        reason = "remembers more than keys and values (Mamba, hybrids, linear or chunked attention)"
    elif not kind._supports_sdpa:
        reason = "has an attention that torch's scaled_dot_product_attention cannot do"
    else:
        return
    raise UsageError(
        f"model.name: {name} ({config.model_type}) {reason}; use a decoder such as Llama, Qwen2.5, Qwen3 or Gemma"
    )


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


def _quiet() -> None:
    # Its bars and reports would break our own display; what it reports is checked here.
    import logging as std

    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    std.getLogger("huggingface_hub").setLevel(std.ERROR)  # one line of ours says it, not each of its retries


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
    _quiet()
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

"""Tokenizer and model as transformers reads them; whatever is wrong with them is one line."""

import errno
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bmrl.errors import BmrlError, UsageError
from bmrl.models import Source, problem
from bmrl.policy import unsloth
from bmrl.policy.gguf import plain_folder
from bmrl.policy.model import one_line

# Of a hub model, what is read: not pickles, other formats, or the same weights a second time.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_UNWANTED = ["consolidated*", "original/*", "onnx/*"]
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


def folder(source: Source) -> Path:
    """The folder that holds the model; a hub model is downloaded, a GGUF file made into one.

    Raises:
        BmrlError: the model is not to be had, or damaged.
    """
    wrong = problem(source)
    if wrong is None and source.path is not None:
        return plain_folder(source) if source.path.suffix == ".gguf" else source.path
    if source.kind != "hub":
        raise BmrlError(f"model.name: {wrong}")
    made = _download(source.name)
    if (wrong := problem(Source("hub", source.name, made))) is not None:
        raise BmrlError(f"model.name: {wrong}")
    return made


def read(source: Source, options: dict[str, Any], backend: str, device: torch.device) -> tuple[Any, Any]:
    """Tokenizer and model.

    Args:
        backend: library that reads the weights, ``transformers`` or ``unsloth``.
        options: of ``from_pretrained``: data type, quantization, device.

    Raises:
        UsageError: the model is of a kind that does not work here.
        BmrlError: it is not there, or its files are damaged.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    name = source.name
    if source.path is not None and source.path.is_dir():
        _refuse_kind(name, source.path)  # first: no other file would help
    where = str(folder(source))
    try:
        config = AutoConfig.from_pretrained(where)
        _check_kind(name, config)
        # SDPA leaves out the capping of attention scores (Gemma 2).
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        tokenizer = AutoTokenizer.from_pretrained(where)
        from_pretrained = AutoModelForCausalLM.from_pretrained
        if backend == "unsloth":
            from_pretrained = partial(unsloth.from_pretrained, config=config, device=device)
        causal, found = from_pretrained(
            where,
            attn_implementation="eager" if capped else "sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the name
            **options,
        )
    except BmrlError:
        raise
    except Exception as error:  # tokenizer, config and safetensors errors have no common class
        told = one_line(error).replace(where, name)
        raise BmrlError(f"model.name: {name} cannot be loaded: {told}; are its files complete?") from error
    # transformers would go on with random weights in their place.
    if odd := sorted(found["missing_keys"]) or sorted(key for key, *_ in found["mismatched_keys"]):
        raise BmrlError(
            f"model.name: {name} cannot be loaded: its weights do not fit its config.json; {odd[0]} is "
            f"{'missing' if found['missing_keys'] else 'of another shape'}; download the model again"
        )
    rows = causal.get_input_embeddings().weight.shape[0]
    if (most := max(tokenizer.get_vocab().values())) >= rows:
        raise BmrlError(
            f"model.name: the tokenizer of {name} has tokens up to {most}, the model embeds {rows}; they do not belong "
            "together: copy the tokenizer's files of this model"
        )
    tokenizer.name_or_path = name  # in errors, and in what is saved
    return tokenizer, causal


def tokenizer_of(source: Source) -> Any:
    """The tokenizer of a model, without its weights in memory.

    Raises:
        BmrlError: it is not to be had, or damaged.
    """
    from transformers import AutoTokenizer

    where = str(folder(source))
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except Exception as error:  # its errors have no common class
        told = one_line(error).replace(where, source.name)
        raise BmrlError(f"model.name: {source.name} has no tokenizer that can be loaded: {told}") from error
    tokenizer.name_or_path = source.name
    return tokenizer


def _download(name: str) -> Path:
    """A hub model's snapshot, completed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # of several libraries; what they are decides what helps
        causes = [error, error.__cause__, error.__context__]
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            told = (
                f"{name} is gated: accept its licence on its page at the hub, log in with `hf auth login`, then run "
                f"hf download {name}"
            )
        elif any(isinstance(cause, RepositoryNotFoundError | HFValidationError) for cause in causes):
            told = f"the hub has no model {name}, or keeps it private: correct the name, or log in with `hf auth login`"
        elif any(isinstance(cause, OSError) and cause.errno in _DISK for cause in causes):
            told = f"{name} could not be written to the hub's cache: {one_line(error)}; make room, or set HF_HOME"
        else:
            told = (
                f"{name} is not wholly on this disk, and the hub cannot be reached ({type(error).__name__}); without "
                "network run: bmrl train recipes/quickstart.yaml"
            )
        raise BmrlError(f"model.name: {told}") from error


def _refuse_kind(name: str, path: Path) -> None:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
    except Exception:  # damaged or unknown: said below
        return
    _check_kind(name, config)


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


def quiet() -> None:
    """transformers shows nothing of its own."""
    # Its bars and reports would break our own display; what it reports is checked here.
    import logging as std

    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    std.getLogger("huggingface_hub").setLevel(std.ERROR)  # one line of ours says it, not each of its retries

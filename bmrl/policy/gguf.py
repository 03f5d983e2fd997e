"""A GGUF file becomes a plain model folder, once: its weights made whole again, its tokenizer, its template.

Reading one takes transformers half a minute where the folder loads in a moment, in any precision and by any library.
The folders lie in ``$BMRL_CACHE``, by default ``~/.cache/bmrl``.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from math import isclose, pi, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from bmrl.atomic import TEMPORARY, sync_folder, temporary_suffix, write_json
from bmrl.chat import make_chat
from bmrl.errors import BmrlError
from bmrl.models import Source, gguf, read_json
from bmrl.policy.gguf_tokenizer import tokenizer as tokenizer_of
from bmrl.policy.model import one_line

# Part of a folder's name: another way of making them makes them anew.
VERSION = 1
_SUMS = "bmrl.json"  # name -> sha256 of the folder's other files; written last
# Weights in plain numbers stay as exact as they are; packed ones are no more exact than this.
_DTYPES = {0: torch.float32, 1: torch.float16}
_PACKED = torch.bfloat16
_FREQUENCIES = "rope_freqs.weight"
# How Llama 3.1 and 3.2 stretch their positions, apart from the factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def plain_folder(source: Source) -> Path:
    """The model folder that a .gguf file becomes; made if the cache does not hold it whole.

    Raises:
        UsageError: the chat template is one that bmrl cannot use.
        BmrlError: the file cannot be read, or the folder not written.
    """
    assert source.path is not None
    with source.path.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    cache = Path(os.environ.get("BMRL_CACHE") or "~/.cache/bmrl").expanduser()
    folder = cache / f"{source.path.stem}-{key}-{VERSION}"
    if _whole(folder):
        return folder
    try:
        with _alone(folder):
            if not _whole(folder):  # another process may have made it meanwhile
                _make(source, folder)
    except (OSError, SafetensorError) as error:
        raise BmrlError(
            f"model.name: {source.name}: its weights could not be written to {cache}: {one_line(error)}; make room "
            "there, or name another folder in the environment variable BMRL_CACHE"
        ) from error
    return folder


def _whole(folder: Path) -> bool:
    sums = read_json(folder / _SUMS)
    try:
        return bool(sums) and all(_sum(folder / name) == told for name, told in sums.items())
    except OSError:
        return False


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within it no other process makes this folder; what killed ones left is gone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.parent.glob(f"{folder.name}{TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _make(source: Source, folder: Path) -> None:
    causal, tokenizer = _read(source)
    new, old = (folder.with_name(folder.name + temporary_suffix()) for _ in range(2))
    try:
        new.mkdir()
        causal.save_pretrained(new)
        tokenizer.save_pretrained(new)
        write_json(new / _SUMS, {path.name: _sum(path) for path in sorted(new.iterdir())})
        if folder.exists():  # damaged
            folder.rename(old)
        new.rename(folder)
        sync_folder(folder.parent)
    finally:
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)


def _read(source: Source) -> tuple[Any, Any]:
    """Model and tokenizer of the file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path, name = source.path, source.name
    assert path is not None
    header = gguf.read(path)
    tokenizer = tokenizer_of(header.settings, name)
    stops = make_chat(tokenizer).stop_ids
    positions = _stretched(header, path, name)
    kinds = {tensor.kind for tensor in header.tensors.values() if len(tensor.shape) > 1}
    (dtype,) = {_DTYPES.get(kind, _PACKED) for kind in kinds} if len(kinds) == 1 else {_PACKED}
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        config.rope_parameters = {**config.rope_parameters, **positions}
        # transformers passes over it for Qwen3.
        if width := header.settings.get(f"{header.architecture}.attention.key_length"):
            config.head_dim = width
        with redirect_stderr(StringIO()):  # a bar of its own
            causal, found = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, config=config, dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # its reader has errors of all kinds
        raise BmrlError(f"model.name: {name} cannot be read: {one_line(error)}; download it again") from error
    # transformers passes over tensors whose names it does not know.
    told = sum(prod(tensor.shape) for key, tensor in header.tensors.items() if key != _FREQUENCIES)
    if found["missing_keys"] or found["mismatched_keys"] or told != sum(p.numel() for p in causal.parameters()):
        raise BmrlError(
            f"model.name: {name} holds {told:,} weights that are not those of a {header.architecture} model; "
            "take the model itself, as a folder or from the hub"
        )
    # They are whole again, whatever the configuration remembers of their quantization.
    causal.hf_quantizer, causal.is_quantized = None, False
    causal.config.__dict__.pop("quantization_config", None)
    causal.config.__dict__.pop("_name_or_path", None)
    for config in (causal.config, causal.generation_config):
        config.bos_token_id, config.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    causal.config.eos_token_id = tokenizer.eos_token_id
    causal.generation_config.eos_token_id = sorted(stops)
    return causal, tokenizer


def _stretched(header: gguf.Header, path: Path, name: str) -> dict[str, Any]:
    """How the model stretches its positions, told by what the file divides its frequencies by; {} if it does not.

    transformers passes over these numbers.
    """
    if _FREQUENCIES not in header.tensors:
        return {}
    told = gguf.numbers(path, header, _FREQUENCIES)
    family = header.architecture
    theta = header.settings.get(f"{family}.rope.freq_base", 10000.0)
    rope = {**_LLAMA3, "rope_type": "llama3", "factor": float(max(told)), "rope_theta": theta}
    plain = header.tensors[_FREQUENCIES].kind == 0
    if not plain or not all(isclose(a, b, rel_tol=1e-3) for a, b in zip(told, _divisors(rope, len(told)), strict=True)):
        raise BmrlError(
            f"model.name: {name} stretches its positions in a way that is not read here; take the model itself, as a "
            "folder or from the hub"
        )
    return rope


def _divisors(rope: dict[str, Any], pairs: int) -> Iterator[float]:
    """What Llama 3.1 divides the frequency of each pair of dimensions by."""
    low, high, context = (rope[key] for key in _LLAMA3)
    for pair in range(pairs):
        turns = context / (2 * pi * rope["rope_theta"] ** (pair / pairs))  # that a pair makes in the first context
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        yield 1 / ((1 - share) / rope["factor"] + share)

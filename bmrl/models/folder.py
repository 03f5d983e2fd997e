"""What can be seen of a model folder without reading its weights."""

import json
import struct
from pathlib import Path
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")


def problem(folder: Path, remedy: str) -> str | None:
    """What of a folder makes it unfit as a model to train: the rest of a sentence that begins with its name.

    Args:
        remedy: how to get files that are missing or damaged.
    """
    if not (folder / "config.json").is_file():
        return "is no model folder: it has no config.json"
    if not (config := read_json(folder / "config.json")):
        return f"has a damaged config.json: {remedy}"
    if wrong := _weights(folder):
        return f"{wrong}: {remedy}"
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return f"has no tokenizer, tokenizer.json is missing: {remedy}"
    if not _has_template(folder):
        return "has no chat template, as base models have none; use an instruct model"
    return _foreign_tokenizer(folder, config)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, or none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _weights(folder: Path) -> str | None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        told = read_json(index).get("weight_map")
        if not isinstance(told, dict) or not told:
            return f"has a damaged {index.name}"
        names = sorted({str(name) for name in told.values()})
    else:
        names = ["model.safetensors"]
    gone = [name for name in names if not (folder / name).is_file()]
    if gone and not index.is_file() and any(folder.glob("*.bin")):
        return "has its weights as pickles, which are not read; get model.safetensors"
    if gone:
        return f"is only partly there, {gone[0]} is missing ({len(gone)} of {len(names)} files)"
    for name in names:
        if wrong := _cut(folder / name):
            return f"is damaged, {name} {wrong}"
    return None


def _cut(path: Path) -> str | None:
    """Whether a safetensors file is shorter or longer than it says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else size
        if 8 + length > size:
            return f"is cut off after {size:,} bytes"
        try:
            tensors = json.loads(file.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
            whole = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return "does not begin as such a file does"
    return None if size == whole else f"has {size:,} of {whole:,} bytes"


def _has_template(folder: Path) -> bool:
    return any(
        (folder / name).exists() for name in ("chat_template.jinja", "chat_templates", "chat_template.json")
    ) or bool(read_json(folder / "tokenizer_config.json").get("chat_template"))


def _foreign_tokenizer(folder: Path, config: dict[str, Any]) -> str | None:
    text = config.get("text_config")
    rows = (text if isinstance(text, dict) else config).get("vocab_size")
    if not isinstance(rows, int):
        return None
    for role in ("bos", "eos", "pad"):
        given = config.get(f"{role}_token_id")
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, int) and one >= rows:
                return (
                    f"has {role}_token_id {one} in its config.json, which says vocab_size {rows}; correct one of them"
                )
    tokenizer = read_json(folder / "tokenizer.json")
    try:
        vocabulary = tokenizer["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        most = max([*ids, *(token["id"] for token in tokenizer.get("added_tokens", []))])
    except (KeyError, TypeError, ValueError):  # of another make; the tokenizers library judges it
        return None
    if most >= rows:
        return (
            f"has a tokenizer with tokens up to {most}, its config.json says vocab_size {rows}: they do not belong "
            "together; copy the tokenizer's files of this model"
        )
    return None

"""What a GGUF file says of itself: its settings, its tokens, where its tensors lie. No tensor is read.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package gguf reads it, too, in seconds where
this takes a tenth of one, and not every damage that it meets becomes an error.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

# Families whose weights transformers puts where they belong, and whose attention is what the sampler's cache serves.
ARCHITECTURES = ("gemma2", "gemma3", "llama", "qwen2", "qwen3")
# How a byte-level tokenizer cuts text before it merges (`tokenizer.ggml.pre`); `bmrl.policy.gguf_tokenizer` has each.
CUTS = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken")

# struct's letters for the types of settings; 8 is text, 9 a list.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
# Type of a tensor -> values of a block, bytes of a block.
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),  # plain numbers
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 40),
    20: (32, 18),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    29: (256, 56),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
# Lists that are kept; of the others only the length counts.
_KEPT = {f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type")}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies.

    Attributes:
        shape: as torch has it.
        kind: its type in the file, see `BLOCKS`.
        offset: of its first byte, from where the tensors begin.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """All of a file but its tensors.

    Attributes:
        settings: key -> number, truth, text or list; the length in place of a list that is not of the tokenizer.
        tensors: name -> where it lies.
        begin: offset of the tensors in the file.
        size: bytes that the file must have.
    """

    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    begin: int
    size: int

    @property
    def architecture(self) -> str:
        return str(self.settings.get("general.architecture", ""))


def read(path: Path) -> Header:
    """Reads what stands before the tensors.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is no GGUF file, or a damaged one; the text says what is wrong.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _header(_Reader(data))
            except (struct.error, UnicodeDecodeError, OverflowError, MemoryError, TypeError) as error:
                raise ValueError("is damaged, or only a part of it is there") from error


def numbers(path: Path, header: Header, name: str) -> tuple[float, ...]:
    """The values of a small tensor of plain numbers of 32 bits."""
    tensor = header.tensors[name]
    with path.open("rb") as file:
        file.seek(header.begin + tensor.offset)
        return struct.unpack(f"<{prod(tensor.shape)}f", file.read(4 * prod(tensor.shape)))


def problem(path: Path) -> str | None:
    """What of a file makes it unfit as a model to train: the rest of a sentence that begins with its name."""
    again = "; download it again"
    try:
        header, size = read(path), path.stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        return f"{error}{again}"
    settings, family = header.settings, header.architecture
    if size < header.size:
        return f"is only partly there: {size:,} of {header.size:,} bytes{again}"
    if settings.get("split.count") not in (None, 0, 1):
        return "is one part of several; join them with llama.cpp's llama-gguf-split --merge"
    whole = "take the model itself, as a folder or from the hub"
    if family not in ARCHITECTURES:
        return f"is of the architecture {family or '(none)'}, read here are {', '.join(ARCHITECTURES)}; {whole}"
    if settings.get(f"{family}.rope.scaling.type", "none") != "none":
        return f"stretches its positions ({settings[f'{family}.rope.scaling.type']}), which is not read here; {whole}"
    if not settings.get("tokenizer.ggml.tokens"):
        return f"holds no tokenizer; {whole}"
    if not settings.get("tokenizer.chat_template"):
        return "has no chat template, as base models have none; use the file of an instruct model"
    model, cut = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre", "default")
    if model not in ("gpt2", "llama") or (model == "gpt2" and cut not in CUTS):
        return f"has a tokenizer ({model}, {cut}) that is not read here; {whole}"
    return None


class _Reader:
    """A position in the bytes of a file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def number(self, letter: str) -> Any:
        (value,) = struct.unpack_from("<" + letter, self.data, self.at)
        self.at += struct.calcsize("<" + letter)
        return value

    def text(self) -> str:
        length = self.number("Q")
        if length > len(self.data) - self.at:
            raise struct.error
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int, *, keep: bool) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _TEXT:
            return self.text()
        of, length = self.number("I"), self.number("Q")
        if kind != _LIST or of == _LIST:
            raise ValueError(f"is damaged: it holds a setting of type {kind}")
        if of == _TEXT:
            texts = [self.text() for _ in range(min(length, len(self.data)))]
            return texts if keep else length
        if of not in _NUMBERS:
            raise ValueError(f"is damaged: it holds a list of type {of}")
        form = f"<{length}{_NUMBERS[of]}"
        if struct.calcsize(form) > len(self.data) - self.at:
            raise struct.error
        values = list(struct.unpack_from(form, self.data, self.at)) if keep else length
        self.at += struct.calcsize(form)
        return values


def _header(reader: _Reader) -> Header:
    reader.at = 4
    version = reader.number("I")
    if version not in (2, 3):
        raise ValueError(f"is of version {version} of the format, read here are 2 and 3")
    tensors_count, settings_count = reader.number("Q"), reader.number("Q")
    settings = {}
    for _ in range(settings_count):
        key = reader.text()
        settings[key] = reader.value(reader.number("I"), keep=key in _KEPT)
    tensors = {}
    for _ in range(tensors_count):
        name, dimensions = reader.text(), reader.number("I")
        if dimensions > 4:
            raise ValueError(f"is damaged: its tensor {name[:40]} has {dimensions} dimensions")
        shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]  # the file names the fastest first
        tensors[name] = Tensor(shape, reader.number("I"), reader.number("Q"))
    alignment = max(settings.get("general.alignment", 32), 1)
    begin = -(-reader.at // alignment) * alignment
    return Header(settings, tensors, begin, begin + _bytes(tensors))


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    for name, tensor in tensors.items():
        if tensor.kind not in BLOCKS:
            raise ValueError(f"stores {name[:40]} in a way that is not read here (type {tensor.kind})")
    ends = (t.offset + prod(t.shape) // BLOCKS[t.kind][0] * BLOCKS[t.kind][1] for t in tensors.values())
    return max(ends, default=0)

"""What decides how much memory a model takes: the figures of its architecture, without its weights.

They stand in a configuration as transformers writes it: in ``data/models`` for the models that recipes name, in a
model's own folder, in the cache of the model hub, or in a recipe that makes a new model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bmrl import models
from bmrl.errors import BmrlError
from bmrl.files import data_path
from bmrl.models import gguf

# Words, small numbers, bytes and special tokens that the tokenizer of a new model has at most.
NEW_VOCABULARY = 600 + 60 + 256 + 4
GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text")


class Linear(NamedTuple):
    """A linear layer of the decoder."""

    name: str  # path below the model, ``model.layers.0.mlp.up_proj``
    inputs: int
    outputs: int
    bias: bool

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder as Llama, Qwen, Mistral and Gemma are built.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim, intermediate: sizes.
        vocabulary: rows of the embeddings.
        tied: whether the output layer is the embeddings.
        context: most positions.
        bias: names of the linear layers with a bias.
        norms: entries of all norms of one layer.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int
    bias: frozenset[str]
    norms: int

    @property
    def query(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    def layer(self, index: int = 0) -> list[Linear]:
        """The linear layers of one layer."""
        sizes = {
            "self_attn.q_proj": (self.hidden, self.query),
            "self_attn.k_proj": (self.hidden, self.keys),
            "self_attn.v_proj": (self.hidden, self.keys),
            "self_attn.o_proj": (self.query, self.hidden),
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "mlp.down_proj": (self.intermediate, self.hidden),
        }
        return [
            Linear(f"model.layers.{index}.{name}", *size, name.rpartition(".")[2] in self.bias)
            for name, size in sizes.items()
        ]

    def linears(self) -> list[Linear]:
        """All of them, the output layer aside."""
        return [linear for index in range(self.layers) for linear in self.layer(index)]

    @property
    def head(self) -> Linear:
        """The output layer; where ``tied``, its weights are the embeddings."""
        return Linear("lm_head", self.hidden, self.vocabulary, False)

    @property
    def linear_weights(self) -> int:
        """Weights of ``linears``, biases aside: what quantization makes small."""
        return self.layers * sum(linear.weights for linear in self.layer())

    @property
    def parameters(self) -> int:
        """All of them."""
        biases = sum(linear.outputs for linear in self.layer() if linear.bias)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.linear_weights + self.layers * (biases + self.norms) + self.hidden + embeddings


def find(name: str) -> Architecture:
    """The architecture behind a model's name.

    Raises:
        BmrlError: nothing on this disk tells, or what does is damaged.
    """
    if name == "pocket":
        return read(data_path("pocket", "config.json"), "data/pocket/config.json")
    if (known := packaged(name)) is not None:
        return known
    source = models.find(name)
    if source.path is not None and source.kind in ("gguf", "package"):
        return of_gguf(source.path, name)
    if source.path is not None:
        label = f"{name}/config.json" if source.kind == "folder" else f"config.json of {name} in the hub's cache"
        return read(source.path / "config.json", label)
    if source.kind != "hub":
        raise BmrlError(f"model.name: {models.problem(source)}")
    raise BmrlError(
        f"model.name: neither data/models/{_file(name)} nor config.json in the hub's cache tells the size of {name}; "
        f"get it with: hf download {name} config.json"
    )


def packaged(name: str) -> Architecture | None:
    """A model of ``data/models``, by its id on the hub or another name of it."""
    for path in _packaged():
        if path.name == _file(name) or name in _json(path, path.name).get("aliases", []):
            return read(path, f"data/models/{path.name}")
    return None


def names() -> dict[str, Architecture]:
    """Id on the hub -> model of ``data/models``, largest first."""
    found = {path.stem.replace("--", "/", 1): read(path, f"data/models/{path.name}") for path in _packaged()}
    return dict(sorted(found.items(), key=lambda item: -item[1].parameters))


def new(*, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, context_tokens: int) -> Architecture:
    """The model that ``policy.new_model`` makes; its vocabulary, which its games decide, as large as it may become."""
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocabulary=NEW_VOCABULARY,
        tied=True,
        context=context_tokens,
        bias=frozenset(),
        norms=2 * hidden,
    )


def read(path: Path, label: str) -> Architecture:
    """The architecture that a configuration describes.

    Args:
        label: what to call the file in errors.

    Raises:
        BmrlError: there is no such file, it is damaged, or it describes something else than a plain decoder.
    """
    return parse(_json(path, label), label)


def parse(config: Mapping[str, Any], label: str) -> Architecture:
    """The same from what stands in it."""
    config = config.get("text_config") or config
    if not isinstance(config, Mapping):
        raise BmrlError(f"model.name: {label} is damaged; download the model again")
    config = config.get("text_config") or config
    if not isinstance(config, Mapping):
        raise BmrlError(f"model.name: {label} is damaged; download the model again")
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise BmrlError(f"{label}: a mixture of experts, whose memory is not estimated; use a dense decoder")

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            problem = f"has no {key}" if value is None else f"says {key}: {str(value)[:40]}, which is no size"
            raise BmrlError(
                f"{label} {problem}; its memory cannot be estimated: use a decoder such as Llama, Qwen or Gemma, "
                "or download the file again"
            )
        return value

    kind = config.get("model_type")
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    head_dim = size("head_dim", hidden // heads or None)
    bias = set[str]()
    if kind == "qwen2" or config.get("attention_bias"):
        bias |= {"q_proj", "k_proj", "v_proj"}
    if config.get("attention_bias"):
        bias.add("o_proj")
    if config.get("mlp_bias"):
        bias |= {"gate_proj", "up_proj", "down_proj"}
    norms = hidden * (4 if kind in GEMMA[1:] else 2)
    norms += 2 * head_dim if kind in ("qwen3", *GEMMA[2:]) else 0
    return Architecture(
        layers=size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate=size("intermediate_size"),
        vocabulary=size("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", kind in GEMMA)),
        context=size("max_position_embeddings"),
        bias=frozenset(bias),
        norms=norms,
    )


def of_gguf(path: Path, label: str) -> Architecture:
    """The same of a GGUF file, by its header."""
    try:
        header = gguf.read(path)
    except OSError as error:
        raise BmrlError(f"model.name: there is no {label}; name a file that is there") from error
    except ValueError as error:
        raise BmrlError(f"model.name: {label} {error}; download it again") from error
    names = {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
    }
    config = {key: header.settings.get(f"{header.architecture}.{name}") for key, name in names.items()}
    tokens = header.settings.get("tokenizer.ggml.tokens") or ()
    kind, tied = header.architecture, "output.weight" not in header.tensors
    return parse({**config, "model_type": kind, "vocab_size": len(tokens), "tie_word_embeddings": tied}, label)


def _packaged() -> list[Path]:
    return sorted(data_path("models").glob("*.json"))


def _file(name: str) -> str:
    return f"{name.replace('/', '--')}.json"


def _json(path: Path, label: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BmrlError(f"model.name: there is no {label}; name a folder that holds a model") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BmrlError(f"model.name: {label} is damaged; download the model again") from error
    if not isinstance(found, dict):
        raise BmrlError(f"model.name: {label} is damaged; download the model again")
    return found

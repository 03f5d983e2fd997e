"""Small GGUF files of our own: settings, tokenizer and weights of a model, as llama.cpp's converter lays them out."""

import json
import struct
from pathlib import Path

import torch

NUMBERS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
# transformers' name -> GGUF's
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        if isinstance(value[0], str):
            kind, body = 8, b"".join(map(_text, value))
        else:
            kind, letter = NUMBERS[type(value[0])]
            body = struct.pack(f"<{len(value)}{letter}", *value)
        return struct.pack("<IIQ", 9, kind, len(value)) + body
    kind, letter = NUMBERS[type(value)]
    return struct.pack("<I" + letter, kind, value)


def write(path: Path, settings: dict, tensors: dict, *, kind: int = 0) -> Path:
    """A file with these settings and tensors; ``kind`` 0 stores numbers of 32 bits, 1 of 16."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    for key, value in settings.items():
        out += _text(key) + _value(value)
    body = b""
    for name, tensor in tensors.items():
        stored = 0 if tensor.dim() == 1 else kind  # norms keep all their bits
        out += _text(name) + struct.pack("<I", tensor.dim())
        out += struct.pack(f"<{tensor.dim()}Q", *reversed(tensor.shape)) + struct.pack("<IQ", stored, len(body))
        data = tensor.to(torch.float16 if stored else torch.float32).numpy().tobytes()
        body += data + b"\0" * (-len(data) % 32)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + body)
    return path


def tokenizer_settings(folder: Path, cut: str | None) -> dict:
    """A tokenizer's files as settings; ``cut`` is the name of a byte-level tokenizer's way of cutting text."""
    told = json.loads((folder / "tokenizer.json").read_text())
    special = json.loads((folder / "tokenizer_config.json").read_text())
    ids = {**told["model"]["vocab"], **{t["content"]: t["id"] for t in told["added_tokens"]}}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = {t["content"]: 3 if t["special"] else 4 for t in told["added_tokens"]}
    bytes_of = {f"<0x{n:02X}>": 6 for n in range(256)} if cut is None else {}
    settings = {
        "tokenizer.ggml.model": "gpt2" if cut else "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [{**bytes_of, **kinds}.get(token, 1) for token in tokens],
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        if special.get(f"{role}_token"):
            settings[f"tokenizer.ggml.{key}_token_id"] = ids[special[f"{role}_token"]]
    if cut:
        return {
            **settings,
            "tokenizer.ggml.pre": cut,
            "tokenizer.ggml.merges": [" ".join(m) for m in told["model"]["merges"]],
        }
    prefix = (told["pre_tokenizer"] or {}).get("prepend_scheme") == "first"
    return {
        **settings,
        "tokenizer.ggml.scores": [float(-i) for i in range(len(tokens))],
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def model_settings(config) -> dict:
    """A configuration as settings."""
    family = config.model_type
    told = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
    }
    return {"general.architecture": family, "general.name": "tiny", **{f"{family}.{k}": v for k, v in told.items()}}


def weights(causal) -> dict:
    """A model's weights under their names in a file."""
    config, found = causal.config, {}
    for name, tensor in causal.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        part, _, suffix = name.rpartition(".")
        layer = ""
        if part.startswith("model.layers."):
            _, _, number, part = part.split(".", 3)
            layer = f"blk.{number}."
        if config.model_type == "llama" and NAMES[part] in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if NAMES[part] == "attn_q" else config.num_key_value_heads
            # llama.cpp turns pairs that lie side by side, transformers those half a head apart.
            tensor = tensor.reshape(heads, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)
        found[f"{layer}{NAMES[part]}.{suffix}"] = tensor.contiguous()
    return found

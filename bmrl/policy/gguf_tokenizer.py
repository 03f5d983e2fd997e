"""The tokenizer in a GGUF file.

transformers builds one, too; as of 5.17 with the begin of a turn as its end (Llama), with three control tokens of many
(Qwen), with GPT-2's way of cutting text for everyone, and with unigrams where Gemma merges pairs.
"""

from collections.abc import Mapping
from typing import Any

# One regular expression each, as the families publish it; numbers are cut into {} digits at most.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CUTS = {"llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % "", "tekken": _TEKKEN}
_WHOLE_FIRST = ("llama-bpe", "tekken")  # a piece that is a token is taken as it is, whatever the merges say
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens


def tokenizer(settings: Mapping[str, Any], name: str) -> Any:
    """A ``PreTrainedTokenizerFast`` from a file's settings (`bmrl.models.gguf.Header`), chat template included.

    Args:
        name: what errors call the model.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokens = settings["tokenizer.ggml.tokens"]
    kinds = settings.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    inner = _merging(settings) if settings["tokenizer.ggml.model"] == "gpt2" else _sentencepiece(settings, kinds)
    for wanted, add in ((_CONTROL, inner.add_special_tokens), (_USER_DEFINED, inner.add_tokens)):
        named = [token for token, kind in zip(tokens, kinds, strict=True) if kind == wanted]
        add([AddedToken(token, normalized=False, special=wanted == _CONTROL) for token in named])
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: settings.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    special = {role: tokens[i] for role, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}
    if "eos_token" in special:
        special.setdefault("pad_token", special["eos_token"])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=settings["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        name_or_path=name,
        **special,
    )


def _merging(settings: Mapping[str, Any]) -> Any:
    """Byte-level pairs: GPT-2, Llama 3, Qwen, SmolLM, Mistral's Tekken."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    cut = settings.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: i for i, token in enumerate(settings["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in settings.get("tokenizer.ggml.merges", [])]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut in _WHOLE_FIRST))
    split = (
        [pre_tokenizers.Split(Regex(_CUTS[cut]), behavior="isolated")]
        if cut in _CUTS
        else [pre_tokenizers.Digits(individual_digits=True)] * (cut == "smollm")
    )
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut not in _CUTS)
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, to_bytes])
    made.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    return made


def _sentencepiece(settings: Mapping[str, Any], kinds: list[int]) -> Any:
    """Pairs merged by score, unknown characters as bytes: Llama 2, Mistral, Gemma."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens, scores = settings["tokenizer.ggml.tokens"], settings["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    # A pair's rank is the score of what it makes; a shorter left side first among equals, as sentencepiece has it.
    ranked = sorted((i for i, kind in enumerate(kinds) if kind == 1), key=lambda i: -scores[i])
    merges = [
        (token[:cut], token[cut:])
        for token in (tokens[i] for i in ranked)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    unknown = tokens[settings.get("tokenizer.ggml.unknown_token_id", 0)]
    made = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = "first" if settings.get("tokenizer.ggml.add_space_prefix", True) else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    blank = [decoders.Strip(" ", 1, 0)] * (prefix == "first")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *blank])
    return made

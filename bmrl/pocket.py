"""The tokenizer of the pocket policy: whole words of the games, and bytes for everything else.

Lossless for any text. It is built from demonstrations, in plain ``tokenizers`` format, and its chat template
writes a game as a person would see it in a terminal: what happened, a prompt sign, the command.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

PAD, BEGIN, END, UNKNOWN = "<|pad|>", "<|begin|>", "<|end|>", "<|unknown|>"
# A word keeps the blank before it, so that "cabinet 12" is two tokens and text joins without rules.
WORD = r" ?\w+| ?[^\s\w]+|\s"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ '>' }}{{ message['content'] }}{{ eos_token }}{{ '\n' }}{% else %}{{ message['content'] }}{{ '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '>' }}{% endif %}"
)


def build_tokenizer(texts: Iterable[str], *, words: int, context_tokens: int, world: str = "") -> Any:
    """A tokenizer whose vocabulary is the most frequent words of ``texts`` and all 256 bytes.

    Args:
        texts: what the policy will read and write.
        words: most words in the vocabulary.
        context_tokens: longest transcript, tokens.
        world: environment that the model is trained for; it stays in the tokenizer's configuration.

    Returns:
        A ``PreTrainedTokenizerFast``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(WORD, text))
    # Numbers name objects: all of the small ones, so that none is spelled in bytes.
    numbers = [f" {n}" for n in range(1, 61)]
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    vocabulary = list(dict.fromkeys([*numbers, *ranked]))
    # A unigram model takes the segmentation with the largest sum: one word beats its bytes.
    pieces = [(token, 0.0) for token in (UNKNOWN, PAD, BEGIN, END)]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [(word, -1.0) for word in vocabulary]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([UNKNOWN, PAD, BEGIN, END])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context_tokens,
        action_format="plain",
        **({"world": world} if world else {}),
    )

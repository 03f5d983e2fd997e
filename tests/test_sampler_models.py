"""The live cache on families of models: what the sampler says is what one plain forward of the transcript says."""

import numpy as np
import pytest
import torch
from tiny import tokenizer
from transformers import AutoModelForCausalLM as AutoModel
from transformers import (
    CohereConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MiniCPM3Config,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from bmrl.policy import Policy, load, seeded, token_logprobs, with_new_adapter
from bmrl.sampler import LiveSampler

VOCABULARY = 64
STOPS = frozenset(range(40, 50))  # reached after a few tokens
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # far from uniform, and deep in the bend of a soft cap
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 6  # a transcript has up to 40 tokens, a turn up to 13
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3 = {**TINY, "sliding_window": WINDOW, "layer_types": LAYERS, "query_pre_attn_scalar": 16}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "qwen2": Qwen2Config(**TINY),
    "qwen3": Qwen3Config(**TINY),
    "mistral": MistralConfig(**TINY, sliding_window=WINDOW),
    "gemma2": Gemma2Config(
        **TINY,
        sliding_window=WINDOW,
        layer_types=LAYERS,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3_text": Gemma3TextConfig(**GEMMA3),
    "gemma3": Gemma3Config(text_config=GEMMA3, vision_config=VISION, mm_tokens_per_image=4),
    "phi3": Phi3Config(**TINY, sliding_window=WINDOW),
    "smollm3": SmolLM3Config(**TINY),
    "cohere": CohereConfig(**TINY, logit_scale=0.25),
    "granite": GraniteConfig(**TINY, logits_scaling=3.0, attention_multiplier=0.2, residual_multiplier=0.5),
    # Multi-head latent attention: keys and values are of different width.
    "minicpm3": MiniCPM3Config(**{**TINY, **LATENT, "head_dim": 4, "num_key_value_heads": 4}),
}
Transcript = list[tuple[int, bool]]  # token, whether it was sampled


def policy(name: str) -> Policy:
    config = CONFIGS[name]
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    with seeded(0):
        causal = AutoModel.from_config(config, attn_implementation=attention).eval()
    return Policy(causal, causal, tokenizer(), torch.device("cpu"), name)


def play(policy: Policy, temperature: float) -> tuple[dict[int, Transcript], dict[int, list[float]]]:
    """Four turns of rows of unequal length; rows leave and join in between."""
    sampler = LiveSampler(policy, rows=5, context_tokens=64)
    random = np.random.default_rng(0)
    transcripts: dict[int, Transcript] = {}
    logprobs: dict[int, list[float]] = {}

    def turn(**lengths: int) -> None:
        added = {int(row[1:]): random.integers(3, VOCABULARY, size=n).tolist() for row, n in lengths.items()}
        for row, ids in added.items():
            transcripts.setdefault(row, []).extend((i, False) for i in ids)
        draws = {row: random.random(6) for row in added}
        for row, ids in added.items():
            sampler.begin(row, ids, draws[row])
        waiting = set(added)
        while waiting:
            for row, completion in sampler.step(temperature=temperature, stop_ids=STOPS):
                transcripts[row].extend((i, True) for i in completion.token_ids)
                logprobs.setdefault(row, []).extend(completion.logprobs)
                waiting.remove(row)

    turn(r0=5, r1=11, r2=3)
    sampler.drop(1)
    turn(r0=1, r2=7, r3=9)
    turn(r0=9, r2=2, r3=4)
    sampler.drop(0)
    turn(r2=1, r3=3, r4=13)
    return transcripts, logprobs


@pytest.mark.parametrize("name", CONFIGS)
def test_sampler_and_update_agree_with_one_plain_forward(name):
    made = policy(name)
    transcripts, logprobs = play(made, 1.0)
    assert max(map(len, transcripts.values())) > 4 * WINDOW
    for row, transcript in transcripts.items():
        ids = torch.tensor([[i for i, _ in transcript]])
        mask = torch.tensor([[sampled for _, sampled in transcript]])
        with torch.no_grad():
            logits = made.causal(input_ids=ids, use_cache=False).logits.float()
            own, _ = token_logprobs(made, ids, mask)
        plain = logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0][mask[0, 1:]]
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.tensor(logprobs[row]), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "cohere"])
def test_agreement_holds_at_another_temperature_with_an_adapter_and_padding(name):
    made = with_new_adapter(
        policy(name), rank=2, alpha=4, dropout=0.0, targets=["q_proj", "v_proj", "down_proj"], seed=0
    )
    with torch.no_grad():
        for parameter in made.trainable.values():
            parameter.fill_(0.05)
    transcripts, logprobs = play(made, 0.7)
    width = max(map(len, transcripts.values()))
    padded = [[*t, *[(0, False)] * (width - len(t))] for t in transcripts.values()]
    ids, mask = (torch.tensor([[pair[k] for pair in row] for row in padded]) for k in (0, 1))
    made.model.train()  # as the update does it
    own, _ = token_logprobs(made, ids, mask, temperature=0.7)
    sampled = torch.tensor([logprob for row in transcripts for logprob in logprobs[row]])
    torch.testing.assert_close(own.detach(), sampled, atol=1e-5, rtol=0)
    own.sum().backward()
    assert all(parameter.grad is not None for parameter in made.trainable.values())


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "granite"])
def test_loaded_from_a_folder_such_models_are_the_same(name, tmp_path):
    made = policy(name)
    made.causal.resize_token_embeddings(len(made.tokenizer))  # a tokenizer beyond its model is refused
    made.causal.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), dtype="float32")
    assert play(loaded, 1.0) == play(made, 1.0)

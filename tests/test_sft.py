"""Demonstrations as rows, their batches, and the step that learns them."""

import numpy as np
import pytest
import tiny
import torch

from bmrl.envs import ENVIRONMENTS, Shown, demonstrations
from bmrl.envs.alfworld.demonstration import SEARCH_WEIGHT
from bmrl.errors import UsageError
from bmrl.optimizer import learning_rate, make_optimizer
from bmrl.policy import token_logprobs
from bmrl.sft import Example, batches, example, sft_step

CHAT = tiny.chat()
SHOWN = [
    Shown("You are at place 2.", "go", 1.0),
    Shown("You are at place 1.", "stay", 0.0),  # forced
    Shown("You are at place 1.", "go", 1.0),
]


def row(shown=SHOWN, *, announce="none", budget=9, observation_weight=0.0, context_tokens=512, wording=None) -> Example:
    return example(
        shown,
        CHAT,
        announce=announce,
        budget=budget,
        observation_weight=observation_weight,
        context_tokens=context_tokens,
        wording=wording,
    )


def test_a_row_is_the_transcript_that_a_rollout_would_make():
    expected = [
        *CHAT.opening("You are at place 2."),
        *CHAT.answer("go"),
        *CHAT.following("You are at place 1.", stopped=True),
        *CHAT.answer("stay"),
        *CHAT.following("You are at place 1.", stopped=True),
        *CHAT.answer("go"),
    ]
    assert list(row().token_ids) == expected


def test_only_imitated_actions_are_learned_their_stop_token_included():
    learned = [i for i, w in zip(row().token_ids, row().weights, strict=True) if w]
    assert learned == [*CHAT.answer("go"), *CHAT.answer("go")]


def test_observations_have_their_weight_and_forced_actions_none():
    made = row(observation_weight=0.25)
    opening, action = len(CHAT.opening("You are at place 2.")), len(CHAT.answer("go"))
    # The first token has nothing that predicts it.
    assert made.weights[:opening] == (0.0,) + (0.25,) * (opening - 1)
    assert made.weights[opening : opening + action] == (1.0,) * action
    assert made.weights.count(0.0) == 1 + len(CHAT.answer("stay"))


def test_budget_cuts_and_is_announced():
    made = row(announce="remaining", budget=2)
    text = CHAT.tokenizer.decode(made.token_ids)
    assert "Turns left: 2." in text and "Turn left: 1." in text
    assert text.count("go") == 1 and text.count("stay") == 1


def test_budget_is_announced_in_other_words():
    text = CHAT.tokenizer.decode(row(announce="remaining", budget=1, wording="You see {turns}.").token_ids)
    assert "You see 1." in text and "left" not in text


def test_a_row_never_exceeds_the_context():
    whole = len(row().token_ids)
    assert len(row(context_tokens=whole).token_ids) == whole
    shorter = row(context_tokens=whole - 1)
    assert len(shorter.token_ids) == whole - len(CHAT.following("You are at place 1.", stopped=True)) - 2


def test_batches_hold_each_row_once_within_the_bound_and_follow_from_the_seed():
    lengths = np.random.default_rng(0).integers(5, 60, 500).tolist()
    made = batches(lengths, batch_tokens=200, rng=np.random.default_rng(1), window=128)
    assert sorted(i for batch in made for i in batch) == list(range(500))
    assert all(len(b) == 1 or len(b) * max(lengths[i] for i in b) <= 200 for b in made)
    again = batches(lengths, batch_tokens=200, rng=np.random.default_rng(1), window=128)
    other = batches(lengths, batch_tokens=200, rng=np.random.default_rng(2), window=128)
    assert made == again != other


def gradient(policy, rows, micro_batch_tokens):
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.0)
    sft_step(policy, optimizer, rows, micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9)
    return torch.cat([p.grad.flatten() for p in policy.trainable.values()])


def test_micro_batches_never_change_the_gradient():
    policy = tiny.policy(adapter=False)
    rows = [row(), row(SHOWN[:1], observation_weight=0.5), row(SHOWN * 2), row(SHOWN[2:])]
    whole = gradient(policy, rows, 10_000)
    for tokens in (1, 60, 120):
        assert (gradient(policy, rows, tokens) - whole).norm() < 1e-5 * whole.norm()


def test_loss_is_the_weighted_mean_cross_entropy():
    policy = tiny.policy(adapter=False)
    rows = [row(observation_weight=0.5), row(SHOWN[:1])]
    total = weight = 0.0
    for r in rows:
        ids = torch.tensor([r.token_ids])
        everything = torch.ones_like(ids, dtype=torch.bool)
        everything[:, 0] = False
        with torch.no_grad():
            logprobs, _ = token_logprobs(policy, ids, everything)
        total -= sum(w * p for w, p in zip(r.weights[1:], logprobs.tolist(), strict=True))
        weight += sum(r.weights)
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.0)
    metrics = sft_step(policy, optimizer, rows, micro_batch_tokens=10_000, max_grad_norm=1.0)
    assert metrics["loss"] == pytest.approx(total / weight, rel=1e-5)


def test_steps_lower_the_loss():
    policy = tiny.policy(adapter=False)
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=3e-3)
    losses = [
        sft_step(policy, optimizer, [row()], micro_batch_tokens=10_000, max_grad_norm=1.0)["action_loss"]
        for _ in range(30)
    ]
    assert losses[-1] < 0.5 * losses[0]


def test_learning_rate():
    # warm-up over 4 steps to 1, then linear to 0 just after step 10: step 7 is at (11 - 7) / (11 - 4)
    def rate(step, schedule):
        return learning_rate(step, peak=1.0, warmup_steps=4, schedule=schedule, steps=10)

    assert [rate(s, "linear") for s in (1, 2, 4, 7, 10)] == pytest.approx([0.25, 0.5, 1.0, 4 / 7, 1 / 7])
    assert [rate(s, "constant") for s in (1, 4, 5, 10, 99)] == [0.25, 1.0, 1.0, 1.0, 1.0]
    assert learning_rate(1, peak=1.0, warmup_steps=0, schedule="constant", steps=1) == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_a_paged_optimizer_without_a_card_is_one_line():
    line = r"^optimizer\.name: paged_adamw8bit needs a CUDA device; set optimizer\.name=adamw8bit$"
    with pytest.raises(UsageError, match=line):
        make_optimizer("paged_adamw8bit", [], learning_rate=1.0, weight_decay=0.0, beta2=0.9)


def test_demonstrations_are_won_and_noisy():
    made = list(demonstrations("alfworld", count=24, seed=3, noise=0.3, max_turns=50, args={}))
    assert len(made) == 24
    assert all(1 <= len(turns) <= 50 for turns in made)
    assert {turn.weight for turns in made for turn in turns} == {0.0, SEARCH_WEIGHT, 1.0}


def test_environment_without_an_expert_is_refused(monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "scripted", "tiny:Corridor")
    with pytest.raises(UsageError, match=r"sft\.source: scripted has no expert"):
        demonstrations("scripted")
    with pytest.raises(UsageError, match="unknown environment 'nowhere'"):
        demonstrations("nowhere")

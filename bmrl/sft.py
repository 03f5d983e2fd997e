"""Supervised learning from demonstrations: the warm start, and how the pocket policy came to be.

One demonstration is one row. The loss is on actions; on observations only with ``observation_weight``. Actions
that were forced as noise are shown, never imitated, and steps of a search weigh less than what is done with a find.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.random import Generator

from bmrl.batch import lay, micro_batches
from bmrl.budgets import announcement
from bmrl.chat import Chat
from bmrl.envs.base import Shown
from bmrl.policy import Policy, token_logprobs


@dataclass(frozen=True, slots=True)
class Example:
    """One training row: ids and the weight of the loss on each, of the same length."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]


def example(
    shown: Sequence[Shown],
    chat: Chat,
    *,
    announce: str,
    budget: int,
    observation_weight: float,
    context_tokens: int,
    wording: str | None = None,
) -> Example:
    """Turns of a demonstration as one row, cut at the first turn that would not fit or is beyond the budget."""
    ids: list[int] = []
    weights: list[float] = []
    for used, turn in enumerate(shown[:budget]):
        told = announcement(announce, budget, used, wording)
        text = "\n".join(part for part in (turn.observation, told) if part)
        added = chat.following(text, stopped=True) if ids else chat.opening(text)
        answer = chat.answer(turn.action)
        if len(ids) + len(added) + len(answer) > context_tokens:
            break
        ids += [*added, *answer]
        weights += [observation_weight] * len(added) + [turn.weight] * len(answer)
    if weights:
        weights[0] = 0.0  # nothing predicts the first token
    return Example(tuple(ids), tuple(weights))


def batches(lengths: Sequence[int], *, batch_tokens: int, rng: Generator, window: int = 1024) -> list[list[int]]:
    """One epoch: row indices, shuffled, in batches of at most ``batch_tokens`` tokens, padding included.

    Rows of like length share a batch: sorted within windows of a shuffled order, and the batches shuffled
    again. A row longer than ``batch_tokens`` is a batch of its own.
    """
    order = rng.permutation(len(lengths)).tolist()
    result: list[list[int]] = []
    for start in range(0, len(order), window):
        batch: list[int] = []
        for row in sorted(order[start : start + window], key=lambda i: (lengths[i], i)):
            if batch and (len(batch) + 1) * lengths[row] > batch_tokens:
                result.append(batch)
                batch = []
            batch.append(row)
        result.append(batch)
    return [result[i] for i in rng.permutation(len(result)).tolist()]


def sft_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Example],
    *,
    micro_batch_tokens: int,
    max_grad_norm: float,
) -> dict[str, float]:
    """One optimizer step on a batch of rows: cross-entropy, averaged over the weights of the whole batch."""
    total = sum(sum(row.weights) for row in rows)
    optimizer.zero_grad(set_to_none=True)
    loss_sum = action_loss = action_count = 0.0
    for piece in micro_batches(rows, tokens=micro_batch_tokens, packed=policy.packs):
        ids = lay([row.token_ids for row in piece], packed=policy.packs).to(policy.device)
        weights = lay([row.weights for row in piece], packed=policy.packs).to(policy.device)
        lengths = [len(row.token_ids) for row in piece] if policy.packs else None
        logprobs, _ = token_logprobs(policy, ids, weights > 0, lengths=lengths)
        picked = weights[weights > 0]
        loss = -(picked * logprobs).sum() / total
        loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += loss.item()
        actions = picked == 1.0
        action_loss -= logprobs.detach()[actions].sum().item()
        action_count += int(actions.sum())
    norm = torch.nn.utils.clip_grad_norm_(list(policy.trainable.values()), max_grad_norm)
    optimizer.step()
    return {
        "loss": loss_sum,
        "action_loss": action_loss / max(1.0, action_count),
        "grad_norm": float(norm),
        "tokens": float(sum(len(r.token_ids) for r in rows)),
    }

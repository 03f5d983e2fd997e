"""What ``gpu_check.py`` measures of a model: each part returns plain figures, which are judged elsewhere."""

import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_models import Shape, has_bitsandbytes, make
from gpu_play import Clock, OutOfTime, Sizes, Transcript, held_gb, peak, play, tokens
from torch import Tensor

from bmrl import checkpoint
from bmrl.batch import Row, collate
from bmrl.optimizer import make_optimizer
from bmrl.policy import Policy, token_logprobs
from bmrl.sampler import LiveSampler
from bmrl.trainer import Update, update_policy

STEPS = 5  # of which none may take more memory than the second


def made(shape: Shape, s: Sizes, device: torch.device, clock: Clock) -> tuple[dict[str, Any], Policy]:
    """The model itself."""
    figures: dict[str, Any] = {}
    with peak(device, figures):
        policy = make(shape, device, rank=s.rank, context_tokens=s.context)
    return figures, policy


def rollout(policy: Policy, s: Sizes, clock: Clock) -> tuple[dict[str, Any], list[Row]]:
    """All rows full, by turns of like length, none of which shares anything.

    Returns:
        figures, and two full rows where time sufficed for them.
    """
    held: dict[int, Transcript] = {}
    sampler = LiveSampler(policy, rows=s.rows, context_tokens=s.context)
    added = s.context // s.turns - s.turn_tokens
    figures: dict[str, Any] = {"rows": s.rows, "context_tokens": s.context, "complete": True}
    with peak(policy.device, figures):
        try:
            for n in range(s.turns):
                turn = {row: (tokens(policy, added, seed=1000 * n + row), s.turn_tokens) for row in range(s.rows)}
                play(sampler, held, turn, n, clock)
        except OutOfTime:
            figures["complete"] = False
    counters = sampler.counters
    figures |= {
        "tokens_read": counters.prefill_tokens,
        "tokens_decoded": counters.decode_tokens,
        "prefill_tokens_per_s": counters.prefill_tokens / max(counters.prefill_s, 1e-9),
        "decode_tokens_per_s": counters.decode_tokens / max(counters.decode_s, 1e-9),
        "captured": sampler.captured,
    }
    full = [t for t in held.values() if len(t.ids) > s.context - s.turns and t.mask[-1]]
    return figures, [t.row(1.0) for t in full[:2]]


def update(policy: Policy, s: Sizes, clock: Clock) -> tuple[dict[str, Any], None]:
    """One optimizer step on a full row with as many sampled tokens as the largest budget makes; the second is timed."""
    clock.check()
    optimizer, name = optimizer_of(policy)
    ids = tuple(tokens(policy, s.context, seed=7))
    mask = (False,) * (s.context - s.picked) + (True,) * s.picked
    row = Row(ids, mask, (0.0,) * s.picked, (1.0,) * s.picked, 1 / s.picked)
    figures: dict[str, Any] = {"optimizer": name, "packs": policy.packs, "tokens": s.context}
    with peak(policy.device, figures):
        learn(policy, optimizer, [row], s)
        clock.check()
        began = time.perf_counter()
        learn(policy, optimizer, [row], s)
        if policy.device.type == "cuda":
            torch.cuda.synchronize()
        figures["tokens_per_s"] = s.context / (time.perf_counter() - began)
    return figures, None


def graphs(policy: Policy, s: Sizes, clock: Clock) -> tuple[dict[str, Any], list[Row]]:
    """The same tokens decoded by rows, in fixed shapes, and in captured graphs (on a card).

    Returns:
        figures of each number of rows and width, and rows that were decoded in the last of these ways.
    """
    ways = {"free": (False, False), "fixed": (True, False)}
    if policy.device.type == "cuda":
        ways["graphs"] = (True, True)
    found: list[dict[str, Any]] = []
    decoded: list[Row] = []
    told: list[str] = []
    for rows in s.abreast:
        for width in s.widths:
            try:
                case = _ways(policy, s, ways, rows, width, clock, told)
            except OutOfTime:
                return {"cases": found, "warnings": told, "complete": False}, decoded
            decoded += case.pop("transcripts")
            found.append(case)
    return {"cases": found, "warnings": told, "complete": True}, decoded


def _ways(
    policy: Policy,
    s: Sizes,
    ways: dict[str, tuple[bool, bool]],
    rows: int,
    width: int,
    clock: Clock,
    told: list[str],
) -> dict[str, Any]:
    case: dict[str, Any] = {"rows": rows, "held": width, "token_s": {}}
    said: dict[str, list[list[int]]] = {}
    for way, (fixed, captured) in ways.items():
        sampler = LiveSampler(policy, rows=rows, context_tokens=width + 8, cuda_graphs=captured, fixed=fixed)
        held: dict[int, Transcript] = {}
        opening = width - s.decoded
        turn = {row: (tokens(policy, opening, seed=row), s.decoded) for row in range(rows)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seconds = play(sampler, held, turn, width, clock)
        told += [str(one.message) for one in caught if "CUDA graphs" in str(one.message)]
        # The first token is that of the opening; the second sets things up, and captures.
        case["token_s"][way] = float(np.median(seconds[2:]))
        said[way] = [t.ids[opening:] for t in held.values()]
        if captured:
            case["captured"] = sampler.captured
            case["capture_s"] = seconds[1] - case["token_s"][way]
    last = list(said)[-1]
    case["same_as_fixed"] = said[last] == said["fixed"]
    pairs = [a == b for one, two in zip(said[last], said["free"], strict=True) for a, b in zip(one, two, strict=True)]
    case["share_as_free"] = sum(pairs) / len(pairs)
    case["transcripts"] = [t.row(1.0) for t in held.values()]
    return case


def agreement(policy: Policy, rows: Sequence[Row] | None, clock: Clock) -> tuple[dict[str, Any], None]:
    """Sampler against update: mean and largest difference of the log-probabilities of what was sampled."""
    gaps: list[Tensor] = []
    policy.model.train()  # as the update does it
    for row in (rows or [])[:16]:
        if clock.left() <= 0:
            break
        batch = collate([row], policy.device, packed=policy.packs)
        with torch.no_grad():
            own, _ = token_logprobs(policy, batch.ids, batch.mask, lengths=batch.lengths)
        gaps.append((own - batch.logprobs).abs().cpu())
    if not gaps or rows is None:
        return {"not_run": "no sampled rows, or no time"}, None
    every = torch.cat(gaps)
    longest = max(len(row.token_ids) for row in rows[: len(gaps)])
    return {
        "mean_gap": float(every.mean()),
        "max_gap": float(every.max()),
        "tokens": len(every),
        "rows": len(gaps),
        "longest": longest,
    }, None


def resume(policy: Policy, rows: Sequence[Row] | None, s: Sizes, clock: Clock) -> tuple[dict[str, Any], None]:
    """A step, a checkpoint, a second step; and the second step again from the checkpoint, with a new optimizer."""
    if not rows:
        return {"not_run": "no sampled rows"}, None
    names = list(policy.trainable)
    pieces = [
        Row(r.token_ids, r.action_mask, r.logprobs, ((-1.0) ** i,) * len(r.logprobs), r.weight)
        for i, r in enumerate(rows[:4])
    ]
    optimizer, name = optimizer_of(policy)
    learn(policy, optimizer, pieces, s)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(
            Path(folder),
            1,
            adapter=policy.adapter_tensors(),
            adapter_config={},
            optimizer=checkpoint.optimizer_tensors(optimizer, names),
            state={},
        )
        before = _adapter(policy)
        clock.check()
        first = learn(policy, optimizer, pieces, s)
        went = _adapter(policy)
        found = checkpoint.load(path)
    policy.load_adapter_tensors(found.adapter)
    optimizer, _ = optimizer_of(policy)
    checkpoint.restore_optimizer(optimizer, names, found.optimizer)
    stored = checkpoint.optimizer_tensors(optimizer, names)
    restored = torch.equal(_adapter(policy), before) and all(
        torch.equal(stored[key].cpu(), value) for key, value in found.optimizer.items()
    )
    clock.check()
    second = learn(policy, optimizer, pieces, s)
    return {
        "optimizer": name,
        "restored": restored,
        "loss_difference": abs(first["loss"] - second["loss"]),
        # Gradients of attention are sums in no fixed order on a card.
        "step_difference": float((_adapter(policy) - went).norm() / (went - before).norm()),
    }, None


def growth(policy: Policy, s: Sizes, clock: Clock) -> tuple[dict[str, Any], None]:
    """Some small whole steps, a sampler and graphs each, as training does them: memory after each."""
    optimizer, _ = optimizer_of(policy)
    steps: list[dict[str, float]] = []
    context, rows = min(512, s.context), max(s.abreast[:2])
    for n in range(STEPS):
        began = time.perf_counter()
        figures: dict[str, Any] = {}
        with peak(policy.device, figures):
            sampler, held = LiveSampler(policy, rows=rows, context_tokens=context), {}
            for turn in range(2):
                adds = {row: tokens(policy, context // 2 - s.turn_tokens, seed=n + 10 * row) for row in range(rows)}
                play(sampler, held, {row: (ids, s.turn_tokens) for row, ids in adds.items()}, 10 * n + turn, clock)
            del sampler
            learn(policy, optimizer, [t.row((-1.0) ** row) for row, t in held.items()], s)
        steps.append({**figures, "held_gb": held_gb(policy.device), "seconds": time.perf_counter() - began})
    return {"steps": steps}, None


def optimizer_of(policy: Policy) -> tuple[torch.optim.Optimizer, str]:
    """The optimizer of the recipes, or its 32-bit form where that cannot be had."""
    name = "adamw8bit" if has_bitsandbytes() and policy.device.type == "cuda" else "adamw"
    made = make_optimizer(name, policy.trainable.values(), learning_rate=1e-5, weight_decay=0.0, beta2=0.95)
    return made, name


def learn(policy: Policy, optimizer: torch.optim.Optimizer, rows: Sequence[Row], s: Sizes) -> dict[str, float]:
    """The real update."""
    settings = Update(
        micro_batch_tokens=s.context,
        max_logprob_gap=1e9,  # compared apart
    )
    return update_policy(policy, optimizer, rows, settings, poll=lambda: None)


def _adapter(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten().float().cpu() for p in policy.trainable.values()])

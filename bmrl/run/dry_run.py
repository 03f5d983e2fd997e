"""A rehearsal: the fullest rollout and the fullest update that a recipe allows, measured against the estimate.

Nothing is written and nothing is learned: the policy is gone when the rehearsal ends.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from bmrl import memory
from bmrl.batch import Row
from bmrl.budgets import largest
from bmrl.check import refuse_missing
from bmrl.errors import BmrlError, UsageError
from bmrl.memory import Estimate, in_flight
from bmrl.optimizer import make_optimizer
from bmrl.policy import Policy
from bmrl.recipe import Recipe
from bmrl.run.compose import make_pool, refuse_card, rows_at_once, say, starting_policy
from bmrl.run.train import update_settings
from bmrl.sampler import LiveSampler
from bmrl.seeds import stream
from bmrl.system import forget_peak, memory_gb, resident_gb, return_free_memory, return_large_blocks
from bmrl.trainer import update_policy

GIB = 2**30
MICRO_BATCHES = 2  # of the update: the second meets what the first one left


@dataclass(slots=True)
class _Transcript:
    """A row of the rollout as the update reads it."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def row(self, tokens: int, advantage: float) -> Row:
        """Its first tokens."""
        mask = self.mask[:tokens]
        picked = sum(mask)
        return Row(
            tuple(self.ids[:tokens]),
            tuple(mask),
            tuple(self.logprobs[:picked]),
            (advantage,) * picked,
            1 / max(picked, 1),
        )


def dry_run(recipe: Recipe, *, vram_gb: float | None = None) -> dict[str, Any]:
    """Rehearses a step of a recipe.

    Args:
        vram_gb: take the card to have no more memory than this, GiB; on a CPU, this process.

    Returns:
        the JSON object that ``bmrl train --dry-run --json`` prints: ``phases``, each with ``phase``, ``measured_gb``,
        ``estimate_gb`` and ``elapsed_s``; and ``peak_gb``, ``estimate_gb``, ``memory_gb``, ``fits``.

    Raises:
        UsageError: the recipe has no ``train`` section, or its cache no room for an episode.
        BmrlError: the recipe cannot run here, or runs out of memory.
    """
    if recipe.train is None:
        raise UsageError("the recipe has no `train` section; a dry run is one of reinforcement learning")
    refuse_missing(recipe)
    refuse_card(recipe, small=False)
    return_large_blocks()
    figures = memory.figures(recipe)
    slots = in_flight(recipe)
    phases: list[dict[str, Any]] = []
    with make_pool(recipe, slots=slots) as pool:
        pool.tasks(recipe.env.train_split)
        policy = _measured(phases, "loading", lambda: starting_policy(recipe))
        cpu = policy.device.type == "cpu"
        room = (memory_gb() or 8.0) if cpu else torch.cuda.get_device_properties(policy.device).total_memory / GIB
        room = min(room, vram_gb or room)
        rows = rows_at_once(recipe, policy, vram_gb=vram_gb)
        estimate = memory.estimate(recipe, figures, vram_gb=None if cpu else room, cpu=cpu)
        say(f"{rows} episodes of {recipe.model.context_tokens} tokens, on {policy.device}")
        transcripts = _measured(phases, "rollout", lambda: _rollout(recipe, policy, rows))
        values = _measured(phases, "update", lambda: _update(recipe, policy, transcripts))
    for phase in phases:
        phase["estimate_gb"] = _estimated(estimate, phase["phase"])
    peak = max(phase["measured_gb"] for phase in phases)
    return {
        "name": recipe.name,
        "device": policy.device.type,
        "rows": rows,
        "phases": phases,
        "peak_gb": peak,
        "estimate_gb": round(estimate.total_gb, 3),
        "memory_gb": round(room, 3),
        "fits": peak <= room,
        "logprob_gap": values["logprob_gap"],
        "parts": [asdict(part) for part in estimate.parts],
    }


def summary(found: dict[str, Any]) -> list[str]:
    """The same for a reader, one phase a line."""
    lines = [f"{'phase':<10}{'measured':>10}{'estimate':>10}{'seconds':>10}"]
    for phase in found["phases"]:
        estimate = "" if phase["estimate_gb"] is None else f"{phase['estimate_gb']:.2f} GB"
        lines.append(f"{phase['phase']:<10}{phase['measured_gb']:>7.2f} GB{estimate:>10}{phase['elapsed_s']:>10.1f}")
    lines.append(
        f"peak {found['peak_gb']:.2f} GB, estimate {found['estimate_gb']:.2f} GB, of {found['memory_gb']:.2f} GB"
    )
    return lines


def _estimated(estimate: Estimate, phase: str) -> float | None:
    if phase not in ("rollout", "update"):
        return None
    return round(estimate.phase("rollout" if phase == "rollout" else "update"), 3)


def _measured(phases: list[dict[str, Any]], name: str, call: Callable[[], Any]) -> Any:
    """What a call returns; the most memory and the time that it took join the phases."""
    cuda = torch.cuda.is_available()
    gc.collect()
    return_free_memory()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
    began = time.perf_counter()
    try:
        found = call()
        if cuda:
            torch.cuda.synchronize()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise BmrlError(f"the {name} runs out of memory; bmrl check --vram GB says what to change") from error
        raise
    if cuda:
        free, total = torch.cuda.mem_get_info()
        # What is no longer torch's, but not free: CUDA's own, captured graphs, and whatever else is on the card.
        outside = total - free - torch.cuda.memory_reserved()
        measured = (torch.cuda.max_memory_reserved() + outside) / GIB
    else:
        measured = resident_gb(peak=True) or 0.0
    phases.append(
        {"phase": name, "measured_gb": round(measured, 3), "elapsed_s": round(time.perf_counter() - began, 1)}
    )
    return found


def _rollout(recipe: Recipe, policy: Policy, rows: int) -> list[_Transcript]:
    """All rows at once, each filled to the end of the context in as many turns as the largest budget has.

    No two rows share an opening, and every action is as long as it may be.
    """
    context, action = recipe.model.context_tokens, recipe.rollout.turn_tokens
    turns = max(1, min(largest(recipe.budget.train), context // (action + 1)))
    sampler = LiveSampler(policy, rows=rows, context_tokens=context, cuda_graphs=recipe.rollout.cuda_graphs)
    vocabulary = policy.causal.config.get_text_config().vocab_size
    drawn = stream(recipe.seed, "dry run")
    transcripts = [_Transcript() for _ in range(rows)]
    for turn in range(turns):
        # What the turns before have left, shared out among those that are to come.
        size = (context - len(transcripts[0].ids)) // (turns - turn)
        for row, transcript in enumerate(transcripts):
            added = drawn.integers(vocabulary, size=size - action).tolist()
            transcript.ids += added
            transcript.mask += [False] * len(added)
            sampler.begin(row, added, drawn.random(action))
        waiting = rows
        while waiting:
            for row, said in sampler.step(temperature=recipe.rollout.temperature, stop_ids=frozenset()):
                waiting -= 1
                transcripts[row].ids += said.token_ids
                transcripts[row].mask += [True] * len(said.token_ids)
                transcripts[row].logprobs += said.logprobs
    return transcripts


def _update(recipe: Recipe, policy: Policy, transcripts: Sequence[_Transcript]) -> dict[str, float]:
    """An optimizer step on micro-batches that are as full as can be."""
    assert recipe.train is not None
    context, together = recipe.model.context_tokens, recipe.rollout.tasks_per_step * recipe.rollout.group_size
    tokens = max(min(recipe.train.micro_batch_tokens, together * context), context)
    episodes = -(-tokens // context)
    rows = [
        transcripts[i % len(transcripts)].row(tokens // episodes, 1.0 if i % 2 else -1.0)
        for i in range(MICRO_BATCHES * episodes)
    ]
    optimizer = make_optimizer(
        recipe.optimizer.name,
        policy.trainable.values(),
        learning_rate=recipe.optimizer.learning_rate,
        weight_decay=recipe.optimizer.weight_decay,
        beta2=recipe.optimizer.beta2,
    )
    # Random text is where the sampler's rounding shows most; here it is told, not judged.
    settings = replace(update_settings(recipe), epochs=1, micro_batch_tokens=tokens, max_logprob_gap=float("inf"))
    learned = update_policy(policy, optimizer, rows, settings, poll=lambda: None)
    if learned["skipped_nonfinite"]:
        raise BmrlError("the loss or the gradient is not finite: this model cannot be trained in this precision")
    return learned

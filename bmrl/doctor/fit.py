"""Whether a recipe fits into the memory and onto the disk that are free now."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bmrl import memory
from bmrl.check import wants_gpu
from bmrl.doctor.finding import Finding, note, ok, problem
from bmrl.doctor.machine import GIB, free_disk_gb, free_memory_gb
from bmrl.errors import BmrlError
from bmrl.recipe import Recipe

SMALLER = "lower model.context_tokens, rollout.kv_cache_gb or train.micro_batch_tokens"


def examine_fit(recipe: Recipe, torch: Mapping[str, Any], *, named: bool) -> Iterator[Finding]:
    """The recipe's estimate against what is free: on the first card that works, or without one in the computer.

    Args:
        torch: what the probe of that name found.
        named: whether the user asked about this recipe; otherwise only problems are told.
    """
    try:
        figures = memory.figures(recipe)
    except BmrlError as error:
        if named:
            yield note(recipe.name, f"its memory cannot be told: {error}")
        return
    found = [*_memory(recipe, figures, torch), *_disk(recipe, figures)]
    yield from (each for each in found if named or each.state == "problem")


def _memory(recipe: Recipe, figures: Any, torch: Mapping[str, Any]) -> Iterator[Finding]:
    card = next((each for each in torch.get("cards", ()) if not each["error"]), None)
    if card is None and wants_gpu(recipe):
        return  # that there is none is told already
    free = card["free"] / GIB if card else free_memory_gb()
    if free is None:
        return
    need = memory.estimate(recipe, figures, vram_gb=free if card else None, cpu=card is None)
    told = f"takes {need.total_gb:.1f} GiB by estimate, {free:.1f} {'of the card' if card else 'of memory'} are free"
    if need.total_gb <= free:
        yield ok(recipe.name, told)
        return
    remedy = f"end other programs, or {SMALLER}"
    if card:
        changes, smallest = memory.advice(recipe, figures, free)
        if changes:
            remedy = "end other programs, or change: " + " ".join(f"--set {change}" for change in changes)
        elif smallest:
            remedy = f"take a card of {smallest} GB"
    yield problem(recipe.name, told, remedy, blocks=True)


def _disk(recipe: Recipe, figures: Any) -> Iterator[Finding]:
    stored = {"adapter", "optimizer"} if recipe.lora is not None else {"weights", "optimizer"}
    each = sum(part.gb for part in memory.estimate(recipe, figures).parts if part.name in stored)
    section = recipe.train or recipe.sft
    keep = getattr(section, "keep_checkpoints", 1) + 2  # the best one, and one that is being written
    try:
        free = free_disk_gb(Path("runs"))
    except OSError:
        return  # that is told already
    told = f"checkpoints take up to {keep * each:.2g} GiB, {free:,.1f} of the disk are free"
    if keep * each <= free:
        yield ok(recipe.name, told)
    else:
        yield problem(recipe.name, told, "free some, or lower train.keep_checkpoints", blocks=True)

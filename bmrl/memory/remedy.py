"""What to change in a recipe that does not fit: overrides that are found by trying them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from bmrl import architecture
from bmrl.architecture import Architecture
from bmrl.budgets import largest
from bmrl.context import fit
from bmrl.errors import BmrlError
from bmrl.memory.estimate import MARGIN, Estimate, estimate, figures
from bmrl.recipe import Recipe, resolved

CARDS_GB = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 192)
CONTEXT_STEP = 256  # tokens
LEAST_MICRO = 512  # tokens
CONTEXT = "model.context_tokens"
Override = tuple[str, Any]


def advice(recipe: Recipe, a: Architecture, vram_gb: float) -> tuple[list[str], int | None]:
    """Overrides with which the recipe fits into a card, those that cost least first; none where it fits as it is.

    Returns:
        texts for ``--set``; and where nothing helps, none, and the smallest card that would do, GiB.
    """
    least = estimate(recipe, a, vram_gb=vram_gb)
    taken: list[Override] = []
    if least.fits:
        return [], None
    for options in (*_settings(recipe), _contexts(recipe)):
        taken, least = _best(recipe, a, taken, least, options, vram_gb)
        if least.fits:
            return _told(recipe, a, taken, vram_gb), None
    settings = [override for override in taken if override[0] != CONTEXT]
    for before in (settings, taken):  # a smaller model with the whole context rather than with a shorter one
        found, least = _best(recipe, a, before, least, _models(recipe, a), vram_gb)
        if least.fits:
            return _told(recipe, a, found, vram_gb), None
    return [], next((card for card in CARDS_GB if (e := _tried(recipe, a, taken, card)) and e.fits), None)


def too_small(recipe: Recipe, card_gb: float) -> str | None:
    """Why a card is too small for a recipe and what to do, in one line; None if it is not, or nothing tells.

    The margin of the estimate does not count here: what may fit is tried.
    """
    try:
        a = figures(recipe)
    except BmrlError:
        return None
    found = estimate(recipe, a, vram_gb=card_gb)
    least = max(found.phase("rollout"), found.phase("update")) - sum(p.gb for p in found.parts if p.name == MARGIN)
    if least <= card_gb:
        return None
    overrides, larger = advice(recipe, a, card_gb)
    fix = " ".join(f"--set {override}" for override in overrides)
    if not fix:
        fix = f"a card of {larger} GB would do" if larger else "no card would do"
    return f"{recipe.name} takes {least:.1f} GB by estimate and this card has {card_gb:.1f}: {fix}"


def _best(
    recipe: Recipe,
    a: Architecture,
    taken: list[Override],
    least: Estimate,
    options: Iterable[Sequence[Override]],
    vram_gb: float,
) -> tuple[list[Override], Estimate]:
    """What was taken, with the first option that makes it fit, or the one that saves most; as it was if none saves."""
    best = taken, least
    for option in options:
        found = _tried(recipe, a, [*taken, *option], vram_gb)
        if found is not None and _size(found) < _size(best[1]):
            best = [*taken, *option], found
            if found.fits:
                break
    return best


def _size(found: Estimate) -> tuple[float, float]:
    """What is to become smaller: the total; or else a phase that is behind the larger one, and may come to the fore."""
    return found.total_gb, found.phase("rollout") + found.phase("update")


def _micro(recipe: Recipe) -> tuple[str, int]:
    """The key that bounds a micro-batch, and its value in tokens."""
    if recipe.train is not None:
        return "train.micro_batch_tokens", recipe.train.micro_batch_tokens
    assert recipe.sft is not None
    return "sft.micro_batch_tokens", recipe.sft.micro_batch_tokens


def _settings(recipe: Recipe) -> Iterator[list[list[Override]]]:
    """Alternatives for each setting, the mildest first; each goes on top of the best of those before."""
    micro, size = _micro(recipe)
    yield [[("model.gradient_checkpointing", True)]]
    yield [[("rollout.kv_cache_gb", "auto")]]
    yield [[(micro, size // 2**n)] for n in range(1, 8) if size // 2**n >= LEAST_MICRO]
    yield [[("model.dtype", "bfloat16")]]
    yield [[("model.quantization", "nf4")]]
    yield [[("optimizer.name", "paged_adamw8bit")]]
    yield [[("rollout.cuda_graphs", False)]]


def _contexts(recipe: Recipe) -> Iterator[list[Override]]:
    """Shorter contexts, longest first, in which the largest budget of training has room."""
    least = largest(recipe.budget.train)
    context, (micro, tokens) = recipe.model.context_tokens, _micro(recipe)
    for size in range((context - 1) // CONTEXT_STEP * CONTEXT_STEP, recipe.rollout.turn_tokens, -CONTEXT_STEP):
        shorter = recipe.model_copy(update={"model": recipe.model.model_copy(update={"context_tokens": size})})
        if fit(shorter).typical_turns < least:
            return
        # A long episode is a micro-batch of its own: a shorter context helps together with smaller micro-batches.
        yield [(CONTEXT, size), *([(micro, size)] if size < tokens else [])]


def _models(recipe: Recipe, a: Architecture) -> list[list[Override]]:
    """Known models with fewer parameters: those of the same family first, the largest first."""
    if recipe.model.new is not None:
        return []
    # An adapter belongs to the model that it was trained on.
    adapter: list[Override] = [("model.adapter", None)] if recipe.model.adapter is not None else []
    family = re.split(r"-\d", recipe.model.name)[0]
    smaller = [other for other, known in architecture.names().items() if known.parameters < a.parameters]
    smaller.sort(key=lambda other: re.split(r"-\d", other)[0] != family)
    return [[("model.name", other), *adapter] for other in smaller]


def _tried(recipe: Recipe, a: Architecture, overrides: Sequence[Override], vram_gb: float) -> Estimate | None:
    """The estimate with these; None where they make no valid recipe."""
    data = resolved(recipe)
    for key, value in overrides:
        section, _, last = key.rpartition(".")
        data[section][last] = value
        if key == "model.name":
            a = architecture.names()[value]
    try:
        changed = Recipe.model_validate(data)
    except ValidationError:
        return None
    return estimate(changed, a, vram_gb=vram_gb)


def _told(recipe: Recipe, a: Architecture, taken: Sequence[Override], vram_gb: float) -> list[str]:
    """Of these, tried from the last to the first, only those without which it would not fit; as texts."""
    kept = list(taken)
    for override in reversed(taken):
        if override[0] in ("model.name", "model.adapter"):
            continue
        fewer = [other for other in kept if other != override]
        found = _tried(recipe, a, fewer, vram_gb)
        if found is not None and found.fits:
            kept = fewer
    final = dict(kept)  # of a key that was set twice, the last one counts
    return [f"{key}={_text(value)}" for key, value in final.items()]


def _text(value: Any) -> str:
    """A value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

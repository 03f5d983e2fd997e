"""The estimate: a recipe's parts of memory, each in the phase that holds it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bmrl import architecture
from bmrl.architecture import Architecture
from bmrl.budgets import largest
from bmrl.memory import formulas as f
from bmrl.recipe import Recipe
from bmrl.system import memory_gb

GIB = 2**30
CARD_GB = 24.0  # of a card that nothing is said of
# Measured on a CPU: Python, torch, transformers and peft take 0.41 GiB before a model is loaded, bitsandbytes, which
# they import where it is installed, 0.05, and what is made in small pieces later (kernels for shapes, episodes) 0.1.
CPU_PROGRAM_GB = 0.57
# Measured with SmolLM2-135M, a guess for others: what 4-bit weights, made whole at each use, leave between them.
CPU_PIECES_GB = 0.17
# Not measured: the context that CUDA and its libraries set up, and what the driver keeps of a card for itself.
CUDA_PROGRAM_GB = 0.9
# Not measured: what a captured graph takes of the driver for each layer.
GRAPH_LAYER_BYTES = 400_000
# Blocks of the wrong size between others, as a share of all that torch allocates.
CPU_MARGIN, CUDA_MARGIN = 0.04, 0.06

MARGIN = "fragmentation margin"
Phase = Literal["always", "rollout", "update"]


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the estimate."""

    name: str
    gb: float  # GiB
    phase: Phase


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a recipe takes at most.

    Attributes:
        parts: what is held ``always``, and what beside that in the ``rollout`` and in the ``update``.
        total_gb: always, and the larger of the two phases; GiB.
        device: ``cpu`` or ``cuda``.
        rows: episodes that play at once.
        vram_gb: the card it is held against; None: against nothing.
        fits: whether it does; None without a card.
    """

    parts: tuple[Part, ...]
    total_gb: float
    device: str
    rows: int
    vram_gb: float | None
    fits: bool | None

    def phase(self, name: Phase) -> float:
        """GiB of a phase, what is always held included."""
        return sum(part.gb for part in self.parts if part.phase in ("always", name))


def figures(recipe: Recipe) -> Architecture:
    """The architecture of a recipe's model.

    Raises:
        BmrlError: nothing on this disk tells.
    """
    new = recipe.model.new
    if new is None:
        return architecture.find(recipe.model.name)
    return architecture.new(**new.model_dump(), context_tokens=recipe.model.context_tokens)


def estimate(recipe: Recipe, a: Architecture, *, vram_gb: float | None = None, cpu: bool = False) -> Estimate:
    """The most that a recipe takes, with every episode as long as the context and every turn as long as it may be.

    Args:
        vram_gb: memory of the card, GiB; it also decides how many episodes play at once where the recipe leaves that
            open.
        cpu: whether it runs without a card.
    """
    always = _always(recipe, a, cpu)
    update = _update(recipe, a, cpu)
    room = (vram_gb or CARD_GB) if not cpu else (memory_gb() or 8.0)
    rows = most_rows(recipe, a, room, cpu=cpu) if recipe.train is not None else 0
    rollout = _rollout(recipe, a, cpu, rows) if rows else []
    parts = [*always, *rollout, *update]
    program = always[-1].gb
    used = {name: sum(p.gb for p in parts if p.phase in ("always", name)) - program for name in ("rollout", "update")}
    margin = (CPU_MARGIN if cpu else CUDA_MARGIN) * max(used.values())
    parts.append(Part(MARGIN, margin, "always"))
    total = max(used.values()) + program + margin
    return Estimate(tuple(parts), total, "cpu" if cpu else "cuda", rows, vram_gb, total <= vram_gb if vram_gb else None)


def most_rows(recipe: Recipe, a: Architecture, room_gb: float, *, cpu: bool) -> int:
    """Episodes that play at once: those of a step, as far as the KV cache has room for them; at least one.

    What ``rollout.kv_cache_gb: auto`` is follows from here: a quarter of a computer's memory; of a card's, what is
    left beside the weights and the forwards of the rollout, since the cache is gone when the update begins.
    """
    rollout = recipe.rollout
    episodes = in_flight(recipe)
    row = f.cache_token(a, f.SIZES[recipe.model.dtype]) * recipe.model.context_tokens / GIB
    if rollout.kv_cache_gb != "auto" or cpu:
        size = room_gb / 4 if rollout.kv_cache_gb == "auto" else float(rollout.kv_cache_gb)
        return max(1, min(episodes, int(size / row)))
    always = _always(recipe, a, cpu)
    torch = _sum(always[:-1])
    room = (room_gb - always[-1].gb) / (1 + CUDA_MARGIN) - torch
    # The first number of rows that is too many.
    over = bisect_left(range(1, episodes + 1), room, key=lambda n: _sum(_rollout(recipe, a, cpu, n)) + 1e-9)
    return max(1, over)


def in_flight(recipe: Recipe) -> int:
    """Most episodes that are played at once, whatever the memory; evaluations play more than small steps do."""
    return max(recipe.rollout.tasks_per_step * recipe.rollout.group_size, 64)


def _sum(parts: Sequence[Part]) -> float:
    return sum(part.gb for part in parts)


def _kind(recipe: Recipe, cpu: bool) -> f.Kind:
    model = recipe.model
    dtype = f.SIZES[model.dtype]
    if model.new is not None:
        return f.Kind(4, False, False)
    return f.Kind(dtype, model.quantization == "nf4", cpu and dtype == 2)


def _trained(recipe: Recipe, a: Architecture) -> list[int]:
    """Entries of the tensors that are trained."""
    lora = recipe.lora
    if lora is not None:
        return f.adapter(f.adapted(a, lora.targets), lora.rank)
    layers = [linear.weights for linear in a.linears()]
    return [*layers, a.parameters - sum(layers)]


def _always(recipe: Recipe, a: Architecture, cpu: bool) -> list[Part]:
    """What is held from the first update to the last; the program itself stands last."""
    kind, trained = _kind(recipe, cpu), _trained(recipe, a)
    entry = 4 if recipe.lora is not None or recipe.model.new is not None else kind.dtype
    parts = {
        "weights": f.weights(a, kind),
        "quantization constants": f.quantization(a) if kind.quantized else 0,
        # Embeddings and norms stay where they were read, and with them the pages of all that was read.
        "model file in memory": a.parameters * kind.dtype if cpu and kind.quantized else 0,
        "weights laid out for the CPU": f.laid_out(a, kind),
        "adapter": entry * sum(trained) if recipe.lora is not None else 0,
        "reference adapter": entry * sum(trained) if _reference(recipe) else 0,
        "gradients": entry * sum(trained),
        "optimizer": f.optimizer(recipe.optimizer.name, trained) * entry // 4,
    }
    program = CPU_PROGRAM_GB if cpu else CUDA_PROGRAM_GB
    name = "program and libraries" if cpu else "CUDA context and libraries"
    found = [Part(part, size / GIB, "always") for part, size in parts.items() if size]
    return [*found, Part(name, program, "always")]


def _reference(recipe: Recipe) -> bool:
    return recipe.train is not None and recipe.model.adapter is not None and recipe.algorithm.kl_coef > 0


def _rollout(recipe: Recipe, a: Architecture, cpu: bool, rows: int) -> list[Part]:
    kind, context = _kind(recipe, cpu), recipe.model.context_tokens
    linears = f.adapted(a, recipe.lora.targets) if recipe.lora else []
    rank = recipe.lora.rank if recipe.lora else 0
    graphs = recipe.rollout.cuda_graphs and not cpu
    shapes = f.graph_shapes(rows=rows, context_tokens=context) if graphs else 0
    # A turn that adds more than a forward holds goes alone; turns are taken to be of like length.
    tokens = max(min(f.FORWARD_TOKENS, rows * context), context // largest(recipe.budget.train))
    reading = f.reading(a, kind, tokens=tokens, context_tokens=context, rank=rank)
    parts = {
        "KV cache": f.cache(a, kind.dtype, rows=rows, context_tokens=context, spare=int(graphs)),
        "copies for sampling": f.sampling_copies(a, kind, linears, rank, cpu=cpu),
        "CUDA graphs": shapes * a.layers * GRAPH_LAYER_BYTES,
        "activations of the rollout": max(reading, f.sampling(a, kind, rows)),
    }
    return [Part(part, size / GIB, "rollout") for part, size in parts.items() if size]


def _update(recipe: Recipe, a: Architecture, cpu: bool) -> list[Part]:
    kind, context = _kind(recipe, cpu), recipe.model.context_tokens
    rank = recipe.lora.rank if recipe.lora else 0
    if recipe.train is not None:
        together = recipe.rollout.tasks_per_step * recipe.rollout.group_size * context
        tokens = max(min(recipe.train.micro_batch_tokens, together), context)
        episodes = -(-tokens // context)
        turns = largest(recipe.budget.train)
        picked = min(tokens, episodes * turns * recipe.rollout.turn_tokens)
    else:
        assert recipe.sft is not None
        tokens = picked = max(min(recipe.sft.micro_batch_tokens, recipe.sft.batch_tokens), context)
    checkpointing = recipe.model.gradient_checkpointing and recipe.model.new is None
    low = sum(_trained(recipe, a)) if recipe.lora else 0
    activations, head = f.update(a, kind, tokens=tokens, picked=picked, rank=rank, low=low, checkpointing=checkpointing)
    return [
        *([Part("pieces between 4-bit products", CPU_PIECES_GB, "update")] if cpu and kind.quantized else []),
        Part("activations of the update", activations / GIB, "update"),
        Part("logits, or one layer's backward pass", head / GIB, "update"),
    ]

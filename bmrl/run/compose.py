"""Objects from a recipe's sections."""

import sys
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import torch

from bmrl import architecture, memory
from bmrl.backend import choose
from bmrl.chat import Chat, make_chat
from bmrl.check import has_gpu, wants_gpu
from bmrl.envs.pool import Pool
from bmrl.errors import BmrlError, UsageError
from bmrl.policy import Policy, add_reference, best_device, load, with_adapter, with_new_adapter
from bmrl.recipe import Recipe
from bmrl.run_folder import backend_of
from bmrl.seeds import stream
from bmrl.system import memory_gb
from bmrl.trainer import Player


def say(line: str) -> None:
    """One line for the person at the terminal; results go to stdout, this does not."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def adapter_folder(name: str) -> Path:
    """The adapter behind ``model.adapter``: a folder in peft's format, or a run folder that holds one."""
    folder = Path(name)
    inside = folder / "adapter"
    if (inside / "adapter_config.json").is_file():
        return inside
    if not folder.exists():
        raise BmrlError(f"model.adapter: {name} does not exist; run the warm start first, or set model.adapter=null")
    return folder


def refuse_card(recipe: Recipe, *, small: bool = True) -> None:
    """Refuses a recipe that this machine's card is not enough for, before a model is loaded.

    Args:
        small: whether the estimate decides, too; a rehearsal measures instead.

    Raises:
        BmrlError: there is a card and torch cannot use it, or it is too small.
    """
    if torch.cuda.is_available():
        if not small:
            return
        total = torch.cuda.get_device_properties(best_device()).total_memory / 2**30
        if (problem := memory.too_small(recipe, total)) is not None:
            raise BmrlError(problem)
    elif has_gpu() and (keys := wants_gpu(recipe)):
        raise BmrlError(
            f"{recipe.name} needs the NVIDIA GPU ({', '.join(keys)}), which torch {torch.__version__} cannot use: it "
            f"was built for CPUs, or the driver is too old for it; bmrl doctor {recipe.name} says which"
        )


def starting_policy(recipe: Recipe, folder: Path | None = None) -> Policy:
    """Model and adapter that training starts from; the reference of the KL is loaded if one is used.

    Args:
        folder: of the run that this is for, if it has begun: what loaded its model then does so now.
    """
    model = recipe.model
    asked = (folder and backend_of(folder)) or model.backend
    chosen, note = choose(asked, name=model.name, dtype=model.dtype, gpu=torch.cuda.is_available())
    if note is not None:
        say(note)
    policy = load(
        model.name,
        dtype=model.dtype,
        quantization=model.quantization,
        gradient_checkpointing=model.gradient_checkpointing,
        backend=chosen,
    )
    if model.adapter is not None:
        folder = adapter_folder(model.adapter)
        policy = with_adapter(policy, folder, rank=recipe.lora.rank if recipe.lora else None)
        if recipe.train is not None and recipe.algorithm.kl_coef:
            add_reference(policy, folder)
    elif recipe.lora is not None:
        policy = fresh_adapter(policy, recipe)
    if not policy.trainable:
        raise UsageError("lora.targets: no weight would be trained; name modules of the model, or all-linear")
    return policy


def fresh_adapter(policy: Policy, recipe: Recipe) -> Policy:
    """A new adapter as the recipe describes it."""
    assert recipe.lora is not None
    lora = recipe.lora
    seed = int(stream(recipe.seed, "adapter").integers(2**31))
    return with_new_adapter(
        policy, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=seed
    )


def make_pool(recipe: Recipe, slots: int) -> Pool:
    """The recipe's environment, ``slots`` of them."""
    env = recipe.env
    return Pool(
        env.name,
        env.args,
        workers=env.workers,
        timeout_s=env.timeout_s,
        slots=slots,
        distances=recipe.reward.process == "progress",
    )


def chat_for(recipe: Recipe, tokenizer: Any) -> Chat:
    """How the policy is spoken to in the recipe's environment."""
    from bmrl.envs import instructions

    return make_chat(
        tokenizer, think=recipe.chat.think, system=recipe.chat.system, instructions=instructions(recipe.env.name)
    )


def rows_at_once(recipe: Recipe, policy: Policy, *, vram_gb: float | None = None) -> int:
    """How many episodes a run plays at once; a run chooses it once.

    Args:
        vram_gb: take a card to have no more memory than this, GiB.

    Raises:
        UsageError: the cache has not even room for one.
    """
    episodes = memory.in_flight(recipe)
    if recipe.rollout.kv_cache_gb == "auto" and policy.device.type == "cuda":
        with suppress(BmrlError):  # an architecture of which nothing is estimated: half of what is free
            figures = architecture.parse(policy.causal.config.to_dict(), policy.name)
            return memory.most_rows(recipe, figures, min(_card_gb(policy.device), vram_gb or inf), cpu=False)
    held = cache_rows(policy, kv_cache_gb=recipe.rollout.kv_cache_gb, context_tokens=recipe.model.context_tokens)
    return min(episodes, held)


def cache_rows(policy: Policy, *, kv_cache_gb: float | str, context_tokens: int) -> int:
    """How many episodes of full length the KV cache may hold at once.

    Args:
        kv_cache_gb: GiB, or ``auto``: half of what a card has free, a quarter of a computer's memory.

    Raises:
        UsageError: not even one.
    """
    size = _free_gb(policy.device) if kv_cache_gb == "auto" else float(kv_cache_gb)
    need = cache_token_bytes(policy) * context_tokens / 2**30
    if need > size:
        raise UsageError(
            f"rollout.kv_cache_gb: one episode of model.context_tokens {context_tokens} needs {need:.2g} GiB, "
            f"there are {size:.2g}; raise it or lower model.context_tokens"
        )
    return int(size / need)


def cache_token_bytes(policy: Policy) -> int:
    """Bytes of the keys and values of one token of one episode."""
    config: Any = policy.causal.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * width * policy.causal.dtype.itemsize)


def _free_gb(device: torch.device) -> float:
    """GiB for the KV cache where the recipe leaves it open: the update needs the rest."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] / 2**30 / 2)
    return (memory_gb() or 8.0) / 4


def _card_gb(device: torch.device) -> float:
    """GiB of a card that are this program's, or free for it."""
    free = float(torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_reserved(device)
    return free / 2**30 + memory.CUDA_PROGRAM_GB


def tell_of_another_world(recipe: Recipe, policy: Policy) -> None:
    """A line for a small model that was trained for one environment and is to play in another."""
    name, world = recipe.model.name, recipe.env.name
    known = "alfworld" if name == "pocket" else world
    trained = policy.tokenizer.init_kwargs.get("world") or known
    if trained != world:
        say(f"note: the model {name} was trained for {trained}, not for {world}: it starts with next to nothing there")


def make_player(recipe: Recipe, policy: Policy, pool: Pool, *, rows: int, announce: str | None = None) -> Player:
    """What plays episodes as the recipe says; ``announce`` overrides its own."""
    tell_of_another_world(recipe, policy)
    return Player(
        policy=policy,
        chat=chat_for(recipe, policy.tokenizer),
        pool=pool,
        rows=rows,
        turn_tokens=recipe.rollout.turn_tokens,
        context_tokens=recipe.model.context_tokens,
        announce=announce or recipe.budget.announce,
        wording=recipe.budget.wording,
        action_tokens=recipe.budget.action_tokens,
        cuda_graphs=recipe.rollout.cuda_graphs,
    )

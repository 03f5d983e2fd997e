"""What can be said of a valid recipe before it runs: what this machine lacks, and what fits into
the context.

Nothing here imports torch, and nothing is downloaded.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bmrl import backend, budgets
from bmrl.envs import PACKAGES
from bmrl.errors import BmrlError
from bmrl.files import gguf_problem
from bmrl.recipe import Recipe, resolved
from bmrl.run_folder import backend_of

ADAPTERS = ("adapter_config.json", "adapter/adapter_config.json")  # in an adapter folder, or in a run
INSTEAD = "bmrl train recipes/quickstart.yaml"  # needs no GPU and no network


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated tokens of an episode's parts, chat template included."""

    opening: int
    observation: int  # what a later turn adds before its action
    action: int

    def episode(self, turns: int) -> int:
        """Tokens of an episode of so many turns; the first observation is the opening."""
        return self.opening + (turns - 1) * self.observation + turns * self.action

    def turns(self, context_tokens: int) -> int:
        """Most turns that fit."""
        room = context_tokens - self.opening + self.observation
        return max(0, room // (self.observation + self.action))


@dataclass(frozen=True, slots=True)
class Fit:
    """Largest budget against the context.

    Attributes:
        largest_budget: of training and evaluation, turns.
        typical_tokens: estimate for an episode of that many turns of ordinary length.
        typical_turns: largest budget that fits when turns are of ordinary length.
        long_turns: largest budget that fits when every turn is as long as it can be.
    """

    context_tokens: int
    largest_budget: int
    typical_tokens: int
    typical_turns: int
    long_turns: int


# Counted in the words of the pocket tokenizer on 48 generated games of all six tasks, as typical
# (mean) and long (largest seen): opening 128 and 227, observation 18 and 58, all admissible
# commands 144 and 285, command 4 and 6. A chat model spells the same text in about 1.6 times as
# many tokens (assumed, not measured), and its template and instructions come on top.
_PLAIN = Sizes(opening=132, observation=22, action=6), Sizes(opening=232, observation=62, action=0)
_CHAT = Sizes(opening=320, observation=45, action=14), Sizes(opening=460, observation=110, action=0)
_ADMISSIBLE_PLAIN = (145, 285)
_ADMISSIBLE_CHAT = (230, 460)


def fit(recipe: Recipe) -> Fit:
    """How the recipe's largest budget compares with its context; an estimate, see the sizes
    above."""
    plain = recipe.model.new is not None or writes_plain(recipe.model.name)
    typical, long = _PLAIN if plain else _CHAT
    listed = recipe.env.args.get("admissible") is True
    more_typical, more_long = (_ADMISSIBLE_PLAIN if plain else _ADMISSIBLE_CHAT) if listed else (0, 0)
    turn_tokens = recipe.rollout.turn_tokens
    # How long thoughts will be is unknown: they count as long as they may be.
    action = turn_tokens if recipe.chat.think else min(typical.action, turn_tokens)
    typical = Sizes(typical.opening + more_typical, typical.observation + more_typical, action)
    long = Sizes(long.opening + more_long, long.observation + more_long, turn_tokens)
    largest = max(budgets.largest(recipe.budget.train), *recipe.budget.eval)
    context = recipe.model.context_tokens
    return Fit(
        context_tokens=context,
        largest_budget=largest,
        typical_tokens=typical.episode(largest),
        typical_turns=typical.turns(context),
        long_turns=long.turns(context),
    )


def missing(recipe: Recipe) -> list[str]:
    """What this machine lacks for the recipe, one line each; empty when it can run."""
    model = recipe.model
    hub = model.new is None and model.name != "pocket" and not _looks_local(model.name)
    lines = []
    for_gpu = [
        f"{key}: {value}"
        for key, value, needed in (
            ("model.dtype", model.dtype, hub and model.dtype == "bfloat16"),
            ("optimizer.name", recipe.optimizer.name, recipe.optimizer.name == "paged_adamw8bit"),
        )
        if needed
    ]
    if for_gpu and not has_gpu():
        lines.append(f"no NVIDIA GPU is visible, which the recipe needs ({', '.join(for_gpu)})")
    if (model.quantization == "nf4" or recipe.optimizer.name != "adamw") and not find_spec("bitsandbytes"):
        lines.append("the package bitsandbytes is not installed: pip install 'bmrl[quantization]'")
    if model.backend == "unsloth" and not backend.installed():
        lines.append(f"model.backend: the package unsloth is not installed: {backend.INSTALL}")
    package = PACKAGES.get(recipe.env.name)
    if package is not None and not find_spec(package):
        lines.append(f"the package {package} is not installed: pip install 'bmrl[{package}]'")
    for tracker in recipe.tracking:
        if tracker != "jsonl" and not find_spec(tracker):
            lines.append(f"tracking: the package {tracker} is not installed: pip install 'bmrl[{tracker}]'")
    if recipe.env.name == "alfworld" and recipe.env.args.get("engine") == "textworld":
        from bmrl.envs.alfworld.env import MISSING, engine_installed

        if not engine_installed():
            lines.append(f"env.args.engine: {MISSING}")
    if hub and not on_disk(model.name):
        lines.append(f"hub model {model.name} is not on this disk: hf download {model.name}")
    if model.new is None and model.name != "pocket" and _looks_local(model.name):
        if model.name.endswith(".gguf"):
            lines += [f"model.name: {problem}"] if (problem := gguf_problem(model.name)) is not None else []
        elif not _exists(model.name):
            train = "; train it first" if model.name.startswith("runs/") else ""
            lines.append(f"model.name: there is no {model.name} on this disk{train}")
        elif not _exists(f"{model.name}/config.json"):
            lines.append(f"model.name: {model.name} is no model folder: it has no config.json")
    if model.adapter is not None:
        if not _exists(model.adapter):
            lines.append(f"model.adapter: there is no {model.adapter} yet; train it first")
        elif not any(_exists(f"{model.adapter}/{file}") for file in ADAPTERS):
            lines.append(f"model.adapter: {model.adapter} is no adapter folder and no finished run")
    return lines


def refuse_missing(recipe: Recipe) -> None:
    """Refuses a recipe that this machine cannot run.

    Raises:
        BmrlError: one line with all that is missing, and what to run instead.
    """
    lines = missing(recipe)
    if lines:
        raise BmrlError(f"{recipe.name} cannot run here: {'; '.join(lines)}; what can: {INSTEAD}")


def start_backend(recipe: Recipe, run: Path | None = None) -> None:
    """Imports unsloth where the recipe will use it: it asks to be there before transformers is.

    Args:
        run: folder of a run that has begun, whose own backend counts.

    Raises:
        BmrlError: it does not work here.
    """
    model = recipe.model
    asked = (run and backend_of(run)) or model.backend
    if backend.choose(asked, name=model.name, dtype=model.dtype, gpu=has_gpu())[0] == "unsloth":
        backend.start()


def has_gpu() -> bool:
    """Whether an NVIDIA device is visible, without asking a driver."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    native = any(Path("/dev").glob("nvidia[0-9]*"))
    return native or (Path("/dev/dxg").exists() and shutil.which("nvidia-smi") is not None)


def on_disk(name: str) -> bool:
    """Whether the cache of the model hub holds a snapshot of this model with a configuration."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache.expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    return any(folder.glob("*/config.json"))


def _looks_local(name: str) -> bool:
    # A hub id has one slash: runs/textworld_sft/model is none, whether it exists or not.
    return name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1 or _exists(name)


def writes_plain(name: str) -> bool:
    """Whether a model is one that bmrl made: no tags around its commands."""
    if name == "pocket":
        return True
    try:
        config = json.loads((Path(name).expanduser() / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError, RuntimeError):
        return False
    return isinstance(config, dict) and config.get("action_format") == "plain"


def _exists(name: str) -> bool:
    # pathlib raises for unknown home folders and names that are too long; these answer no.
    return os.path.exists(os.path.expanduser(name))  # noqa: PTH110, PTH111


def report(recipe: Recipe) -> dict[str, Any]:
    """All of ``bmrl check`` as plain data."""
    return {
        "name": recipe.name,
        "valid": True,
        "context": asdict(fit(recipe)),
        "missing": missing(recipe),
        "instead": INSTEAD if missing(recipe) else None,
        "recipe": resolved(recipe),
    }


def summary(recipe: Recipe) -> list[str]:
    """``bmrl check`` for a reader: one fact a line."""
    rows = [
        ("recipe", recipe.name),
        ("training", _training(recipe)),
        ("model", _model(recipe)),
        (
            "tasks",
            f"{recipe.env.name}, {recipe.env.train_split}; evaluated on {recipe.env.eval_split}",
        ),
        ("budgets", _budgets(recipe)),
        ("context", _context(fit(recipe))),
    ]
    lines = missing(recipe)
    rows += [("missing", line) for line in lines]
    rows.append(("instead", INSTEAD) if lines else ("machine", "has what the recipe needs"))
    return [f"{label:<10}{text}" for label, text in rows]


def _training(recipe: Recipe) -> str:
    optimizer = f"{recipe.optimizer.name}, learning rate {recipe.optimizer.learning_rate:g}"
    if recipe.sft is not None:
        sft = recipe.sft
        return f"supervised, {sft.episodes:,} demonstrations x {sft.epochs:g}; {optimizer}"
    assert recipe.train is not None
    rollout = recipe.rollout
    return (
        f"{recipe.algorithm.name}, {recipe.train.steps} steps of {rollout.tasks_per_step} tasks x "
        f"{rollout.group_size} episodes; {optimizer}"
    )


def _model(recipe: Recipe) -> str:
    model = recipe.model
    weights = "all weights" if recipe.lora is None else f"LoRA rank {recipe.lora.rank}"
    start = "" if model.adapter is None else f", from {model.adapter}"
    bits = "" if model.quantization == "none" else f", {model.quantization}"
    return f"{model.name}{' (new)' if model.new else ''}, {model.dtype}{bits}, {weights}{start}"


def _budgets(recipe: Recipe) -> str:
    train = recipe.budget.train
    if train.kind == "fixed":
        drawn = str(train.turns)
    elif train.kind == "mix":
        drawn = ", ".join(str(turns) for turns in train.turns)
    else:
        drawn = f"{train.low} to {train.high}"
    evaluated = ", ".join(str(turns) for turns in recipe.budget.eval)
    return f"{train.kind} {drawn} turns; evaluated at {evaluated}; announced: {recipe.budget.announce}"


def _context(fitted: Fit) -> str:
    verdict = "fits" if fitted.largest_budget <= fitted.typical_turns else "does not fit"
    return (
        f"{fitted.context_tokens:,} tokens; by estimate, {fitted.largest_budget} turns of ordinary "
        f"length take {fitted.typical_tokens:,} ({verdict}). The largest budget that fits is "
        f"{fitted.typical_turns} turns, or {fitted.long_turns} if every turn were as long as may "
        "be. Episodes that run out of context are counted in every result."
    )

"""What can be said of a valid recipe before it runs: what this machine lacks, what fits into the context, and what
memory it takes.

Nothing here imports torch, and nothing is downloaded.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bmrl import backend, memory, workload
from bmrl.context import Fit, fit
from bmrl.envs import PACKAGES
from bmrl.errors import BmrlError
from bmrl.models import exists, find, problem
from bmrl.recipe import Recipe, resolved
from bmrl.run_folder import backend_of

ADAPTERS = ("adapter_config.json", "adapter/adapter_config.json")  # in an adapter folder, or in a run
INSTEAD = "bmrl train recipes/quickstart.yaml"  # needs no GPU and no network


def missing(recipe: Recipe) -> list[str]:
    """What this machine lacks for the recipe, one line each; empty when it can run."""
    model = recipe.model
    source = find(model.name) if model.new is None else None
    lines = []
    for_gpu = wants_gpu(recipe)
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
    if source is not None and (wrong := problem(source)) is not None:
        lines.append(f"model.name: {wrong}")
    if recipe.sft is not None and recipe.sft.path is not None and not exists(recipe.sft.path):
        lines.append(f"sft.path: there is no {recipe.sft.path} yet")
    if model.adapter is not None:
        if not exists(model.adapter):
            lines.append(f"model.adapter: there is no {model.adapter} yet; train it first")
        elif not any(exists(f"{model.adapter}/{file}") for file in ADAPTERS):
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


def wants_gpu(recipe: Recipe) -> list[str]:
    """What of a recipe is for a card, as ``key: value``."""
    model = recipe.model
    hub = model.new is None and find(model.name).kind == "hub"
    return [
        f"{key}: {value}"
        for key, value, needed in (
            ("model.dtype", model.dtype, hub and model.dtype == "bfloat16"),
            ("optimizer.name", recipe.optimizer.name, recipe.optimizer.name == "paged_adamw8bit"),
        )
        if needed
    ]


def report(recipe: Recipe, vram_gb: float | None = None) -> dict[str, Any]:
    """All of ``bmrl check`` as plain data.

    Args:
        vram_gb: memory of a card that the recipe is held against, GiB.

    Raises:
        BmrlError: there is a card to hold it against, and nothing tells the size of the model.
    """
    return {
        "name": recipe.name,
        "valid": True,
        "context": asdict(fit(recipe)),
        "missing": missing(recipe),
        "instead": INSTEAD if missing(recipe) else None,
        "tokens": _tokens(recipe),
        **_memory(recipe, vram_gb),
        "recipe": resolved(recipe),
    }


def summary(recipe: Recipe, found: dict[str, Any] | None = None) -> list[str]:
    """``bmrl check`` for a reader: one fact a line.

    Args:
        found: what ``report`` says of the recipe.
    """
    found = found or report(recipe)
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
    rows += [("tokens", f"a {what} {_told(tokens)}, at most, by estimate") for what, tokens in found["tokens"].items()]
    rows += _memory_rows(found)
    lines = found["missing"]
    rows += [("missing", line) for line in lines]
    rows.append(("instead", INSTEAD) if lines else ("machine", "has what the recipe needs"))
    return [f"{label:<10}{text}" for label, text in rows]


def _tokens(recipe: Recipe) -> dict[str, dict[str, float]]:
    """What goes through the model in a step of reinforcement learning, and in the whole run."""
    step = {} if recipe.train is None else {"step": asdict(workload.of_step(recipe))}
    return {**step, "run": asdict(workload.of_run(recipe))}


def _told(tokens: dict[str, float]) -> str:
    verbs = (("reads", "read"), ("writes", "written"), ("trains on", "trained"))
    return ", ".join(f"{verb} {tokens[key]:,.0f}" for verb, key in verbs if tokens[key])


def _memory(recipe: Recipe, vram_gb: float | None) -> dict[str, Any]:
    """The estimate as plain data, for the card, or for the device that the recipe is made for."""
    source = find(recipe.model.name) if recipe.model.new is None else None
    if vram_gb is not None and source is not None and source.path is not None and (line := problem(source)) is not None:
        raise BmrlError(f"model.name: {line}")
    try:
        figures = memory.figures(recipe)
    except BmrlError as error:
        if vram_gb is not None:
            raise
        return {"fits": None, "total_gb": None, "parts": [], "advice": [], "no_estimate": str(error)}
    cpu = vram_gb is None and not wants_gpu(recipe) and not has_gpu()
    found = memory.estimate(recipe, figures, vram_gb=vram_gb, cpu=cpu)
    advice, card = memory.advice(recipe, figures, vram_gb) if vram_gb is not None else ([], None)
    return {
        "fits": found.fits,
        "total_gb": round(found.total_gb, 3),
        "parts": [{**asdict(part), "gb": round(part.gb, 3)} for part in found.parts],
        "advice": advice,
        "smallest_card_gb": card,
        "device": found.device,
        "vram_gb": vram_gb,
        "rows": found.rows,
        "no_estimate": None,
    }


def _memory_rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if found["no_estimate"] is not None:
        yield "memory", f"no estimate: {found['no_estimate']}"
        return
    where = "a CPU" if found["device"] == "cpu" else f"a card of {found['vram_gb'] or memory.CARD_GB:g} GB"
    together = f", {found['rows']} episodes at once" if found["rows"] else ""
    yield "memory", f"{found['total_gb']:.2f} GB at most by estimate, on {where}{together}"
    for part in found["parts"]:
        held = "" if part["phase"] == "always" else f"  (in the {part['phase']})"
        yield "", f"{part['gb']:8.2f}  {part['name']}{held}"
    if found["fits"] is not None:
        yield "fits", "yes" if found["fits"] else "no"
    for override in found["advice"]:
        yield "advice", f"--set {override}"
    if any(override.startswith("model.name=") for override in found["advice"]):
        yield "", "another model needs a warm start of its own; name it as model.adapter"
    if found["fits"] is False and not found["advice"]:
        card = found["smallest_card_gb"]
        larger = f"the smallest card that would do has {card} GB" if card else "no card would do"
        yield "advice", f"no setting makes it fit; with the most frugal ones, {larger}"


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
    match train.kind:
        case "fixed":
            drawn = f"{train.turns} turns"
        case "mix" | "adaptive":
            drawn = f"{', '.join(map(str, train.turns))} turns"
        case "curriculum":
            drawn = f"{', '.join(map(str, train.turns))} turns, the next every {train.every} steps"
        case "relative":
            factors = ", ".join(f"{factor:g}" for factor in train.factors)
            drawn = f"{factors} times the shortest plan, {train.low} to {train.high} turns"
        case _:
            drawn = f"{train.low} to {train.high} turns"
    evaluated = ", ".join(str(turns) for turns in recipe.budget.eval)
    return f"{train.kind} {drawn}; evaluated at {evaluated}; announced: {recipe.budget.announce}"


def _context(fitted: Fit) -> str:
    verdict = "fits" if fitted.largest_budget <= fitted.typical_turns else "does not fit"
    return (
        f"{fitted.context_tokens:,} tokens; by estimate, {fitted.largest_budget} turns of ordinary "
        f"length take {fitted.typical_tokens:,} ({verdict}). The largest budget that fits is "
        f"{fitted.typical_turns} turns, or {fitted.long_turns} if every turn were as long as may "
        "be. Episodes that run out of context are counted in every result."
    )

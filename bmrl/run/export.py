"""Getting a trained policy out of its run: for PEFT, for transformers, for llama.cpp, with a card."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from bmrl import checkpoint as checkpoints
from bmrl import run_folder
from bmrl.atomic import disk_errors, refuse_unwritable, sync_folder, temporary_suffix, write_json, write_text
from bmrl.chat import Chat
from bmrl.errors import BmrlError, UsageError
from bmrl.export import gguf
from bmrl.export.card import ADAPTER, FORMS, GGUF, MERGED, card
from bmrl.export.gap import Gap, Row, gap, judge, row
from bmrl.export.merge import merge
from bmrl.models import find
from bmrl.policy import Policy, load, with_adapter
from bmrl.policy.read import tokenizer_of
from bmrl.recipe import Recipe
from bmrl.run.about import about_run, settings, sha256, shown, stored_turns, talk
from bmrl.run.compose import chat_for, say
from bmrl.target import EXPORTED, Target

EPISODES = 8  # read to compare the export with the policy
AGAIN = "export again"


def export(
    target: Target, *, forms: Sequence[str], dtype: str, out: Path | None, llama_cpp: str | None, best: bool = False
) -> dict[str, Any]:
    """Writes the policy of a run's checkpoint; the JSON object that ``bmrl export --json`` prints.

    Args:
        target: a run, from ``target.find``.
        forms: of ``adapter``, ``merged`` and ``gguf``; the first two when empty.
        dtype: of merged weights: ``bfloat16``, ``float16`` or ``float32``.
        out: the folder to make; ``exports/<run>-<step>`` when None.
        llama_cpp: where llama.cpp's converter is, see ``gguf.converter``.
        best: whether the checkpoint was chosen for its curve; the card says so.

    Raises:
        UsageError: the target is no run, there is no such form of it, or ``out`` exists.
        BmrlError: files of the run are damaged, its model cannot be loaded, or the disk is full; nothing is left.
    """
    if target.kind != "run" or target.folder is None:
        raise UsageError(f"{target.name} is no run; name a run folder, usually in runs/")
    checkpoint = _checkpoint(target.folder, target.step)
    found = checkpoints.load(checkpoint)
    forms = _forms(forms, whole=not found.adapter_config)
    command = gguf.converter(llama_cpp) if GGUF in forms else None
    folder = out or Path("exports") / f"{target.name}-{checkpoint.name}"
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists; choose another --out")
    refuse_unwritable(folder.parent)
    temporary = folder.parent / f".{folder.name}{temporary_suffix()}"
    try:
        with disk_errors(folder.name, AGAIN):
            temporary.mkdir(parents=True)
            result = _write(temporary, target, checkpoint, found, forms, dtype, command, best)
            _sync(temporary)
            temporary.rename(folder)
            sync_folder(folder.parent)
    except SafetensorError as error:  # wraps the system's error
        raise BmrlError(f"could not write {folder.name}: {' '.join(str(error).split())[:200]}; {AGAIN}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"run": target.name, "checkpoint": checkpoint.name, "out": str(folder), **result}


def _checkpoint(folder: Path, step: int | None) -> Path:
    if step is not None:
        return run_folder.checkpoints(folder / "checkpoints")[step]
    newest = checkpoints.latest(folder / "checkpoints")
    if newest is None:
        raise UsageError(f"{folder}: no undamaged checkpoint; let it train on with --resume")
    return newest


def _forms(forms: Sequence[str], *, whole: bool) -> list[str]:
    if whole and ADAPTER in forms:
        raise UsageError("--format adapter: this run trained the whole model, it has no adapter; use --format merged")
    chosen = forms or ([MERGED] if whole else [ADAPTER, MERGED])
    return [form for form in FORMS if form in chosen]


def _write(
    folder: Path,
    target: Target,
    checkpoint: Path,
    found: checkpoints.Checkpoint,
    forms: Sequence[str],
    dtype: str,
    command: Sequence[str] | None,
    best: bool,
) -> dict[str, Any]:
    """The forms in their folders, and what is to be told of them."""
    assert target.folder is not None
    recipe, base = target.recipe, shown(target.recipe.model.name) if found.adapter_config else None
    tokenizer = tokenizer_of(find(_model_name(target)))
    chat = chat_for(recipe, tokenizer)
    turns = stored_turns(target.folder, found.step)
    if ADAPTER in forms:
        say(f"adapter of {checkpoint.name}")
        _write_adapter(folder / ADAPTER, checkpoint, {**found.adapter_config, "base_model_name_or_path": base})
        tokenizer.save_pretrained(folder / ADAPTER)
        _generation(recipe, chat).save_pretrained(folder / ADAPTER)
    measured = None
    if MERGED in forms or GGUF in forms:
        say(f"merged weights, {dtype}")
        made = (row(chat, one, most=recipe.model.context_tokens) for one in turns)
        rows = list(islice((one for one in made if one is not None), EPISODES))
        measured = _write_merged(folder / MERGED, target, checkpoint, found, chat, rows, dtype)
    if command is not None:
        say("GGUF file")
        (folder / GGUF).mkdir()
        name = f"{target.name}-{checkpoint.name}-{gguf.OUTTYPES[dtype]}.gguf"
        gguf.convert(command, folder / MERGED, folder / GGUF / name, dtype=dtype)
        if MERGED not in forms:
            shutil.rmtree(folder / MERGED)
    about = about_run(
        target, checkpoint, base=base, dtype=dtype, best=best, talk=talk(recipe, chat, turns), measured=measured
    )
    files = {form: _hashes(folder / form) for form in forms}
    for form in forms:
        if form != GGUF:
            write_json(folder / form / EXPORTED, settings(recipe, dtype=None if form == ADAPTER else dtype))
        write_text(folder / form / "README.md", card(about, form, files[form]))
    return {"dtype": dtype, "gap": asdict(measured) if measured else None, "sha256": files}


def _write_merged(
    folder: Path,
    target: Target,
    checkpoint: Path,
    found: checkpoints.Checkpoint,
    chat: Chat,
    rows: Sequence[Row],
    dtype: str,
) -> Gap | None:
    """Writes the merged model, reads it back, and compares it with the policy; no two models are held at once."""
    recipe, scores, policy = target.recipe, None, None
    temperature = recipe.rollout.temperature
    if rows:
        policy = _policy(target, checkpoint, found, quantization=recipe.model.quantization)
        scores = judge(policy, rows, temperature=temperature)
    if policy is None or recipe.model.quantization != "none":
        policy = None  # before the next one is loaded
        policy = _policy(target, checkpoint, found, quantization="none")
    _write_model(merge(policy, getattr(torch, dtype)), folder, chat, recipe)
    policy = None
    if scores is None:
        return None
    return gap(rows, scores, judge(load(str(folder), dtype=dtype), rows, temperature=temperature))


def _model_name(target: Target) -> str:
    """The model to load: a new one lies in its run."""
    return f"{target.folder}/model" if target.recipe.model.new else target.recipe.model.name


def _policy(target: Target, checkpoint: Path, found: checkpoints.Checkpoint, *, quantization: str) -> Policy:
    """The policy of a checkpoint; what the run's training started from need not be there any more."""
    model = target.recipe.model
    policy = load(_model_name(target), dtype="float32" if model.new else model.dtype, quantization=quantization)
    if found.adapter_config:
        return with_adapter(policy, checkpoint / "adapter")
    policy.load_adapter_tensors(found.adapter)
    return policy


def _write_adapter(folder: Path, checkpoint: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir()
    name = Path(checkpoints.ADAPTER).name
    shutil.copyfile(checkpoint / checkpoints.ADAPTER, folder / name)
    write_json(folder / Path(checkpoints.CONFIG).name, dict(config))


def _write_model(policy: Policy, folder: Path, chat: Chat, recipe: Recipe) -> None:
    generation = _generation(recipe, chat)
    config = policy.causal.config.get_text_config()
    config.eos_token_id, config.pad_token_id = generation.eos_token_id, generation.pad_token_id
    policy.causal.generation_config = generation
    policy.causal.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):  # which safetensors lets nobody else read
        weights.chmod((folder / "config.json").stat().st_mode)
    policy.tokenizer.save_pretrained(folder)


def _generation(recipe: Recipe, chat: Chat) -> Any:
    """How the policy answers: as in training, and what ends an answer."""
    from transformers import GenerationConfig

    stop = chat.close[-1]
    others = sorted(chat.stop_ids - {stop})
    tokenizer = chat.tokenizer
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[stop, *others] if others else stop,
        pad_token_id=stop if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        do_sample=True,
        temperature=recipe.rollout.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=recipe.rollout.turn_tokens,
    )


def _hashes(folder: Path) -> dict[str, str]:
    """Of the weights in a folder."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".gguf"))
    return {path.name: sha256(path) for path in found}


def _sync(folder: Path) -> None:
    """Puts everything in a folder on the disk, before its name says that it is whole."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Checkpoints: adapter, optimizer and the state of the loop, saved so that a kill never costs one.

A checkpoint is a folder ``step-000100``::

    adapter/adapter_model.safetensors   the adapter, in PEFT's format
    adapter/adapter_config.json
    optimizer.safetensors               see ``optimizer_tensors``
    state.json                          the loop's state, and the hashes of all files

Written under a temporary name and renamed, so what has its name is complete. Nothing is unpickled.
Where all weights of a model are trained, its named parameters take the adapter's place.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from bmrl.atomic import (
    TEMPORARY,
    disk_errors,
    remove_temporary,
    sync_folder,
    temporary_suffix,
    write_bytes,
)
from bmrl.errors import BmrlError
from bmrl.run_folder import checkpoints

FORMAT = 1
ADAPTER, CONFIG = "adapter/adapter_model.safetensors", "adapter/adapter_config.json"
OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
REPLACED = ".replaced-"  # an older checkpoint of the same step, while the new one takes its place


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What ``load`` returns; tensors are on the CPU."""

    step: int
    adapter: dict[str, Tensor]
    adapter_config: dict[str, Any]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path,
    step: int,
    *,
    adapter: Mapping[str, Tensor],
    adapter_config: Mapping[str, Any],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Save a checkpoint as ``folder/step-000100``; one of the same step is replaced.

    Args:
        folder: the run's ``checkpoints`` folder; made when missing.
        adapter: named tensors on any device.
        optimizer: from ``optimizer_tensors``.
        state: JSON data of the caller.

    Raises:
        BmrlError: the disk is full or forbidden; earlier checkpoints are as before.
    """
    files = {
        ADAPTER: _tensor_bytes(adapter),
        CONFIG: _json_bytes(adapter_config),
        OPTIMIZER: _tensor_bytes(optimizer),
    }
    manifest = {
        "format": FORMAT,
        "step": step,
        "sha256": {name: _sha256(data) for name, data in files.items()},
        "state_sha256": _sha256(_json_bytes(state)),
        "state": dict(state),
    }
    target = folder / f"step-{step:06d}"
    temporary = folder / (target.name + temporary_suffix())
    try:
        for name, data in files.items():
            write_bytes(temporary / name, data)
        write_bytes(temporary / STATE, _json_bytes(manifest))
        with disk_errors(target.name):
            sync_folder(temporary)
            _replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load(path: Path) -> Checkpoint:
    """Read a checkpoint folder and verify every hash.

    Raises:
        BmrlError: a file is missing or damaged, or another version of bmrl wrote it.
    """
    manifest = _manifest(path)
    data = {}
    for name in (ADAPTER, CONFIG, OPTIMIZER):
        data[name] = _read(path, name)
        if _sha256(data[name]) != manifest["sha256"].get(name):
            raise _damaged(path, name, "its hash is not the one in state.json")
    try:
        return Checkpoint(
            step=manifest["step"],
            adapter=safetensors.load(data[ADAPTER]),
            adapter_config=json.loads(data[CONFIG]),
            optimizer=safetensors.load(data[OPTIMIZER]),
            state=manifest["state"],
        )
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, "its tensors", str(error).splitlines()[0]) from error


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def latest(folder: Path, warn: Callable[[str], object] = _to_stderr) -> Path | None:
    """The newest undamaged checkpoint, or None.

    Args:
        warn: takes one line for each damaged one that was passed over; stderr by default.
    """
    finished = checkpoints(folder)
    for step in sorted(finished, reverse=True):
        try:
            load(finished[step])
        except BmrlError as error:
            warn(f"warning: passing over {error}")
        else:
            return finished[step]
    return None


def prune(folder: Path, keep: int, spare: Collection[int] = ()) -> None:
    """Remove all but the ``keep`` (at least 1) newest finished checkpoints and those of the steps ``spare``."""
    finished = checkpoints(folder)
    for step in sorted(finished)[: -max(keep, 1)]:
        if step not in spare:
            _remove(finished[step])


def forget_after(folder: Path, step: int) -> None:
    """Remove the finished checkpoints of later steps."""
    for later, path in checkpoints(folder).items():
        if later > step:
            _remove(path)


def clean(folder: Path) -> None:
    """Remove what killed runs left behind; a checkpoint that was being replaced comes back.

    Call it under the run's lock: another process may be writing the temporary folders.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if REPLACED in path.name:
            target = folder / path.name.split(REPLACED)[0]
            if target.exists():
                shutil.rmtree(path)
            else:
                path.rename(target)
    remove_temporary(folder)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Iterable[str]) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: ``exp_avg/<name>``, ``step/<name>`` and so on.

    Learning rate, betas and the like are not in it: they follow from the recipe and the step.

    Args:
        names: names of the optimizer's parameters, in its order.
    """
    tensors = {}
    for name, parameter in zip(names, _parameters(optimizer), strict=True):
        for slot, value in optimizer.state.get(parameter, {}).items():
            # A step counted in a Python int becomes a 0-d int64 tensor, and comes back as an int.
            tensors[f"{slot}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, names: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` took out, bit for bit.

    Raises:
        BmrlError: the tensors belong to other parameters.
    """
    known = list(names)
    by_name = dict(zip(known, _parameters(optimizer), strict=True))
    restored: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        slot, _, name = key.partition("/")
        parameter = by_name.get(name)
        if parameter is None or (slot.startswith("exp_avg") and tensor.shape != parameter.shape):
            raise BmrlError(
                f"the checkpoint's optimizer state {key!r} fits no trained parameter; resume with "
                "the model and the adapter settings of the run"
            )
        restored.setdefault(name, {})[slot] = _placed(optimizer, slot, tensor, parameter)
    optimizer.state.clear()
    for name, slots in restored.items():
        optimizer.state[by_name[name]] = slots


def _placed(optimizer: Any, slot: str, tensor: Tensor, parameter: Tensor) -> Any:
    if tensor.dtype is torch.int64 and tensor.dim() == 0:
        return int(tensor)
    if getattr(optimizer, "is_paged", False) and tensor.shape == parameter.shape:
        # bitsandbytes moves only memory that it took itself out of a full card.
        return optimizer.get_state_buffer(parameter, dtype=tensor.dtype).copy_(tensor)
    # torch keeps the step counter on the CPU: the update reads it as a number.
    device = "cpu" if slot == "step" else parameter.device
    return tensor.to(device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    # Copies, because safetensors refuses tensors that share memory, such as tied weights.
    copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
    return safetensors.save(copies, metadata={"format": "pt"})


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _replace(temporary: Path, target: Path) -> None:
    # A folder cannot be renamed over another, so the old one steps aside; ``clean`` brings it back
    # after a kill in between.
    aside = target.with_name(target.name + REPLACED + temporary.name.split(TEMPORARY)[1])
    replacing = target.exists()
    if replacing:
        target.rename(aside)
    temporary.rename(target)
    sync_folder(target.parent)
    if replacing:
        shutil.rmtree(aside)


def _remove(path: Path) -> None:
    # Renamed first: a kill halfway through must not leave half a checkpoint under its name.
    doomed = path.with_name(path.name + temporary_suffix())
    path.rename(doomed)
    shutil.rmtree(doomed)


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise _damaged(path, name, error.strerror or "unreadable") from error


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(_read(path, STATE))
        if manifest["format"] != FORMAT:
            raise BmrlError(
                f"{path.name}/{STATE}: checkpoint format {manifest['format']}, this bmrl reads "
                f"{FORMAT}; use the version of bmrl that wrote it"
            )
        sound = manifest["state_sha256"] == _sha256(_json_bytes(manifest["state"]))
        sound = sound and isinstance(manifest["step"], int) and isinstance(manifest["sha256"], dict)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, STATE, "not what bmrl wrote") from error
    if not sound:
        raise _damaged(path, STATE, "its hash does not match")
    return dict(manifest)


def _damaged(path: Path, name: str, problem: str) -> BmrlError:
    return BmrlError(
        f"{path.name}/{name}: damaged ({problem}); remove the folder {path.name} and resume from an earlier checkpoint"
    )

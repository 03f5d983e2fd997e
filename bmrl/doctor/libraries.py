"""bitsandbytes, unsloth and the model hub, from what their probes found."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bmrl.doctor.finding import Finding, note, ok, problem
from bmrl.doctor.packages import range_of

YES = {"1", "ON", "YES", "TRUE"}  # as the hub's library reads its switches


def examine_bitsandbytes(found: Mapping[str, Any], *, needed: bool) -> Iterator[Finding]:
    """Whether its kernels run here."""
    again = f"pip install --force-reinstall '{range_of('bitsandbytes')}', or set model.quantization=none and "
    again += "optimizer.name=adamw"
    if "error" in found:
        yield problem("bitsandbytes", f"cannot be used: {found['error']}", again, blocks=needed)
    elif found["faults"]:
        text = f"its kernels fail on {found['device']}: {'; '.join(found['faults'])}"
        yield problem("bitsandbytes", text, again, blocks=needed)
    else:
        yield ok("bitsandbytes", f"{found['version']}: 4 bit and the 8-bit optimizer run on {found['device']}")


def examine_unsloth(found: Mapping[str, Any], *, needed: bool) -> Iterator[Finding]:
    """Whether it can be imported."""
    if "error" in found:
        remedy = "pip install 'bmrl[unsloth]' in an environment of its own, or set model.backend=transformers"
        yield problem("unsloth", f"cannot be imported: {found['error']}", remedy, blocks=needed)
    else:
        yield ok("unsloth", f"{found['version']} can be imported")


def offline() -> bool:
    """Whether the hub's library has been told not to ask the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in YES


def examine_hub(found: Mapping[str, Any] | None, *, model: str | None) -> Iterator[Finding]:
    """Whether the hub answers, and whether there is a token for it.

    Args:
        found: what the probe found; None: it was not asked.
        model: hub model of the recipe that is asked about, where it is on this disk.
    """
    fine = f"; {model} is on this disk, so that is fine" if model else ""
    name = "the hub of $HF_ENDPOINT" if os.environ.get("HF_ENDPOINT") else "huggingface.co"
    if found is None:
        yield note("hub", f"not asked, for HF_HUB_OFFLINE is set{fine}")
    elif "error" in found:
        yield note("hub", f"{name} does not answer ({found['error']}){fine or '; models must be on this disk'}")
    else:
        yield ok("hub", f"{name} answers")
    token = Path(os.environ.get("HF_TOKEN_PATH") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "token")
    try:
        there = bool(os.environ.get("HF_TOKEN")) or token.expanduser().is_file()
    except (OSError, RuntimeError):
        there = False
    without = "no token; only gated models need one: hf auth login"
    yield ok("hub", "a token is there") if there else note("hub", without)

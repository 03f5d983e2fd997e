"""Which library loads a model, and how it is started. Nothing here imports torch or transformers by itself.

unsloth changes transformers and trl as it is imported, and asks to come first: a program that is to use it says so
here before it imports anything that imports transformers.
"""

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

from bmrl.errors import BmrlError
from bmrl.models import find, gguf, read_json

INSTALL = "pip install 'bmrl[unsloth]'"
# Model types that unsloth has forwards of its own for on a card, which ``bmrl.policy.unsloth`` was written against.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def installed() -> bool:
    """Whether unsloth can be found."""
    return find_spec("unsloth") is not None


def choose(asked: str, *, name: str, dtype: str, gpu: bool) -> tuple[str, str | None]:
    """The backend for a model, and in one line what was taken and why; nothing to say where it was asked for.

    Args:
        asked: ``auto``, ``transformers`` or ``unsloth``.
        name: of the model.
        dtype: of its weights.
        gpu: whether there is an NVIDIA card.
    """
    if asked != "auto":
        return asked, None
    kind = family(name)
    if not gpu:
        return "transformers", None  # nothing else is ever taken there, so there is nothing to tell
    if not installed():
        reason = f"unsloth is not installed ({INSTALL})"
    elif kind not in FAMILIES:
        reason = f"unsloth is used for {', '.join(FAMILIES)}, not for {kind or 'a model without a config.json here'}"
    elif dtype != "bfloat16":
        reason = f"unsloth computes in 16 bit, model.dtype is {dtype}"
    else:
        return "unsloth", f"model.backend auto: unsloth, which is installed and knows {kind}"
    return "transformers", f"model.backend auto: transformers; {reason}"


def family(name: str) -> str | None:
    """``model_type`` of a model on this disk; None where nothing tells it."""
    path = find(name).path
    if path is not None and path.suffix == ".gguf":
        with contextlib.suppress(OSError, ValueError):
            return gguf.read(path).architecture or None
    kind = read_json(path / "config.json").get("model_type") if path is not None else None
    return kind if isinstance(kind, str) else None


def start() -> None:
    """Imports unsloth, without its banner, its statistics, and the folder that it would make where one works.

    Raises:
        BmrlError: it is not installed, or does not work beside what is.
    """
    if sys.modules.get("unsloth") is not None:
        return
    if not installed():
        raise BmrlError(f"model.backend: unsloth is not installed; {INSTALL}, or set model.backend=transformers")
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")  # it would fetch a file from the hub to be counted
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(Path(tempfile.gettempdir()) / "unsloth_compiled_cache"))
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # kernels that this machine has no use for
    try:
        # Results go to stdout, and the only warning of interest, of being late, changes nothing: see docs/backends.md.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import unsloth  # noqa: F401
    except Exception as error:  # it raises several kinds, for several packages beside it
        problem = " ".join(str(error).split())[:240]
        raise BmrlError(
            f"model.backend: unsloth cannot be imported: {problem}; set model.backend=transformers"
        ) from error
    finally:
        logging.disable(level)

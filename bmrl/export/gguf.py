"""A GGUF file of a model folder, by a converter that is on this machine: llama.cpp's, or unsloth."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bmrl.errors import BmrlError, UsageError

SCRIPT = "convert_hf_to_gguf.py"
OUTTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
# Runs in a process of its own: on import unsloth changes transformers for good. It writes into a folder whose name
# follows from the one it is given.
_UNSLOTH = """
import sys
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(sys.argv[1], load_in_4bit=False)
model.save_pretrained_gguf(sys.argv[2], tokenizer, quantization_method=sys.argv[3])
"""


def converter(given: str | None) -> list[str]:
    """The beginning of the command that converts.

    Args:
        given: llama.cpp's folder or its script; ``$LLAMA_CPP`` when None, then the PATH, then unsloth.

    Raises:
        UsageError: there is none.
    """
    named, source = (given, "--llama-cpp") if given else (os.environ.get("LLAMA_CPP"), "LLAMA_CPP")
    if named:
        path = Path(named).expanduser()
        script = path / SCRIPT if path.is_dir() else path
        if not script.is_file():
            raise UsageError(f"{source}: {named} holds no {SCRIPT}; name the folder of llama.cpp's sources")
        return [sys.executable, str(script.absolute())]  # it runs in another folder
    if (found := shutil.which(SCRIPT)) is not None:
        return [found]  # with the Python that its first line names
    if find_spec("unsloth") is not None:
        return [sys.executable, "-c", _UNSLOTH]
    raise UsageError(
        f"--format gguf needs llama.cpp's {SCRIPT}, named by --llama-cpp DIR, $LLAMA_CPP or the PATH, "
        "or unsloth: pip install 'bmrl[unsloth]'"
    )


def convert(command: Sequence[str], model: Path, target: Path, *, dtype: str) -> None:
    """Writes ``target`` from a model folder.

    Args:
        command: from ``converter``.
        dtype: ``bfloat16``, ``float16`` or ``float32``.

    Raises:
        BmrlError: the converter fails, would misread the tokenizer, or writes no GGUF file.
    """
    _check_tokenizer(model)
    outtype = OUTTYPES[dtype]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        if _UNSLOTH in command:
            name, arguments = "unsloth", [str(model.absolute()), str(Path(scratch).absolute() / "made"), outtype]
        else:
            name = SCRIPT
            arguments = [str(model.absolute()), "--outfile", str(made.absolute()), "--outtype", outtype]
        try:
            done = subprocess.run([*command, *arguments], cwd=scratch, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise BmrlError(f"{name} cannot be run: {(error.strerror or 'unknown error').lower()}") from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1].strip()
            said = said.replace(str(model.absolute()), model.name)[:240]
            raise BmrlError(f"{name} failed with exit code {done.returncode}: {said}")
        written = [path for path in sorted(Path(scratch).rglob("*.gguf")) if _is_gguf(path)]
        if not written:
            raise BmrlError(f"{name} ended well, but wrote no GGUF file; does it know this kind of model?")
        written[0].rename(target)


def _check_tokenizer(model: Path) -> None:
    """Refuses a tokenizer that transformers has read from a GGUF file.

    It says of a byte-level vocabulary that it falls back to bytes, by which llama.cpp's converter takes it for a
    SentencePiece one: the file would be written, and read every text wrongly.
    """
    try:
        tokenizer = json.loads((model / "tokenizer.json").read_bytes())
    except OSError:
        return
    if (tokenizer["model"] or {}).get("byte_fallback") and '"ByteLevel"' in json.dumps(tokenizer["pre_tokenizer"]):
        raise BmrlError(
            "--format gguf: the model's tokenizer was read from a GGUF file and cannot be written back into one; "
            "train on the model's original folder, or use --format merged"
        )


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"

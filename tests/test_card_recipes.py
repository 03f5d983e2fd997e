"""The recipes for one 24 GB card: what their headers say is what is computed."""

import re
from pathlib import Path

import pytest

from bmrl import architecture, memory
from bmrl.budgets import mean_turns
from bmrl.files import recipes_path
from bmrl.recipe import Recipe, load
from bmrl.workload import Tokens, of_run

CARD = sorted(recipes_path().glob("alfworld_*.yaml"))
ARMS = [path for path in CARD if not path.stem.endswith("_sft")]
DOCS = Path(__file__).resolve().parents[1] / "docs"


def header(path: Path, label: str) -> str:
    (line,) = re.findall(rf"(?m)^# {label}: (.*)$", path.read_text(encoding="utf-8"))
    return str(line)


def recipe(path: Path) -> Recipe:
    return load(path)


def test_every_model_has_a_warm_start_and_two_arms():
    both = [f"alfworld{size}_{kind}" for size in ("", "_3b", "_7b") for kind in ("fixed", "mix", "sft")]
    assert [path.stem for path in CARD] == sorted([*both, "alfworld_adaptive", "alfworld_curriculum"])


@pytest.mark.parametrize("path", CARD, ids=lambda path: path.stem)
def test_memory_in_the_header_is_the_estimate_and_fits(path):
    found = recipe(path)
    estimate = memory.estimate(found, architecture.find(found.model.name), vram_gb=24)
    assert estimate.fits
    assert header(path, "Memory").startswith(f"{estimate.total_gb:.1f} GB, ")


@pytest.mark.parametrize("path", CARD, ids=lambda path: path.stem)
def test_time_in_the_header_follows_from_its_rates(path):
    said = header(path, "Time")
    hours, *told = (
        float(number.replace(",", "")) for number in re.findall(r"[\d,]*\d(?:\.\d)?", said.partition("(")[0])
    )
    rates = Tokens(trained=told[0]) if len(told) == 1 else Tokens(*told)
    assert of_run(recipe(path)).hours(rates) == pytest.approx(hours, abs=0.05)
    assert hours <= 8  # a night
    row = " | ".join(f"{rate:,.0f}" for rate in told)
    assert f"{row} |" in (DOCS / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ARMS, ids=lambda path: path.stem)
def test_arms_start_from_the_warm_start_of_their_model(path):
    arm = recipe(path)
    warm = recipe(path.with_name(re.sub("_(mix|fixed|curriculum|adaptive)$", "_sft", path.stem) + ".yaml"))
    assert arm.model.adapter == f"runs/{warm.name}/adapter"
    assert (arm.model.name, arm.lora, arm.env) == (warm.model.name, warm.lora, warm.env)
    assert arm.rollout.group_size == 8 and 3e-6 <= arm.optimizer.learning_rate <= 1e-5
    assert header(path, "Hardware").endswith("not yet measured on one.")


@pytest.mark.parametrize("mix", [path for path in ARMS if path.stem.endswith("_mix")], ids=lambda path: path.stem)
def test_arms_of_a_model_have_as_many_turns(mix):
    arms = [recipe(path) for path in (mix, mix.with_name(mix.name.replace("_mix", "_fixed")))]
    turns = [arm.train.steps * mean_turns(arm.budget.train) for arm in arms]
    assert turns[0] == pytest.approx(turns[1], rel=0.01)

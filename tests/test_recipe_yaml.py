"""How a recipe's YAML is read: scalars, places, overrides, files that are no recipe."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmrl.errors import RecipeError
from bmrl.files import recipes_path
from bmrl.recipe import load
from bmrl.recipe.reader import MAX_BYTES, scalar
from tests.test_recipe import GOOD, mistakes, written

SCALARS: list[tuple[str, Any]] = [
    ("1e-5", 1e-5),  # PyYAML: text
    ("1.0e-5", 1e-5),
    ("-.5", -0.5),
    ("1.10", 1.1),
    ("007", 7),  # PyYAML: octal
    ("0o17", 15),
    ("0x1F", 31),
    ("+3", 3),
    ("1_000", "1_000"),  # PyYAML: 1000
    ("12:30", "12:30"),  # PyYAML: 750
    ("2026-01-01", "2026-01-01"),  # PyYAML: a date
    ("on", "on"),  # PyYAML: true
    ("off", "off"),
    ("yes", "yes"),
    ("No", "No"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("none", "none"),
    ("1e", "1e"),
    ("٣", "٣"),  # a digit, but not one of YAML's
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    read = scalar(text)
    assert read == value
    assert type(read) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_itself(number: float) -> None:
    assert scalar(repr(number)) == number


def test_quoted_scalars_stay_text(tmp_path: Path) -> None:
    recipe = load(written(tmp_path, GOOD + "model: {name: '1e-5', adapter: \"null\"}\n"))
    assert recipe.model.name == "1e-5"
    assert recipe.model.adapter == "null"


TRAPS = [
    ("budget: &b {}", "has an anchor (&b); write values out and remove it"),
    ("lora: *b", "refers to another place (*b); write the value out"),
    ("seed: !!int 5", "has a tag (tag:yaml.org,2002:int); a recipe is plain data, remove it"),
    ("seed: !python/object:os.system 5", "a recipe is plain data, remove it"),
    ("<<: {seed: 1}", "a merge key (<<); a recipe is complete in itself, write the keys out"),
    ("? [a, b]\n: 3", "a key must be a single word; check brackets and colons"),
    ("---\nname: b", "a second document starts; remove `---` and the rest"),
    ("model:\n\tname: x", "indent with spaces, not tabs"),
    ("model: name: x", "put a text that holds `: ` in quotes, or check the indentation"),
    ("model: [1, 2", "check brackets, quotes and indentation"),
    ("model: @x", "put the text in quotes"),
    ("model: \x07", "control character (code 7); remove it"),
]


@pytest.mark.parametrize(("lines", "said"), TRAPS, ids=[lines for lines, _ in TRAPS])
def test_traps_of_yaml_are_refused_with_their_line(tmp_path: Path, lines: str, said: str) -> None:
    text = GOOD.replace("budget:", "budgets:") if lines.startswith("budget") else GOOD
    found = mistakes(tmp_path, text + lines + "\n")
    assert any(said in line for line in found), found
    assert all(line.startswith("r.yaml:") for line in found)
    assert any(line.split(":")[1] in ("4", "5", "6") for line in found if said in line)


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    def said(content: bytes) -> list[str]:
        path = tmp_path / "r.yaml"
        path.write_bytes(content)
        with pytest.raises(RecipeError) as caught:
            load(path)
        return [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]

    empty = ["r.yaml: is empty; start from a packaged recipe: bmrl new NAME"]
    assert said(b"") == empty
    assert said(b"# only a comment\n") == empty
    assert said(b"- a\n- b\n") == ["r.yaml:1: the file holds a list; a recipe is `key: value` lines"]
    assert said(b"hello\n") == ["r.yaml:1: the file holds a single value; a recipe is `key: value` lines"]
    assert said(b"name: a\nseed: \xff\n") == ["r.yaml:2: not UTF-8 text; save the recipe as UTF-8"]
    assert said(b"name: a\n\0") == ["r.yaml:2: a binary file; a recipe is YAML text"]
    assert said(b"#" * (MAX_BYTES + 1)) == ["r.yaml: larger than 32,000 bytes; this is no recipe"]
    (deep,) = said(b"[" * 20_000)
    assert deep.endswith("nested too deeply; a recipe has no such key")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        with pytest.raises(RecipeError) as caught:
            load(path)
        (line,) = caught.value.problems
        return line

    assert said(tmp_path / "nope.yaml") == (f"{tmp_path}/nope.yaml: no such file; bmrl recipes lists the packaged ones")
    assert said(tmp_path) == f"{tmp_path}: is a folder; name a recipe file in it"
    assert "cannot be read" in said(tmp_path / ("x" * 300))  # longer than a file name may be
    if os.geteuid() != 0:  # root reads everything
        secret = written(tmp_path, GOOD)
        secret.chmod(0)
        assert "cannot be read (permission denied)" in said(secret)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(path).name == "good"


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, GOOD + 'lora: {"a\\u001b[31m\\n": 1}\n')
    assert line.startswith("r.yaml:4: lora.a\\x1b[31m\\n: unknown key;")


OVERRIDES: list[tuple[list[str], str, Any]] = [
    (["train.steps=5"], "train.steps", 5),
    (["train.steps=5", "train.steps=6"], "train.steps", 6),
    (["optimizer.learning_rate=1e-5"], "optimizer.learning_rate", 1e-5),
    (["model.name=a/b", "chat.system=a=b"], "chat.system", "a=b"),  # split at the first `=`
    (["budget.train.turns=9"], "budget.train.turns", 9),
    (["budget.train={kind: mix, turns: [2, 3]}"], "budget.train.turns", [2, 3]),
    (["budget.eval=[1, 2]", "budget.eval.0=7"], "budget.eval", [7, 2]),
    (["lora=null", "lora.rank=4"], "lora.rank", 4),
    (["env.args.admissible=true"], "env.args", {"admissible": True}),
    (["algorithm.name=rloo", "algorithm.truncation.budget=drop"], "algorithm.truncation.budget", "drop"),
]


@pytest.mark.parametrize(("overrides", "key", "value"), OVERRIDES)
def test_overrides(tmp_path: Path, overrides: list[str], key: str, value: Any) -> None:
    found: Any = load(written(tmp_path, GOOD), overrides)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


BAD_OVERRIDES = [
    ("steps", "--set steps: expected KEY=VALUE; for example --set train.steps=3"),
    ("=3", "--set =3: expected KEY=VALUE; for example --set train.steps=3"),
    ("train..steps=3", "--set train..steps=3: expected KEY=VALUE; for example --set train.steps=3"),
    (
        "train.steps=",
        "--set train.steps=: train.steps: no value after `=`; write null to unset a key",
    ),
    (
        "train.eval_tasks=#3",
        "--set train.eval_tasks=#3: train.eval_tasks: no value after `=`; write null to unset a key",
    ),
    (
        "env.args.source=/nowhere",
        "--set env.args.source=/nowhere: env.args.source: alfworld source '/nowhere': no such folder; give 'embedded', "
        "'official' or a folder of games",
    ),
    ("trian.steps=3", "--set trian.steps=3: trian: unknown key; did you mean train?"),
    (
        "train.steps.x=3",
        "--set train.steps.x=3: train.steps: has no keys; set it as a whole",
    ),
    (
        "budget.train={kind: fixed}",
        "--set budget.train={kind: fixed}: budget.train.turns: missing; add it: the budget, turns",
    ),
    (
        "budget.eval=[",
        "--set budget.eval=[: budget.eval: not valid YAML (expected the node content, but found "
        "'<stream end>'); check brackets, quotes and indentation",
    ),
    (
        "lora.dropout=0.5",
        "--set lora.dropout=0.5: lora.dropout: 0.5 with `train`; set 0, or the update is not on-policy",
    ),
]


@pytest.mark.parametrize(("override", "said"), BAD_OVERRIDES)
def test_mistakes_of_overrides_name_the_override(tmp_path: Path, override: str, said: str) -> None:
    assert mistakes(tmp_path, GOOD, override) == [said]


def test_an_override_names_the_place_in_a_list(tmp_path: Path) -> None:
    text = GOOD.replace("turns: 8}}", "turns: 8}, eval: [4]}")
    assert mistakes(tmp_path, text, "budget.eval.1=3") == [
        "--set budget.eval.1=3: budget.eval.1: no such entry; the list has 1, counted from 0"
    ]
    (line,) = mistakes(tmp_path, text, f"budget.eval.{'9' * 5000}=3")
    assert line.endswith("no such entry; the list has 1, counted from 0")


def test_damaged_recipes_give_lines_never_a_crash(tmp_path: Path) -> None:
    """Characters that mean something in YAML, put at random places of a packaged recipe."""
    pieces = ["[", "]", "{", "}", ":", " ", "- ", "&a", "*a", "!!x ", "|", ">", "'", '"', "#", "\n"]
    pieces += ["\t", "1e400", "~", "~x/", "<<: ", "? ", ",", "%", "@", "\u2028", "null", "9" * 50]
    text = recipes_path("quickstart.yaml").read_text(encoding="utf-8")
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = list(text)
        for _ in range(rng.randint(1, 4)):
            damaged.insert(rng.randrange(len(damaged)), rng.choice(pieces))
        override = "".join(rng.choice([*pieces, "model.name=", "train="]) for _ in range(4))
        try:
            load(written(tmp_path, "".join(damaged)), [override])
        except RecipeError as error:
            refused += 1
            for line in error.problems:
                assert len(line.splitlines()) == 1
                assert "Input should" not in line
    assert refused > 250


PACKAGED = sorted(recipes_path().rglob("*.yaml"))


def test_there_are_packaged_recipes() -> None:
    names = {path.stem for path in PACKAGED}
    assert {"quickstart", "pocket_sft", "pocket_mix", "pocket_fixed"} <= names
    assert {"alfworld_sft", "alfworld_mix"} <= names


@pytest.mark.parametrize("path", PACKAGED, ids=[path.stem for path in PACKAGED])
def test_packaged_recipes_are_valid_and_introduce_themselves(path: Path) -> None:
    recipe = load(path)
    assert recipe.name == path.stem
    about, hardware, run, change = path.read_text(encoding="utf-8").splitlines()[:4]
    assert about.startswith("# ")
    assert hardware.startswith("# Hardware: ")
    kind = "sft" if recipe.sft else "train"
    assert run == f"# Run: bmrl {kind} recipes/{path.name}"
    assert f"bmrl {kind} recipes/{path.name} --set" in change


def test_the_two_sides_of_the_comparison_differ_in_the_budget_only() -> None:
    mix, fixed = (load(recipes_path(f"pocket_{side}.yaml")) for side in ("mix", "fixed"))
    # Shorter budgets make shorter steps. Episodes of the embedded policy use some 70 % of their budget, whatever it
    # is, so that equal sums of budgets are about equal turns: 40 x 17.5 and 25 x 30.
    assert mix.train and fixed.train
    assert abs(mix.train.steps * 17.5 / (fixed.train.steps * 30) - 1) < 0.1
    plain = {"name": "", "train": mix.train.model_copy(update={"steps": 1, "eval_every": 1})}
    assert fixed.train.model_copy(update={"steps": 1, "eval_every": 1}) == plain["train"]
    same = {**plain, "budget": mix.budget.model_copy(update={"train": None})}
    other = {**plain, "budget": fixed.budget.model_copy(update={"train": None})}
    assert mix.model_copy(update=same) == fixed.model_copy(update=other)

"""The command line: exit codes, one line per mistake, what it hands on."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import bmrl
from bmrl import run_folder
from bmrl.cli import bmrl as commands
from bmrl.cli import main
from bmrl.errors import BmrlError, Interrupted
from bmrl.files import recipes_path
from bmrl.recipe import load, resolved

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Puts a fake in the place of `bmrl.run`, which would train; its calls are collected."""
    made: list[Any] = []

    def train(recipe: Any, **options: Any) -> Path:
        made.append((recipe, options))
        return Path("runs/fake")

    def evaluate(target: Any, **options: Any) -> dict[str, Any]:
        made.append((target, options))
        return {"target": target.name, "budgets": []}

    fake = SimpleNamespace(train=train, sft=train, evaluate=evaluate)
    monkeypatch.setattr(bmrl, "run", fake, raising=False)
    return made


COMMANDS = [
    [],
    *(
        [name]
        for name in (
            "train",
            "sft",
            "eval",
            "compare",
            "diagnose",
            "report",
            "check",
            "recipes",
            "new",
            "play",
            "games",
        )
    ),
    ["games", "make"],
    *(["games", name] for name in ("info", "verify", "play")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "bmrl")
def test_every_help_ends_with_an_example(run: Run, command: list[str]) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    last = out.strip().splitlines()[-1]
    assert last.strip().startswith(f"Example: {' '.join(['bmrl', *command])}")


WRONG = [
    ([], ["no command given; see bmrl --help"]),
    (["evl"], ["no such command evl; did you mean eval?; see bmrl --help"]),
    (
        ["frobnicate"],
        [
            "no such command frobnicate; commands: check, compare, diagnose, doctor, eval, export, games, new, "
            "play, recipes, report, sft, train; see bmrl --help"
        ],
    ),
    (["games", "mak"], ["no such command mak; did you mean make?; see bmrl games --help"]),
    (["train"], ["missing argument 'RECIPE'; see bmrl train --help"]),
    (["recipes", "x"], ["unexpected argument x; see bmrl recipes --help"]),
    (["eval", "--budget"], ["option '--budget' requires an argument; see bmrl eval --help"]),
    (
        ["eval", "--temperature", "nan"],
        ["invalid value for '--temperature': nan is not in the range 0<=x<=100; see bmrl eval --help"],
    ),
    (
        ["eval", "--checkpoint", "9" * 5000],
        ["invalid value for '--checkpoint': '" + "9" * 5000 + "' is none of last, best and a step number; see bmrl eval --help"],
    ),
    (["eval", "--zzz"], ["no such option --zzz; see bmrl eval --help"]),
    (
        ["check", "quickstart", "--debug"],
        ["no such option --debug here; it goes before the command: bmrl --debug …; "
         "see bmrl check --help"],
    ),
    (
        # every mistake at once; the 4 belongs to the misspelled option
        ["eval", "--bugdet", "4", "--tasks", "0", "--checkpoint", "new"],
        [
            "no such option --bugdet; did you mean --budget?; see bmrl eval --help",
            "invalid value for '--tasks': 0 is not in the range x>=1; see bmrl eval --help",
            "invalid value for '--checkpoint': 'new' is none of last, best and a step number; "
            "see bmrl eval --help",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda a: " ".join(a)[:40])
def test_wrong_use(run: Run, arguments: list[str], said: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines() == [f"bmrl: {line}" for line in said]


def test_mistakes_of_a_recipe_are_lines_of_their_own_and_nothing_is_written(
    run: Run, calls: list[Any], tmp_path: Path
) -> None:
    Path("r.yaml").write_text("name: x\nbudgt: 3\ntrain: {steps: 0}\n", encoding="utf-8")
    for command in ("train", "sft", "check"):
        code, out, err = run(command, "r.yaml", "--set", "seed=x")
        assert (code, out) == (2, "")
        assert [line.split("; ")[0] for line in err.splitlines()] == [
            "r.yaml:2: budgt: unknown key",
            "r.yaml:3: train.steps: must be at least 1, got 0",
            '--set seed=x: seed: expected a whole number, got text "x"',
        ]
    assert [path.name for path in tmp_path.iterdir()] == ["r.yaml"]
    assert calls == []


def test_train_hands_on_what_was_asked(run: Run, calls: list[Any]) -> None:
    source = recipes_path("quickstart.yaml")
    run_folder.create(Path("runs"), "", resolved(load(source, ["train.steps=3"])), {}, Path("r"))
    # A packaged recipe by its path in a clone, although this folder has no recipes/.
    code, out, _ = run("train", "recipes/quickstart.yaml", "--set", "train.steps=3", "--run", "r", "--resume")
    assert (code, out) == (0, "runs/fake\n")
    ((recipe, options),) = calls
    assert recipe.train.steps == 3
    assert options == {
        "source": source,
        "run_dir": Path("r"),
        "resume": True,
    }


def test_the_other_kind_of_training_is_named(run: Run, calls: list[Any]) -> None:
    code, _, err = run("train", "pocket_sft")
    assert code == 2
    assert err == "bmrl: pocket_sft has no `train` section; run it with: bmrl sft pocket_sft\n"
    assert run("sft", "pocket_sft")[0] == 0
    assert len(calls) == 1


def test_an_unknown_recipe(run: Run) -> None:
    assert run("train", "quikstart") == (
        2,
        "",
        "bmrl: quikstart is neither a file nor a packaged recipe; did you mean quickstart?\n",
    )
    assert run("train", "x/quickstart.yaml") == (
        2,
        "",
        "x/quickstart.yaml: no such file; bmrl recipes lists the packaged ones\n",
    )


def test_a_recipe_that_this_machine_cannot_run(run: Run, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, err = run("train", "alfworld_mix")
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("bmrl: alfworld_mix cannot run here: no NVIDIA GPU is visible")
    assert line.endswith("; what can: bmrl train recipes/quickstart.yaml")
    assert calls == []
    assert run("check", "alfworld_mix")[0] == 0


def test_eval_hands_on_what_was_asked(run: Run, calls: list[Any]) -> None:
    arguments = "eval pocket --budget 8 --budget 4 --budget 8 --seed 1 --seed 0 --split valid_seen"
    more = "--temperature 0 --tasks 5 --announce total --out o --json"
    code, out, _ = run(*arguments.split(), *more.split())
    assert code == 0
    assert json.loads(out) == {"target": "pocket", "budgets": []}
    ((target, options),) = calls
    assert (target.name, target.kind, target.step) == ("pocket", "model", None)
    assert options == {
        "budgets": [4, 8],
        "seeds": [0, 1],
        "split": "valid_seen",
        "temperature": 0.0,
        "tasks": 5,
        "announce": "total",
        "out": Path("o"),
        "check_truncation": False,
    }


def test_diagnose_hands_on_what_was_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def diagnose_targets(a: Any, b: Any, **options: Any) -> dict[str, Any]:
        made.append((a, b, options))
        return {"a": a.name}

    monkeypatch.setattr(bmrl, "run", SimpleNamespace(diagnose_targets=diagnose_targets), raising=False)
    arguments = "diagnose quickstart --against pocket --budget 8 --budget 4 --force 0 --force 2 --states 3 --json"
    code, out, _ = run(*arguments.split())
    assert (code, json.loads(out)) == (0, {"a": "quickstart"})
    ((a, b, options),) = made
    assert (a.kind, b.kind) == ("recipe", "model")
    given = {"budgets": [4, 8], "strengths": [2], "states": 3, "samples": 8, "bank": None, "seeds": []}
    assert given.items() <= options.items()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("nowhere --against pocket", "nowhere: neither a run"),
        ("pocket --against nowhere", "nowhere: neither a run"),
        ("pocket", "--against: pocket is no run, it has no start to be compared with; name a policy"),
        ("pocket --against expert", "expert has no model to be diagnosed"),
        ("pocket --against pocket --split nosuch", "--split: "),
        ("pocket --against pocket --checkpoint best", "--checkpoint best: pocket is no run folder"),
        ("pocket --against pocket --budget 0", "--budget"),
        ("pocket --against pocket --temperature nan", "--temperature"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_line(run: Run, arguments: str, told: str) -> None:
    code, out, err = run("diagnose", *arguments.split())
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if "Usage" not in line and "Try" not in line]
    assert told in line


FAILURES: list[tuple[BaseException, int, str]] = [
    (BmrlError("w.safetensors: damaged; install again"), 1, "bmrl: w.safetensors: damaged; install again\n"),
    (Interrupted("saved step 3; go on with --resume"), 130, "bmrl: saved step 3; go on with --resume\n"),
    (KeyboardInterrupt(), 130, "\nbmrl: interrupted\n"),
    (
        OSError(errno.ENOSPC, "No space left on device"),
        1,
        "bmrl: the disk is full; free space and run again, with --resume for a run\n",
    ),
    (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "bmrl: x: permission denied\n"),
    (
        ValueError("two\nlines"),
        1,
        "bmrl: internal error: ValueError: two lines; run again as `bmrl --debug …` for the traceback\n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "said"), FAILURES, ids=lambda e: type(e).__name__)
def test_failures_are_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def train(*_: Any, **__: Any) -> Path:
        raise error

    monkeypatch.setattr(bmrl, "run", SimpleNamespace(train=train), raising=False)
    assert run("train", "quickstart") == (code, "", said)


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> Path:
        raise ValueError("deep")

    monkeypatch.setattr(bmrl, "run", SimpleNamespace(train=train), raising=False)
    code, _, err = run("--debug", "train", "quickstart")
    assert code == 1
    assert "Traceback" in err
    assert "Traceback" not in run("train", "quickstart")[2]


def test_check_as_json(run: Run) -> None:
    code, out, _ = run("check", "quickstart", "--set", "seed=5", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["valid"] is True
    assert report["missing"] == []
    assert report["recipe"]["seed"] == 5
    assert report["context"]["largest_budget"] == 50


def test_recipes_are_listed_with_what_they_need(run: Run) -> None:
    code, out, _ = run("recipes")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 3 * len(list(recipes_path().glob("*.yaml")))
    at = lines.index("quickstart")
    assert lines[at + 2].strip().startswith("Hardware: 2 CPU cores")


def test_new_copies_under_a_new_name_and_overwrites_nothing(run: Run) -> None:
    assert run("new", "mine", "--from", "pocket_mix") == (0, "mine.yaml\n", "")
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "\nname: mine\n" in text
    assert "# Run: bmrl train mine.yaml\n" in text
    assert run("check", "mine.yaml")[0] == 0
    code, out, err = run("new", "mine")
    assert (code, out) == (2, "")
    assert err == "bmrl: mine.yaml exists; name another file with --out\n"
    assert Path("mine.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["123", "1e5", "0x1F", "true", "null", "Null", "no", "a.b-c_d", "1_000"])
@pytest.mark.parametrize("layout", ["name: quickstart", "name:   quickstart  # mine"])
def test_every_name_that_new_takes_is_one_that_check_takes(run: Run, tmp_path: Path, name: str, layout: str) -> None:
    text = recipes_path("quickstart.yaml").read_text().replace("name: quickstart", layout, 1)
    (tmp_path / "original.yaml").write_text(text)
    assert run("new", name, "--from", "original.yaml", "--out", "copy.yaml")[0] == 0
    assert load(tmp_path / "copy.yaml").name == name


def test_new_takes_any_file_name_and_leaves_nothing_where_it_fails(run: Run, tmp_path: Path) -> None:
    assert run("new", "mine", "--out", r"a\g<7>.yaml")[0] == 0
    for out in ("\udcff.yaml", "no/where.yaml"):
        code, _, err = run("new", "mine", "--out", out)
        assert code == 2 and len(err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [r"a\g<7>.yaml"]
    name_below = recipes_path("quickstart.yaml").read_text().replace("name: quickstart", "name:\n  quickstart", 1)
    (tmp_path / "odd.yaml").write_text(name_below)
    code, _, err = run("new", "mine", "--from", "odd.yaml")
    assert code == 2 and "copy it by hand" in err


def test_new_refuses_what_is_no_name_or_no_place(run: Run, tmp_path: Path) -> None:
    assert run("new", "a b")[2] == ("bmrl: a b is no recipe name; use at most 100 letters, digits, `.`, `_` and `-`\n")
    assert run("new", "a", "--out", "no/where.yaml")[2] == (
        "bmrl: no/where.yaml cannot be written (no such file or directory)\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_games_info_names_every_split(run: Run) -> None:
    code, out, _ = run("games", "info", "--json")
    assert code == 0
    found = json.loads(out)
    assert {name: split["games"] for name, split in found.items()} == {
        "train": 600,
        "valid_seen": 120,
        "valid_unseen": 120,
    }


def module(stdout: Any) -> tuple[int, str]:
    """Runs `python -m bmrl recipes` into a file: exit code, stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "bmrl", "recipes"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(bmrl.__file__).parent.parent)},
    )
    return done.returncode, done.stderr


def test_the_module_is_the_command() -> None:
    assert module(subprocess.DEVNULL) == (0, "")


def test_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert module(writing) == (1, "")
    finally:
        os.close(writing)


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        code, err = module(full)
    assert code == 1
    assert err == "bmrl: the disk is full; free space and run again, with --resume for a run\n"


def ranges(command: click.Command, path: str = "bmrl") -> Iterator[tuple[str, click.Option]]:
    """Every option of every command that takes a number from a range, with the command's name."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from ranges(inner, f"{path} {name}")
    for param in command.params:
        if isinstance(param, click.Option) and isinstance(param.type, click.FloatRange):
            yield path, param


def test_no_range_of_numbers_lets_nan_through() -> None:
    found = list(ranges(commands))
    assert len(found) > 3
    for path, option in found:
        with pytest.raises(click.BadParameter, match="nan is not in the range"):
            option.type.convert("nan", option, click.Context(click.Command(path)))


def test_vram_that_is_no_number_is_one_line(run: Run) -> None:
    code, _, err = run("check", "quickstart", "--vram", "nan")
    assert code == 2 and len(err.splitlines()) == 1

"""Environments of installed packages: found by entry point, told in one line when broken, trained in."""

import subprocess
import sys
from pathlib import Path

import pytest

from bmrl import baselines
from bmrl.cli import main
from bmrl.envs import check_env, environment, instructions, make, names
from bmrl.errors import RecipeError, UsageError
from bmrl.recipe import load
from bmrl.target import find

ROOT = Path(__file__).resolve().parent.parent
VAULT = (ROOT / "docs" / "examples" / "vault.py").read_text(encoding="utf-8")
RECIPE = """\
name: vault
model: {name: pocket, dtype: float32, context_tokens: 512, gradient_checkpointing: false}
lora: {rank: 4, alpha: 8}
env: {name: vault, args: {rooms: 3}, train_split: train, eval_split: valid_seen, workers: 1}
budget: {train: {kind: mix, turns: [2, 4]}, eval: [2, 4]}
rollout: {tasks_per_step: 2, group_size: 2, turn_tokens: 8}
reward: {invalid_action: -0.1}
train: {steps: 1, eval_every: 1, eval_tasks: 2}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution on the path: a folder of metadata, and its modules."""

    def put(entries: str, distribution: str = "bmrl-vault", **modules: str) -> Path:
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[bmrl.envs]\n{entries}\n")
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return tmp_path

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield put
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def told(action) -> str:
    with pytest.raises(UsageError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_installed_environment_is_one_like_bmrls_own(install):
    install("vault = own_vault:Vault", own_vault=VAULT)
    assert {"alfworld", "vault"} <= set(names())
    env = make("vault", rooms=3)
    task = env.tasks("train")[0]
    assert env.reset(task).startswith("There are 3 rooms in a row.")
    assert instructions("vault").startswith("The commands are: go left")
    assert check_env("vault") == []  # in worker processes, too


def test_nothing_is_imported_before_it_is_asked_for(install):
    install("vault = own_vault:Vault\nother = loud:World", own_vault=VAULT, loud="raise SystemExit('imported')")
    assert "other" in names()
    make("vault")
    assert "loud" not in sys.modules


@pytest.mark.parametrize(
    ("entry", "module", "error"),
    [
        ("broken:World", "import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("broken:World", "raise SystemExit('bye')", "SystemExit: bye"),
        ("broken:World", "", "AttributeError: module 'broken' has no attribute 'World'"),
        ("nowhere:World", "", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_imported_is_one_line(entry, module, error, install, tmp_path):
    install(f"vault = {entry}", broken=module)
    assert told(lambda: make("vault")) == f"environment 'vault' of bmrl-vault 1.0 cannot be imported: {error}"
    (tmp_path / "r.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError) as caught:
        load(tmp_path / "r.yaml")
    assert [line.partition("r.yaml:")[2] for line in caught.value.problems] == [
        f"4: env.name: environment 'vault' of bmrl-vault 1.0 cannot be imported: {error}"
    ]


def test_what_is_no_class_is_one_line(install):
    install("vault = own_vault:SPLITS", own_vault=VAULT)
    assert told(lambda: make("vault")) == "environment 'vault' of bmrl-vault 1.0: own_vault:SPLITS is no class"


def test_two_of_one_name_are_one_line(install):
    install("vault = own_vault:Vault\nalfworld = own_vault:Vault", own_vault=VAULT)
    install("vault = other:Vault", "another-vault")
    fix = "uninstall one, or rename its entry point"
    assert told(lambda: make("vault")) == (
        f"environment 'vault' is offered by another-vault 1.0 and bmrl-vault 1.0; {fix}"
    )
    assert (
        told(lambda: make("alfworld")) == f"environment 'alfworld' is offered by bmrl-vault 1.0 and bmrl itself; {fix}"
    )


def test_the_same_class_by_two_entries_is_no_clash(install):
    install("vault = own_vault:Vault", own_vault=VAULT)
    install("vault = own_vault:Vault", "vault-again")
    assert environment("vault").__name__ == "Vault"


def test_arguments_are_checked_against_the_class(install, tmp_path):
    world = f"{VAULT}\n\nclass Sized(Vault):\n    def __init__(self, size: int, chance: float = 0.5, **more):\n        super().__init__(size)\n"
    install("vault = own_vault:Vault\nsized = own_vault:Sized", own_vault=world)
    (tmp_path / "r.yaml").write_text(RECIPE)

    def problems(*overrides):
        with pytest.raises(RecipeError) as caught:
            load(tmp_path / "r.yaml", overrides)
        return [line[line.index(": env.") + 2 :] for line in caught.value.problems]

    assert problems("env.args.rooms=many") == [
        'env.args.rooms: expected a whole number, got text "many"; the default is 6'
    ]
    assert problems("env.args={room: 3}") == ["env.args.room: vault has no such argument; did you mean rooms?"]
    assert problems("env.args.rooms=1") == [
        "env.args.rooms: env.args: vault cannot be made: ValueError: rooms is 1; a key and a chest need 2"
    ]
    assert problems("env.name=sized", "env.args={}") == ["env.args: sized needs the argument size; add it"]
    assert problems("env.train_split=trian") == ["env.train_split: vault has no split trian; did you mean train?"]
    # Any further argument is taken, and a whole number is a number.
    assert (
        load(tmp_path / "r.yaml", ["env.name=sized", "env.args={size: 3, chance: 1, colour: red}"]).env.name == "sized"
    )


def test_a_budget_beyond_an_own_limit_is_told(install, tmp_path, capsys):
    install("vault = own_vault:Short", own_vault=f"{VAULT}\n\nclass Short(Vault):\n    max_turns = 3\n")
    (tmp_path / "r.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError) as caught:
        load(tmp_path / "r.yaml")
    cut = "4 turns are more than the 3 after which vault ends by itself; ask for 3 at most"
    assert [line.partition("r.yaml:")[2] for line in caught.value.problems] == [
        f"5: budget.train: {cut}",
        f"5: budget.eval: {cut}",
    ]
    fitting = "budget={train: {kind: fixed, turns: 3}, eval: [3]}"
    assert load(tmp_path / "r.yaml", [fitting]).env.name == "vault"
    fitting = "budget: {train: {kind: fixed, turns: 3}, eval: [3]}"
    (tmp_path / "fits.yaml").write_text("\n".join(fitting if "budget:" in row else row for row in RECIPE.splitlines()))
    assert find(str(tmp_path / "fits.yaml"), "last", turns=3).kind == "recipe"
    assert told(lambda: find(str(tmp_path / "fits.yaml"), "last", turns=4)) == f"--budget: {cut}"


def test_an_expert_of_its_own(install):
    expert = (
        f"{VAULT}\n\nclass Walker:\n    def __init__(self, opening, rng):\n        self.turn = 0\n"
        "    def act(self):\n        self.turn += 1\n        return 'go left' if self.turn < 3 else 'go right'\n"
        "    def observe(self, action, observation):\n        pass\n\n\nVault.explorer = Walker\n"
    )
    install("vault = own_vault:Vault", own_vault=expert)
    budgets = {"budgets": [4], "split": "valid_seen", "seeds": [0], "announce": "none", "tasks": 5, "out": None}
    assert baselines.evaluate("expert", "vault", {}, **budgets)["budgets"][0]["success"] == 0
    assert baselines.evaluate("oracle", "vault", {"rooms": 2}, **budgets)["budgets"][0]["success"] == 1


def test_a_recipe_with_an_installed_environment_trains(install, tmp_path, monkeypatch, capsys):
    install("vault = own_vault:Vault", own_vault=VAULT)
    (tmp_path / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    for line in (["check", "r.yaml"], ["train", "r.yaml", "--run", "run"], ["eval", "run", "--json", "--tasks", "2"]):
        with pytest.raises(SystemExit) as done:
            main(line)
        assert done.value.code == 0, capsys.readouterr().err
    assert '"split": "valid_seen"' in capsys.readouterr().out
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").is_file()
    assert (tmp_path / "run" / "episodes" / "step-000001.jsonl").read_text().count("There are 3 rooms") >= 4


def test_a_run_stops_once_too_many_episodes_fail(install, tmp_path, monkeypatch, capsys):
    broken = f"{VAULT}\n\nclass Broken(Vault):\n    def step(self, action):\n        raise OSError('no steps')\n"
    install("vault = own_vault:Broken", own_vault=broken)
    (tmp_path / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["train", "r.yaml", "--run", "run", "--set", "env.max_error_share=0.3", "--set", "train.eval_every=0"])
    assert done.value.code == 1
    # Of 4 episodes the second that fails is above 0.3, and the others are not waited for.
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("bmrl:"))
    assert line.startswith(
        "bmrl: 2 of 4 episodes ended in an environment error, above env.max_error_share 0.3; the first: "
    )
    assert line.endswith(": OSError: no steps")


def test_light_commands_do_not_import_what_is_installed(install, tmp_path):
    folder = install("vault = loud:World", loud="raise SystemExit('imported')")
    for line in (["--help"], ["recipes"], ["check", "quickstart"]):
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); from bmrl.cli import main; main({line!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_the_documentation_shows_the_example_as_it_is():
    assert f"```python\n{VAULT}```" in (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")

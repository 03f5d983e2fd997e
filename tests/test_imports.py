"""Imports point one way, and what should answer at once loads nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bmrl

PACKAGE = Path(bmrl.__file__).parent

# Lowest first; a module imports from its own layer and those below. A folder counts as one module.
LAYERS = [
    {"errors", "types", "files", "redact", "strict", "system", "seeds"},
    {"glossary"},
    {
        "algorithm",
        "architecture",
        "atomic",
        "backend",
        "batch",
        "budgets",
        "chat",
        "checkpoint",
        "credit",
        "cuda_graphs",
        "endpoint",
        "episodes",
        "envs",
        "guards",
        "intervals",
        "kv_cache",
        "metrics",
        "models",
        "optimizer",
        "pocket",
        "policy",
        "process",
        "recipe",
        "run_folder",
        "sampler",
        "speech",
        "trackers",
    },
    {"context", "demonstrations", "evaluations", "results", "rollout", "sft"},
    {"memory"},
    {"evaluate", "trainer"},
    {"truncation"},
    {"workload"},
    {"baselines", "check", "compare", "diagnose", "packaged"},
    {"doctor", "report", "target"},
    {"export"},
    {"run"},
    {"cli"},
    {"__main__"},
]
TORCH = {
    "algorithm",
    "batch",
    "checkpoint",
    "cuda_graphs",
    "export",
    "kv_cache",
    "optimizer",
    "policy",
    "run",
    "sampler",
    "sft",
    "trainer",
}
READS_RECIPES = {"check", "cli", "context", "doctor", "memory", "packaged", "recipe", "run", "target", "workload"}
# Imported inside the function that needs them, wherever that is.
DEFERRED = {"httpx", "jinja2", "markupsafe", "matplotlib", "rich", "scipy", "tensorboard", "trackio", "wandb"}
HEAVY = {"torch", "transformers", "peft", "tokenizers", "accelerate", "safetensors"}


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every imported name, and whether the import runs with the module itself."""
    for node in ast.walk(tree):
        at_top = getattr(node, "col_offset", 1) == 0
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, at_top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", at_top


def modules() -> dict[str, set[tuple[str, bool]]]:
    """Top-level module of bmrl -> all that its files import."""
    found: dict[str, set[tuple[str, bool]]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.setdefault(parts[0], set()).update(imports(tree))
    return found


MODULES = modules()


def inside(module: str) -> set[str]:
    """Modules of bmrl that a module imports, itself aside."""
    names = {name.split(".")[1] for name, _ in MODULES[module] if name.startswith("bmrl.")}
    return (names & MODULES.keys()) - {module}


def test_the_parser_sees_imports() -> None:
    assert "recipe" in inside("cli")
    assert ("torch", True) in MODULES["policy"]


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"__init__"}))
def test_imports_point_one_way(module: str) -> None:
    layer = {name: level for level, names in enumerate(LAYERS) for name in names}
    assert module in layer, f"give bmrl/{module} a layer in this test"
    above = {other for other in inside(module) if layer[other] > layer[module]}
    assert not above, f"bmrl/{module} imports from above: {above}"


def test_no_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path, module))}"
        if module not in done:
            for other in inside(module):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
    assert done == MODULES.keys()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_heavy_imports_stay_where_they_belong(module: str) -> None:
    top = {name.split(".")[0] for name, at_top in MODULES[module] if at_top}
    if module not in TORCH:
        assert not top & HEAVY
    assert not top & DEFERRED


def test_only_the_composition_root_reads_recipes() -> None:
    assert {module for module in MODULES if "recipe" in inside(module)} <= READS_RECIPES


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise AssertionError(f"imported {{name}}")
sys.meta_path.insert(0, Block())
from bmrl.cli import main
try:
    main({arguments!r})
finally:
    print("modules", len(sys.modules), file=sys.stderr)
"""
LIGHT = [
    ["--help"],
    ["--version"],
    ["train", "--help"],
    ["eval", "--help"],
    ["compare", "--help"],
    ["diagnose", "--help"],
    ["export", "--help"],
    ["play", "--help"],
    ["report", "--help"],
    ["recipes"],
    ["check", "alfworld_mix"],
    ["check", "quickstart", "--json"],
    ["check", "textworld_mix"],
    ["doctor", "--json"],
    ["games", "info"],
    ["games", "verify"],
    ["new", "mine", "--out", "mine.yaml"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = BLOCK.format(blocked=HEAVY | DEFERRED | {"numpy"}, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    # In place of a timed test: torch alone is more than 1,500 modules; these commands need about 450.
    assert int(done.stderr.split()[-1]) < 600


def test_torch_is_told_to_wait_passively_before_it_is_imported() -> None:
    code = "import os, sys, bmrl; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.stdout == "PASSIVE\n"

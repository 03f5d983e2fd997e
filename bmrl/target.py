"""What `bmrl eval` is to evaluate: a name given on the command line, found and checked. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bmrl import packaged, run_folder
from bmrl.baselines import BASELINES
from bmrl.check import refuse_missing
from bmrl.envs import beyond_own_limit, names
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.models import PACKAGES, problem, writes_plain
from bmrl.models import find as find_model
from bmrl.recipe import Recipe, unknown_splits
from bmrl.recipe import load as load_recipe
from bmrl.strict import is_number, loads

EXPORTED = "bmrl_recipe.json"  # settings of the run that an exported policy is of


@dataclass(frozen=True, slots=True)
class Target:
    """A policy to evaluate.

    Attributes:
        name: as results call it.
        kind: where its weights are; a baseline has none, those of an endpoint are elsewhere.
        recipe: its settings: model, environment, chat, context.
        folder: of the run, or of the adapter; else None.
        step: which checkpoint of a run; None is its newest undamaged one.
    """

    name: str
    kind: Literal["run", "recipe", "adapter", "model", "baseline", "endpoint"]
    recipe: Recipe
    folder: Path | None = None
    step: int | None = None


def find(
    target: str | None,
    checkpoint: str,
    split: str | None = None,
    *,
    turns: int | None = None,
    world: str | None = None,
    turn_tokens: int | None = None,
    served: str | None = None,
) -> Target:
    """What a name means.

    Args:
        target: run folder or checkpoint in it, recipe, adapter folder, name of a model (`bmrl.models`) or
            a baseline; None takes the newest run in ``runs/``, or ``pocket`` without one.
        checkpoint: of a run: ``last``, ``best`` (by the area under the curves the run measured), or a step.
        split: one that is to be played; checked where the embedded games are.
        turns: the largest budget that is to be played, if not the recipe's.
        world: environment to play in, with its embedded games, in place of the target's own.
        turn_tokens: most tokens of an action, in place of the target's own.
        served: name of a model behind an endpoint; ``target`` then is the recipe or run whose settings count.

    Raises:
        UsageError: no such target, checkpoint, split or environment, or a budget that the environment itself cuts
            short.
        BmrlError: files of the target are damaged.
    """
    if world is not None and world not in names():
        raise UsageError(f"--env: unknown environment {world!r}; known: {', '.join(names())}")
    if served is not None:
        found = Target(served, "endpoint", _settings(served, chat=True) if target is None else _recipe(target))
    else:
        if target is None:
            newest = run_folder.newest(Path("runs"))
            target = "pocket" if newest is None else str(newest)
        found = _find(target, checkpoint)
    if turn_tokens is not None:
        rollout = found.recipe.rollout.model_copy(update={"turn_tokens": turn_tokens})
        found = replace(found, recipe=found.recipe.model_copy(update={"rollout": rollout}))
    if world not in (None, found.recipe.env.name):
        env = found.recipe.env.model_copy(update={"name": world, "args": {"source": "embedded"}})
        found = replace(found, recipe=found.recipe.model_copy(update={"env": env}))
    if split is not None:
        env = found.recipe.env
        for _, problem in unknown_splits(env.name, env.args, {"eval_split": split}):
            raise UsageError(f"--split: {problem}")
    if turns is not None:
        env = found.recipe.env
        if (cut := beyond_own_limit(env.name, env.args, turns)) is not None:
            raise UsageError(f"--budget: {cut}")
    return found


def start_of(target: Target) -> Target:
    """The policy that a run's own training started from.

    Raises:
        UsageError: the target is no run, or its run made a new model.
    """
    if target.kind != "run":
        raise UsageError(f"--against: {target.name} is no run, it has no start to be compared with; name a policy")
    if target.recipe.model.new is not None:
        raise UsageError(f"--against: {target.name} made a new model, which started from nothing; name a policy")
    return Target(f"{target.name} at its start", "recipe", target.recipe)


def _find(target: str, checkpoint: str) -> Target:
    path = Path(target)
    if run_folder.is_run(path):
        return _run(path, checkpoint)
    if (inside := run_folder.step_of(path)) is not None and checkpoint == "last":
        return _run(path.absolute().parent.parent, str(inside))
    if checkpoint != "last":
        raise UsageError(f"--checkpoint {checkpoint}: {target} is no run folder, it has no checkpoints")
    if _names_recipe(target):
        recipe = load_recipe(packaged.find(target))
        if recipe.model.new is not None:
            raise UsageError(f"{target} makes a new model; train it with `bmrl sft {target}`, then evaluate its run")
        refuse_missing(recipe)
        return Target(recipe.name, "recipe", recipe)
    if (path / "adapter_config.json").is_file():
        base = _read_json(path / "adapter_config.json", "copy the adapter again").get("base_model_name_or_path")
        if not base:
            raise UsageError(f"{path}: adapter_config.json names no base model; set base_model_name_or_path in it")
        recipe = _exported(path, str(base)) or _settings(str(base), chat=not writes_plain(str(base)))
        return Target(path.resolve().name, "adapter", recipe, path)
    if target in BASELINES:
        return Target(target, "baseline", _settings("pocket"))
    source = find_model(target)
    if (source.kind == "folder" and not (path / "config.json").is_file()) or (
        source.kind == "hub" and "/" not in target
    ):
        known = ", ".join(("pocket", *PACKAGES, *BASELINES))
        raise UsageError(
            f"{target}: neither a run, a recipe, an adapter or model folder, a .gguf file, an installed package with "
            f"one, a hub id (owner/name) nor one of {known}"
        )
    if source.kind in ("gguf", "package") and (wrong := problem(source)) is not None:
        raise UsageError(wrong)
    name = path.resolve().name if source.kind in ("folder", "gguf") else target
    return Target(name, "model", _exported(path, target) or _settings(target, chat=not writes_plain(target)))


def _names_recipe(target: str) -> bool:
    return target.endswith((".yaml", ".yml")) or (
        not Path(target).exists() and recipes_path(f"{target}.yaml").is_file()
    )


def _recipe(target: str) -> Recipe:
    """The settings of a recipe or of a run, for a model that is elsewhere."""
    if run_folder.is_run(Path(target)):
        return _resolved(Path(target))
    if _names_recipe(target):
        return load_recipe(packaged.find(target))
    raise UsageError(f"{target}: with --endpoint, TARGET is a recipe or a run whose settings count; leave it out")


def _settings(model: str, *, chat: bool = False) -> Recipe:
    """Settings for a target that brings none: those of the quickstart, for a chat model with the sizes of one."""
    recipe = load_recipe(recipes_path("quickstart.yaml"))
    section, rollout = recipe.model.model_copy(update={"name": model, "adapter": None}), recipe.rollout
    if chat:
        sizes = load_recipe(recipes_path("alfworld_mix.yaml"))
        section = section.model_copy(update={"context_tokens": sizes.model.context_tokens})
        rollout = rollout.model_copy(update={"turn_tokens": sizes.rollout.turn_tokens})
    return recipe.model_copy(update={"model": section, "rollout": rollout})


def _exported(folder: Path, model: str) -> Recipe | None:
    """The settings that `bmrl export` left beside a policy, those of its run; None where there are none."""
    path = folder / EXPORTED
    if not path.is_file():
        return None
    hint = "remove it to play with the settings of the quickstart"
    try:
        recipe = Recipe.model_validate(_read_json(path, hint))
    except ValueError as error:  # pydantic's is one
        raise BmrlError(f"{path}: no recipe of this bmrl; {hint}") from error
    section = recipe.model.model_copy(update={"name": model, "new": None, "adapter": None})
    return recipe.model_copy(update={"model": section})


def _resolved(folder: Path) -> Recipe:
    try:
        return Recipe.model_validate(run_folder.load_resolved(folder))
    except ValueError as error:  # pydantic's is one
        raise BmrlError(
            f"{folder / run_folder.RESOLVED}: no recipe of this bmrl; restore the file, or use the bmrl that wrote it"
        ) from error


def _run(folder: Path, checkpoint: str) -> Target:
    recipe = _resolved(folder)
    steps = sorted(run_folder.checkpoints(folder / "checkpoints"))
    if not steps:
        raise UsageError(f"{folder}: no checkpoint yet; let it train on with --resume")
    if recipe.model.new is not None and not (folder / "model" / "config.json").is_file():
        raise UsageError(f"{folder}: a new model is written when its run ends; let it train on with --resume")
    step = None
    if checkpoint != "last":
        step = best_step(folder, steps) if checkpoint == "best" else int(checkpoint)
        if step is None:
            raise UsageError(f"--checkpoint best: {folder} evaluated none of its checkpoints; set train.eval_every")
        if step not in steps:
            raise UsageError(f"--checkpoint {checkpoint}: {folder} has {', '.join(map(str, steps))}")
    return Target(folder.resolve().name, "run", recipe, folder, step)


def best_step(folder: Path, steps: Sequence[int]) -> int | None:
    """Of a run's checkpoints the one with the largest area under the curve that the run itself measured.

    None if it measured none of them.
    """
    areas: dict[int, float] = {}
    hint = "remove it and name a step with --checkpoint"
    for step in steps:
        path = folder / "eval" / f"step-{step:06d}.json"
        if path.is_file():
            area = _read_json(path, hint).get("area")
            if not is_number(area):
                raise BmrlError(f"{path}: damaged, not an evaluation; {hint}")
            areas[step] = area
    return max(areas, key=lambda step: (areas[step], step), default=None)


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        value = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BmrlError(f"{path}: damaged, cannot be read as JSON; {hint}") from error
    if not isinstance(value, dict):
        raise BmrlError(f"{path}: damaged, not a JSON object; {hint}")
    return value

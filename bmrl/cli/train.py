"""`bmrl train` and `bmrl sft`."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from bmrl.cli.clicks import Command, Range
from bmrl.cli.options import JSON, RECIPE, RESUME, RUN, SET
from bmrl.errors import BmrlError, UsageError


@click.command(cls=Command, epilog="Example: bmrl train recipes/quickstart.yaml --set train.steps=3")
@RECIPE
@SET
@RUN
@RESUME
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only rehearse the fullest rollout and update, and hold their memory against the estimate; write nothing.",
)
@click.option(
    "--vram",
    "vram_gb",
    type=Range(min=0, min_open=True, max=10_000),
    metavar="GB",
    help="With --dry-run: memory that may be used; all there is by default.",
)
@JSON
def train(
    recipe: str,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    dry_run: bool,
    vram_gb: float | None,
    as_json: bool,
) -> None:
    """Train by reinforcement learning and print the run folder.

    With --dry-run, print the memory and the time that one step takes at most. Exit code 1: it does not fit.
    """
    if dry_run:
        if run_dir is not None or resume:
            raise UsageError("--dry-run writes no run; leave out --run and --resume")
        _rehearse(recipe, overrides, vram_gb, as_json)
        return
    if vram_gb is not None or as_json:
        raise UsageError("--vram and --json go with --dry-run")
    _train("train", recipe, overrides, run_dir, resume)


@click.command(cls=Command, epilog="Example: bmrl sft recipes/pocket_sft.yaml")
@RECIPE
@SET
@RUN
@RESUME
def sft(recipe: str, overrides: tuple[str, ...], run_dir: Path | None, resume: bool) -> None:
    """Train on demonstrations and print the run folder."""
    _train("sft", recipe, overrides, run_dir, resume)


def _train(kind: str, name: str, overrides: Sequence[str], run_dir: Path | None, resume: bool) -> None:
    from bmrl import packaged, run_folder
    from bmrl.atomic import refuse_unwritable
    from bmrl.check import refuse_missing, start_backend
    from bmrl.recipe import load, resolved

    source = packaged.find(name)
    recipe = load(source, overrides)
    if getattr(recipe, kind) is None:
        other = "sft" if kind == "train" else "train"
        raise UsageError(f"{name} has no `{kind}` section; run it with: bmrl {other} {name}")
    refuse_missing(recipe)
    if resume:
        run_dir = run_folder.to_resume(Path("runs"), resolved(recipe), run_dir)
        with run_folder.lock(run_dir):
            pass  # whether another process has it is told before torch is imported
    else:
        if run_dir is not None:
            run_folder.refuse_existing(run_dir)
        refuse_unwritable((run_dir or Path("runs") / recipe.name).parent)
    start_backend(recipe, run_dir if resume else None)
    from bmrl import run  # imports torch: only now that recipe and command are known to be good

    start = run.train if kind == "train" else run.sft
    click.echo(start(recipe, source=source, run_dir=run_dir, resume=resume))


def _rehearse(name: str, overrides: Sequence[str], vram_gb: float | None, as_json: bool) -> None:
    from bmrl import packaged
    from bmrl.check import refuse_missing, start_backend
    from bmrl.recipe import load

    recipe = load(packaged.find(name), overrides)
    if recipe.train is None:
        raise UsageError(f"{name} has no `train` section; a dry run is one of reinforcement learning")
    refuse_missing(recipe)
    start_backend(recipe)
    from bmrl.run.dry_run import dry_run, summary

    found = dry_run(recipe, vram_gb=vram_gb)
    click.echo(json.dumps(found) if as_json else "\n".join(summary(found)))
    if not found["fits"]:
        raise BmrlError(
            f"{recipe.name} took {found['peak_gb']:.2f} GB, above {found['memory_gb']:.2f} GB; "
            f"bmrl check {name} --vram {found['memory_gb']:g} says what to change"
        )

"""`bmrl train` and `bmrl sft`."""

from collections.abc import Sequence
from pathlib import Path

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import RECIPE, RESUME, RUN, SET
from bmrl.errors import UsageError


@click.command(cls=Command, epilog="Example: bmrl train recipes/quickstart.yaml --set train.steps=3")
@RECIPE
@SET
@RUN
@RESUME
def train(recipe: str, overrides: tuple[str, ...], run_dir: Path | None, resume: bool) -> None:
    """Train by reinforcement learning and print the run folder."""
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

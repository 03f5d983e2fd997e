"""`bmrl check`, `bmrl recipes` and `bmrl new`."""

import json
from pathlib import Path

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import JSON, RECIPE, SET


@click.command(cls=Command, epilog="Example: bmrl check recipes/alfworld_mix.yaml --set seed=1")
@RECIPE
@SET
@JSON
def check(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say whether a recipe is valid, what it asks for, and what is missing.

    Exit code 0 means that the recipe is valid, even where this machine cannot run it.
    """
    from bmrl import check as checks
    from bmrl import packaged
    from bmrl.recipe import load

    valid = load(packaged.find(recipe), overrides)
    if as_json:
        click.echo(json.dumps(checks.report(valid)))
    else:
        click.echo("\n".join(checks.summary(valid)))


@click.command(cls=Command, epilog="Example: bmrl recipes")
def recipes() -> None:
    """List the packaged recipes."""
    from bmrl import packaged

    for header in packaged.headers():
        click.echo(f"{header.name}\n    {header.about}\n    {header.hardware}")


@click.command(cls=Command, epilog="Example: bmrl new mine --from pocket_mix --out mine.yaml")
@click.argument("name")
@click.option(
    "--from",
    "original",
    metavar="RECIPE",
    default="quickstart",
    show_default=True,
    help="Recipe to copy.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; NAME.yaml by default.",
)
def new(name: str, original: str, out: Path | None) -> None:
    """Copy a recipe under a new name, to edit it."""
    from bmrl import packaged

    click.echo(packaged.copy(name, packaged.find(original), out or Path(f"{name}.yaml")))

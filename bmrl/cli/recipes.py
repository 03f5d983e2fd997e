"""`bmrl check`, `bmrl recipes` and `bmrl new`."""

import json
from pathlib import Path

import click

from bmrl.cli.clicks import Command, Range
from bmrl.cli.options import JSON, RECIPE, SET


@click.command(cls=Command, epilog="Example: bmrl check recipes/alfworld_mix.yaml --vram 24")
@RECIPE
@SET
@click.option(
    "--vram",
    "vram_gb",
    type=Range(min=0, min_open=True, max=10_000),
    metavar="GB",
    help="Memory of a card; say whether the recipe fits into it, and what to change if not.",
)
@JSON
def check(recipe: str, overrides: tuple[str, ...], vram_gb: float | None, as_json: bool) -> None:
    """Say whether a recipe is valid, what it asks for, what memory it takes, and what is missing.

    Exit code 0 means that the recipe is valid, even where this machine cannot run it; with --vram, that it fits,
    too. 1: it does not fit.
    """
    from bmrl import check as checks
    from bmrl import packaged
    from bmrl.recipe import load

    valid = load(packaged.find(recipe), overrides)
    found = checks.report(valid, vram_gb)
    click.echo(json.dumps(found) if as_json else "\n".join(checks.summary(valid, found)))
    if found["fits"] is False:
        click.get_current_context().exit(1)


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

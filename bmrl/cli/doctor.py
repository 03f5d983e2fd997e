"""`bmrl doctor`."""

import json
from dataclasses import asdict

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import JSON, SET


@click.command(cls=Command, epilog="Example: bmrl doctor recipes/alfworld_mix.yaml")
@click.argument("recipe", metavar="[RECIPE]", required=False)
@SET
@JSON
def doctor(recipe: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Look at this machine: versions, GPU, memory, disk, libraries, hub, games.

    Each problem stands with its remedy. Exit code 1 if RECIPE could not run here; without one, if the packaged
    quickstart could not. Nothing in the output names the user or the machine.
    """
    from bmrl import packaged
    from bmrl.doctor import examine
    from bmrl.recipe import load

    valid = load(packaged.find(recipe or "quickstart"), overrides)
    click.echo("asking the libraries and the hub, which may take a minute", err=True)
    found = examine(valid, named=recipe is not None)
    runs = not any(finding.blocks for finding in found)
    if as_json:
        findings = [asdict(finding) for finding in found]
        click.echo(json.dumps({"recipe": valid.name, "can_run": runs, "findings": findings}))
    else:
        click.echo("\n".join(finding.line for finding in found))
    if not runs:
        raise click.exceptions.Exit(1)

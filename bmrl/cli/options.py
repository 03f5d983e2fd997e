"""Options that several commands have."""

from pathlib import Path

import click

RECIPE = click.argument("recipe", metavar="RECIPE")
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key by its path, e.g. train.steps=3. Repeatable; the last one counts.",
)
RUN = click.option(
    "--run",
    "run_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run folder; runs/<name> by default, numbered when taken.",
)
RESUME = click.option("--resume", is_flag=True, help="Go on with an unfinished run.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

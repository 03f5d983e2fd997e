"""Options that several commands have."""

from pathlib import Path

import click


def checkpoint_name(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuses what names no checkpoint."""
    if value not in ("last", "best") and not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise click.BadParameter(f"{value!r} is none of last, best and a step number")
    return value


def temperature(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuses what is no temperature."""
    if value is not None and not 0 <= value <= 100:  # not so of nan, either
        raise click.BadParameter(f"{value} is not in the range 0<=x<=100")
    return value


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
CHECKPOINT = click.option(
    "--checkpoint",
    metavar="last|best|STEP",
    default="last",
    show_default=True,
    callback=checkpoint_name,
    help="Which checkpoint of a run.",
)
TEMPERATURE = click.option(
    "--temperature",
    type=float,
    metavar="T",
    callback=temperature,
    help="Sampling temperature; 0 is greedy.",
)
SPLIT = click.option("--split", metavar="NAME", help="Split of tasks; valid_seen by default.")
SEEDS = click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Sampling seed. Repeatable: every task is played once per seed.",
)

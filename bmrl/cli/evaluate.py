"""`bmrl eval`."""

import json
from pathlib import Path
from typing import Any

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import CHECKPOINT, JSON, TEMPERATURE
from bmrl.errors import UsageError


@click.command(name="eval", cls=Command, epilog="Example: bmrl eval pocket --budget 4 --budget 8")
@click.argument("target", required=False)
@click.option(
    "--budget",
    "budgets",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Most turns of an episode. Repeatable; the budgets of the target's recipe by default.",
)
@click.option("--split", metavar="NAME", help="Split of tasks; valid_seen by default.")
@click.option("--env", "world", metavar="NAME", help="Environment to play in; the target's own by default.")
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Sampling seed. Repeatable: every task is played once per seed.",
)
@CHECKPOINT
@click.option(
    "--announce",
    type=click.Choice(["none", "total", "remaining"]),
    help="What the agent is told of its budget; as in the target's recipe by default.",
)
@TEMPERATURE
@click.option("--tasks", type=click.IntRange(min=1), metavar="N", help="Only the first N tasks of the split.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the episodes; the run's eval/ by default.",
)
@JSON
def evaluate(target: str | None, as_json: bool, **options: Any) -> None:
    """Measure success over budgets.

    TARGET is a run folder, a recipe, a model or adapter folder, `pocket`, or a player without a
    model: `expert`, `oracle`, `random`. Without one it is the newest run, and without any run the
    embedded pocket policy.
    """
    for name in ("budgets", "seeds"):
        options[name] = sorted(set(options[name]))
    if options["out"] is not None:
        from bmrl.atomic import refuse_unwritable

        refuse_unwritable(options["out"])
    from bmrl import target as targets
    from bmrl.evaluate import table

    found = targets.find(
        target,
        options.pop("checkpoint"),
        options["split"],
        turns=max(options["budgets"], default=None),
        world=options.pop("world"),
    )
    if found.kind == "baseline":
        from bmrl import baselines

        if options["temperature"] is not None:
            raise UsageError(f"--temperature: {found.name} is no model, it samples nothing")
        recipe = found.recipe
        result = baselines.evaluate(
            found.name,
            recipe.env.name,
            recipe.env.args,
            budgets=options["budgets"] or recipe.budget.eval,
            split=options["split"] or recipe.env.eval_split,
            seeds=options["seeds"] or [recipe.seed],
            announce=options["announce"] or recipe.budget.announce,
            tasks=options["tasks"],
            out=options["out"],
        )
    else:
        from bmrl import run  # imports torch: only now that target and command are known to be good

        result = run.evaluate(found, **options)
    click.echo(json.dumps(result) if as_json else table(result))

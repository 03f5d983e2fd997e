"""`bmrl eval`."""

import json
from pathlib import Path
from typing import Any

import click

from bmrl.cli import endpoint as endpoints
from bmrl.cli.clicks import Command
from bmrl.cli.options import CHECKPOINT, JSON, SEEDS, SPLIT, TEMPERATURE
from bmrl.errors import BmrlError, UsageError


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
@SPLIT
@click.option("--env", "world", metavar="NAME", help="Environment to play in; the target's own by default.")
@SEEDS
@CHECKPOINT
@click.option(
    "--announce",
    type=click.Choice(["none", "total", "remaining"]),
    help="What the agent is told of its budget; as in the target's recipe by default.",
)
@TEMPERATURE
@click.option(
    "--turn-tokens",
    type=click.IntRange(1, 65_536),
    metavar="N",
    help="Most tokens of an action; as in the target's recipe by default.",
)
@click.option("--tasks", type=click.IntRange(min=1), metavar="N", help="Only the first N tasks of the split.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the episodes; the run's eval/ by default, eval/ with --endpoint.",
)
@click.option(
    "--check-truncation",
    is_flag=True,
    help="Also play each budget anew and compare with one pass, episode by episode.",
)
@endpoints.options
@JSON
def evaluate(target: str | None, as_json: bool, check_truncation: bool, **options: Any) -> None:
    """Measure success over budgets.

    TARGET is a run folder or a checkpoint in it, a recipe, a model or adapter folder, a .gguf file, a
    hub id, `pocket`, or a player without a model: `expert`, `oracle`, `random`. Without one it is the
    newest run, and without any run the embedded pocket policy. With --endpoint, TARGET is a recipe or
    a run whose settings count; see docs/evaluation.md.
    """
    for name in ("budgets", "seeds"):
        options[name] = sorted(set(options[name]))
    if options["out"] is not None:
        from bmrl.atomic import refuse_unwritable

        refuse_unwritable(options["out"])
    from bmrl import target as targets
    from bmrl.evaluate import table

    checkpoint, turn_tokens = options.pop("checkpoint"), options.pop("turn_tokens")
    served = endpoints.endpoint(options, checkpoint)
    found = targets.find(
        target,
        checkpoint,
        options["split"],
        turns=max(options["budgets"], default=None),
        world=options.pop("world"),
        turn_tokens=turn_tokens,
        served=served and served.model,
    )
    if found.kind == "baseline":
        from bmrl import baselines

        for name, value in (("temperature", options["temperature"]), ("turn-tokens", turn_tokens)):
            if value is not None:
                raise UsageError(f"--{name}: {found.name} is no model, it samples nothing")
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
            check_truncation=check_truncation,
        )
    else:
        from bmrl.check import start_backend

        if found.kind in ("run", "recipe"):
            start_backend(found.recipe, found.folder)
        from bmrl import run  # imports torch: only now that target and command are known to be good

        if served is None:
            result = run.evaluate(found, **options, check_truncation=check_truncation)
        elif check_truncation:
            raise UsageError("--check-truncation: a server does not say the same twice; leave it out with --endpoint")
        else:
            result = run.evaluate_endpoint(found, served, **options)
    click.echo(json.dumps(result) if as_json else table(result))
    if check_truncation:
        _tell_truncation(result["truncation"], as_json)


def _tell_truncation(found: dict[str, Any], as_json: bool) -> None:
    from bmrl import truncation

    if not as_json:
        click.echo(f"\n{truncation.table(found)}")
    if faults := truncation.faults(found):
        raise BmrlError("\n".join(faults))

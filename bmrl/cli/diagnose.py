"""`bmrl diagnose`."""

import json
from pathlib import Path
from typing import Any

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import JSON, SEEDS, SPLIT, checkpoint_name, temperature
from bmrl.errors import UsageError

_POSITIVE = click.IntRange(min=1)


@click.command(
    name="diagnose", cls=Command, epilog="Example: bmrl diagnose runs/quickstart --against pocket --out diagnosis"
)
@click.argument("target", metavar="[A]", required=False)
@click.option(
    "--against",
    metavar="B",
    help="The policy that A is compared with; by default the one that A's training started from.",
)
@click.option(
    "--budget",
    "budgets",
    type=_POSITIVE,
    multiple=True,
    metavar="N",
    help="Most turns of an episode. Repeatable; the budgets of A's recipe by default.",
)
@SPLIT
@click.option("--env", "world", metavar="NAME", help="Environment to play in; A's own by default.")
@SEEDS
@click.option(
    "--checkpoint", metavar="last|best|STEP", default="last", show_default=True, callback=checkpoint_name, help="Of A."
)
@click.option(
    "--against-checkpoint",
    metavar="last|best|STEP",
    default="last",
    show_default=True,
    callback=checkpoint_name,
    help="Of B, where that is a run.",
)
@click.option(
    "--announce",
    type=click.Choice(["none", "total", "remaining"]),
    help="What both are told of their budget; as in A's recipe by default.",
)
@click.option("--temperature", type=float, metavar="T", callback=temperature, help="Sampling temperature of both.")
@click.option("--tasks", type=_POSITIVE, metavar="N", help="Only the first N tasks of the split.")
@click.option(
    "--states",
    type=_POSITIVE,
    default=20,
    show_default=True,
    metavar="N",
    help="States of each source (expert, A, B) in each bank, on track and after an error.",
)
@click.option(
    "--samples",
    type=_POSITIVE,
    default=8,
    show_default=True,
    metavar="N",
    help="Actions drawn at each state by a policy whose probabilities cannot be had exactly.",
)
@click.option(
    "--force",
    "strengths",
    type=click.IntRange(0, 100),
    multiple=True,
    default=(1, 2, 4, 8),
    show_default=True,
    metavar="K",
    help="Actions forced to see the recovery. Repeatable; 0 alone forces none.",
)
@click.option(
    "--bank",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use the bank of states of another diagnosis, NAME.bank.jsonl.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results; diagnosis/ of A's run by default.",
)
@JSON
def diagnose(target: str | None, against: str | None, as_json: bool, **options: Any) -> None:
    """Say why A solves more than B: decisions, recovery or endurance.

    A and B are run folders, recipes, adapter or model folders, hub ids, or `pocket`; without A it is
    the newest run. Both play in A's environment. docs/diagnosis.md says what each figure means.
    """
    for name in ("budgets", "seeds", "strengths"):
        options[name] = sorted(set(options[name]))
    options["strengths"] = [k for k in options["strengths"] if k]
    if options["out"] is not None:
        from bmrl.atomic import refuse_unwritable

        refuse_unwritable(options["out"])
    from bmrl import target as targets

    turns, world = max(options["budgets"], default=None), options.pop("world")
    mine, other = options.pop("checkpoint"), options.pop("against_checkpoint")
    a = targets.find(target, mine, options["split"], turns=turns, world=world)
    b = targets.start_of(a) if against is None else targets.find(against, other)
    for found in (a, b):
        if found.kind == "baseline":
            raise UsageError(f"{found.name} has no model to be diagnosed; name a run, an adapter, a model or a recipe")

    from bmrl.check import start_backend

    for found in (a, b):
        if found.kind in ("run", "recipe"):
            start_backend(found.recipe, found.folder)
    from bmrl import run  # imports torch: only now that targets and command are known to be good
    from bmrl.diagnose import tables

    result = run.diagnose_targets(a, b, **options)
    click.echo(json.dumps(result) if as_json else tables(result))

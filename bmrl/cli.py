"""The command line: parse, call, print. Results on stdout, everything else on stderr."""

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bmrl import __version__
from bmrl.clicks import Command, Group, problems
from bmrl.errors import BmrlError, RecipeError, UsageError
from bmrl.games import JSON, games

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


@click.group(cls=Group, name="bmrl", epilog="Example: bmrl train recipes/quickstart.yaml")
@click.version_option(__version__, prog_name="bmrl")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def bmrl(debug: bool) -> None:
    """Train LLM agents by multi-turn reinforcement learning over mixed interaction budgets.

    RECIPE is a file, or the name of a packaged recipe (`bmrl recipes` lists them).
    """


@bmrl.command(cls=Command, epilog="Example: bmrl train recipes/quickstart.yaml --set train.steps=3")
@RECIPE
@SET
@RUN
@RESUME
def train(recipe: str, overrides: tuple[str, ...], run_dir: Path | None, resume: bool) -> None:
    """Train by reinforcement learning and print the run folder."""
    _train("train", recipe, overrides, run_dir, resume)


@bmrl.command(cls=Command, epilog="Example: bmrl sft recipes/pocket_sft.yaml")
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
    from bmrl.check import refuse_missing
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
    from bmrl import run  # imports torch: only now that recipe and command are known to be good

    start = run.train if kind == "train" else run.sft
    click.echo(start(recipe, source=source, run_dir=run_dir, resume=resume))


def _checkpoint(_: click.Context, __: click.Parameter, value: str) -> str:
    if value not in ("last", "best") and not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise click.BadParameter(f"{value!r} is none of last, best and a step number")
    return value


def _temperature(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 100:  # not so of nan, either
        raise click.BadParameter(f"{value} is not in the range 0<=x<=100")
    return value


@bmrl.command(name="eval", cls=Command, epilog="Example: bmrl eval pocket --budget 4 --budget 8")
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
@click.option(
    "--checkpoint",
    metavar="last|best|STEP",
    default="last",
    show_default=True,
    callback=_checkpoint,
    help="Which checkpoint of a run.",
)
@click.option(
    "--announce",
    type=click.Choice(["none", "total", "remaining"]),
    help="What the agent is told of its budget; as in the target's recipe by default.",
)
@click.option(
    "--temperature",
    type=float,
    metavar="T",
    callback=_temperature,
    help="Sampling temperature; 0 is greedy.",
)
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


@bmrl.command(cls=Command, epilog="Example: bmrl report runs/quickstart")
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=click.Path(path_type=Path))
def report(runs: tuple[Path, ...]) -> None:
    """Print a run's gain over budgets, draw its plots and say where they are.

    Without RUN it is the newest one in runs/.
    """
    from bmrl import report as reports
    from bmrl.run_folder import newest

    if not runs:
        found = newest(Path("runs"))
        if found is None:
            raise UsageError("no run in runs/ to report on; train one with: bmrl train recipes/quickstart.yaml")
        runs = (found,)

    plots = reports.write(list(runs))
    for run in runs:
        if (table := reports.progress(run)) is not None:
            click.echo(f"{table}\n")
    for path in plots:
        click.echo(path)


@bmrl.command(cls=Command, epilog="Example: bmrl check recipes/alfworld_mix.yaml --set seed=1")
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


@bmrl.command(cls=Command, epilog="Example: bmrl recipes")
def recipes() -> None:
    """List the packaged recipes."""
    from bmrl import packaged

    for header in packaged.headers():
        click.echo(f"{header.name}\n    {header.about}\n    {header.hardware}")


@bmrl.command(cls=Command, epilog="Example: bmrl new mine --from pocket_mix --out mine.yaml")
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


bmrl.add_command(games)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: what is said goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments[:1]
    try:
        code = bmrl.main(args=arguments, prog_name="bmrl", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _settle()  # whoever read our output has enough
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        click.echo("bmrl: interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        lines, code = _told(error)
        click.echo("\n".join(lines), err=True)
        _settle()
        sys.exit(code)
    sys.exit(code if isinstance(code, int) else 0)


def _settle() -> None:
    """Drops what stdout holds and cannot write, or Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> tuple[list[str], int]:
    """Lines for stderr, and the exit code."""
    if isinstance(error, RecipeError):
        return error.problems, error.exit_code
    if isinstance(error, BmrlError):
        return [f"bmrl: {line}" for line in str(error).splitlines()], error.exit_code
    if isinstance(error, click.ClickException):
        return [f"bmrl: {line}" for line in problems(error)], 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ["bmrl: the disk is full; free space and run again, with --resume for a run"], 1
    if isinstance(error, OSError) and error.filename is not None:
        return [f"bmrl: {error.filename}: {(error.strerror or 'cannot be used').lower()}"], 1
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return [f"bmrl: internal error: {text}; run again as `bmrl --debug …` for the traceback"], 1

"""The command line: parse, call, print. Results on stdout, everything else on stderr."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from bmrl import __version__
from bmrl.cli.clicks import Command, Group, problems
from bmrl.cli.compare import compare
from bmrl.cli.diagnose import diagnose
from bmrl.cli.doctor import doctor
from bmrl.cli.evaluate import evaluate
from bmrl.cli.export import export
from bmrl.cli.games import games
from bmrl.cli.play import play
from bmrl.cli.recipes import check, new, recipes
from bmrl.cli.report import report
from bmrl.cli.train import sft, train
from bmrl.errors import BmrlError, RecipeError


@click.group(cls=Group, name="bmrl", epilog="Example: bmrl train recipes/quickstart.yaml")
@click.version_option(__version__, prog_name="bmrl")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def bmrl(debug: bool) -> None:
    """Train LLM agents by multi-turn reinforcement learning over mixed interaction budgets.

    RECIPE is a file, or the name of a packaged recipe (`bmrl recipes` lists them).
    """


for _command in (train, sft, evaluate, compare, diagnose, report, check, doctor, recipes, new, play, games, export):
    bmrl.add_command(_command)
# The same command under its first name.
games.add_command(
    Command("play", callback=play.callback, params=play.params, help=play.help, epilog="Example: bmrl games play")
)


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

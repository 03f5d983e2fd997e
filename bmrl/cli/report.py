"""`bmrl report`."""

from pathlib import Path

import click

from bmrl.cli.clicks import Command
from bmrl.errors import UsageError


@click.command(cls=Command, epilog="Example: bmrl report runs/quickstart")
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

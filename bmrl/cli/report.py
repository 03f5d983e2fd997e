"""`bmrl report`."""

from pathlib import Path

import click

from bmrl.cli.clicks import Command
from bmrl.errors import UsageError


@click.command(cls=Command, epilog="Example: bmrl report runs/quickstart")
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the page goes; report.html in the (first) run by default.",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=0),
    metavar="N",
    default=5000,
    show_default=True,
    help="Most episodes in the page.",
)
def report(runs: tuple[Path, ...], out: Path | None, episodes: int) -> None:
    """Print a run's gain over budgets; write its report and its plots, and say where they are.

    The report is one HTML file that needs no network: curves, training, diagnosis, costs, and the
    episodes to read. Of several runs it is one, with their curves side by side. Without RUN it is
    the newest one in runs/.
    """
    from bmrl import report as reports
    from bmrl.atomic import refuse_unwritable
    from bmrl.run_folder import newest

    if not runs:
        found = newest(Path("runs"))
        if found is None:
            raise UsageError("no run in runs/ to report on; train one with: bmrl train recipes/quickstart.yaml")
        runs = (found,)
    if out is not None:
        refuse_unwritable(out.parent)

    sources = reports.read(list(dict.fromkeys(runs)))
    paths = reports.write(sources, out, episodes=episodes)
    for source in sources:
        if (table := reports.progress(source)) is not None:
            click.echo(f"{table}\n")
    for path in paths:
        click.echo(path)

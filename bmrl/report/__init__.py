"""A report of runs, from their files alone: plots, and one self-contained page."""

from collections.abc import Sequence
from pathlib import Path

from bmrl.atomic import write_bytes, write_text
from bmrl.evaluate import gain_table
from bmrl.report import curves, diagnosis, training
from bmrl.report.charts import Chart
from bmrl.report.figure import png, svg
from bmrl.report.page import Run, page
from bmrl.report.read import Source, evaluations, read

__all__ = ["EPISODES", "evaluations", "progress", "read", "write"]

EPISODES = 5_000  # shown at most


def write(sources: Sequence[Source], out: Path | None = None, *, episodes: int = EPISODES) -> list[Path]:
    """Draw ``plots/`` of each run, as PNG and SVG, and write the page.

    Args:
        out: the page; ``report.html`` in the first run when None.
        episodes: most of them in the page.

    Returns:
        The page, then the plots in the order of the runs. The same files give the same bytes.

    Raises:
        BmrlError: files of a run are damaged; nothing is drawn then. Or they cannot be written.
    """
    charted = [(source, _groups(source)) for source in sources]
    runs = []
    paths: list[Path] = []
    for source, groups in charted:
        pictures = {}
        for chart in (chart for _, charts in groups for chart in charts):
            if chart.draw is not None:
                pictures[chart.name] = svg(chart.draw)
                paths += _plots(
                    source.folder / "plots" / chart.name, png(chart.draw, chart.title), pictures[chart.name]
                )
        runs.append(Run(source, groups, pictures))
    target = out or sources[0].folder / "report.html"
    chart = curves.comparison_chart(sources)
    together = None
    if chart is not None and chart.draw is not None:
        picture = svg(chart.draw)
        together = (chart, picture)
        paths += _plots(target.parent / "plots" / chart.name, png(chart.draw, chart.title), picture)
    write_text(target, page(runs, together, episodes=episodes))
    return [target, *paths]


def _groups(source: Source) -> list[tuple[str, list[Chart]]]:
    groups = [("Success", curves.charts(source)), ("Training", training.charts(source))]
    if source.found:
        groups.append(("Diagnosis", diagnosis.charts(source.folder)))
    return groups


def _plots(stem: Path, drawn: bytes, picture: bytes) -> list[Path]:
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path, data in zip(paths, (drawn, picture), strict=True):
        write_bytes(path, data)
    return paths


def progress(source: Source) -> str | None:
    """Success before and after training and the paired gain, as a table; None with fewer than two evaluations."""
    if not source.gains:
        return None
    return gain_table(source.found[0].result, source.found[-1].result, source.gains)

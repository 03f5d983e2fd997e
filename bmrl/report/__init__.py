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
    target = out or sources[0].folder / "report.html"
    charted = [(source, _groups(source)) for source in sources]
    together = curves.comparison_charts(sources)
    runs, paths = [], list[Path]()
    for source, groups in charted:
        pictures, made = _drawn([chart for _, charts in groups for chart in charts], source.folder / "plots")
        runs.append(Run(source, groups, pictures))
        paths += made
    pictures, made = _drawn(together, target.parent / "plots")
    text = page(runs, [(chart, pictures[chart.name]) for chart in together], episodes=episodes)
    write_text(target, text)
    return [target, *paths, *made]


def _drawn(charts: Sequence[Chart], folder: Path) -> tuple[dict[str, bytes], list[Path]]:
    """Pictures by the charts' names as SVG, and the files that hold them."""
    pictures = {chart.name: svg(chart.draw) for chart in charts if chart.draw is not None}
    paths = []
    for chart in charts:
        if chart.draw is not None:
            stem = folder / chart.name
            write_bytes(stem.with_suffix(".png"), png(chart.draw, chart.title))
            write_bytes(stem.with_suffix(".svg"), pictures[chart.name])
            paths += [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    return pictures, paths


def _groups(source: Source) -> list[tuple[str, list[Chart]]]:
    groups = [("Success", curves.charts(source)), ("Training", training.charts(source))]
    if source.found:
        groups.append(("Diagnosis", diagnosis.charts(source.folder)))
    return groups


def progress(source: Source) -> str | None:
    """Success before and after training and the paired gain, as a table; None with fewer than two evaluations."""
    if not source.gains:
        return None
    return gain_table(source.found[0].result, source.found[-1].result, source.gains)

"""A report of runs, from their files alone: plots, and one self-contained page."""

from collections.abc import Sequence
from pathlib import Path

from bmrl import compare
from bmrl.atomic import write_bytes, write_text
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
    runs, files = [], dict[Path, bytes]()
    for source in sources:
        groups = _groups(source)
        pictures = _draw([chart for _, charts in groups for chart in charts], source.folder / "plots", files)
        runs.append(Run(source, groups, pictures))
    together = curves.comparison_charts(sources)
    pictures = _draw(together, target.parent / "plots", files)
    text = page(runs, [(chart, pictures[chart.name]) for chart in together], episodes=episodes)
    for path, data in files.items():  # all is made before the first is written
        write_bytes(path, data)
    write_text(target, text)
    return [target, *files]


def _draw(charts: Sequence[Chart], folder: Path, files: dict[Path, bytes]) -> dict[str, bytes]:
    """Adds what belongs into ``folder`` to ``files``; the pictures by the charts' names, as SVG."""
    pictures = {}
    for chart in charts:
        if chart.draw is not None:
            pictures[chart.name] = svg(chart.draw)
            files[folder / f"{chart.name}.png"] = png(chart.draw, chart.title)
            files[folder / f"{chart.name}.svg"] = pictures[chart.name]
    return pictures


def _groups(source: Source) -> list[tuple[str, list[Chart]]]:
    groups = [("Success", curves.charts(source)), ("Training", training.charts(source))]
    if source.found:
        groups.append(("Diagnosis", diagnosis.charts(source.folder)))
    return groups


def progress(source: Source) -> str | None:
    """Success before and after training and the paired gain, as a table; None with fewer than two evaluations."""
    return None if source.gains is None else compare.table(source.gains)

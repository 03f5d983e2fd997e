"""The report as one HTML file: nothing is loaded, and nothing that a run holds can run.

Texts are escaped by the template; episodes are compressed data that ``page.js`` inserts as text. The page's content
policy allows its own style and script, by their hashes, and no connection at all.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bmrl import __version__
from bmrl.redact import redacted
from bmrl.report.charts import Chart
from bmrl.report.episodes import Packed, pack
from bmrl.report.facts import facts, lead, tiles
from bmrl.report.figure import inline
from bmrl.report.read import Evaluation, Source

BYTES = 12 * 2**20  # most that the episodes may take in the page
Pictures = Mapping[str, bytes]  # name of a chart -> its SVG file


@dataclass(frozen=True, slots=True)
class Run:
    """A run with its charts, by section, and their pictures."""

    source: Source
    groups: Sequence[tuple[str, Sequence[Chart]]]
    pictures: Pictures


def page(runs: Sequence[Run], comparison: Sequence[tuple[Chart, bytes]], *, episodes: int) -> str:
    """The whole file.

    Args:
        comparison: charts of several runs, and their pictures.
        episodes: most of them in the page; fewer if they would be too large.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    sources = [run.source for run in runs]
    packed, data = _fitting(sources, episodes)
    here = Path(__file__).parent
    template, style, script = (
        (here / f"page.{ending}").read_text(encoding="utf-8") for ending in ("html", "css", "js")
    )
    environment = Environment(autoescape=True, trim_blocks=False, lstrip_blocks=False)
    return _writable(
        environment.from_string(template).render(
            title=" · ".join(dict.fromkeys(source.name for source in sources)),
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            runs=[_run(run, f"run{number}") for number, run in enumerate(runs)],
            comparison=[_figure(chart, picture, chart.name) for chart, picture in comparison],
            episodes_note=_episodes_note(packed),
            data=Markup(data),
            version=__version__,
        )
    )


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _fitting(sources: Sequence[Source], limit: int) -> tuple[Packed, str]:
    """As many episodes as fit, and their data in base 64."""
    while True:
        packed = pack(sources, limit)
        # Plain ASCII: halves of characters stay what they are, which UTF-8 could not write.
        plain = json.dumps(packed.data(), separators=(",", ":")).encode()
        data = base64.b64encode(zlib.compress(plain, 9)).decode()
        if len(data) <= BYTES or limit <= 1:
            return packed, data
        limit = min(limit - 1, int(limit * 0.9 * BYTES / len(data)))


def _episodes_note(packed: Packed) -> str:
    shown = len(packed.episodes)
    if not packed.total:
        return "The run has no episodes: it learned from demonstrations."
    which = f"All {shown:,} episodes" if shown == packed.total else f"{shown:,} of {packed.total:,} episodes"
    spread = "" if shown == packed.total else ", training steps evenly"
    if packed.replayed:
        known = "" if packed.replayed == shown else f" ({packed.replayed:,} of them)"
        return f"{which}{spread}. Distances to the goal were found by playing them again{known}."
    return (
        f"{which}{spread}. Distances to the goal are unknown: the environment or its games are not here, or know none."
    )


def _run(run: Run, key: str) -> dict[str, Any]:
    source = run.source
    return {
        "key": key,
        "name": source.name,
        "lead": lead(source),
        "tiles": tiles(source),
        "groups": [_group(title, charts, run.pictures, key) for title, charts in run.groups if charts],
        "facts": facts(source),
        "others": [_other(one) for one in source.others],
        "recipe": yaml.safe_dump(redacted(source.recipe), sort_keys=False, allow_unicode=True, width=100),
    }


def _group(title: str, charts: Sequence[Chart], pictures: Pictures, key: str) -> dict[str, Any]:
    """Charts of one section; what is missing for one and the same reason is said once."""
    missing: dict[str, list[str]] = {}
    for chart in charts:
        if chart.draw is None:
            missing.setdefault(chart.note, []).append(chart.title)
    return {
        "title": title,
        "key": f"{key}-{title.lower().replace(' ', '-')}",
        "charts": [
            _figure(chart, pictures[chart.name], f"{key}-{chart.name}") for chart in charts if chart.draw is not None
        ],
        "missing": [f"{', '.join(titles)}: {note[:1].lower()}{note[1:]}" for note, titles in missing.items()],
    }


def _figure(chart: Chart, picture: bytes, key: str) -> dict[str, Any]:
    from markupsafe import Markup

    svg = Markup(inline(picture, f"{chart.title}. {chart.note}", key=key))
    return {"title": chart.title, "note": chart.note, "svg": svg, "table": chart.table}


def _other(one: Evaluation) -> list[str]:
    result = one.result
    curve = ", ".join(f"{row['budget']}: {100 * row['success']:.1f} %" for row in result["budgets"])
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    return [
        str(result["split"]),
        str(result["checkpoint"] or "–"),
        str(result["tasks"]),
        seeds,
        str(result["announce"]),
        curve,
    ]


def _writable(text: str) -> str:
    """UTF-8 has no halves of a character, HTML no NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")

"""A drawing as PNG, as an SVG file, and as SVG inside a page that has a dark mode and a strict content policy."""

import io
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

Draw = Callable[[Any], None]  # draws on matplotlib axes

INK, GRID = "#222222", "#cccccc"
# Okabe and Ito's colours, told apart by every kind of colour vision; what is drawn differs in marker, dash or
# hatch as well, for black and white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS, DASHES = ("o", "s", "^", "D", "v", "P"), ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
# In a page a colour is a class, so that the page's style decides what it looks like.
CLASSES = {INK: "ink", GRID: "grid", **{colour: f"c{n}" for n, colour in enumerate(COLOURS)}}

LONG = 20  # letters of a legend entry that fits beside another one
BACKGROUND = "background"
SIZE = (4.1, 3.2)  # inches: as wide as a phone in points, so that text keeps its size there
STYLE: dict[Any, Any] = {
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.prop_cycle": f"cycler('color', {[*COLOURS]})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is one
    "xtick.color": INK,
    "ytick.color": INK,
}
_SVG, _LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"


def png(draw: Draw, title: str) -> bytes:
    """The same drawing gives the same bytes."""
    return _saved(draw, title, "png", dpi=220, metadata={"Software": None})


def svg(draw: Draw) -> bytes:
    """A file of its own, without a title; the same drawing gives the same bytes."""
    return _saved(draw, None, "svg", metadata={"Date": None, "Creator": None})


def inline(picture: bytes, title: str, *, key: str) -> str:
    """An SVG file for a page: no size, no style but classes, nothing that runs or loads.

    Args:
        title: what the picture is called to those who cannot see it.
        key: makes ids unique in the page.
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(picture)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style") or child.get("id") == BACKGROUND:
                parent.remove(child)
    used = {text[text.index("#") + 1 :].rstrip(")") for one in root.iter() for text in _references(one)}
    for one in root.iter():
        _style_to_attributes(one)
        name = one.attrib.pop("id", None)
        if name in used:
            one.set("id", f"{key}-{name}")
        if _LINK in one.attrib:
            one.set("href", f"#{key}-{one.attrib.pop(_LINK)[1:]}")
        for attribute in ("clip-path", "fill"):
            if one.get(attribute, "").startswith("url(#"):
                one.set(attribute, f"url(#{key}-{one.attrib[attribute][5:]}")
        one.text, one.tail = ((text or "").strip() or None for text in (one.text, one.tail))
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _references(one: ElementTree.Element) -> list[str]:
    values = (one.get(_LINK, ""), one.get("clip-path", ""), one.get("fill", ""), *_declarations(one).values())
    return [value for value in values if "#" in value and value.startswith(("#", "url(#"))]


def _declarations(one: ElementTree.Element) -> dict[str, str]:
    pairs = (part.partition(":") for part in one.get("style", "").split(";"))
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _style_to_attributes(one: ElementTree.Element) -> None:
    """Attributes, which a content policy allows, in place of declarations, which it does not."""
    given = {key: value for key in ("fill", "stroke") if (value := one.get(key)) is not None}
    declared, classes = given | _declarations(one), []
    one.attrib.pop("style", None)
    one.attrib.pop("font-family", None)
    for key, value in declared.items():
        if key == "font":  # its size alone: the family is the page's
            one.set("font-size", next(word for word in value.split() if word.endswith("px")))
        elif key in ("fill", "stroke") and value in CLASSES:
            classes.append(f"{key}-{CLASSES[value]}")
            one.set(key, value)
        else:
            one.set(key, value)
    if classes:
        one.set("class", " ".join(classes))


def _saved(draw: Draw, title: str | None, form: str, **options: Any) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change a report
        mpl.rcParams.update({**STYLE, "svg.hashsalt": "bmrl"})
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        figure.patch.set_gid(BACKGROUND)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        draw(axes)
        if title is not None:
            axes.set_title(title)
        if labels := axes.get_legend_handles_labels()[1]:
            columns = 1 if max(map(len, labels)) > LONG else 2
            figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, columnspacing=1.2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, **options)
    return buffer.getvalue()

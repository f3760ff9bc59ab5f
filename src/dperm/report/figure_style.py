"""What all figures look like, and how they become inline SVG."""

from __future__ import annotations

import html
import io
import re
from typing import Any, cast

from dperm._extras import needed
from dperm._json import on_one_line

with needed("matplotlib", "A figure"):
    import matplotlib
    from matplotlib.figure import Figure

INK = "#123456"  # replaced by currentColor in the SVG
#: Okabe & Ito's palette, and four of Tol's: told apart by the colour-blind and legible on white and on near-black.
COLOURS = (
    *("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#8c8c8c", "#B8A800"),
    *("#AA4466", "#44AA99", "#7766CC", "#999933"),
)
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dperm",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
}


def words(name: str) -> str:
    """A name of others as a figure shows it: on one line, and no dollar in it begins a formula."""
    return on_one_line(name).replace("$", r"\$")


def as_svg(figure: Figure, title: str) -> str:
    """Inline SVG without fixed size, labelled for screen readers."""
    buffer = io.StringIO()
    with matplotlib.rc_context(cast(Any, STYLE)):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(INK.lower(), "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    labelled = f' role="img" aria-label="{html.escape(on_one_line(title))}"'  # names of data sets may be anything
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', lambda found: found[1] + labelled, text, count=1)
    # ids repeat between figures of one page: make them local
    salt = f"f{abs(hash((title, len(text)))) % 10**8}"
    text = re.sub(r'id="([^"]+)"', rf'id="{salt}-\1"', text)
    return re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{salt}-", text)

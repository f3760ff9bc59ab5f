"""Certificates for a notebook: the guarantee at once, and what it rests on folded below it. No library, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dperm.privacy.certificates.assumptions import Assumption

_BOX = "border:1px solid #8888;border-radius:4px;padding:.4em .8em;margin:.4em 0;max-width:60em;font:13px sans-serif"
_PLAIN = "margin:.3em 0;line-height:1.4"


def boxed(*parts: str) -> str:
    """These pieces of HTML in a box that takes the colours of its notebook, light or dark."""
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def paragraph(text: str, *, strong: bool = False) -> str:
    """A text, which is no HTML, as a paragraph."""
    return f'<p style="{_PLAIN}">{f"<strong>{escape(text)}</strong>" if strong else escape(text)}</p>'


def folded(title: str, lines: Sequence[str]) -> str:
    """Texts, which are no HTML, below a title that opens them; nothing where there are none."""
    if not lines:
        return ""
    items = "".join(f'<li style="{_PLAIN}">{escape(line)}</li>' for line in lines)
    opens = f'<summary style="cursor:pointer;{_PLAIN}">{escape(title)}</summary>'
    return f'<details>{opens}<ul style="margin:.2em 0 .4em 1.2em;padding:0">{items}</ul></details>'


def certificate_html(claim: Sequence[str], assumptions: Sequence[Assumption], uncharged: Sequence[str]) -> str:
    """A certificate of these statements, of which the first is its guarantee."""
    mine, ours = ([item for item in assumptions if item.responsible == who] for who in ("caller", "library"))
    return boxed(
        paragraph(claim[0], strong=True),
        *map(paragraph, claim[1:]),
        folded(f"What you answer for ({len(mine)})", [f"{item.text} [{item.checked}]" for item in mine]),
        folded(f"What dperm proves, enforces or tests ({len(ours)})", [f"{item.text} [{item.checked}]" for item in ours]),
        folded(f"Not charged ({len(uncharged)})", uncharged),
    )

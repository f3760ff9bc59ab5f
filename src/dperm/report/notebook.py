"""Comparisons for a notebook. They follow from the records without noise: for the data holder alone."""

from __future__ import annotations

from html import escape

from dperm.privacy.certificates.html import boxed, folded, paragraph
from dperm.report.advice import advise, shown_epsilon
from dperm.report.candidates import DEFAULT
from dperm.report.leaderboard import ranked_keys, score_text, title_of, told_apart
from dperm.report.study import Cell, StudyResult

_TABLE = "border-collapse:collapse;margin:.5em 0;font:inherit;display:block;overflow-x:auto"
_CELL = "padding:.2em .7em;text-align:right;border-bottom:1px solid #8884;font:inherit;white-space:nowrap"


def study_html(result: StudyResult) -> str:
    """A comparison as HTML without scripts: the advice, all scores that rank, and what is assumed."""
    advice = advise(result)
    at = shown_epsilon(result, advice)
    advised = advice.mechanism if advice.epsilon == at else None
    key = advised or (DEFAULT if DEFAULT in result.keys else ranked_keys(result, at)[0])
    certificate = result.cell(key, at).certificate
    return boxed(
        paragraph(f"{result.title}: {result.counted}, δ = {result.study.delta:g}. NOT PRIVATE: for the data holder alone."),
        paragraph(advice.sentence.replace("`", ""), strong=True),
        _table(result, at),
        folded(f"Remarks ({len(advice.remarks)})", advice.remarks),
        folded("Notes on how it was measured", result.notes),
        "" if certificate is None else paragraph(f"What {title_of(key)} promises at ε = {at:g}:") + certificate.to_html(),
    )


def _table(result: StudyResult, at: float) -> str:
    """The score that ranks, of each private model at each ε, and of those without privacy."""
    best = told_apart(result)
    unit = " in %" if result.measure.unit == "percent" else ""
    head = "".join(f'<th style="{_CELL}">ε = {epsilon:g}</th>' for epsilon in result.study.epsilons)
    rows = [f'<tr><th style="{_CELL};text-align:left">{escape(result.metric)}{unit}</th>{head}</tr>']
    for key in ranked_keys(result, at):
        cells = [_text(result, result.cell(key, epsilon), best[epsilon] == key) for epsilon in result.study.epsilons]
        rows.append(f'<tr><td style="{_CELL};text-align:left">{escape(title_of(key))}</td>{"".join(cells)}</tr>')
    for cell in result.references:
        shown = f'<td colspan="{len(result.study.epsilons)}" style="{_CELL}">{_score(result, cell)}</td>'
        rows.append(f'<tr><td style="{_CELL};text-align:left">{escape(title_of(cell.mechanism))}</td>{shown}</tr>')
    return f'<table style="{_TABLE}">{"".join(rows)}</table>'


def _text(result: StudyResult, cell: Cell, best: bool) -> str:
    return f'<td style="{_CELL}{";font-weight:bold" if best else ""}">{_score(result, cell)}</td>'


def _score(result: StudyResult, cell: Cell) -> str:
    """The mean, and half of its interval."""
    value, spread = score_text(result, cell)
    return escape(f"{value} ± {spread}" if spread else value)


StudyResult.as_html = study_html

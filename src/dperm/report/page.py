"""Self-contained HTML pages: what they share, and the comparison report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from dperm._extras import needed
from dperm._json import on_one_line
from dperm._rounding import downward, upward
from dperm.audit import AuditResult, overall
from dperm.privacy import Certificate
from dperm.report.advice import advise, shown_epsilon
from dperm.report.candidates import CANDIDATES, DEFAULT
from dperm.report.event_words import event_lines
from dperm.report.figures import (
    excess_figure,
    noise_figure,
    noise_multiplier,
    path_figure,
    score_figure,
)
from dperm.report.leaderboard import measured_text, ranked_keys, score_text, title_of, told_apart
from dperm.report.study import StudyResult
from dperm.report.study_scores import measures_of

with needed("jinja2", "A page"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape


def _environment() -> Environment:
    """Where the pages' templates are."""
    environment = Environment(
        loader=PackageLoader("dperm.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = environment.filters
    filters["upward"] = upward  # what is spent, or may happen
    filters["downward"] = downward  # what is left
    filters["number"] = lambda value: f"{value:.4g}"
    filters["words"] = _with_code
    filters["event_lines"] = event_lines
    filters["percent"] = lambda value: f"{100 * value:.1f}"
    return environment


def _with_code(text: str) -> Markup:
    """A sentence of ours as markup: escaped, what stands in backticks as code."""
    parts = [escape(on_one_line(part)) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts))


def rendered(template: str, **values: Any) -> str:
    """A page, with the machine that made it."""
    return _environment().get_template(template).render(machine=machine(), **values)


def _shown(value: Any) -> Any:
    """A value as a page shows it: on one line, with control characters escaped, so that no name of somebody else turns text
    round or steers a terminal that prints the page."""
    return on_one_line(value) if type(value) is str else value  # markup is a type of its own


def machine() -> dict[str, str]:
    """What a reader needs to repeat the numbers."""
    names = ("dperm", "numpy", "scipy", "scikit-learn")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _leaderboard(result: StudyResult, at: float) -> list[dict[str, Any]]:
    """The score that ranks, of each private model at each ε: as texts, and whether it is the best of its column."""
    best = told_apart(result)
    return [
        {
            "title": title_of(key),
            "cells": [
                {"text": score_text(result, result.cell(key, epsilon)), "best": best[epsilon] == key, "at": epsilon == at}
                for epsilon in result.study.epsilons
            ],
        }
        for key in ranked_keys(result, at)
    ]


def _scores(result: StudyResult, at: float) -> dict[str, Any]:
    """All scores at one ε, of private models and of those without privacy."""
    measures = measures_of(result.task.classes, result.task.ordered)
    cells = [*(result.cell(key, at) for key in ranked_keys(result, at)), *result.references]
    return {
        "at": at,
        "measures": measures,
        "amounts": any(each.unit == "target" for each in measures),
        "rows": [
            {
                "title": title_of(cell.mechanism),
                "private": cell.epsilon is not None,
                "texts": [measured_text(cell, each) for each in measures],
            }
            for cell in cells
        ],
    }


def _attack_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Means of the membership attack, without privacy and at each ε, beside what the certificate allows any attack."""
    return [
        {"title": title_of(key), "cells": [result.cell(key, epsilon) for epsilon in result.study.epsilons]} for key in result.keys
    ]


def _noise_rows(result: StudyResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for cell in result.cells:
        if cell.certificate is None:
            continue
        facts = cell.certificate.public_facts
        rows.append(
            {
                "title": title_of(cell.mechanism),
                "epsilon": cell.epsilon,
                "proved": cell.certificate.epsilon,
                "multiplier": noise_multiplier(cell),
                "convexity": facts.get("strong_convexity"),
                "steps": facts.get("steps"),
                "excess": float(cell.excess.mean()),
            }
        )
    return rows


def comparison_page(results: Sequence[StudyResult], audits: Sequence[Sequence[tuple[str, Sequence[AuditResult]]]] = ()) -> str:
    """The report of `dperm compare`: one section a data set. For the data holder's eyes; it says which parts are private.

    `audits` are those of each result's mechanisms, in the same order (`jobs.comparing.attacked`).
    """
    sections = [_section(result, number, audits[number] if audits else ()) for number, result in enumerate(results)]
    used = {cell.mechanism for result in results for cell in result.cells}
    rules = [candidate for key, candidate in CANDIDATES.items() if key in used]
    return rendered("comparison.html", sections=sections, rules=rules, study=results[0].study)


def _section(result: StudyResult, number: int, audits: Sequence[tuple[str, Sequence[AuditResult]]]) -> dict[str, Any]:
    """What the page says of one data set."""
    advice = advise(result)
    at = shown_epsilon(result, advice)
    return {
        "result": result,
        "anchor": f"set-{number}",
        "advice": advice,
        "rows": _leaderboard(result, at),
        "references": [{"title": title_of(cell.mechanism), "text": score_text(result, cell)} for cell in result.references],
        "linear": result.cell("non-private", None),
        "scores": _scores(result, at),
        "has_default": DEFAULT in result.keys,
        "noise": _noise_rows(result),
        "attacks": _attack_rows(result),
        "score_svg": score_figure(result),
        "excess_svg": excess_figure(result),
        "path_svg": path_figure(result.curve, "auc", None, None) if result.curve else "",
        "noise_svg": noise_figure(result),
        "releases": sum(cell.epsilon is not None for cell in result.cells) * result.study.repeats,
        "certificate": _shown_certificate(result),
        "audits": [
            {"title": title_of(key), "verdict": overall(outcomes), "replay": outcomes[0], "game": outcomes[1]}
            for key, outcomes in audits
        ],
    }


def _shown_certificate(result: StudyResult) -> Certificate | None:
    """One certificate in full: the default mechanism's at the ε nearest 1."""
    with_certificate = [cell for cell in result.cells if cell.certificate is not None]
    if not with_certificate:
        return None
    key = DEFAULT if DEFAULT in result.keys else with_certificate[0].mechanism
    mine = [cell for cell in with_certificate if cell.mechanism == key] or with_certificate
    return min(mine, key=lambda cell: abs((cell.epsilon or 0) - 1)).certificate

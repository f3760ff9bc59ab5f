"""Attacks on the mechanisms of a study, as they were calibrated for it."""

from __future__ import annotations

from collections.abc import Callable

from dperm.audit import AuditResult, Training, attack
from dperm.mechanisms import Budget
from dperm.report.candidates import CANDIDATES
from dperm.report.study import StudyResult

_TRIALS = 2000


def audit_study(
    result: StudyResult, progress: Callable[[int, int, str], None] | None = None
) -> list[tuple[str, list[AuditResult]]]:
    """(mechanism, results) at the study's ε nearest to 1, on made-up records: nothing is charged."""
    epsilon = min(result.study.epsilons, key=lambda value: abs(value - 1))
    keys = list(dict.fromkeys(cell.mechanism for cell in result.cells if cell.epsilon is not None))
    audits: list[tuple[str, list[AuditResult]]] = []
    for number, key in enumerate(keys):
        candidate = CANDIDATES[key]
        if progress is not None:
            progress(number, len(keys), f"Attacking {candidate.title}")
        mechanism, objective = candidate.method.build(result.task, Budget(result.study.delta, epsilon))
        audits.append((key, attack(Training.of_mechanism(mechanism, objective), trials=_TRIALS)))
    return audits

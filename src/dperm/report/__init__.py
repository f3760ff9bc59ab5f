"""Studies, tables, figures and HTML pages that explain models and certificates to people.

`run_study` compares mechanisms; `dperm compare` and the other commands use the modules directly. Pages marked PRIVATE are for
the data holder only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dperm.report.study import Cell, Study, StudyResult, run_study

import_module("dperm.report.notebook")  # which says how a notebook shows a study

if TYPE_CHECKING:
    from dperm.report.displays import EffectsDisplay, EpsilonCurveDisplay

__all__ = ["Cell", "EffectsDisplay", "EpsilonCurveDisplay", "Study", "StudyResult", "run_study"]


def __getattr__(name: str) -> Any:
    """Displays need matplotlib, which studies do without."""
    if name not in ("EffectsDisplay", "EpsilonCurveDisplay"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dperm.report import displays

    return getattr(displays, name)

"""Studies, tables, figures and HTML pages that explain models and certificates to people.

`run_study` compares mechanisms; `dperm compare` and the other commands use the modules directly. Pages marked PRIVATE are for
the data holder only.
"""

from dperm.report.study import Cell, Study, StudyResult, run_study

__all__ = ["Cell", "Study", "StudyResult", "run_study"]

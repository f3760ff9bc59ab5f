"""Reports: studies that compare mechanisms, pictures and pages."""

from dperm.report.study import Cell, Study, StudyResult, run_study

__all__ = ["Cell", "Study", "StudyResult", "run_study"]

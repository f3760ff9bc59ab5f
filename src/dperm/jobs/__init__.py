"""What the command line does, for programs: jobs that go from files to files.

A job is a function of one value of options. It reads within limits, refuses before it charges, reserves its files before the
charge and keeps what was paid for whatever happens; it returns a result, and prints nothing. What a job needs of the library it
imports when it runs, so that `dperm` starts in a moment.
"""

from dperm.jobs.auditing import AuditingOptions, audit
from dperm.jobs.comparing import ComparisonOptions, compare
from dperm.jobs.models import ModelOptions
from dperm.jobs.training import Trained, TrainingOptions, train

__all__ = [
    "AuditingOptions",
    "ComparisonOptions",
    "ModelOptions",
    "Trained",
    "TrainingOptions",
    "audit",
    "compare",
    "train",
]

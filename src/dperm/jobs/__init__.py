"""What the command line does, for programs: jobs that go from files to files.

A job is a function of one value of options. It reads within limits, refuses before it charges, reserves its files before the
charge and keeps what was paid for whatever happens; it returns a result, and prints nothing. What a job needs of the library it
imports when it runs, so that `dperm` starts in a moment. A comparison starts processes, each of which runs a script once more
that does not begin its work below `if __name__ == "__main__":`; there charges are refused.
"""

from dperm.jobs.accounting import Accounted, AccountingOptions, account
from dperm.jobs.auditing import AuditingOptions, audit
from dperm.jobs.budgeting import BudgetingOptions, create_budget
from dperm.jobs.comparing import ComparisonOptions, compare
from dperm.jobs.model_card import CardOptions, card
from dperm.jobs.training import ModelNotWrittenError, Trained, TrainingOptions, train

__all__ = [
    "Accounted",
    "AccountingOptions",
    "AuditingOptions",
    "BudgetingOptions",
    "CardOptions",
    "ComparisonOptions",
    "ModelNotWrittenError",
    "Trained",
    "TrainingOptions",
    "account",
    "audit",
    "card",
    "compare",
    "create_budget",
    "train",
]

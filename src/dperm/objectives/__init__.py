"""What is minimised: losses, linear objectives, records and their public facts, and the interface to per-example gradients.

A loss derives the constants that privacy rests on (Lipschitz, smoothness) from the public bound on a row's norm. `Records`
scales rows to that bound and keeps sums exact. Nothing here adds noise or spends privacy. To add a loss, derive from `Loss`.
"""

from dperm.objectives.facts import PublicFacts
from dperm.objectives.grouped import GroupedRecords, MeanPass
from dperm.objectives.hinge import Hinge, QNormHinge
from dperm.objectives.linear import LinearObjective, LinearPass
from dperm.objectives.local_training import LocallyTrained, LocalSteps
from dperm.objectives.losses import Huber, Logistic, Loss, SmoothedHinge, Softmax, Squared
from dperm.objectives.ordinal import OrdinalLogistic
from dperm.objectives.parts import PartedRecords, PartsChangedError
from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.poisson import PoissonLoss
from dperm.objectives.quantile import QuantileLoss
from dperm.objectives.records import RECORD, Batch, PrivacyUnit, Records
from dperm.objectives.regularised_sum import RegularisedSum
from dperm.objectives.roughness import Roughness
from dperm.objectives.targets import Interval, Link, Targets
from dperm.objectives.task import Task
from dperm.objectives.weighted import Weighted

__all__ = [
    "RECORD",
    "Batch",
    "GroupedRecords",
    "Hinge",
    "Huber",
    "Interval",
    "LinearObjective",
    "LinearPass",
    "Link",
    "LocalSteps",
    "LocallyTrained",
    "Logistic",
    "Loss",
    "MeanPass",
    "Objective",
    "OrdinalLogistic",
    "PartedRecords",
    "PartsChangedError",
    "Pass",
    "PoissonLoss",
    "PrivacyUnit",
    "PublicFacts",
    "QNormHinge",
    "QuantileLoss",
    "Records",
    "RegularisedSum",
    "Roughness",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "Targets",
    "Task",
    "Weighted",
]

"""Objectives: losses with derived constants, linear models on any row storage, and the per-example protocol."""

from dperm.objectives.facts import PublicFacts
from dperm.objectives.grouped import GroupedRecords, MeanPass
from dperm.objectives.hinge import Hinge, QNormHinge
from dperm.objectives.linear import LinearObjective, LinearPass
from dperm.objectives.losses import Huber, Logistic, Loss, SmoothedHinge, Softmax, Squared
from dperm.objectives.parts import PartedRecords, PartsChangedError
from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.poisson import PoissonLoss
from dperm.objectives.problem import RegularisedSum
from dperm.objectives.quantile import QuantileLoss
from dperm.objectives.records import RECORD, Batch, PrivacyUnit, Records
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
    "Logistic",
    "Loss",
    "MeanPass",
    "Objective",
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

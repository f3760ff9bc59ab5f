"""Noisy gradient descent: policies such as `Plan`, the parts of a plan, and `descend`, which runs them on linear models.

A plan combines a sampler, query, bounding, noise schedule, post-processing and update; its event is computed from these same
parts. All parts are public settings: records enter only through a run (`Gradients`), whose sums leave only through the channel.
Users of estimators need none of this; authors of algorithms derive from a part or from `Policy` (`svrg.py` is a short example).
"""

from dperm.gradient.bounding import AdaptiveClip, Bounding, Clip, Normalise, PerLayer, Unit
from dperm.gradient.correlation import Strategy
from dperm.gradient.importance import AdaptiveNorm, ImportanceEpoch, ImportanceGradients, ImportancePlan
from dperm.gradient.individual_accounting import IndividualGradients, IndividualPlan
from dperm.gradient.plan import Constant, ExponentialDecay, NoiseSchedule, NoisyGradients, Plan
from dperm.gradient.planned_run import PlannedRun
from dperm.gradient.policy import Gradients, Policy, descend, descend_by
from dperm.gradient.post_processing import Identity, LaplacianSmoothing, Post, UnitAtLeast
from dperm.gradient.query import GradientDifference, LocalUpdate, PerExampleGradient, Query
from dperm.gradient.sampling import (
    BallsAndBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    FullBatch,
    Poisson,
    PoissonRows,
    PoissonUpTo,
    Reshuffled,
    Sampler,
)
from dperm.gradient.svrg import SvrgPlan
from dperm.gradient.update import SGD, Adam, AdamBC, Averaged, ExponentialAverage, FrankWolfeStep, Update

__all__ = [
    "SGD",
    "Adam",
    "AdamBC",
    "AdaptiveClip",
    "AdaptiveNorm",
    "Averaged",
    "BallsAndBins",
    "Bounding",
    "Clip",
    "Constant",
    "CyclicPoisson",
    "ExponentialAverage",
    "ExponentialDecay",
    "FixedOrder",
    "FixedSize",
    "FrankWolfeStep",
    "FullBatch",
    "GradientDifference",
    "Gradients",
    "Identity",
    "ImportanceEpoch",
    "ImportanceGradients",
    "ImportancePlan",
    "IndividualGradients",
    "IndividualPlan",
    "LaplacianSmoothing",
    "LocalUpdate",
    "NoiseSchedule",
    "NoisyGradients",
    "Normalise",
    "PerExampleGradient",
    "PerLayer",
    "Plan",
    "PlannedRun",
    "Poisson",
    "PoissonRows",
    "PoissonUpTo",
    "Policy",
    "Post",
    "Query",
    "Reshuffled",
    "Sampler",
    "Strategy",
    "SvrgPlan",
    "Unit",
    "UnitAtLeast",
    "Update",
    "descend",
    "descend_by",
]

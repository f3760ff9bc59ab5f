"""Mechanisms, the private training algorithms, and methods, which build a mechanism from a task and a budget.

Every mechanism has `event(facts)`, which sees public facts only, and `release(objective, records, channel)`. Estimators take a
method as `mechanism=`. To add one, put a mechanism and its method in one file here; all modules are imported, so that methods
are known by their keys.
"""

import pkgutil
from importlib import import_module

from dperm.mechanisms.accuracy_first import AccuracyFirst, AskRecords, GradualRelease, LookAtOthers, Stopping
from dperm.mechanisms.auto import Auto
from dperm.mechanisms.base import Budget, Mechanism, Release, Stage
from dperm.mechanisms.bolt_on import BoltOn, BoltOnPerturbation
from dperm.mechanisms.by_part import ByPart
from dperm.mechanisms.coordinate import Coordinate, CoordinateDescent
from dperm.mechanisms.correlated import CorrelatedGradient
from dperm.mechanisms.derivatives import DerivativesRelease
from dperm.mechanisms.frank_wolfe import FrankWolfe, FrankWolfeBall, FrankWolfeDescent
from dperm.mechanisms.gradient import Gradient, GradientPerturbation, IndividualGradient, SmoothedGradient
from dperm.mechanisms.greedy import GreedyCoordinate, GreedyDescent
from dperm.mechanisms.last_iterate import LastIterate, LastIterateDescent
from dperm.mechanisms.method import Method, known_methods, method_from_dict, method_of, one_for_each
from dperm.mechanisms.noisy_size import NoisySize
from dperm.mechanisms.normalised import NormalisedGradient, TraditionalGradient
from dperm.mechanisms.objective import Objective, ObjectivePerturbation
from dperm.mechanisms.one_vs_rest import OneVsRest
from dperm.mechanisms.output import Output, OutputPerturbation
from dperm.mechanisms.preconditioned import Preconditioned, PreconditionedDescent

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "AccuracyFirst",
    "AskRecords",
    "Auto",
    "BoltOn",
    "BoltOnPerturbation",
    "Budget",
    "ByPart",
    "Coordinate",
    "CoordinateDescent",
    "CorrelatedGradient",
    "DerivativesRelease",
    "FrankWolfe",
    "FrankWolfeBall",
    "FrankWolfeDescent",
    "Gradient",
    "GradientPerturbation",
    "GradualRelease",
    "GreedyCoordinate",
    "GreedyDescent",
    "IndividualGradient",
    "LastIterate",
    "LastIterateDescent",
    "LookAtOthers",
    "Mechanism",
    "Method",
    "NoisySize",
    "NormalisedGradient",
    "Objective",
    "ObjectivePerturbation",
    "OneVsRest",
    "Output",
    "OutputPerturbation",
    "Preconditioned",
    "PreconditionedDescent",
    "Release",
    "SmoothedGradient",
    "Stage",
    "Stopping",
    "TraditionalGradient",
    "known_methods",
    "method_from_dict",
    "method_of",
    "one_for_each",
]

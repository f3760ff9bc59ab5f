"""Mechanisms: private training algorithms with one interface — `event(facts)` and `release(objective, records, channel)`."""

from dperm.mechanisms.base import Budget, Mechanism, Release, Stage
from dperm.mechanisms.gradient import GradientPerturbation
from dperm.mechanisms.noisy_size import NoisySize
from dperm.mechanisms.objective import ObjectivePerturbation
from dperm.mechanisms.one_vs_rest import OneVsRest
from dperm.mechanisms.output import OutputPerturbation

__all__ = [
    "Budget",
    "GradientPerturbation",
    "Mechanism",
    "NoisySize",
    "ObjectivePerturbation",
    "OneVsRest",
    "OutputPerturbation",
    "Release",
    "Stage",
]

"""DPIS: its settings, what they cost, the run, and the policy of them all."""

from dperm.gradient.importance.plan import ImportancePlan
from dperm.gradient.importance.run import ImportanceEpoch, ImportanceGradients
from dperm.gradient.importance.settings import LARGEST_RATE, AdaptiveNorm, admit_batch
from dperm.gradient.importance.spending import epoch_event, sum_noise_by_rule

__all__ = [
    "LARGEST_RATE",
    "AdaptiveNorm",
    "ImportanceEpoch",
    "ImportanceGradients",
    "ImportancePlan",
    "admit_batch",
    "epoch_event",
    "sum_noise_by_rule",
]

"""DPIS, importance sampling by gradient norm: its settings, its privacy accounting, its run, and the policy.

Users call the recipe `dperm.gradient.recipes.dpis` instead. `spending.py` computes what a run is charged and the noise that
this allows; `run.py` holds private state, the norms of earlier gradients, which must not be released.
"""

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

"""Full-batch noisy gradient descent: T Gaussians, which compose exactly into one."""

from __future__ import annotations

import math

from dperm import _validate as check
from dperm.gradient.bounding import Bounding, Clip
from dperm.gradient.plan import Constant, Plan
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.recipes.recipe import recipe
from dperm.gradient.sampling import FullBatch
from dperm.gradient.update import SGD, Averaged, Update


@recipe
def full_batch_descent(
    *,
    noise_multiplier: float,
    public_size: int,
    steps: int,
    clipping_norm: float | None = None,
    bounding: Bounding | None = None,
    update: Update | None = None,
    average_from: float | None = None,
    post: Post | None = None,
) -> Plan:
    """`steps` steps over all records; the other parameters as in `dp_sgd`."""
    if (clipping_norm is None) == (bounding is None):
        raise ValueError("Expected exactly one of clipping_norm and bounding.")
    check.integer("steps", steps)
    update = update or SGD(1.0, momentum=0.9)
    if average_from is not None:
        update = Averaged(update, skip=math.floor(check.fraction("average_from", average_from, zero=True) * steps))
    bounding = bounding or Clip(clipping_norm or 0.0)
    return Plan(FullBatch(), bounding, Constant(noise_multiplier), update, steps, public_size, post or Identity())

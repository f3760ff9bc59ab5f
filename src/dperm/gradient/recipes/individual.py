"""Individual accounting (Koskela, Tobaben, Honkela 2023): full batches, in which each record spends what its gradients cost."""

from __future__ import annotations

import math

from dperm import _validate as check
from dperm.gradient.individual_accounting import IndividualPlan
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.recipes.recipe import recipe
from dperm.gradient.update import SGD, Averaged, Update


@recipe
def individual_descent(
    *,
    noise_multiplier: float,
    public_size: int,
    steps: int,
    clipping_norm: float,
    full_steps: float | None = None,
    update: Update | None = None,
    average_from: float | None = None,
    post: Post | None = None,
) -> IndividualPlan:
    """`steps` steps over all records at the price of `full_steps` (None: half as many); see `IndividualPlan`.

    The noise that a budget needs grows with √full_steps, not with √steps: what is saved is paid by records whose gradients stay
    long. The other parameters are as in `dp_sgd`.
    """
    check.integer("steps", steps)
    update = update or SGD(1.0, momentum=0.9)
    if average_from is not None:
        update = Averaged(update, skip=math.floor(check.fraction("average_from", average_from, zero=True) * steps))
    full = steps / 2 if full_steps is None else full_steps
    return IndividualPlan(clipping_norm, noise_multiplier, steps, full, update, public_size, post or Identity())

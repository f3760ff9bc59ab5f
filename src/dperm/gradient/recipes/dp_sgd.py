"""DP-SGD (Abadi et al. 2016): Poisson sampling, clipping, Gaussian noise."""

from __future__ import annotations

import math

from dperm import _validate as check
from dperm.gradient.bounding import Bounding, Clip
from dperm.gradient.plan import Plan
from dperm.gradient.post import Identity, Post
from dperm.gradient.recipes.recipe import recipe
from dperm.gradient.sampling import Poisson
from dperm.gradient.schedule import Constant, ExponentialDecay
from dperm.gradient.update import SGD, Averaged, Update

__all__ = ["dp_sgd"]


@recipe
def dp_sgd(
    *,
    noise_multiplier: float,
    public_size: int,
    expected_batch_size: float,
    epochs: float,
    clipping_norm: float | None = None,
    bounding: Bounding | None = None,
    update: Update | None = None,
    average_from: float | None = None,
    post: Post | None = None,
    decay: float = 0.0,
) -> Plan:
    """`epochs` expected passes in Poisson draws of `expected_batch_size` of `public_size` records.

    Gradients are clipped at `clipping_norm`, or bounded by `bounding`: `PerLayer`, `Normalise` (automatic clipping) or
    `AdaptiveClip`. `update` defaults to SGD(1.0, momentum 0.9); iterates after the fraction `average_from` are averaged, which
    suits convex problems (None: the last iterate). `post` is done to each noisy gradient: `LaplacianSmoothing` (DP-LSSGD), say.
    `decay` > 0 lowers the noise by e^{−decay} an epoch (DP-SGD-Decay, Yu et al. 2019).
    """
    if (clipping_norm is None) == (bounding is None):
        raise ValueError("Expected exactly one of clipping_norm and bounding.")
    check.positive("expected_batch_size", expected_batch_size)
    check.positive("epochs", epochs)
    rate = min(1.0, expected_batch_size / public_size)
    steps_per_epoch = max(1, round(1 / rate))
    steps = max(1, math.ceil(epochs / rate))
    update = update or SGD(1.0, momentum=0.9)
    if average_from is not None:
        update = Averaged(update, skip=math.floor(check.fraction("average_from", average_from, zero=True) * steps))
    noise = ExponentialDecay(noise_multiplier, decay, steps_per_epoch) if decay else Constant(noise_multiplier)
    bounding = bounding or Clip(clipping_norm or 0.0)
    return Plan(Poisson(rate), bounding, noise, update, steps, public_size, post or Identity())

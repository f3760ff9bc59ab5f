"""DP-SGD (Abadi et al. 2016): Poisson sampling, clipping, Gaussian noise; and a plan at small scale for trying settings (Sander,
Stock, Sablayrolles 2023, "TAN without a burn")."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

from dperm import _validate as check
from dperm.gradient.bounding import Bounding, Clip
from dperm.gradient.correlation import BestFor, Independent, Strategy, strategies
from dperm.gradient.correlation.choosing import best_bands
from dperm.gradient.plan import Constant, ExponentialDecay, Plan
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.recipes.recipe import recipe
from dperm.gradient.sampling import CyclicPoisson, Poisson, Sampler, samplings
from dperm.gradient.update import SGD, Averaged, Update
from dperm.objectives import PrivacyUnit

_IN_GROUPS = (Poisson, CyclicPoisson)  # of which records take turns in groups where noise is correlated


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
    sampling: str = "poisson",
    max_rows_per_unit: int | None = None,
    correlation: str | Strategy = "none",
    bands: int | None = None,
    target: tuple[float, float] | None = None,
) -> Plan:
    """`epochs` expected passes in draws of `expected_batch_size` of `public_size` records.

    `sampling`: "poisson"; "truncated_poisson", which keeps batches below a public size that they all but never reach;
    "balls_and_bins" (add/remove, whole epochs): each record once an epoch; "fixed_size" (replace-one); "rows" (add/remove):
    rows of persons by themselves, at most `max_rows_per_unit` of each, in draws of so many rows.

    Gradients are clipped at `clipping_norm`, or bounded by `bounding`: `PerLayer`, `Normalise` (automatic clipping) or
    `AdaptiveClip`. `update` defaults to SGD(1.0, momentum 0.9); iterates after the fraction `average_from` are averaged, which
    suits convex problems (None: the last iterate). `post` is done to each noisy gradient: `LaplacianSmoothing` (DP-LSSGD), say.
    `decay` > 0 lowers the noise by e^{−decay} an epoch (DP-SGD-Decay, Yu et al. 2019).

    `correlation`: noise that later steps partly take back, over `bands` steps: "banded", the best for this update, "square_root",
    "inverse_square_root", or "buffered", with so many buffers; or a `Strategy`. With Poisson sampling records then take turns in
    as many groups as there are bands ("cyclic_poisson"); "fixed_order" and "reshuffled", without amplification, take any number
    of bands. Where `bands` is None, they are chosen for the least predicted error at `target`, the (ε, δ) that the noise is
    calibrated to (`PrivateTrainer` hands it over): one band, which is DP-SGD, where that is best.
    """
    if (clipping_norm is None) == (bounding is None):
        raise ValueError("Expected exactly one of clipping_norm and bounding.")
    check.positive("expected_batch_size", expected_batch_size)
    check.positive("epochs", epochs)
    known = samplings()
    kind = known[check.choice("sampling", sampling, known)]
    sampler, steps = kind.for_batches(public_size, expected_batch_size, epochs, PrivacyUnit(max_rows_per_unit))
    update = update or SGD(1.0, momentum=0.9)
    if average_from is not None:
        update = Averaged(update, skip=math.floor(check.fraction("average_from", average_from, zero=True) * steps))
    strategy = _strategy(correlation, bands, sampler, update, steps, target)
    if strategy != Independent() and type(sampler) in _IN_GROUPS:
        groups = strategy.width if isinstance(strategy, BestFor) else bands or strategy.bands(steps)
        sampler = CyclicPoisson.of_share(sampler.share, groups)
    steps_per_epoch = max(1, round(1 / sampler.share))
    noise = ExponentialDecay(noise_multiplier, decay, steps_per_epoch) if decay else Constant(noise_multiplier)
    bounding = bounding or Clip(clipping_norm or 0.0)
    return Plan(sampler, bounding, noise, update, steps, public_size, post or Identity(), correlation=strategy)


def _strategy(
    correlation: str | Strategy,
    bands: int | None,
    sampler: Sampler,
    update: Update,
    steps: int,
    target: tuple[float, float] | None,
) -> Strategy | BestFor:
    """The strategy that is given, or that of this word."""
    if bands is not None:
        check.integer("bands", bands)
    if isinstance(correlation, Strategy):
        return correlation if correlation.kept(steps) else Independent()
    kind = strategies()[check.choice("correlation", correlation, strategies())]
    if kind is Independent:
        return Independent()
    in_groups = type(sampler) in _IN_GROUPS
    if in_groups and not kind.banded:
        raise ValueError(
            f'Expected sampling="fixed_order" or "reshuffled" with correlation={correlation!r}: in groups that take turns, noise '
            "is taken back over no more steps than there are groups."
        )
    if bands is None and in_groups:
        if target is None:
            raise ValueError(
                f"Expected bands with correlation={correlation!r}, over how many steps noise is taken back: a rule chooses them "
                "only for the epsilon of this run alone."
            )
        bands = best_bands(steps, sampler.share, *target, update.workload(steps, sampler.share), kind)
    elif bands is None:
        bands = min(kind.widest, sampler.participation.separation)
    return BestFor(correlation, bands) if bands > 1 else Independent()


def small_scale(plan: Plan, factor: float) -> Plan:
    """`plan` with batches and noise both `factor` times smaller, and as many steps: each step's noise ÷ batch is the same, and
    so, nearly, is what a rate or a clipping norm does. Records are drawn as in `plan`, in as many groups where they take turns,
    and noise is correlated as there.

    It costs `factor` times fewer gradients and far more ε than `plan`: it is for public or proxy data, or to be charged for what
    it is. ValueError for a factor below 1, for noise whose scale is no `noise_multiplier`, and for samplers without a
    `sampling_rate`: of smaller batches, an epoch or all records would be other steps than those of `plan`.
    """
    if not check.positive("factor", factor) >= 1:
        raise ValueError(f"Expected a factor of at least 1, got {factor!r}.")
    if not isinstance(plan, Plan) or not hasattr(plan.noise, "noise_multiplier"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"Expected a plan whose noise has a noise_multiplier, got {plan!r}.")
    if not hasattr(plan.sampler, "sampling_rate"):
        raise ValueError(
            f"Expected a plan that draws each record with some probability, got {plan.sampler.words}: in as many steps it has no "
            "smaller batches."
        )
    noise, sampler = cast(Any, plan.noise), cast(Any, plan.sampler)
    return replace(
        plan,
        sampler=replace(sampler, sampling_rate=sampler.sampling_rate / factor),
        noise=replace(noise, noise_multiplier=noise.noise_multiplier / factor),
    )

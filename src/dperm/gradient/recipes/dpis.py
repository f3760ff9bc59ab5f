"""DPIS (Wei, Bao, Xiao, Yang 2022): importance sampling, in place of DP-SGD's uniform batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from dperm import _validate as check
from dperm.gradient.importance import LARGEST_RATE, AdaptiveNorm, ImportancePlan, epoch_event, sum_noise_by_rule
from dperm.gradient.recipes.recipe import budgeted_recipe
from dperm.gradient.update import SGD, Averaged, Update
from dperm.privacy.accountants.accounting import epsilon as best_epsilon
from dperm.privacy.accountants.calibration import calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.privacy.accountants.privacy_filters import privacy_profile, rdp_budget
from dperm.privacy.events import (
    Composed,
    Event,
    FilteredRdp,
    Gaussian,
    PrivacyProfile,
    SelfComposed,
    UnsupportedEventError,
)

#: K ÷ (N·C) at the start of training, and about where it falls to: a Rényi filter's order is to suit both.
_RATIOS = (1.0, 0.2)
#: Those whose profiles an epoch's lies above: between them others need no more noise, beyond them a little.
_PROFILED_RATIOS = (1.0, 0.5, 0.2)
_UNSEEN = 1e-3  # of δ: what all epochs together may give away beyond the last points of their profiles


@budgeted_recipe
def dpis(
    *,
    epsilon: float,
    delta: float,
    expected_batch_size: float,
    epochs: float,
    clipping_norm: float,
    public_size: int | None = None,
    filter: Literal["profile", "renyi"] | FilteredRdp | None = None,
    proposal_factor: float = 2.0,
    norm_floor: float = 0.01,
    norm_noise: float | None = None,
    size_noise: float | None = None,
    worst_case_share: float | None = None,
    pass_every: int = 1,
    adaptive: AdaptiveNorm | None = None,
    update: Update | None = None,
    average_from: float | None = None,
    order: float | None = None,
    earlier: Event | None = None,
) -> ImportancePlan:
    """`epochs` epochs in batches of `expected_batch_size` that are drawn by gradient norm, all within (`epsilon`, `delta`).

    Parameters are those of `ImportancePlan`; k = 2 where the paper has 5, which its proposals, capped at C here, do not need.
    `filter` "profile" holds each epoch to one privacy profile, above those of epochs with any r = K/(N·C), which composes
    exactly and needs `public_size`; "renyi" adds up divergences at one `order` (None: `rdp_budget`'s), as the paper does, and
    can pay for N too; None takes the first where it can. A `FilteredRdp` is a filter that was charged already, of whose budget
    the run takes what is left. `update` defaults to SGD(1.0, momentum 0.9); iterates after the fraction `average_from` are
    averaged (None: the last iterate), which needs `public_size`. `earlier`: what was released from the same records before, to be
    paid from the same (ε, δ).
    """
    update = update or SGD(1.0, momentum=0.9)
    check.positive("epsilon", epsilon)
    check.fraction("delta", delta)
    epochs = check.integer("epochs", epochs)
    check.positive("expected_batch_size", expected_batch_size)
    if filter is None:
        filter = "renyi" if public_size is None else "profile"
    if not isinstance(filter, FilteredRdp):
        check.choice("filter", filter, ("profile", "renyi"))
    if public_size is not None and size_noise is not None:
        raise ValueError("Expected no size_noise where public_size is stated: the number of records is not released.")
    settings: dict[str, Any] = {
        "expected_batch_size": expected_batch_size,
        "epochs": epochs,
        "clipping_norm": clipping_norm,
        "update": update,
        "public_size": public_size,
        "proposal_factor": proposal_factor,
        "norm_floor": norm_floor,
        "norm_noise": norm_noise,
        "size_noise": size_noise,
        "worst_case_share": worst_case_share,
        "pass_every": pass_every,
        "adaptive": adaptive,
    }
    plan = _within(epsilon, delta, filter, order, earlier, settings)
    return plan if average_from is None else _averaged(plan, average_from)


def _averaged(plan: ImportancePlan, average_from: float) -> ImportancePlan:
    """With the mean of the iterates from this fraction of the steps on."""
    if plan.public_size is None:
        raise ValueError("Averaging from a fraction of the steps needs public_size: state it, or pass average_from=None.")
    skip = math.floor(check.fraction("average_from", average_from, zero=True) * plan.steps)
    return replace(plan, update=Averaged(plan.update, skip=skip))


def _within(
    epsilon: float,
    delta: float,
    filter: Literal["profile", "renyi"] | FilteredRdp,
    order: float | None,
    earlier: Event | None,
    settings: dict[str, Any],
) -> ImportancePlan:
    """Epochs held to a filter of this kind, or to what is left of one."""
    if isinstance(filter, FilteredRdp):
        if order is not None or earlier is not None:
            raise ValueError("Expected neither order nor earlier beside a filter, which has both.")
        return ImportancePlan(budget=filter, **settings)
    if filter == "profile":
        if order is not None or settings["worst_case_share"] is not None:
            raise ValueError("order and worst_case_share are settings of a Rényi filter: pass filter='renyi' with them.")
        return _by_profile(epsilon, delta, earlier, settings)
    return _by_renyi(epsilon, delta, order, earlier, settings)


def _by_renyi(
    epsilon: float, delta: float, order: float | None, earlier: Event | None, settings: dict[str, Any]
) -> ImportancePlan:
    """Epochs that add up divergences at one order: where none is stated, the best one for what is planned."""
    planned: list[Callable[[float], Event]] = []
    if (size := settings["public_size"]) is not None:
        batch = settings["expected_batch_size"]
        steps = max(1, round(settings["epochs"] * size / batch))
        for ratio in _RATIOS:
            planned.append(functools.partial(epoch_event, min(batch / (ratio * size), 1.0), steps=steps))
    try:
        budget = rdp_budget(epsilon, delta, order=order, planned=planned, earlier=earlier)
    except UnsupportedEventError as error:
        raise UnsupportedEventError(
            f"{error} What was released earlier is no part of a Rényi filter: state public_size, and leave filter at its default."
        ) from None
    return ImportancePlan(budget=budget, **settings)


def _by_profile(epsilon: float, delta: float, earlier: Event | None, settings: dict[str, Any]) -> ImportancePlan:
    """Epochs held to the largest profile of which all, with their K and what was `earlier`, spend (ε, δ)."""
    if settings["public_size"] is None:
        raise ValueError("Expected public_size: without it a Rényi filter is needed, which can pay for the number of records.")
    # everything but the noise is checked here, before any of it is computed with
    any_noise: dict[str, Any] = settings | {"norm_noise": settings["norm_noise"] or 1.0}
    draft = ImportancePlan(budget=PrivacyProfile((0.0,), (1.0,)), **any_noise)
    if settings["norm_noise"] is None:
        rule = sum_noise_by_rule(draft.schedule.sums(0), gaussian_mu(epsilon, delta), draft.public_size)
        settings = settings | {"norm_noise": rule}
    others: list[Event] = [SelfComposed(Gaussian(settings["norm_noise"]), draft.schedule.sums(0))]
    if earlier is not None:
        others.append(earlier)
        if (before := best_epsilon(earlier, delta)) >= epsilon:
            raise ValueError(f"What was released earlier takes epsilon = {before:.4g}: nothing is left of {epsilon:g}.")
    spent = best_epsilon(Composed(tuple(others)), delta)
    if spent > 0.9 * epsilon:
        raise ValueError(
            f"The budget cannot pay for K: with what was released earlier it takes {spent:.4g} of epsilon = {epsilon:g}. Raise "
            "norm_noise, or lower the number of epochs."
        )

    # epochs of these ratios, each with the noise at which DP-SGD of that rate would spend the whole: K decides which of them runs
    ratios = {max(ratio, draft.schedule.least_rate / LARGEST_RATE) for ratio in _PROFILED_RATIOS}
    alone: dict[float, float] = {}
    for rate in (draft.schedule.least_rate / ratio for ratio in sorted(ratios)):
        alone[rate] = calibrate(functools.partial(epoch_event, rate, steps=draft.steps), epsilon, delta, draft=True)

    def profile(scale: float) -> PrivacyProfile:
        epochs = [epoch_event(rate, scale * noise, draft.steps_per_epoch) for rate, noise in alone.items()]
        return privacy_profile(*epochs, smallest_delta=_UNSEEN * delta / draft.epochs)

    def whole(scale: float) -> Event:
        return Composed((*others, SelfComposed(profile(scale), draft.epochs)))

    return ImportancePlan(budget=profile(calibrate(whole, epsilon, delta, start=1.02)), **settings)

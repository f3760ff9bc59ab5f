"""DPIS (Wei, Bao, Xiao, Yang 2022): importance sampling, in place of DP-SGD's uniform batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from dperm import _validate as check
from dperm.gradient.importance import AdaptiveNorm, ImportancePlan
from dperm.gradient.update import SGD, Averaged, Update
from dperm.privacy.events import Event, Gaussian, PoissonSampled, SelfComposed
from dperm.privacy.filters import rdp_budget

__all__ = ["dpis"]


#: K ÷ (N·C) at the start of training, and about where it falls to: the filter's order is to suit both.
_RATIOS = (1.0, 0.2)


def dpis(
    *,
    epsilon: float,
    delta: float,
    expected_batch_size: float,
    epochs: float,
    clipping_norm: float,
    public_size: int | None = None,
    proposal_factor: float = 2.0,
    norm_floor: float = 0.01,
    norm_noise: float | None = None,
    size_noise: float | None = None,
    worst_case_share: float = 0.8,
    pass_every: int = 1,
    adaptive: AdaptiveNorm | None = None,
    update: Update | None = None,
    average_from: float | None = 0.5,
    order: float | None = None,
    earlier: Event | None = None,
) -> ImportancePlan:
    """`epochs` epochs in batches of `expected_batch_size` that are drawn by gradient norm, all within (`epsilon`, `delta`).

    Parameters are those of `ImportancePlan`; k = 2 where the paper has 5, which its proposals, capped at C here, do not need.
    `update` defaults to SGD(1.0, momentum 0.9); iterates after the fraction `average_from` are averaged (None: the last
    iterate), which needs `public_size`. `order`: of the Rényi filter; None: `rdp_budget`'s. `earlier`: what was released from the
    same records before, to be paid from the same (ε, δ).
    """
    update = update or SGD(1.0, momentum=0.9)
    epochs = check.integer("epochs", epochs)
    check.positive("expected_batch_size", expected_batch_size)
    planned: list[Callable[[float], Event]] = []
    if public_size is not None:
        steps = max(1, round(epochs * public_size / expected_batch_size))
        for ratio in _RATIOS:
            rate = min(expected_batch_size / (ratio * public_size), 1.0)
            planned.append(functools.partial(_run, rate, steps))
    plan = ImportancePlan(
        budget=rdp_budget(epsilon, delta, order=order, planned=planned, earlier=earlier),
        expected_batch_size=expected_batch_size,
        epochs=epochs,
        clipping_norm=clipping_norm,
        update=update,
        public_size=public_size,
        proposal_factor=proposal_factor,
        norm_floor=norm_floor,
        norm_noise=norm_noise,
        size_noise=size_noise,
        worst_case_share=worst_case_share,
        pass_every=pass_every,
        adaptive=adaptive,
    )
    if average_from is None:
        return plan
    if public_size is None:
        raise ValueError("Averaging from a fraction of the steps needs public_size: state it, or pass average_from=None.")
    skip = math.floor(check.fraction("average_from", average_from, zero=True) * plan.steps)
    return replace(plan, update=Averaged(update, skip=skip))


def _run(rate: float, steps: int, noise_multiplier: float) -> Event:
    return SelfComposed(PoissonSampled(rate, Gaussian(noise_multiplier)), steps)

"""Trying settings at small scale: the same ratio of signal to noise, for a fraction of the gradients (Sander, Stock, Sablayrolles
2023, "TAN without a burn")."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dperm import _validate as check
from dperm.gradient.plan import Plan
from dperm.gradient.sampling import Poisson


def small_scale(plan: Plan, factor: float) -> Plan:
    """`plan` with batches and noise both `factor` times smaller, and as many steps: each step's noise ÷ batch is the same, and
    so, nearly, is what a rate or a clipping norm does.

    It costs `factor` times fewer gradients and far more ε than `plan`: it is for public or proxy data, or to be charged for what
    it is. ValueError for a factor below 1, and for noise whose scale is no `noise_multiplier`.
    """
    if not check.positive("factor", factor) >= 1:
        raise ValueError(f"Expected a factor of at least 1, got {factor!r}.")
    if not isinstance(plan, Plan) or not hasattr(plan.noise, "noise_multiplier"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"Expected a plan whose noise has a noise_multiplier, got {plan!r}.")
    noise: Any = plan.noise
    return replace(
        plan, sampler=Poisson(plan.rate / factor), noise=replace(noise, noise_multiplier=noise.noise_multiplier / factor)
    )

"""What every family of noise tests gives, and how the results of several tests are made one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dperm._types import Array

FALSE_ALARM = 1e-9  # probability with which one family refutes sound noise, at most


@dataclass(frozen=True)
class Finding:
    """A deviation from the stated guarantee; `kind` is one word or two, the same for the same defect on all pairs."""

    kind: str
    text: str


@dataclass(frozen=True)
class NoiseTest:
    """The result of one family of tests.

    Attributes
    ----------
    kind : str
        The kind of defect that the family looks for.
    p_value : float
        The probability of a deviation as large as the one seen under sound noise, or an upper bound on it. It accounts for
        all tests of the family.
    text : str
        A sentence about the largest deviation.
    """

    kind: str
    p_value: float
    text: str


def of_the_least(p_values: Array) -> tuple[int, float]:
    """The place of the least p-value, and the p-value of the family by the union bound."""
    least = int(np.argmin(p_values))
    return least, min(1.0, len(p_values) * float(p_values[least]))


def first_or_least(p_values: Array) -> tuple[int, float]:
    """The first place that is refuted, else that of the least p-value, and the p-value of the family by the union bound."""
    least, p_value = of_the_least(p_values)
    refuted = np.flatnonzero(p_values * len(p_values) < FALSE_ALARM)
    return int(refuted[0]) if len(refuted) else least, p_value

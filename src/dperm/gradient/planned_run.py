"""A preview of the steps and the cost of a run, before anything is charged."""

from __future__ import annotations

from dataclasses import dataclass

from dperm._rounding import upward
from dperm.gradient.policy import Policy
from dperm.privacy import Certificate


@dataclass(frozen=True)
class PlannedRun:
    """A run that is planned and not charged: its steps, its expected batch, its noise, and what it would cost.

    `str()` says all of it in a few lines. `plan` is what would run, `certificate` what the run would be certified as, `total` the
    certificate of the run and of what was spent before it, where something was. `label` names the data set in the spend log;
    `whom` names the units that are drawn, "records" or "clients"; `steps_are` is the word for steps.
    """

    plan: Policy
    certificate: Certificate
    total: Certificate | None = None
    label: str = ""
    whom: str = "records"
    steps_are: str = "steps"

    @property
    def steps(self) -> int:
        """The number of private steps, each of which releases one noisy sum."""
        return self.plan.steps

    @property
    def expected_batch_size(self) -> float:
        """How many are expected in a step's batch."""
        return self.plan.expected_batch_size

    @property
    def epochs(self) -> float:
        """The expected passes over the data."""
        return self.plan.steps * self.plan.rate

    @property
    def noise_multiplier(self) -> float | None:
        """Noise standard deviation ÷ sensitivity, in the first step where it changes on the way by a schedule; None where the
        plan chooses it for each of its releases."""
        noise = self.plan.noise_multipliers
        return None if noise is None else noise[0]

    @property
    def epsilon(self) -> float | None:
        """ε of the run alone at `delta`; None for one that is only claimed."""
        return self.certificate.epsilon

    @property
    def delta(self) -> float:
        """δ of the run."""
        return self.certificate.delta

    def __str__(self) -> str:
        size = self.plan.public_size
        of = "" if size is None else f" of {size:,}"
        rows = [
            (self.steps_are, f"{self.steps:,} ({self.epochs:.4g} expected passes)"),
            ("expected batch", f"{self.expected_batch_size:.4g}{of} {self.whom}, {self.plan.kind}"),
            ("noise multiplier", self._noise()),
            ("privacy", _cost(self.certificate)),
        ]
        if self.total is not None:
            rows.append(("with what was spent", _cost(self.total)))
        to = f"to {self.label!r} in the spend log" if self.label else "in the spend log, to a data set without a label"
        rows.append(("would be charged", f"all of it, before the first of the {self.steps_are}, {to}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(["Planned; nothing is charged.", *(f"  {name:<{width}}  {text}" for name, text in rows)])

    def _noise(self) -> str:
        noise = self.plan.noise_multipliers
        if noise is None:
            return "chosen by the plan for each of its releases"
        first, last = noise
        return f"{first:.4g}" if first == last else f"{first:.4g} in the first step, {last:.4g} in the last"


def _cost(certificate: Certificate) -> str:
    if certificate.epsilon is None:
        return f"only claimed: {certificate.claim}"
    unprotected = "" if certificate.private else "; NOT PRIVATE, for the seed is fixed"
    return f"ε = {upward(certificate.epsilon)}, δ = {upward(certificate.delta, 2)}, when {certificate.neighbours}{unprotected}"

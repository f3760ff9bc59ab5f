"""What each record has spent under individual accounting: a page for the data holder, and for nobody else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dperm._types import Array
from dperm.privacy import Certificate, individual_epsilons
from dperm.privacy.events import BoundedSquaresGaussian, leaves
from dperm.report.figures import spending_figure
from dperm.report.page import rendered


@dataclass(frozen=True)
class Spending:
    """The full steps that records have spent (n,), of `event`, and each one's own ε at δ. Private: made from the records."""

    spent: Array
    event: BoundedSquaresGaussian
    delta: float

    @classmethod
    def of(cls, spent: Array, certificate: Certificate) -> Spending:
        """ValueError for a certificate of a run without individual accounting, or of more than one such run."""
        runs = {leaf: count for leaf, count in leaves(certificate.event).items() if isinstance(leaf, BoundedSquaresGaussian)}
        if list(runs.values()) != [1]:
            raise ValueError(
                f"Expected the certificate of one run with individual accounting, got one of {sum(runs.values())}. Where the "
                "number of records is private there is none to read: state public_size."
            )
        return cls(np.asarray(spent, dtype=np.float64), next(iter(runs)), certificate.delta)

    @property
    def epsilons(self) -> Array:
        return individual_epsilons(self.spent, self.event.noise_multiplier, self.delta)

    @property
    def silent(self) -> float:
        """The share of records that have nothing left."""
        return float(np.mean(self.spent > self.event.full_steps * (1 - 1e-4))) if len(self.spent) else 0.0


def spending_page(found: Spending, certificate: Certificate, title: str) -> str:
    """A self-contained page: the histogram of what records have spent."""
    epsilons = found.epsilons
    return rendered(
        "spending.html",
        found=found,
        title=title,
        certificate=certificate,
        quantiles=[(share, float(np.quantile(epsilons, share))) for share in (0.1, 0.5, 0.9)] if len(epsilons) else [],
        figure=spending_figure(epsilons, certificate.epsilon),
    )

"""How private estimators show themselves in a notebook: scikit-learn's diagram, and below it what they promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator

from dperm._rounding import upward
from dperm.privacy import Certificate, Risk
from dperm.privacy.certificates.html import boxed, paragraph


class ShowsGuarantee(BaseEstimator):
    """Base of the estimators that have a budget, or a certificate: both stand below scikit-learn's diagram."""

    @property
    def _repr_html_(self) -> Callable[[], str]:
        """As scikit-learn has it: there is none where its `display` is set to "text"."""
        diagram: Callable[[], str] = super()._repr_html_  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return lambda: diagram() + self._guarantee()

    def _repr_mimebundle_(self, **settings: Any) -> dict[str, str]:
        shown: dict[str, str] = super()._repr_mimebundle_(**settings)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if "text/html" in shown:
            shown["text/html"] += self._guarantee()
        return shown

    def _guarantee(self) -> str:
        certificate = getattr(self, "certificate_", None)
        if isinstance(certificate, Certificate):
            return certificate.to_html()
        budget = self if hasattr(self, "epsilon") else getattr(self, "estimator", None)
        epsilon, delta = getattr(budget, "epsilon", None), getattr(budget, "delta", None)
        if isinstance(epsilon, Risk):
            return boxed(paragraph(f"Not fitted: nothing is charged yet. A fit keeps {epsilon}."))
        if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
            return boxed(paragraph("Not fitted: nothing is charged yet."))
        return boxed(paragraph(f"Not fitted: nothing is charged yet. A fit costs ε = {upward(epsilon)}, δ = {upward(delta, 2)}."))

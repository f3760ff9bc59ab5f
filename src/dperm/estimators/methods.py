"""Estimators with a `mechanism`: its settings are parameters, too."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from sklearn.base import BaseEstimator

from dperm.mechanisms import Method, method_of


class TakesMethod(BaseEstimator):
    """Base of the estimators whose parameter `mechanism` is a method or its name; what a fit tells the data holder alone,
    `private_trace_`, stays behind where the estimator is copied or saved."""

    mechanism: str | Method

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return {name: value for name, value in state.items() if name != "private_trace_"}  # pyright: ignore[reportUnknownVariableType]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; with `deep` also the settings of a method, as `mechanism__epochs`."""
        params = super().get_params(deep=False)
        method = params.get("mechanism")  # none where it follows from other parameters
        if deep and isinstance(method, Method):
            params |= {f"mechanism__{field.name}": getattr(method, field.name) for field in dataclasses.fields(method)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Methods are values: a setting of one makes another. A mechanism that is given by its name has all settings by rule."""
        settings = {name: value for name, value in params.items() if name.startswith("mechanism__")}
        super().set_params(**{name: value for name, value in params.items() if name not in settings})
        if settings:
            known = {field.name for field in dataclasses.fields(method_of(self.mechanism))}
            given = {name.removeprefix("mechanism__"): value for name, value in settings.items()}
            if wrong := sorted(set(given) - known):
                raise ValueError(
                    f"Expected settings of {self.mechanism!r} among {', '.join(sorted(known))}, got {', '.join(wrong)}."
                )
            self.mechanism = dataclasses.replace(method_of(self.mechanism), **given)
        return self

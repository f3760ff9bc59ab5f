"""A trainer that is told beforehand how to fit, for tests that make many."""

from __future__ import annotations

import inspect
from typing import Any, Self

from dperm.torch import PrivateTrainer

OF_FIT = set(inspect.signature(PrivateTrainer.fit).parameters) - {"self", "dataset", "validation", "resume"}


class Told(PrivateTrainer):
    def __init__(self, *given: Any, **settings: Any) -> None:
        self.told = {name: settings.pop(name) for name in OF_FIT & set(settings)}
        super().__init__(*given, **settings)

    def fit(self, dataset: Any, validation: Any = None, **more: Any) -> Self:
        return super().fit(dataset, validation, **{**self.told, **more})

"""One against the rest: K binary models on the same records, K events composed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Mechanism, Stage
from dperm.mechanisms.extremes import Extreme
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.weighted import admit_class_targets
from dperm.privacy import Assumption, Event, SelfComposed
from dperm.privacy.events import leaves
from dperm.release import Channel


@dataclass(frozen=True, kw_only=True)
class OneVsRest(Mechanism):
    """`mechanism` once a class; targets are class numbers 0 … classes − 1. Calibrate the part with copies=classes."""

    mechanism: Mechanism
    classes: check.Count

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer("classes", self.classes, minimum=2)

    @classmethod
    def of(cls, mechanism: Mechanism, classes: int) -> OneVsRest:
        return cls(budget=mechanism.budget, mechanism=mechanism, classes=classes)

    @property
    def name(self) -> str:
        return f"{self.mechanism.name}, one against the rest of {self.classes}"

    @property
    def paper(self) -> str:
        return self.mechanism.paper

    def event(self, facts: PublicFacts) -> Event:
        return SelfComposed(self.mechanism.event(facts), self.classes)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        rows: list[Array] = []
        trace: dict[str, Any] = {}
        for number in range(self.classes):
            theta, trace = self.mechanism.train(objective, records.one_against_rest(number), channel)
            rows.append(theta)
        return np.stack(rows, axis=-2), trace

    @property
    def target_classes(self) -> int:
        return self.classes

    def vectorises(self, objective: LinearObjective) -> bool:
        return self.mechanism.vectorises(objective)

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        paid = leaves(self.mechanism.event(objective.facts))
        each = sum(count * leaf.releases for leaf, count in paid.items() if leaf.pays_for is not None)
        stages: list[Stage] = []
        for number in range(self.classes):
            stages += self.mechanism.stages(objective, records.one_against_rest(number), released, first + number * each)
        return stages

    def places(self, records: int) -> Sequence[int]:
        return self.mechanism.audited_places(records)

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        # of class 0 against class 1, which stands for the rest
        def numbered(targets: Any) -> Any:
            return np.where(np.asarray(targets) > 0, 0.0, 1.0)

        return [
            replace(
                item,
                targets=numbered(item.targets),
                record=(item.record[0], float(numbered(item.record[1]))),
                instead=(item.instead[0], float(numbered(item.instead[1]))),
            )
            for item in self.mechanism.extremes(objective)
        ]

    def most_records(self, facts: PublicFacts) -> int | None:
        return self.mechanism.most_records(facts)

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        return admit_class_targets(targets, self.classes)

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return self.mechanism.assumptions(facts)

    grouped = True  # where the one is
    by_parts = True

    def inner(self) -> Sequence[Mechanism]:
        return (self.mechanism,)

    def settings(self) -> Mapping[str, Any]:
        return {**self.mechanism.settings(), "classes": self.classes}

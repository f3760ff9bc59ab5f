"""One model for each part of the records, split by a public column: parallel composition, charged as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.extremes import Extreme
from dperm.objectives import RECORD, LinearObjective, PublicFacts, Records
from dperm.privacy import Assumption, Relation
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.events import Disjoint
from dperm.release import Channel

_MARK = 0.05  # entry that says which part an extreme record is in, as a share of its norm


@dataclass(frozen=True, kw_only=True)
class ByPart(Mechanism):
    """`mechanisms[i]` with `objectives[i]` on the records of part i, for each of the public features `columns`.

    A record is in the part of the largest positive entry among its own `columns`, the first of several alike, as a category's
    one-hot features have it; without such an entry it is in none. A person with several rows is in the part that all of them
    name, and otherwise in none. So each unit of privacy is in one part at most, by its own record alone, and parts without any
    record are trained too: see `dperm.privacy.Disjoint`.

    Each part trains through a channel of its own, which lets out what this part was charged for. Objectives differ in what is
    public of each part, such as `public_size`, and in nothing that records are made by. ValueError for others, for budgets that
    are not the whole's, and under replace-one: there each mechanism takes the number of its records for public, and a record
    that moves to another part would change it.
    """

    mechanisms: tuple[Mechanism, ...]
    objectives: tuple[LinearObjective, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("mechanisms", "objectives", "columns"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not len(self.mechanisms) == len(self.objectives) == len(self.columns) >= 1:
            raise ValueError(
                f"Expected a mechanism, an objective and a column for each part, got {len(self.mechanisms)}, "
                f"{len(self.objectives)} and {len(self.columns)}."
            )
        features = self.objectives[0].features
        columns = [check.integer("columns", column, minimum=0) for column in self.columns]
        if len(set(columns)) < len(columns) or max(columns) >= features:
            raise ValueError(f"Expected different columns among {features} features, got {columns}.")
        object.__setattr__(self, "columns", tuple(columns))
        if len({_made_by(objective) for objective in self.objectives}) > 1:
            raise ValueError("Expected objectives of one shape, loss and row norm for all parts.")
        if self.objectives[0].relation is Relation.REPLACE_ONE:
            raise ValueError(
                "Expected relation='add_or_remove_one' for models by part: under replace_one each part would take its number of "
                "records for public, and a record that moves to another part changes it."
            )
        if any(mechanism.budget.delta != self.budget.delta for mechanism in self.mechanisms):
            raise ValueError("Expected mechanisms of the whole's budget: each unit meets one of them.")

    @classmethod
    def of(cls, parts: Sequence[tuple[Mechanism, LinearObjective]], columns: Sequence[int]) -> ByPart:
        """Of the mechanism and the objective of each part, as methods build them."""
        epsilons = [mechanism.budget.epsilon for mechanism, _ in parts]
        largest = None if None in epsilons else max(epsilon for epsilon in epsilons if epsilon is not None)
        budget = Budget(max(mechanism.budget.delta for mechanism, _ in parts), largest)
        return cls(
            budget=budget,
            mechanisms=tuple(mechanism for mechanism, _ in parts),
            objectives=tuple(objective for _, objective in parts),
            columns=tuple(columns),
        )

    @property
    def name(self) -> str:
        names = ", ".join(dict.fromkeys(mechanism.name for mechanism in self.mechanisms))
        return f"a model for each of {len(self.mechanisms)} parts by {names}"

    @property
    def paper(self) -> str:
        return "; ".join(dict.fromkeys(["McSherry 2009 (parallel composition)", *(part.paper for part in self.mechanisms)]))

    def event(self, facts: PublicFacts) -> Disjoint:
        own = self.objectives[0].facts
        if (facts.relation, facts.data_norm, facts.dimension) != (own.relation, own.data_norm, own.dimension):
            raise ValueError("Expected facts of the objectives that the parts are trained by.")
        return Disjoint(tuple(part.event(objective.facts) for part, objective in self._parts))

    @property
    def _parts(self) -> list[tuple[Mechanism, LinearObjective]]:
        return list(zip(self.mechanisms, self.objectives, strict=True))

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        """Parameters (K, …) and the trace of each part."""
        thetas: list[Array] = []
        traces: list[dict[str, Any]] = []
        members = self.split(records)
        doors = channel.split(self.event(objective.facts), members)
        for (part, own), mine, door in zip(self._parts, members, doors, strict=True):
            theta, trace = part.train(own, records.subset(mine), door)
            thetas.append(theta)
            traces.append(trace)
        return np.stack(thetas, axis=0 if channel.source.trials is None else 1), {"parts": traces}

    def split(self, records: Records) -> list[NDArray[np.intp]]:
        """Which records are in each part, in their order."""
        place = records.places(self.columns)
        return [np.flatnonzero(place == number) for number in range(len(self.columns))]

    def admit(self, objective: LinearObjective, records: Any) -> Any:
        if _made_by(objective) != _made_by(self.objectives[0]):
            raise ValueError("Expected the objective that the parts are trained by.")
        admitted = super().admit(objective, records)
        for (part, own), mine in zip(self._parts, self.split(admitted), strict=True):
            part.refuse(own, len(mine))
            most = part.most_records(own.facts)
            if most is not None and len(mine) > most:
                raise ValueError(f"Expected at most {most:,} records in each part, got {len(mine):,}: state its public size.")
        return admitted

    def refuse(self, objective: LinearObjective, records: int) -> None:
        """Parts are refused by their own numbers of records: see `admit`."""

    grouped = True  # a person is in one part with all rows; what runs there says so itself

    def inner(self) -> Sequence[Mechanism]:
        return tuple(dict.fromkeys(self.mechanisms))

    @property
    def target_classes(self) -> int:
        return self.mechanisms[0].target_classes

    def vectorises(self, objective: LinearObjective) -> bool:
        return all(part.vectorises(own) for part, own in self._parts)

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        return self.mechanisms[0].admit_targets(objective, targets)

    def stages_of_parts(self, records: Records, released: Sequence[Sequence[Array]]) -> list[list[Stage]]:
        """The stages of each part, of the releases that it made itself and by their numbers among these: how many that are may
        have been found on the way."""
        parts = zip(self._parts, self.split(records), released, strict=True)
        return [part.stages(own, records.subset(mine), told) for (part, own), mine, told in parts]

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        """Those of each part, all of whose records bear a small positive entry that says which part they are in."""
        others = [feature for feature in range(objective.features) if feature not in self.columns]
        if not others:
            return []
        found: list[Extreme] = []
        for (part, own), column in dict(zip(self._parts, self.columns, strict=True)).items():
            narrower = replace(own, features=len(others), unit=objective.unit)
            lift = np.zeros((len(others) + 1, objective.features))
            lift[range(len(others)), others] = math.sqrt(1 - _MARK**2)
            lift[-1, column] = _MARK * objective.data_norm
            found += [item.moved(lift) for item in part.extremes(narrower)]
        return found

    def places(self, records: int) -> Sequence[int]:
        return sorted({place for part in self.mechanisms for place in part.audited_places(records)})

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        resting = [each for part, objective in self._parts for each in part.assumptions(objective.facts)]
        sizes = [each.public_size for each in self.objectives if each.public_size is not None]
        known = [statements.known_sizes(sizes)] if sizes and facts.public_size is None else []
        return (
            *statements.parts_of_records(len(self.columns), facts.unit != RECORD),
            *known,
            *dict.fromkeys(resting),
        )

    def settings(self) -> Mapping[str, Any]:
        return {
            "parts": len(self.columns),
            "columns_of_parts": list(self.columns),
            "sizes_of_parts": [objective.public_size for objective in self.objectives],
            "settings_of_parts": [dict(part.settings()) for part in self.mechanisms],
        }


def _made_by(objective: LinearObjective) -> tuple[Any, ...]:
    """What records are made by, and what is learnt from them."""
    records = (objective.features, objective.data_norm, objective.intercept_scale, objective.unit)
    return type(objective), objective.loss, objective.relation, *records

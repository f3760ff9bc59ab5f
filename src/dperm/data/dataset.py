"""What a data file becomes: features, targets, whose each row is, and what is known of how it was read."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dperm import _validate as check
from dperm._column import column
from dperm._json import on_one_line
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import SchemaError
from dperm.data.schema.privacy_units import row_units
from dperm.data.schema.ranges import CountRange, TargetRange
from dperm.data.schema.schema import Schema
from dperm.data.survey import Survey, share
from dperm.data.untrusted_files import DataError
from dperm.objectives import RECORD, PrivacyUnit
from dperm.privacy import Certificate, epsilon
from dperm.privacy.certificates import assumptions as statements
from dperm.release.ledger import only_claimed

_MANY = 0.1  # of the rows


@dataclass(frozen=True)
class Dataset:
    """features: (n, d) dense or CSR; targets: (n,) labels or numbers; classes empty for regression.

    `absent` further records had missing values and were left out: of persons, those without a row that is left. Where the number
    of records is public (replace-one) they are records still: pass `absent` to `fit`. ValueError for targets, places and groups
    that are not one a row.
    """

    name: str
    features: Any
    targets: NDArray[Any]
    feature_names: tuple[str, ...]
    classes: tuple[str, ...]
    target_range: TargetRange | None
    notes: tuple[str, ...] = ()
    title: str = ""
    absent: int = 0
    places: NDArray[np.intp] | None = None  # (n,) which rows of the table these are, from 0; None: not known, or all
    groups: NDArray[np.intp] | None = None  # (n,) whose each row is; None: each row is a person
    unit: PrivacyUnit = RECORD  # what a record is
    found: Certificate | None = None  # what finding the schema cost, on the same records
    neighbours: tuple[tuple[int, int], ...] = ()  # features that are next to each other on a curve
    written: str = ""  # how its file was written, in words, where that was found out
    survey: Survey | None = None  # of the file that it was read from, for its holder alone
    read_off: str = ""  # "ranges, categories and labels were": what was read off the data and should be public
    stated: bool = False  # whether a schema states ranges, categories and labels
    ordered: bool = False  # whether `classes` have an order, in which they stand
    range_stated: bool = False  # whether the range of the target is stated beside a file without a schema
    search_counted: bool = False  # whether another certificate beside this one has what finding the schema cost
    indices: tuple[int, int] | None = None  # of libsvm files: the features' first index and last

    def __post_init__(self) -> None:
        size = len(self)
        object.__setattr__(self, "targets", column("targets", self.targets, size))
        for name in ("places", "groups"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, column(name, given, size, as_given=name == "groups"))

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def certified(self, certificate: Certificate) -> Certificate:
        """The certificate of what was trained on this: with what its schema cost, where that was found privately, and with what
        was found out of how its file was written."""
        if self.written:
            certificate = certificate.not_charging(statements.WRITTEN)
        if self.read_off:
            certificate = certificate.only_claimed(self._why_claimed)
        elif self.stated and self.found is None:
            certificate = certificate.with_assumptions(statements.SCHEMA)
        if self.range_stated:
            certificate = certificate.with_assumptions(statements.TARGET_RANGE)
        if self.found is None:
            return certificate
        trained = certificate.checked_otherwise("labels", "found privately with the schema, and charged")
        return trained if self.search_counted else Certificate.of_all([self.found, trained])

    def certified_beside(self, certificate: Certificate) -> Certificate:
        """The certificate of a release beside a model, whose own certificate has what a private search for the schema cost."""
        return replace(self, search_counted=True).certified(certificate)

    def charging(self) -> contextlib.AbstractContextManager[None]:
        """Charges within the block say that they are only claimed, where `certified` will say so."""
        return only_claimed(self._why_claimed) if self.read_off else contextlib.nullcontext()

    def fit(self, estimator: Any, **given: Any) -> Any:
        """`estimator` fitted to these records: each person's rows together, left-out records counted. Its certificate says what
        was found, or read off the data, and so does the charge. `given` goes to its `fit`.

        Targets that are numbers are handed over on [−1, 1] of the schema's range, and predictions are there, too, unless the
        estimator states that range itself (`target_range`): then both are in the target's own units, as counts always are.
        SchemaError, before the charge, for an estimator that states another range, for one of counts that states none, and for a
        model of counts and a target that is none.
        """
        bounds = self.target_range
        targets = self.targets if bounds is None else self._targets_for(estimator, bounds)
        with self.charging():
            estimator.fit(self.features, targets, groups=self.groups, absent=self.absent, **given)
        certificate = estimator.certificate_
        if bounds is not None and targets is not self.targets:  # who reads it knows targets in units of the schema
            certificate = certificate.restated(statements.clipped_targets(*bounds))
        estimator.certificate_ = self.certified(certificate)
        return estimator

    def _targets_for(self, estimator: Any, bounds: TargetRange) -> Any:
        """(n,) targets in the units that this estimator expects."""
        each = getattr(estimator, "estimator", estimator)  # of models by part one of them
        kind, counts = type(each).__name__, isinstance(bounds, CountRange)
        if getattr(each, "counts", False) and not counts:
            raise SchemaError(
                f"Expected counts as target for {kind}, got an amount, by the schema: state "
                '"measure": "count" in the target\'s row (schema.measured_as("count")).'
            )
        if not hasattr(each, "stated_range"):  # no regression of dperm's
            return bounds.scaled(self.targets)
        low, high = bounds
        stated = each.stated_range
        if stated == (low, high):
            return self.targets
        if stated is None and not counts:
            return bounds.scaled(self.targets)
        what = "states none" if stated is None else f"states {list(stated)}"
        without = "" if counts else ", or leave target_range and target_bound out for targets on [−1, 1]"
        raise SchemaError(
            f"Expected the schema's range of the target, [{low:g}, {high:g}], but {kind} {what}: give it "
            f"target_range=({low:g}, {high:g}){without}."
        )

    @property
    def _why_claimed(self) -> str:
        return f"{self.read_off} read off the data, not public"

    def described(self) -> str:
        """How much there is, for the data holder alone."""
        written = f", read as {self.written}" if self.written else ""
        if self.groups is None or self.unit.max_rows is None:
            left_out = f", {self.absent:,} left out" if self.absent else ""
            return f"{len(self):,} records{left_out}{written}"
        counts = np.unique(self.groups, return_counts=True)[1]
        left = int(np.maximum(counts - self.unit.max_rows, 0).sum())
        text = f"{len(self):,} rows of {len(counts):,} persons, up to {counts.max(initial=0):,} of one"
        return text + (f"; {left:,} beyond {self.unit.max_rows} of a person are not used" if left else "") + written

    def stands_out(self, data_norm: float | None = None, delta: float = 0.0, public_size: int | None = None) -> list[str]:
        """Facts and warnings about the private rows, one a line, some of which depend on these settings of a training. They are
        for the data holder alone."""
        lines = [] if self.survey is None else self.survey.lines()
        warnings = [] if self.survey is None else self.survey.warnings()
        if data_norm is not None and (longer := _longer(self.features, data_norm)):
            lines.append(f"Rows longer than {data_norm:g}, scaled down: {longer:,} ({share(longer, len(self))}).")
            if longer > _MANY * len(self):
                much = share(longer, len(self))
                warnings.append(f"{much} of the rows are scaled down to --data-norm {data_norm:g}: does it bound most rows?")
        if self.survey is None and self.target_range is not None:
            low, high = self.target_range
            if outside := int(np.count_nonzero((self.targets < low) | (self.targets > high))):
                lines.append(f"Targets outside [{low:g}, {high:g}], clipped to it: {outside:,} ({share(outside, len(self))}).")
        persons = len(self) if self.groups is None else len(set(self.groups.tolist()))
        if delta >= 1 / max(1, persons):
            warnings.append(
                f"--delta {delta:g} is at least 1 in {persons:,}: publishing one whole record would pass. Choose less."
            )
        whole = persons + self.absent
        if public_size is not None and abs(public_size - whole) > _MANY * whole:
            warnings.append(
                f"--public-size {public_size:,} is stated, and there are {whole:,}: what is chosen by it suits other data."
            )
        return [*lines, *(f"Warning: {warning}" for warning in warnings)]

    def refuse_persons(self, what: str) -> None:
        """DataError for a table whose rows are not persons, where `what` knows rows alone."""
        if self.groups is not None:
            raise DataError(f"Expected a schema without a unit: {what} looks at rows, and a person of {self.name} has several.")

    @classmethod
    def of(cls, frame: Any, schema: Schema) -> Dataset:
        """A table through its schema."""
        table = SchemaEncoder(schema, frame)
        features, targets = table.encode()
        usable = table.usable
        if not usable.any():
            if not table.labelled.any():
                labels = f"one of the labels {list(schema.classes)[:8]}" if schema.classes else "a number"
                raise SchemaError(f"No record is left: none has {labels} in {schema.target!r}.")
            worst = max(table.gaps, key=lambda name: int(table.gaps[name].sum()))
            raise SchemaError(
                f'No record is left: column {worst!r} has most missing values, and "missing" is {schema.missing!r}.'
            )
        persons = row_units(schema, table.frame) if schema.unit else None
        return cls.encoded(schema, features, targets, usable, persons, written=table.table.written)

    @classmethod
    def encoded(
        cls,
        schema: Schema,
        features: Any,
        targets: NDArray[Any],
        usable: NDArray[np.bool_],
        persons: NDArray[np.intp] | None,
        *,
        written: str = "",
    ) -> Dataset:
        """Of the usable rows of a table, encoded; `usable` and `persons` are of all its rows."""
        usable = column("entries of usable", usable).astype(np.bool_)
        persons = None if persons is None else column("persons", persons, len(usable))
        notes = [schema.source] if schema.source else []
        left_out = absent = len(usable) - len(features)
        if persons is not None:
            absent = int(persons.max()) + 1 - len(np.unique(persons[usable]))
        if left_out:
            notes.append(f"{left_out} of {len(usable)} records have missing values and were left out.")
        return cls(
            schema.name,
            features,
            targets,
            tuple(schema.features),
            schema.classes,
            schema.target_range,
            tuple(notes),
            schema.title,
            absent=absent,
            places=np.flatnonzero(usable) if left_out else None,
            groups=None if persons is None else persons[usable],
            unit=PrivacyUnit(schema.max_rows_per_unit) if schema.unit else RECORD,
            found=search_certificate(schema),
            neighbours=schema.neighbours,
            written=written,
            read_off="ranges, categories and labels were" if schema.proposed else "",
            stated=True,
            ordered=schema.ordered,
        )


def _longer(features: Any, norm: float) -> int:
    """How many rows are longer."""
    norm = check.scale("data_norm", norm)
    squares = features.multiply(features).sum(axis=1) if sparse.issparse(features) else np.einsum("ij,ij->i", features, features)
    return int((np.asarray(squares, dtype=np.float64) > norm**2 * (1 + 1e-6)).sum())


def search_certificate(schema: Schema) -> Certificate | None:
    """What finding the schema cost, where it was found privately. SchemaError where that protects others than its unit does."""
    if schema.found is None:
        return None
    try:
        certificate = Certificate.from_json(json.dumps(schema.found))
        certificate.verify()
    except ValueError as error:
        raise SchemaError(f"The schema's certificate of how it was found cannot be used: {error}") from None
    if on_one_line(schema.unit) != certificate.public_facts.get("unit", ""):
        raise SchemaError("Expected the unit that this schema was found by: it protects other neighbours. Find it again.")
    return certificate


def refuse_search_under(schema: Schema, relation: str, delta: float) -> None:
    """SchemaError, before anything is charged, where what finding the schema cost cannot be added to a training under this
    relation and δ."""
    certificate = search_certificate(schema)
    if certificate is None:
        return
    if certificate.relation != relation:
        found = certificate.relation.value
        raise SchemaError(f"Expected relation {found!r}, under which this schema was found, got {relation!r}.")
    if not delta or not math.isfinite(epsilon(certificate.event, delta)):
        raise SchemaError(f"Expected a delta above {certificate.delta / 10:g}: finding the schema took that much, got {delta:g}.")

"""Training a model of the records in a file, from options to the files of models."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dperm._files import Reserved, write_new
from dperm.jobs.files import SavedModel, dataset_of, keep, refuse_same, uninterrupted
from dperm.jobs.models import Kind, ModelOptions, by_part
from dperm.jobs.options import SOURCE, Indices, TargetRange, stated_indices, stated_range
from dperm.jobs.trained_from import remember_table

if TYPE_CHECKING:
    from dperm.data import Dataset, Schema
    from dperm.privacy import Certificate
    from dperm.privacy.certificates.signing import SigningKey
    from dperm.release.foreseen import ForeseenCharge
    from dperm.release.ledger import SpendLog

_LOOKED = 10_000  # records
_FEW = 8.0  # times the records whose agreeing gradients are as long as the noise


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ModelOptions):
    """From which records a model is trained, and to which files it goes."""

    source: Annotated[str, f"Records: {SOURCE}."]
    target: Annotated[str | None, "Target column."] = None
    schema: Annotated[Path | None, "Public schema of the table (see `dperm data propose`)."] = None
    append_to: Annotated[
        Path | None,
        "An earlier model of the same table, which has grown since: its schema goes on, and the certificate is that of all "
        "releases so far.",
    ] = None
    accept_proposed: Annotated[
        bool, "Train on ranges, categories or indices that are read off the data; the certificate says so, and claims no ε."
    ] = False
    indices: Indices = None
    target_range: TargetRange = None
    output: Annotated[Path, "Model file to write."] = Path("model.json")
    sign_key: Annotated[Path | None, "Private key that signs the model (see `dperm keygen`)."] = None
    private_report: Annotated[Path | None, "With --mechanism individual: a page of what each record has spent. PRIVATE."] = None


def train(asked: TrainingOptions) -> Trained:
    """Train a private model and write it with its certificate; with `fit_by` one for each part of the records.

    ValueError for what is refused, before anything is charged. ModelNotWrittenError once it is charged, where a file cannot be
    written as it was asked for.
    """
    with prepared_training(asked) as job:
        return job.run()


class ModelNotWrittenError(OSError):
    """Not all was written as it was asked for; the message says where each model is. `model` is the fitted one, which was paid
    for."""

    def __init__(self, reason: str, model: Any) -> None:
        super().__init__(reason)
        self.model = model


@dataclass(frozen=True)
class Trained:
    """A fitted model, its files, each with the name under which the file that stood there is kept, and the training."""

    model: Any
    files: dict[Path, Path | None]
    job: Training
    alone: Certificate | None = None  # of this release, where it is added to earlier ones

    @property
    def certificate(self) -> Certificate:
        return self.model.certificate_

    @cached_property
    def answers_alike(self) -> bool:
        """Whether it gives one answer for all of the first records that it was trained on: for the data holder alone."""
        dataset = self.job.dataset
        return (
            self.job.asked.fit_by is None and len(dataset) > 1 and len(set(self.model.predict(dataset.features[:_LOOKED]))) == 1
        )


@dataclass(frozen=True)
class Training:
    """A training that is ready: its records are read, its files are reserved, and nothing is charged. `extra` is what model files
    hold beside the model; `places` has the file of each part, or that of the one model under "". `earlier` is the certificate of
    the releases that this one is added to."""

    asked: TrainingOptions
    kind: Kind
    dataset: Dataset
    schema: Schema | None
    estimator: Any
    extra: dict[str, Any]
    places: dict[str, Reserved]
    page: Reserved | None
    key: SigningKey | None
    earlier: Certificate | None = None

    def model_chosen(self) -> str:
        """Which model is trained, in words, where the options name none, and what of the schema chose it; otherwise ""."""
        if self.asked.model is not None or self.schema is None:
            return ""
        from dperm.data.schema.ranges import CountRange

        labels, counts = len(self.schema.classes), isinstance(self.schema.target_range, CountRange)
        order = " with an order" if self.schema.ordered else ""
        what = f"{labels} labels{order}" if labels else "counts" if counts else "amounts"
        poisson = "; --model poisson models the logarithm of counts, takes more records, and suits means up to about the root of "
        other = poisson + "the range's end" if counts else ""
        return f"Model: {self.kind.title}, for the schema declares {what} as target{other}. --model names another."

    def order(self) -> str:
        """The order of the classes that the schema states, to be looked at before training; "" where they have none."""
        return self.schema.order_asked() if self.schema is not None and self.schema.ordered else ""

    def expected(self) -> str:
        """What to expect where records are few for the budget: for the data holder alone, whose records are counted. Otherwise
        "".

        The noise that hides one record is as long as the gradients of so many records that all point the same way. Of models on
        synthetic tables with less than eight times as many, docs/judging.md says what they learnt.
        """
        epsilon = self.asked.budget()
        records = len(self.dataset) if self.dataset.groups is None else len(set(self.dataset.groups.tolist()))
        if not isinstance(epsilon, float | int) or not self.kind.drawn or self.asked.delta <= 0:
            return ""
        from dperm.privacy import Gaussian, calibrate

        alike = calibrate(Gaussian, float(epsilon), self.asked.delta) * math.sqrt(self.dataset.features.shape[1] + 1)
        if records >= _FEW * alike:
            return ""
        whom = self.dataset.unit.whom
        return (
            f"{records:,} {whom} are few at epsilon = {epsilon:g}: the noise hides what {math.ceil(alike):,} of them that agree "
            f"would say. With less than {_FEW:g} times as many, models of synthetic tables learnt little. "
            "Expect little more than one answer for all; `dperm compare` shows it before anything is paid."
        )

    def forewarning(self) -> str:
        """What public facts alone say against the model before it is paid for; "" where they say nothing."""
        if self.asked.fit_by is not None or not self.kind.drawn or len(self.dataset.classes) == 1:  # which training refuses
            return ""
        from dperm.report.study_splits import count_of

        size = count_of(self.dataset) + self.dataset.absent if self.asked.relation == "replace_one" else None
        mechanism, _ = self.estimator.mechanism_for(self.dataset.features.shape[1], len(self.dataset.classes), size)
        return mechanism.forewarning

    def foreseen(self) -> tuple[ForeseenCharge, SpendLog]:
        """What training would charge, in which log: all that it refuses before its charge is refused. `log.foreseen` says what
        would be left of the data set's budget, or refuses it."""
        from dperm.release.foreseen import foreseen_charge
        from dperm.release.ledger import SpendLog

        return foreseen_charge(lambda: self.dataset.fit(self.estimator)), SpendLog.current()

    def run(self, print_instead: Callable[[str], bool] = lambda _: False) -> Trained:
        """Train, and write the models without an interruption. `print_instead` gets a model that no file takes, and returns
        whether it has it."""
        fitted = self.dataset.fit(self.estimator)
        alone = None
        if self.earlier is not None:
            from dperm.privacy import Certificate

            alone = fitted.certificate_
            fitted.certificate_ = Certificate.of_all([self.earlier, alone])
            self.extra["releases"].append(_release(alone))
        with uninterrupted():
            return Trained(fitted, self._kept(fitted, print_instead), self, alone)

    def _kept(self, fitted: Any, print_instead: Callable[[str], bool]) -> dict[Path, Path | None]:
        """Write each model. ModelNotWrittenError once all were tried, where one was not written as it was asked for."""
        from dperm.estimators import model_to_json
        from dperm.privacy.certificates.assumptions import labels
        from dperm.privacy.certificates.signing import SigningError

        kept: dict[Path, Path | None] = {}
        lost: list[str] = []
        if self.schema is None and self.dataset.target_range is None:
            fitted.certificate_ = fitted.certificate_.with_assumptions(labels(None, stated=False))
        for part, place in self.places.items():
            model, extra = fitted, self.extra
            if self.asked.fit_by is not None:
                model, extra = fitted.models_[part], {**extra, "fit_by": {"column": self.asked.fit_by, "value": part}}
            try:
                try:
                    text = model_to_json(model, extra, sign_key=self.key)
                except SigningError as error:
                    text = model_to_json(model, extra)
                    lost.append(f"{error}. The model for {place.path} is kept, without a signature.")
                kept[place.path] = keep(place, text, print_instead)
                remember_table(text, self.asked.source)
            except (OSError, ValueError) as error:  # the other parts' models are written all the same
                lost.append(str(error))
        if self.page is not None:
            from dperm.report.spending_page import Spending, spending_page

            found = Spending.of(fitted.private_trace_[0]["spent_by_record"], fitted.certificate_)
            try:
                keep(self.page, spending_page(found, fitted.certificate_, self.dataset.title or self.dataset.name), print_instead)
            except OSError as error:
                lost.append(str(error))
        if lost:
            raise ModelNotWrittenError(" ".join(lost), fitted)
        return kept


@contextmanager
def prepared_training(asked: TrainingOptions, progress: Callable[[int, int], None] | None = None) -> Iterator[Training]:
    """Read the records and reserve the files of a training, which is then to be `run`. ValueError for what is refused.
    `progress(rows, all)` is told of a table that is read in parts."""
    from dperm.privacy.certificates.signing import SigningKey

    refuse_same(asked.source, asked.schema, asked.output, asked.sign_key, asked.private_report, asked.append_to)
    asked.budget()
    appended = None if asked.append_to is None else _Appended.to(asked, asked.append_to)
    if asked.fit_by is not None and asked.private_report is not None:
        raise ValueError("Expected no --private-report with --fit-by.")
    dataset, schema, kind = _records(asked, progress, appended)
    if appended is not None:
        appended.refuse_others(asked, dataset, schema)
        same = schema is not None and schema.found == appended.schema.found
        dataset = replace(dataset, search_counted=same)
    estimator = kind.estimator(dataset, asked)
    files = {"": asked.output}
    if asked.fit_by is not None:
        estimator = by_part(estimator, schema, asked)
        files = files_of_parts(asked.output, estimator.fit_by)
    with ExitStack() as stack:
        places = {part: stack.enter_context(write_new(file)) for part, file in files.items()}
        page = None
        if asked.private_report is not None:
            _refuse_report(asked, dataset)
            page = stack.enter_context(write_new(asked.private_report, private=True))
        key = None if asked.sign_key is None else SigningKey(asked.sign_key)  # read once, before the charge
        extra: dict[str, Any] = {
            "schema": json.loads(schema.without_notes().to_json()) if schema else None,
            "target_range": dataset.target_range,
            "target_range_stated": dataset.range_stated,
            "indices": dataset.indices,
        }
        json.dumps(extra, allow_nan=False)  # what could not be written is refused before the charge
        earlier = None if appended is None else appended.certificate
        if appended is not None:
            extra["releases"] = [*appended.releases]
        yield Training(asked, kind, dataset, schema, estimator, extra, places, page, key, earlier)


def _release(certificate: Certificate) -> dict[str, Any]:
    """What a model's file says of one of several releases of its table."""
    return {
        "mechanism": certificate.mechanism,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "created": certificate.created,
    }


@dataclass(frozen=True)
class _Appended:
    """The model that a training is added to: its schema, and the certificate of all releases so far."""

    schema: Schema
    certificate: Certificate
    releases: list[Any]  # what stands in the model's file of each so far

    @classmethod
    def to(cls, asked: TrainingOptions, path: Path) -> _Appended:
        """ValueError for a model of arrays or of a part of the records, and for a release of other neighbours."""
        if asked.fit_by is not None:
            raise ValueError("Expected no --fit-by with --append-to: releases of parts are not added to one of all records.")
        saved = SavedModel.at(path)
        schema, certificate = saved.schema, saved.fitted.certificate_
        if schema is None or saved.extra.get("fit_by"):
            raise ValueError(f"Expected a model of a whole table with a schema with --append-to, got {path}.")
        if certificate.relation != asked.relation:
            raise ValueError(f"Expected --relation {certificate.relation.value}, under which {path} was released.")
        if not asked.delta >= certificate.delta:
            raise ValueError(f"Expected --delta of at least {certificate.delta:g}, which the releases so far took.")
        known = saved.extra.get("releases")
        return cls(schema, certificate, known if isinstance(known, list) else [_release(certificate)])

    def refuse_others(self, asked: TrainingOptions, dataset: Dataset, schema: Schema | None) -> None:
        """ValueError, before the charge, for another table than that of the earlier releases, or another unit."""
        if schema is None or schema.name != self.schema.name:
            raise ValueError(f"Expected the table {self.schema.name!r} with --append-to {asked.append_to}, got {dataset.name!r}.")
        if (dataset.groups is not None) != self.certificate.of_persons or schema.unit != self.schema.unit:
            raise ValueError(f"Expected the unit of {asked.append_to}: what was protected before goes on to be protected.")


def _records(
    asked: TrainingOptions, progress: Callable[[int, int], None] | None, appended: _Appended | None
) -> tuple[Dataset, Schema | None, Kind]:
    """What to train on, and which model, chosen by the target as the schema declares it. ValueError for ranges that were read off
    the data, where nobody accepts that, and for a search whose price cannot be added."""
    from dperm import data
    from dperm.data.dataset import refuse_search_under

    named = not Path(asked.source).exists() and asked.source in data.named()
    stated = data.Schema.load(asked.schema) if asked.schema is not None and not named else None
    if stated is None and appended is not None and not named:
        stated = appended.schema
    if named or stated is not None or asked.model is not None:  # refused before a row is read
        kind = asked.kind_for(data.schema_of(asked.source) if named else stated)
        if stated is not None:
            kind.declared(stated)
    dataset, used = dataset_of(
        asked.source,
        asked.target,
        stated,
        curves=lambda found: asked.kind_for(found).knots(found, asked) if asked.curves is None else asked.curves,
        indices=stated_indices(asked.indices),
        **({} if asked.target_range is None or named else {"target_range": stated_range(asked.target_range)}),
        progress=progress,
    )
    kind = asked.kind_for(used)
    if named and asked.target_range is not None:
        raise ValueError(f"Expected an array file with --target-range, got the named set {asked.source}, whose schema states it.")
    if used is None:
        if dataset.read_off and not asked.accept_proposed:
            raise ValueError(_why_refused(asked.source, dataset))
        if asked.curves:
            raise ValueError(f"Expected a table with columns for --curves, got {asked.source}, whose features have no ranges.")
        return dataset, None, kind
    if used.proposed and not asked.accept_proposed:
        raise ValueError(
            f"{asked.schema} still says that it is proposed: its ranges, categories and labels were read off the data. Correct "
            f"them by what is publicly known and run `dperm data confirm {asked.schema}`, or pass --accept-proposed."
            if asked.schema is not None
            else f"No public schema for {asked.source}: ranges, categories and labels would be read off the data. Write one with "
            f"`dperm data propose {asked.source} --target {used.target}`, confirm it and pass --schema, or pass "
            "--accept-proposed."
        )
    refuse_search_under(used, asked.relation, asked.delta)
    used = kind.declared(used)
    return replace(dataset, target_range=used.target_range), used, kind


def _why_refused(source: str, dataset: Dataset) -> str:
    """What to do about an array file of which something was read off that should be public."""
    states = ["--target-range LOW,HIGH"] if dataset.target_range is not None and not dataset.range_stated else []
    states += ["--indices FIRST-LAST"] if "indices" in dataset.read_off else []
    return (
        f"No public statement for {source}: {dataset.read_off} read off the data, and would be in the model for everybody. State "
        f"what is publicly known by {' and '.join(states)}, or pass --accept-proposed, which claims no ε."
    )


def _refuse_report(asked: TrainingOptions, dataset: Dataset) -> None:
    """ValueError for runs that keep no account of what each record has spent."""
    if asked.mechanism != "individual" or asked.public_size is None or len(dataset.classes) > 2:
        raise ValueError(
            "Expected --mechanism individual, --public-size and at most two classes with --private-report: other runs keep "
            "no account of records."
        )


def files_of_parts(output: Path, parts: Iterable[str]) -> dict[str, Path]:
    """A file for each part: model.json becomes model.north.json."""
    words = {part: re.sub(r"[^\w-]+", "-", part).strip("-") for part in parts}
    if len(set(map(str.lower, words.values()))) < len(words) or not all(words.values()):  # some file systems know one case
        words = {part: f"{number}-{word}" for number, (part, word) in enumerate(words.items(), start=1)}
    return {part: output.with_name(f"{output.stem}.{word}{output.suffix}") for part, word in words.items()}

"""Which model is wanted: how each kind of model is made of a table and of options, also one for each part of the rows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from dperm._extras import require
from dperm.jobs.options import BudgetOptions, Relation

if TYPE_CHECKING:
    from dperm.data import Dataset, Schema
    from dperm.privacy import Risk

_WIDEST = 65_536  # hidden layer
_LEAST_RADIUS = 2.0  # of models of counts


@dataclass(frozen=True, kw_only=True)
class ModelOptions(BudgetOptions):
    """Which model is wanted, within which budget, and what is publicly known of its records."""

    epsilon: Annotated[float | None, "Privacy budget ε [default: 1]."] = None
    model: Annotated[
        str | None,
        "logistic or svm for labels, ordinal for labels with an order; ridge or quantile for numbers, poisson for counts; or "
        "mlp: a network for labels, which needs PyTorch [default: by the target as the schema declares it: logistic for labels, "
        "ordinal for those with an order, ridge for numbers].",
    ] = None
    quantile: Annotated[float | None, "Of --model quantile: 0.9 for what nine in ten stay below [default: 0.5, the median]."] = (
        None
    )
    hidden: Annotated[str | None, "Of --model mlp: widths of its hidden layers, 64,32 [default: 32]."] = None
    mechanism: Annotated[str, "A method: auto, objective, output, gradient …"] = "auto"
    sampling: Annotated[
        str | None,
        "Of --mechanism gradient: poisson, importance, full, balls_and_bins, truncated_poisson, fixed_size, cyclic_poisson, "
        "fixed_order, reshuffled or rows.",
    ] = None
    margin: Annotated[
        float | None, "Of --mechanism objective: 0 makes coefficients log-odds, which have standard errors [default: 2]."
    ] = None
    relation: Relation = "add_or_remove_one"
    curves: Annotated[
        int | None, "Knots of the curve that each number of a schema gets; 0: a line [default: by --public-size, ε and columns]."
    ] = None
    class_weight: Annotated[str | None, "Public weights of the labels, no=1,yes=4: errors on a rare one count for more."] = None
    fit_by: Annotated[
        str | None,
        "A category of the schema: a model, and a file, for each of its values, for the price of one. --public-size is the "
        "number of all records; each part is taken to have an equal share.",
    ] = None
    data_norm: Annotated[float, "Public bound on a row's L2 norm; longer rows are scaled down."] = 1.0
    public_size: Annotated[int | None, "Publicly known number of records, if it is public."] = None

    def budget(self, default: float | None = 1.0) -> float | Risk:
        return super().budget(default)

    def kind_for(self, schema: Schema | None) -> Kind:
        """The model that is asked for; where none is, that for the target as the schema declares it, and without a schema one for
        labels. ValueError for what there is not, and for what this kind of model cannot do, without a look at the rows."""
        from dperm._validate import choice
        from dperm.mechanisms import known_methods
        from dperm.mechanisms.gradient import SAMPLINGS

        labels, ordered = schema is None or bool(schema.classes), schema is not None and schema.ordered
        usual = usual_model(labels=labels, ordered=ordered)
        kind = KINDS[usual if self.model is None else choice("--model", self.model, KINDS)]
        choice("--mechanism", self.mechanism, known_methods())
        if self.sampling is not None:
            choice("--sampling", self.sampling, SAMPLINGS)
        kind.refuse(self)
        if self.fit_by is not None and not kind.drawn:
            raise ValueError("Expected a linear model with --fit-by: logistic, svm, ordinal, ridge, quantile or poisson.")
        if self.fit_by is not None and self.relation != "add_or_remove_one":
            raise ValueError(
                "Expected --relation add_or_remove_one with --fit-by: under replace_one the number of records of each part would "
                "be public, and a record that moves to another part changes it."
            )
        return kind


def usual_model(*, labels: bool, ordered: bool = False) -> str:
    """The model for a target of labels, which may have an order, or of numbers, where none is asked for. `dperm train` makes it,
    and `dperm compare` puts it first."""
    return "ordinal" if ordered else "logistic" if labels else "ridge"


class Kind:
    """A linear model, or another kind. Everything that it refuses, it refuses before anything is charged. `title`: what it is in
    words."""

    drawn = True  # by `dperm effects`
    notice = ""  # said before training

    def __init__(self, name: str, estimator_name: str, title: str) -> None:
        self.name, self.estimator_name, self.title = name, estimator_name, title

    def make(self, **settings: Any) -> Any:
        """An estimator of this kind."""
        from dperm import estimators

        return getattr(estimators, self.estimator_name)(**settings)

    def refuse(self, asked: ModelOptions) -> None:
        """ValueError for what this kind cannot do, before a row is read."""
        if asked.hidden is not None:
            raise ValueError(f"Expected --model mlp with --hidden, got --model {self.name}, which has no layers.")
        if asked.sampling is not None and asked.mechanism != "gradient":
            raise ValueError(f"Expected --mechanism gradient with --sampling {asked.sampling}: other mechanisms draw no batches.")
        if asked.quantile is not None:
            raise ValueError(f"Expected --model quantile with --quantile, got --model {self.name}.")
        if asked.margin is not None and (self.name != "logistic" or asked.mechanism not in ("auto", "objective")):
            raise ValueError("Expected --model logistic by --mechanism objective with --margin: it is that of the logistic loss.")

    def declared(self, schema: Schema) -> Schema:
        """The schema by which this kind sees its target. ValueError for a target that it cannot learn."""
        return schema

    def knots(self, schema: Schema, asked: ModelOptions) -> int:
        """Knots of the curve of each number where `--curves` does not say."""
        from dperm.data.schema.schema import usual_knots

        epsilon = budget if isinstance(budget := asked.budget(), float | int) else 1.0
        return schema.curves or usual_knots(schema, epsilon, asked.delta, asked.public_size)

    def row_norm(self, asked: ModelOptions) -> float | None:
        """The norm that longer rows are scaled down to; None where rows are not bounded."""
        return asked.data_norm

    def estimator(self, dataset: Dataset, asked: ModelOptions) -> Any:
        """The estimator that is to be fitted. ValueError for data that this kind cannot learn from."""
        from dperm.mechanisms import Gradient, Objective

        mechanism: Any = asked.mechanism
        if asked.sampling is not None:
            mechanism = Gradient(sampling=asked.sampling)
        elif asked.margin is not None:
            mechanism = Objective(margin=asked.margin)
        options = {
            "epsilon": asked.budget(),
            "delta": asked.delta,
            "relation": asked.relation,
            "public_size": asked.public_size,
            "label": dataset.name,
            "mechanism": mechanism,
            **({} if dataset.groups is None else {"max_rows_per_unit": dataset.unit.max_rows}),
            **self.own_options(dataset, asked),
        }
        return self.make(**options)

    def own_options(self, dataset: Dataset, asked: ModelOptions) -> dict[str, Any]:
        """What not every estimator takes."""
        return {
            "classes": self._labels(dataset),
            "neighbours": list(dataset.neighbours) or None,
            "class_weight": _weights(asked.class_weight),
            "data_norm": asked.data_norm,
        }

    def _labels(self, dataset: Dataset) -> list[Any]:
        if not dataset.classes:
            raise ValueError(f"Expected labels as target for --model {self.name}, got numbers; use --model ridge.")
        return list(dataset.classes)


class _Ordinal(Kind):
    def declared(self, schema: Schema) -> Schema:
        if schema.classes and not schema.ordered:
            raise ValueError(
                f"Expected labels with an order as target for --model {self.name}: let the schema's classes stand from the least "
                f'to the greatest, and write "measure": "ordinal" in the row of {schema.target!r}.'
            )
        return schema


class _Numbers(Kind):
    """A model of numbers."""

    def own_options(self, dataset: Dataset, asked: ModelOptions) -> dict[str, Any]:
        if asked.class_weight is not None and not dataset.classes:
            raise ValueError("Expected labels as target with --class-weight, got numbers.")
        if dataset.target_range is None:
            raise ValueError(
                f"Expected numbers as target for --model {self.name}, got the labels {list(dataset.classes)[:5]}. "
                "A schema says so: `dperm data propose --task regression` makes one."
            )
        return {"data_norm": asked.data_norm, **self._range(dataset)}

    def _range(self, dataset: Dataset) -> dict[str, Any]:
        """Counts come in their own units, in this range; amounts on [−1, 1]."""
        from dperm.data.schema.ranges import CountRange

        return {"target_range": tuple(dataset.target_range or ())} if isinstance(dataset.target_range, CountRange) else {}


class _Quantile(_Numbers):
    def refuse(self, asked: ModelOptions) -> None:
        from dperm._validate import fraction

        if asked.quantile is not None:
            fraction("--quantile", asked.quantile)
        super().refuse(replace(asked, quantile=None))

    def own_options(self, dataset: Dataset, asked: ModelOptions) -> dict[str, Any]:
        return super().own_options(dataset, asked) | {"quantile": 0.5 if asked.quantile is None else asked.quantile}


class _Counts(_Numbers):
    notice = (
        "Poisson regression suits counts of means up to about the square root of their range's end: of larger ones --model ridge "
        "is better.\n"
    )

    def declared(self, schema: Schema) -> Schema:
        """Who asks for a model of counts says that the target is one, unless the schema says that it is none."""
        if schema.classes:
            return schema
        if schema.label.measure == "amount":
            raise ValueError(
                f"Expected counts as target for --model {self.name}, but the schema declares the target {schema.target!r} as an "
                'amount: write "measure": "count" in its row if it is a count, or use --model ridge.'
            )
        return schema.measured_as("count")

    def own_options(self, dataset: Dataset, asked: ModelOptions) -> dict[str, Any]:
        """The ball is as wide as the logarithm of the largest count needs it to be: that is public.

        The intercept, whose feature is half as long as a row may be, reaches half of that logarithm alone. A ball twice as wide
        squares the loss's constants, and was worse at all sizes (docs/schemas.md).
        """
        from dperm._validate import positive

        given = super().own_options(dataset, asked)
        if "target_range" not in given:
            raise ValueError(f"Expected a table with a schema for --model {self.name}: it says what range counts have.")
        _, high = given["target_range"]
        return given | {"radius": max(_LEAST_RADIUS, math.log(high)) / positive("data_norm", asked.data_norm)}


class _Network(Kind):
    drawn = False
    notice = "Training a network: this can take minutes.\n"

    def refuse(self, asked: ModelOptions) -> None:
        require("torch", "--model mlp")
        require("safetensors", "--model mlp")
        _widths(asked.hidden)
        if asked.quantile is not None:
            raise ValueError("Expected --model quantile with --quantile, got --model mlp.")
        if asked.margin is not None:
            raise ValueError("Expected --model logistic with --margin, got --model mlp.")
        if asked.class_weight is not None or asked.mechanism not in ("auto", "gradient") or asked.data_norm != 1.0:
            raise ValueError(
                "Expected --model mlp without --class-weight and --data-norm, by --mechanism gradient: others need convexity."
            )

    def knots(self, schema: Schema, asked: ModelOptions) -> int:
        return schema.curves or 0

    def row_norm(self, asked: ModelOptions) -> float | None:
        return None

    def own_options(self, dataset: Dataset, asked: ModelOptions) -> dict[str, Any]:
        import numpy as np

        from dperm.gradient.sampling import samplings
        from dperm.mechanisms import Gradient

        if asked.sampling in samplings() and samplings()[asked.sampling].by_rows and dataset.groups is None:
            raise ValueError("Expected a schema with a unit with --sampling rows: without one each row is a person.")
        if not isinstance(dataset.features, np.ndarray):
            raise ValueError(f"Expected dense features with --model mlp, got those of {dataset.name}, which are sparse.")
        method = {"mechanism": Gradient()} if asked.sampling is None else {}
        return {"classes": self._labels(dataset), "hidden_layer_sizes": _widths(asked.hidden), **method}


KINDS = {
    kind.name: kind
    for kind in (
        Kind("logistic", "DPLogisticRegression", "logistic regression"),
        Kind("svm", "DPLinearSVC", "a support vector machine"),
        _Ordinal("ordinal", "DPOrdinalClassifier", "ordinal regression (cumulative logits)"),
        _Numbers("ridge", "DPRidge", "least squares (ridge)"),
        _Quantile("quantile", "DPQuantileRegressor", "quantile regression"),
        _Counts("poisson", "DPPoissonRegressor", "Poisson regression"),
        _Network("mlp", "DPMLPClassifier", "a network"),
    )
}


def _widths(given: str | None) -> list[int]:
    """ "64,32" as widths of layers."""
    parts = "32" if given is None else given
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", parts):
        raise ValueError(f"Expected --hidden as widths of layers, such as 64,32, got {given!r}.")
    widths = [int(part) for part in parts.split(",")]
    if not 1 <= min(widths) <= max(widths) <= _WIDEST:
        raise ValueError(f"Expected --hidden as widths from 1 to {_WIDEST:,}, got {given!r}.")
    return widths


def _weights(given: str | None) -> dict[str, float] | None:
    """ "no=1,yes=4" as weights by label."""
    if given is None or given == "balanced":
        return given  # pyright: ignore[reportReturnType]  # refused by name
    weights: dict[str, float] = {}
    for part in given.split(","):
        label, equals, weight = part.rpartition("=")
        try:
            weights[label.strip()] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"Expected --class-weight such as no=1,yes=4, got {given!r}.")
    return weights


def by_part(estimator: Any, schema: Schema | None, asked: ModelOptions) -> Any:
    """A model for each category of a column. Of a public number of all records each part is taken to have an equal share."""
    from dperm.estimators import DPByPart

    if schema is None or asked.fit_by is None:
        raise ValueError("Expected a table with a schema for --fit-by: a category of it says whose model is whose.")
    parts = schema.columns_of(asked.fit_by)
    share = None if asked.public_size is None else max(1, asked.public_size // len(parts))
    return DPByPart(estimator.set_params(public_size=None), parts, public_sizes=share)

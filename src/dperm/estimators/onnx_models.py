"""Fitted linear models as ONNX, by skl2onnx: for programs that hold no Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier

from dperm._extras import needed
from dperm.estimators.base import PrivateLinearModel
from dperm.estimators.exporting import MarginLogOdds, RowNormScaler

if TYPE_CHECKING:
    from dperm.data import Schema

_OPSET = 17  # of the operators that are used: read by runtimes since 2022


def model_to_onnx(
    model: PrivateLinearModel,
    schema: Schema | None = None,
    *,
    target_range: tuple[float, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> bytes:
    """A fitted linear model as the bytes of an ONNX file, in single precision.

    Its input "features" is (n, d): rows as `predict` takes them, of a model that was trained by a schema the encoded features.
    Longer rows are scaled down within it. Its outputs are those of skl2onnx: of classifiers "label" (n,) and "probabilities"
    (n, K), of a `DPLinearSVC` scores in their place; of regressions "variable" (n, 1), in the target's own units where `schema`
    is given. The file holds what `to_sklearn` does, and costs no privacy.

    Parameters
    ----------
    model : PrivateLinearModel
        Fitted.
    schema : Schema or None
        The schema that it was trained by, which scaled its targets.
    target_range : (low, high) or None
        Without a schema the range that scaled its targets, as of `to_sklearn`.
    notes : mapping of str to str, or None
        Texts that the file holds beside the model (its `metadata_props`).

    Raises
    ------
    ModuleNotFoundError
        Where skl2onnx is not installed: pip install 'dperm[onnx]'.
    TypeError
        For a model that is no linear estimator of dperm.
    """
    if not isinstance(model, PrivateLinearModel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a linear estimator of dperm.estimators, got {type(model).__name__}.")
    from sklearn.pipeline import Pipeline

    with needed("skl2onnx", "A model as ONNX"):
        import skl2onnx  # pyright: ignore[reportMissingImports]
        from skl2onnx.common.data_types import FloatTensorType  # pyright: ignore[reportMissingImports]

    steps = [(name, step) for name, step in model.to_sklearn(schema, target_range=target_range).steps if name != "encoder"]
    _register()
    plain = Pipeline(steps)
    last = steps[-1][1]
    options = None
    if is_classifier(last):  # arrays of probabilities, not tables by label
        options = {id(last): {"zipmap": False} if hasattr(last, "predict_proba") else {"raw_scores": True}}
    inputs = [("features", FloatTensorType([None, model.n_features_in_]))]
    made: Any = skl2onnx.to_onnx(plain, initial_types=inputs, options=options, target_opset=_OPSET)
    for key, text in (notes or {}).items():
        entry = made.metadata_props.add()
        entry.key, entry.value = key, text
    return made.SerializeToString()


def _register() -> None:
    """Teach skl2onnx the two steps that are dperm's own; to do so again changes nothing."""
    import skl2onnx  # pyright: ignore[reportMissingImports]

    for kind, converter in ((RowNormScaler, _norm), (MarginLogOdds, _log_odds)):
        skl2onnx.update_registered_converter(kind, f"Dperm{kind.__name__}", _shape, converter)


def _shape(operator: Any) -> None:
    """The shape of a step's output."""
    from skl2onnx.common.data_types import FloatTensorType  # pyright: ignore[reportMissingImports]

    step, given = operator.raw_operator, operator.inputs[0].type.shape
    width = len(np.asarray(step.coef)) if isinstance(step, MarginLogOdds) else given[1]
    operator.outputs[0].type = FloatTensorType([given[0], width])


def _norm(scope: Any, operator: Any, container: Any) -> None:
    """x ÷ max(1, ‖x‖ ÷ data_norm)."""
    from skl2onnx.algebra.onnx_ops import OnnxDiv, OnnxMax, OnnxReduceL2  # pyright: ignore[reportMissingImports]

    norm, one = (np.array([value], dtype=np.float32) for value in (operator.raw_operator.data_norm, 1.0))
    rows, version = operator.inputs[0], container.target_opset
    lengths = OnnxReduceL2(rows, axes=[1], keepdims=1, op_version=version)
    times = OnnxMax(OnnxDiv(lengths, norm, op_version=version), one, op_version=version)
    OnnxDiv(rows, times, op_version=version, output_names=operator.outputs[:1]).add_to(scope, container)


def _log_odds(scope: Any, operator: Any, container: Any) -> None:
    """softplus(t − a) − softplus(−t − a) for the scores t and the margin a, which is ln σ(a + t) − ln σ(a − t)."""
    from skl2onnx.algebra.onnx_ops import OnnxAdd, OnnxMatMul, OnnxNeg, OnnxSoftplus, OnnxSub  # pyright: ignore[reportMissingImports]

    step, version = operator.raw_operator, container.target_opset
    weights, offset = (np.asarray(each, dtype=np.float32) for each in (np.transpose(step.coef), step.intercept))
    margin = np.array([step.margin], dtype=np.float32)
    scores = OnnxAdd(OnnxMatMul(operator.inputs[0], weights, op_version=version), offset, op_version=version)
    up = OnnxSoftplus(OnnxSub(scores, margin, op_version=version), op_version=version)
    down = OnnxSoftplus(OnnxSub(OnnxNeg(scores, op_version=version), margin, op_version=version), op_version=version)
    OnnxSub(up, down, op_version=version, output_names=operator.outputs[:1]).add_to(scope, container)

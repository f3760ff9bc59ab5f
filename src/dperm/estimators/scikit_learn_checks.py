"""Which of scikit-learn's checks a private estimator fails, and why: noise, and bounds that are public."""

from __future__ import annotations

from sklearn.base import BaseEstimator

from dperm.estimators.base import PrivateLinearModel
from dperm.estimators.by_part import DPByPart
from dperm.estimators.classifiers import PrivateLinearClassifier
from dperm.estimators.ordinal import DPOrdinalClassifier

_COPIES = (
    "the noise is made for one record: a weight counts up to a public bound, and is no number of copies, each of which would be "
    "a record with a guarantee of its own"
)
_NOISE = "the noise that ε = 1 asks for covers what so few records say; with epsilon=100 it passes"
_NO_PART = "rows in none of the stated parts are refused, and the check's rows are not made for any"
_NO_ORDER = "texts have no order unless classes states one, and the check's are refused"
_OWN_NOISE = "noise differs from fit to fit: random_state is the inner estimator's, which the check does not seed"

_OF_WEIGHTS = {
    "check_sample_weight_equivalence_on_dense_data": _COPIES,
    "check_sample_weight_equivalence_on_sparse_data": _COPIES,
}
_OF_PARTS = {
    **dict.fromkeys(
        (
            "check_estimators_dtypes",
            "check_pipeline_consistency",
            "check_estimator_sparse_array",
            "check_estimator_sparse_matrix",
            "check_estimators_pickle",
            "check_classifier_data_not_an_array",
            "check_classifiers_classes",
            "check_classifiers_train",
            "check_regressor_data_not_an_array",
            "check_regressors_train",
        ),
        _NO_PART,
    ),
    "check_supervised_y_2d": _OWN_NOISE,
    "check_fit_idempotent": _OWN_NOISE,
    "check_regressors_int": _OWN_NOISE,
}


def expected_failed_checks(estimator: BaseEstimator) -> dict[str, str]:
    """Names of the checks of scikit-learn's `check_estimator` that this estimator fails, each with the reason.

    Parameters
    ----------
    estimator : an estimator of dperm.estimators.

    Returns
    -------
    dict of name to reason, as `check_estimator` and `parametrize_with_checks` take it.

    Examples
    --------
    >>> from dperm.estimators import DPRidge, expected_failed_checks
    >>> sorted(expected_failed_checks(DPRidge()))
    ['check_sample_weight_equivalence_on_dense_data', 'check_sample_weight_equivalence_on_sparse_data']
    """
    if isinstance(estimator, DPByPart):
        return _OF_WEIGHTS | _OF_PARTS
    if not isinstance(estimator, PrivateLinearModel):
        return {}
    if isinstance(estimator, DPOrdinalClassifier) and estimator.classes is None:
        return _OF_WEIGHTS | {"check_class_weight_classifiers": _NOISE, "check_classifiers_classes": _NO_ORDER}
    return _OF_WEIGHTS | ({"check_class_weight_classifiers": _NOISE} if isinstance(estimator, PrivateLinearClassifier) else {})

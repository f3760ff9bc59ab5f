"""Private models with the scikit-learn interface; most users need only this package.

Each estimator sets a task and leaves the training to a method of `dperm.mechanisms`. To add one, derive from
`PrivateLinearClassifier` or `PrivateLinearRegressor` and define `make_loss`. All modules are imported, so that a saved model
finds its class.
"""

import pkgutil
from importlib import import_module

from dperm.estimators.bags import DPBagging
from dperm.estimators.by_part import DPByPart
from dperm.estimators.classifiers import DPLinearSVC, DPLogisticRegression, PrivateLinearClassifier
from dperm.estimators.exporting import MarginLogOdds, RowNormScaler
from dperm.estimators.multi_label import DPMultiLabel
from dperm.estimators.networks import DPMLPClassifier, DPTorchClassifier
from dperm.estimators.ordinal import DPOrdinalClassifier
from dperm.estimators.preprocessing import PublicRangeScaler, TableEncoder
from dperm.estimators.regressors import (
    DPElasticNet,
    DPLasso,
    DPPoissonRegressor,
    DPQuantileRegressor,
    DPRidge,
    PrivateLinearRegressor,
)
from dperm.estimators.saved import model_from_json, model_to_json
from dperm.estimators.scikit_learn_checks import expected_failed_checks
from dperm.estimators.search import DPSearch

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
import_module("dperm.published")  # whose methods are then known by their keys

__all__ = [
    "DPBagging",
    "DPByPart",
    "DPElasticNet",
    "DPLasso",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPMLPClassifier",
    "DPMultiLabel",
    "DPOrdinalClassifier",
    "DPPoissonRegressor",
    "DPQuantileRegressor",
    "DPRidge",
    "DPSearch",
    "DPTorchClassifier",
    "MarginLogOdds",
    "PrivateLinearClassifier",
    "PrivateLinearRegressor",
    "PublicRangeScaler",
    "RowNormScaler",
    "TableEncoder",
    "expected_failed_checks",
    "model_from_json",
    "model_to_json",
]

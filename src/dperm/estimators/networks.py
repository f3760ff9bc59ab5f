"""Networks in scikit-learn's style. PyTorch is imported when a model is fitted, not before."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dperm import _validate as check
from dperm._extras import require
from dperm._types import Array
from dperm.distributed.table import refuse_dask
from dperm.estimators.base import TakesMethod, admit_groups, all_or_nothing
from dperm.estimators.records import admit_labels, admit_records, beside, explained, same_rows
from dperm.estimators.unsupported_wrappers import (
    preparation,
    refuse_what_resamples,
    remind_of_what_looks,
    third_party_assumption,
)
from dperm.gradient import Policy
from dperm.gradient.recipes import budgeted_recipe, dp_sgd, dpis, full_batch_descent
from dperm.gradient.sampling import samplings
from dperm.mechanisms import Gradient, Method, method_of
from dperm.objectives import PrivacyUnit
from dperm.privacy import Relation, Risk
from dperm.release import Source

if TYPE_CHECKING:
    from torch import nn

    from dperm.torch import PrivateTrainer


_PREDICTED_AT_ONCE = 4096
_LAYERS, _WIDEST = 100, 1_000_000
_ACTIVATIONS = ("tanh", "relu", "gelu")


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateNetworkClassifier(ClassifierMixin, TakesMethod, ABC):
    """Labels, fitting and prediction; subclasses make the module. Computes in the precision of the training rows."""

    epsilon: float | Risk = 1.0
    delta: float = 1e-5
    mechanism: str | Method = "gradient"
    relation: str = "add_or_remove_one"
    classes: ArrayLike | None = None
    public_size: int | None = None
    max_rows_per_unit: int | None = None
    label: str = ""
    random_state: Any = None

    @abstractmethod
    def module_of(self, features: int, classes: int) -> nn.Module:
        """A new module from (b, features) to (b, classes) scores."""

    def fit(self, X: Any, y: Any, groups: Any = None, *, absent: int = 0) -> Self:
        """Train privately on rows X (n, d) and labels y (n,), by gradient perturbation with Adam. With `max_rows_per_unit`,
        `groups` (n,) tells whose each row is. `absent` further records are left out, which needs a number of records that is
        private.

        Raises ValueError for unusable input before anything is charged. Whatever fails later, the charge stands.
        """
        require("torch", "A network")
        check.plain_numbers(self, self.get_params(deep=False))
        if type(self.label) is not str:
            raise TypeError(f"Expected label to be text, got {self.label!r}.")
        if not isinstance(self.epsilon, Risk):
            check.positive("epsilon", self.epsilon)
        check.fraction("delta", self.delta)
        recipe = _Recipe.of(method_of(self.mechanism), PrivacyUnit(self.max_rows_per_unit))
        check.choice("relation", self.relation, [relation.value for relation in Relation])
        if check.integer("absent", absent, minimum=0) and (self.relation == "replace_one" or self.public_size is not None):
            raise ValueError(
                f"Expected no records to leave out where their number is public, got {absent:,}: without a label, or with gaps, "
                'which "missing": "middle" or "separate" in the schema keeps.'
            )
        with all_or_nothing(self):
            self._train(X, y, groups, recipe)
        return self

    def _train(self, X: Any, y: Any, groups: Any, recipe: _Recipe) -> None:
        import torch

        from dperm.torch.training.callbacks import Watched

        refuse_what_resamples()
        refuse_dask(X=X, y=y, groups=groups)
        same_rows(X, groups, "groups")
        X, y = admit_records(self, X, y, numeric=False, sparse=False)
        remind_of_what_looks(stacklevel=3)
        self.classes_, index, labels = admit_labels(y, self.classes)
        settings = {name: value for name, value in self.get_params(deep=False).items() if name not in ("random_state", "module")}
        settings = copy.deepcopy(settings)  # lists may change; and what cannot be copied fails now
        number, _ = admit_groups(groups, len(X), PrivacyUnit(self.max_rows_per_unit))
        with torch.random.fork_rng(devices=[]):
            if self.random_state is not None and not isinstance(self.random_state, Source):
                torch.manual_seed(_seed(self.random_state))
            module = self.module_of(X.shape[1], len(self.classes_)).to(_precision(X))
        with torch.no_grad():
            trial = copy.deepcopy(module).eval()  # a copy: the modes of the caller's layers are the caller's choice
            shape = tuple(trial(torch.from_numpy(np.ascontiguousarray(X[:2]))).shape)
        if shape != (min(2, len(X)), len(self.classes_)):
            raise ValueError(
                f"Expected the module to give {len(self.classes_)} scores per record, one a class, got shape {shape}."
            )
        prepared, uncharged = preparation()
        trainer = self._trainer(module, recipe)
        records = np.ascontiguousarray(X), index.astype(np.int64)
        trainer.fit(records, groups=number, progress=False, callbacks=[Watched()])
        assert trainer.certificate is not None
        self.module_ = module.eval()
        self.fitted_params_ = settings
        certificate = trainer.certificate.with_assumptions(labels, *prepared, *third_party_assumption(self))
        certificate = certificate.not_charging(*uncharged)
        self.certificate_ = certificate.asked_for(self.epsilon) if isinstance(self.epsilon, Risk) else certificate
        self.history_ = trainer.history
        assert trainer.plan is not None
        self.trace_ = {"steps": trainer.plan.steps, "public_size": trainer.plan.public_size, "epochs": trainer.trace}
        self.private_trace_ = [trainer.private_trace] if trainer.private_trace else []

    def trainer_for(self, features: int, classes: int) -> PrivateTrainer:
        """The trainer of a fit on rows of so many features and labels of so many classes, before it has seen records."""
        return self._trainer(
            self.module_of(features, classes), _Recipe.of(method_of(self.mechanism), PrivacyUnit(self.max_rows_per_unit))
        )

    def _trainer(self, module: nn.Module, recipe: _Recipe) -> PrivateTrainer:
        import torch

        from dperm.torch import PrivateTrainer

        return PrivateTrainer(
            module,
            torch.nn.CrossEntropyLoss(reduction="none"),
            torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=recipe.learning_rate),
            epsilon=self.epsilon,
            delta=self.delta,
            plan=recipe.plan,
            relation=self.relation,
            public_size=self.public_size,
            max_rows_per_unit=self.max_rows_per_unit,
            label=self.label,
            random_state=self.random_state,
        )

    def _scores(self, X: Any) -> Array:
        """(n, K) outputs of the module."""
        check_is_fitted(self)
        import torch

        refuse_dask(X=X)
        with explained(X):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        like = next(self.module_.parameters())
        with torch.no_grad():
            parts = [
                self.module_(torch.tensor(X[start : start + _PREDICTED_AT_ONCE], dtype=like.dtype, device=like.device)).cpu()
                for start in range(0, len(X), _PREDICTED_AT_ONCE)
            ]
        return np.concatenate(parts).astype(np.float64)

    def decision_function(self, X: Any) -> Array:
        """Scores: (n,) for two classes (positive: the second), otherwise (n, K)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """(n, K) probabilities that sum to 1."""
        return softmax(self._scores(X), axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, shape (n,)."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        from sklearn.metrics import accuracy_score

        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return float(accuracy_score(truth, answers, sample_weight=weights))


@dataclass(eq=False, repr=False)
class DPTorchClassifier(PrivateNetworkClassifier):
    """Any torch module as a private classifier.

    Parameters
    ----------
    module : a function (features, classes) → module, or a module, which is copied; it maps (b, features) to (b, classes).
    epsilon, delta : the budget; `epsilon` may be a `Risk`, what an attacker may achieve at most.
    mechanism : "gradient", or `dperm.mechanisms.Gradient` with settings. Here those left open are 20 epochs in batches of 256
        (or n/4; by importance n/16), a clipping norm of 1 and a learning rate of 0.02, of Adam; full batches have 100 steps.
    relation : "add_or_remove_one" (n is private) or "replace_one" (n is public).
    classes : all possible labels. None takes those present and records "label set taken as public".
    public_size : publicly known number of records. None under add/remove: released with noise and charged.
    max_rows_per_unit : with `groups` in `fit`, the most rows that are used of a person; public.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    Attributes
    ----------
    module_ : the trained module, in eval mode. certificate_, classes_, n_features_in_.
    history_ : ε so far, by epoch. trace_ : public numbers of the run; its "epochs" are what DPIS chose (none of DP-SGD).
    """

    module: Callable[[int, int], nn.Module] | nn.Module

    def module_of(self, features: int, classes: int) -> nn.Module:
        from torch import nn

        return copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(features, classes)


@dataclass(eq=False, repr=False)
class DPMLPClassifier(PrivateNetworkClassifier):
    """A private multi-layer perceptron. Scale features first, by public ranges (`PublicRangeScaler`).

    Parameters
    ----------
    hidden_layer_sizes : widths of the hidden layers.
    activation : "tanh" (bounded: shorter gradients, less to clip), "relu" or "gelu".
    The others are those of `DPTorchClassifier`.

    Attributes
    ----------
    module_ : the trained network, a torch module in eval mode. The others are those of `DPTorchClassifier`.
    """

    hidden_layer_sizes: Sequence[int] | int = (32,)
    activation: str = "tanh"

    def module_of(self, features: int, classes: int) -> nn.Module:
        from torch import nn

        check.choice("activation", self.activation, _ACTIVATIONS)
        activation = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}[self.activation]
        hidden = [self.hidden_layer_sizes] if isinstance(self.hidden_layer_sizes, int) else self.hidden_layer_sizes
        if not isinstance(hidden, list | tuple) or len(hidden) > _LAYERS:
            raise ValueError(f"Expected hidden_layer_sizes as a list of at most {_LAYERS} widths, got {str(hidden)[:60]}.")
        widths = [features, *(check.integer("hidden_layer_sizes", width) for width in hidden)]
        if max(widths[1:], default=0) > _WIDEST:
            raise ValueError(f"Expected hidden_layer_sizes up to {_WIDEST:,}, got {max(widths[1:]):,}.")
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@dataclass(frozen=True)
class _Recipe:
    """Gradient perturbation of a network, with what its settings leave open."""

    method: Gradient
    unit: PrivacyUnit

    @classmethod
    def of(cls, method: Method, unit: PrivacyUnit) -> _Recipe:
        if not isinstance(method, Gradient):
            raise ValueError(f"Expected mechanism='gradient' or a Gradient for a network, got {method!r}: others need convexity.")
        if method.claimed:
            raise ValueError(
                f"Expected a method that is certified for a network, got mechanism={method.key!r}: it is only claimed."
            )
        if method.strong_convexity is not None:
            raise ValueError("Expected no strong_convexity for a network, which has none.")
        return cls(method, unit)

    @property
    def learning_rate(self) -> float:
        return self.method.learning_rate or 0.02

    @property
    def plan(self) -> Callable[..., Policy]:
        return {"full": self._full, "importance": self._importance}.get(self.method.sampling, self._drawn)

    @property
    def _common(self) -> dict[str, Any]:
        return {"epochs": self.method.epochs or 20, "clipping_norm": self.method.clipping_norm or 1.0}

    def _drawn(self, noise_multiplier: float, public_size: int) -> Policy:
        size = samplings()[self.method.sampling].drawn_from(public_size, self.unit)
        batch = self.method.expected_batch_size or min(256.0, size / 4)
        plan = dp_sgd(
            noise_multiplier=noise_multiplier,
            public_size=public_size,
            expected_batch_size=batch,
            sampling=self.method.sampling,
            max_rows_per_unit=self.unit.max_rows,
            **self._common,
        )
        return self.method.shaped(plan)

    def _full(self, noise_multiplier: float, public_size: int) -> Policy:
        plan = full_batch_descent(
            noise_multiplier=noise_multiplier,
            public_size=public_size,
            steps=int(self.method.epochs or 100),
            clipping_norm=self.method.clipping_norm or 1.0,
        )
        return self.method.shaped(plan)

    @budgeted_recipe
    def _importance(self, *, epsilon: float, delta: float, public_size: int | None) -> Policy:
        batch = self.method.expected_batch_size or min(256.0, (public_size or 4096) / 16)
        plan = dpis(epsilon=epsilon, delta=delta, public_size=public_size, expected_batch_size=batch, **self._common)
        return self.method.shaped(plan)


def _precision(X: Any) -> Any:
    import torch

    return torch.float64 if X.dtype == np.float64 else torch.float32


def _seed(random_state: Any) -> int:
    """A seed for the initial weights."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(random_state)

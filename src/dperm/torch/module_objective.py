"""A torch model and a per-record loss as an objective: exact per-example gradients from one forward and one backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm._family import ours
from dperm.objectives import RECORD, LocalSteps, PrivacyUnit
from dperm.objectives.facts import PublicFacts
from dperm.privacy.events import Relation
from dperm.torch.data.collation import Ragged, grouped
from dperm.torch.data.records import NOBODY, TorchRecords
from dperm.torch.data.units import MeanLoss, MeanOfViews
from dperm.torch.engine import IsolatedEngine, TorchPass
from dperm.torch.engine.local_training import LocalUpdates
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.engine.ordinary_losses import OrdinaryLosses, hessian_product
from dperm.torch.independence.inspection import OUT_OF_THE_LOSS, Inspection, refuse_modules
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.nested import size_of, take

if TYPE_CHECKING:
    from dperm.torch.parameters.fully_sharded import ShardedParameters


class Independence(StrEnum):
    """What is known of records: that none influences another's gradient, by how the model runs, or as far as it was looked at."""

    PROVED = "proved"
    TESTED = "tested"


class ModuleObjective:
    """Σ_i loss_i(model(inputs), targets)_i over records, with exact per-example gradients.

    `loss_fn(outputs, targets) -> (b,)` gives one loss per record, unreduced. `inputs` is a tensor, a tuple of arguments
    or a dict of keyword arguments of the model, each tensor with the records along its first axis; `targets` is passed
    on. Only trainable parameters count, in `named_parameters()` order; tied weights count once. Those of a loss that is a
    module, such as learned weights of several tasks, are trained with the model's. The model is not wrapped or changed;
    gradients and sums are in single precision at least.

    The model and the loss see one record at a time (`dperm.torch.engine`), so that no record can influence another's gradient.
    Before the first pass, and after every change of the model's modes, layers or input shapes, losses and gradients of up to 8
    records are compared with those of one ordinary batch: a model that was meant to mix records is told so. `relation`,
    `public_size` and `unit` (what a record is) are public facts for plans; `autocast`
    names a narrower type for the forward. With `independence` "tested" the model sees whole batches, and that it keeps records
    apart is looked at and otherwise the caller's assumption.

    Raises TypeError or ValueError where the model has no per-example gradients, with what to do about it.
    """

    strong_convexity = 0.0
    radius: float | None = None

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        public_size: int | None = None,
        autocast: torch.dtype | None = None,
        unit: PrivacyUnit = RECORD,
        independence: Independence | str = "proved",
    ) -> None:
        if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected model to be a torch.nn.Module, got {type(model).__name__}.")
        if not callable(loss_fn):
            raise TypeError(f"Expected loss_fn to be callable, got {loss_fn!r}.")
        loss = module_of(loss_fn)
        self.model, self.modules = model, [module for module in (model, loss) if module is not None]
        self.refuse_modules()
        self.relation, self.public_size, self.unit = Relation(relation), public_size, unit
        #: the same as `flat`, where each rank has a part of each parameter
        self.shards = _shards(model, loss)
        self.flat: FlatParameters = self.shards or FlatParameters(model, loss)
        self.independence = Independence(independence)
        if self.flat.sharded and self.independence is Independence.PROVED:
            raise ValueError(
                "Parameters that are sharded are gathered for a whole batch: that the model keeps records apart can only be "
                'tested. Pass independence="tested" to take it as an assumption of yours, which the certificate states.'
            )
        self._tested = self.independence is Independence.TESTED
        self.losses = OrdinaryLosses(model, loss_fn, self.flat, autocast)
        self.engine = IsolatedEngine(self.losses.roots, self.losses, self.flat)
        self.inspection = Inspection(self.engine, self.losses, self._tested)
        self._at: Any = None  # the parameters of this step

    @property
    def groups(self) -> tuple[str, ...]:
        """The modules that own trainable parameters: what per-layer bounding bounds one by one."""
        return self.flat.groups

    @property
    def copied(self) -> tuple[str, ...]:
        """Parameters that go to functions without a rule, known after the first pass: there each record has a copy of its
        own, so that memory for the gradients of all records is needed. Exact, and slower where they are large."""
        return tuple(name for name, leaf in zip(self.flat.names, self.flat.leaves, strict=True) if leaf in self.engine.copied)

    @property
    def foreign_rules(self) -> tuple[Any, ...]:
        """The rules in use that dperm did not write, known after the first pass."""
        return tuple(rule for rule in self.engine.rules if not ours(rule))

    @property
    def one_by_one(self) -> str | None:
        """Why the model runs one record after the other; None where it does not."""
        return self.engine.one_by_one

    @property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            dimension=self.flat.whole,
            data_norm=math.inf,
            lipschitz=math.inf,
            smoothness=math.inf,
            relation=self.relation,
            public_size=self.public_size,
            rank_one=False,
            unit=self.unit,
        )

    @property
    def theta(self) -> Tensor:
        """The flat buffer (p,) that the trainable parameters are views of: changing it changes the model. Where parameters are
        sharded, a copy of this rank's rows."""
        return self.flat.buffer

    @theta.setter
    def theta(self, theta: Tensor) -> None:
        self.flat.put(theta)

    def per_example(self, theta: Tensor, batch: Any, *, norms_only: bool = False, anchor: Tensor | None = None) -> TorchPass:
        """The pass at θ (p,) on a batch (inputs, targets); leaves the model at θ."""
        if anchor is not None:
            raise TypeError("Expected a linear model for differences of gradients: a network's are at one θ only.")
        self.flat.put(theta)
        if theta is not self._at:
            self._at = theta
            self.engine.draws.next_step()
        if batch is NOBODY:  # every rank runs the model as often as the others
            assert self.inspection.sample is not None
            one, (inputs, targets) = torch.tensor([0]), self.inspection.sample
            size = size_of(inputs, targets)
            return self._evaluate((take(inputs, one, size), take(targets, one, size)), True).of_nobody()
        return self._evaluate(batch, norms_only)

    def local_updates(self, theta: Tensor, batch: Any, local: LocalSteps) -> TorchPass:
        """The pass whose vectors are θ − θ', where θ' is what local training on a record's rows leaves, from θ (p,) on; leaves
        the model at θ. Records are trained on one after the other, each from the same state of the model."""
        self.flat.put(theta)
        if theta is not self._at:
            self._at = theta
            self.engine.draws.next_step()
        return self._evaluate(batch, False, LocalUpdates(self.engine, local, self.unit.several_rows))

    def refuse_local(self, local: LocalSteps) -> None:
        """ValueError for parameters that are sharded: a local model is whole."""
        if self.flat.sharded:
            raise ValueError("Expected parameters whole on one device for local training, got sharded ones.")

    def evaluate(self, inputs: Any, targets: Any, *, norms_only: bool = False) -> TorchPass:
        """The pass at the model's current parameters. With `norms_only` it has norms and losses, and holds no gradients."""
        self.flat.check()
        self.engine.draws.next_step()
        return self._evaluate((inputs, targets), norms_only)

    def _evaluate(self, batch: Any, norms_only: bool, each: LocalUpdates | None = None) -> TorchPass:
        if isinstance(batch, Ragged):
            size = batch.size
        else:
            if not self.engine.charged:
                self.inspection.look(*batch)
            size = size_of(*batch)
        return self.engine.evaluate(batch, size, norms_only=norms_only, beside=self._tested, each=each)

    def refuse_modules(self) -> None:
        """ValueError where a layer of the model or of the loss cannot be trained privately."""
        for module in self.modules:
            refuse_modules(module, "" if module is self.model else OUT_OF_THE_LOSS)

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Look at how the model treats some of these records, unless that was done for these modules, modes and shapes, or the
        run is charged. ValueError where something is wrong, with what to do."""
        self.flat.check()
        if not self.engine.charged:
            self.inspection.look(inputs, targets)

    def hessian_product(self, theta: Tensor, records: TorchRecords, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Σ ∇²ℓ_i)·v (p,) at θ, of the model in evaluation mode; leaves the model at θ. Twice the memory of a training step."""
        if self.flat.sharded:
            raise TypeError("Expected parameters whole on one device for second derivatives, got sharded ones.")
        self.flat.put(theta)
        groups = (group for batch in records.batches() for group in grouped(batch, 0))
        with self.inspection.looking():
            product = hessian_product(self.losses, groups, torch.as_tensor(vector).to(self.flat.buffer))
        return product.double().cpu().numpy()

    def snapshot(self) -> Snapshot:
        """What the model and the loss keep besides the trainable parameters."""
        return self.engine.snapshot()


def per_example(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], **facts: Any) -> ModuleObjective:
    """`ModuleObjective(model, loss_fn, **facts)`."""
    return ModuleObjective(model, loss_fn, **facts)


def module_of(loss_fn: Any) -> nn.Module | None:
    """The module whose parameters a loss trains: the loss itself, or the owner of the method that it is."""
    if isinstance(loss_fn, (MeanLoss, MeanOfViews)):
        return module_of(loss_fn.loss_fn)
    owner = getattr(loss_fn, "__self__", loss_fn)
    return owner if isinstance(owner, nn.Module) else None


def _shards(model: nn.Module, loss: nn.Module | None) -> ShardedParameters | None:
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return None
    from dperm.torch.parameters.fully_sharded import ShardedParameters  # which loads much of torch.distributed

    return ShardedParameters(model, loss)

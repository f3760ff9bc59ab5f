"""A torch model and a per-record loss as an objective: exact per-example gradients from one forward and one backward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm._family import written_here
from dperm.objectives import PrivacyUnit
from dperm.objectives.facts import PublicFacts
from dperm.privacy.events import Relation
from dperm.torch.data.collation import Ragged, grouped
from dperm.torch.data.records import NOBODY, TorchRecords
from dperm.torch.engine import Apart, TorchPass
from dperm.torch.engine.evaluation_mode import evaluating
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.independence.agreement import disagreement
from dperm.torch.independence.refusals import reason_to_refuse, refuse_hooks
from dperm.torch.independence.tested import mixing
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.global_randomness import kept_states
from dperm.torch.tensors.nested import batch_size, call_model, map_tensors, packed, shapes, take

if TYPE_CHECKING:
    from dperm.torch.parameters.fully_sharded import ShardedParameters

_COMPARED, _LOOKED_AT = 8, 16  # records on which gradients are compared with autograd's; where mixing is looked for
_REMEMBERED = 256  # shapes whose check is not repeated


class Independence(StrEnum):
    """What is known of records: that none influences another's gradient, by how the model runs, or as far as it was looked at."""

    PROVED = "proved"
    TESTED = "tested"


class ModuleObjective:
    """Σ_i loss_i(model(inputs), targets)_i over records, with exact per-example gradients.

    `loss_fn(outputs, targets) -> (b,)` gives one loss per record, unreduced. `inputs` is a tensor, a tuple of arguments
    or a dict of keyword arguments of the model, each tensor with the records along its first axis; `targets` is passed
    on. Only trainable parameters count, in `named_parameters()` order; tied weights count once. The model is not
    wrapped or changed; gradients and sums are in single precision at least.

    The model and the loss see one record at a time (`dperm.torch.engine`), so that no record can influence another's gradient.
    Before the first pass, and after every change of the model's modes, layers or input shapes, losses and gradients of up to 8
    records are compared with those of one ordinary batch: a model that was meant to mix records is told so. `relation`,
    `public_size` and `max_rows_per_unit` (records are persons of so many rows at most) are public facts for plans; `autocast`
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
        max_rows_per_unit: int | None = None,
        independence: Independence | str = "proved",
    ) -> None:
        if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected model to be a torch.nn.Module, got {type(model).__name__}.")
        if not callable(loss_fn):
            raise TypeError(f"Expected loss_fn to be callable, got {loss_fn!r}.")
        self.model = model
        self._refuse()
        self.loss_fn = loss_fn
        self.relation = Relation(relation)
        self.public_size = public_size
        self.autocast = autocast
        self.max_rows_per_unit = max_rows_per_unit
        #: the same as `flat`, where each rank has a part of each parameter
        self.shards = _shards(model)
        self.flat: FlatParameters = self.shards or FlatParameters(model)
        self.independence = Independence(independence)
        if self.flat.sharded and self.independence is Independence.PROVED:
            raise ValueError(
                "Parameters that are sharded are gathered for a whole batch: that the model keeps records apart can only be "
                'tested. Pass independence="tested" to take it as an assumption of yours, which the certificate states.'
            )
        #: whatever may keep something of records: of a loss that is a method, its object too
        self.roots = (model, loss_fn, getattr(loss_fn, "__self__", None))
        self.engine = Apart(self.roots, self.ordinary_losses, self.flat)
        self._checked: set[Any] = set()
        self._at: Any = None  # the parameters of this step
        self._shared: tuple[Any, Any] | None = None  # records that all ranks have, where parameters are sharded

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
        return tuple(rule for rule in self.engine.rules if not written_here(rule))

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
            unit=PrivacyUnit(self.max_rows_per_unit),
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
            assert self._shared is not None
            one, (inputs, targets) = torch.tensor([0]), self._shared
            size = self._size(inputs, targets)
            return self._evaluate((take(inputs, one, size), take(targets, one, size)), True).of_nobody()
        return self._evaluate(batch, norms_only)

    def evaluate(self, inputs: Any, targets: Any, *, norms_only: bool = False) -> TorchPass:
        """The pass at the model's current parameters. With `norms_only` it has norms and losses, and holds no gradients."""
        self.engine.draws.next_step()
        return self._evaluate((inputs, targets), norms_only)

    def _evaluate(self, batch: Any, norms_only: bool) -> TorchPass:
        if isinstance(batch, Ragged):
            return self.run(batch, batch.size, norms_only=norms_only)
        self.prepare(*batch)
        return self.run(batch, self._size(*batch), norms_only=norms_only)

    def run(self, batch: Any, size: int, *, norms_only: bool = False) -> TorchPass:
        """The pass over a batch (inputs, targets) or `Ragged`, without any look at its records."""
        beside = self.independence is Independence.TESTED
        return self.engine.evaluate(batch, size, norms_only=norms_only, beside=beside)

    def hessian_product(self, theta: Tensor, records: TorchRecords, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Σ ∇²ℓ_i)·v (p,) at θ, of the model in evaluation mode; leaves the model at θ. Twice the memory of a training step."""
        if self.flat.sharded:
            raise TypeError("Expected parameters whole on one device for second derivatives, got sharded ones.")
        buffer, parameters = self.flat.buffer, self.flat.parameters
        self.flat.put(theta)
        parts = list(self.flat.parts(torch.as_tensor(vector).to(buffer)))
        total = torch.zeros_like(buffer)
        with self._looking(), evaluating(self.model), self._in_full_precision():
            for _, inputs, targets in (group for batch in records.batches() for group in grouped(batch, 0)):
                losses = self.ordinary_losses(inputs, targets).sum()
                slopes = torch.autograd.grad(losses, parameters, create_graph=True, materialize_grads=True)
                along = torch.stack([(slope * part).sum() for slope, part in zip(slopes, parts, strict=True)]).sum()
                if along.requires_grad:  # not that of a loss without curvature
                    curved = torch.autograd.grad(along, parameters, materialize_grads=True)
                    total += torch.cat([part.flatten() for part in curved])
        return total.double().cpu().numpy()

    def share_sample(self, inputs: Any, targets: Any) -> None:
        """Records that all ranks have, where parameters are sharded: the model is checked on them."""
        self._shared = inputs, targets

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Compare losses and gradients of some of these records with those of one ordinary batch, unless that was done for
        these modules, modes and shapes, or the run is charged.

        ValueError where they differ, with what to do. Leaves parameters, buffers and random state as they were.
        """
        self.flat.check()
        if self.flat.sharded and self._shared is not None:
            inputs, targets = self._shared  # all ranks look at the same records, or they would wait for each other
        key = self._key(inputs)
        if key in self._checked or self.engine.charged:
            return
        self._refuse()
        size = self._size(inputs, targets)
        beside = self.independence is Independence.TESTED
        chosen = torch.linspace(0, size - 1, min(size, _LOOKED_AT if beside else _COMPARED)).round().long()
        some = take(inputs, chosen, size), take(targets, chosen, size)
        if not beside:
            refuse_hooks(self.flat.leaves, self.flat.names)
        with self._looking(), self._in_full_precision():
            problem = None
            if beside:
                problem = mixing(self.engine, *some, len(chosen))
            problem = problem or disagreement(self.engine, *some, len(chosen), beside=beside)
        if problem is not None:
            raise ValueError(problem)
        if moving := self.engine.snapshot().uncopied:
            kinds = ", ".join(dict.fromkeys(moving))
            raise ValueError(
                f"The model or the loss keeps what cannot be put back after each pass ({kinds}): draw from the global "
                "generators, and keep no iterators."
            )
        if len(self._checked) >= _REMEMBERED:
            self._checked.clear()
        self._checked.add(key)

    @torch.no_grad()
    def check_targets(self, inputs: Any, chunks: Iterable[Any]) -> None:
        """ValueError, naming the record, for a target that the loss does not take, or takes to no finite number: with the
        outputs of the first of these inputs, whatever the record is."""
        first = take(inputs, torch.tensor([0]), self._size(inputs, inputs))
        with self._looking(), self._in_full_precision(), evaluating(self.model):
            # on the host: a loss that fails on a device may stop the device
            with torch.enable_grad():  # which a penalty on gradients needs
                outputs = call_model(self.model, packed(first))
            outputs, start = map_tensors(lambda tensor: tensor.detach().cpu(), outputs), 0
            for chunk in chunks:
                targets = map_tensors(Tensor.cpu, chunk)
                count = batch_size(targets) or 0
                nobody = torch.zeros(count, dtype=torch.long)
                if self._problem(take(outputs, nobody, 1), targets) is not None:
                    for place in range(count):
                        if problem := self._problem(outputs, take(targets, torch.tensor([place]), count)):
                            raise ValueError(f"The target of record {start + place} cannot be trained on: {problem}.")
                start += count

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Within the block the model and the global generators may change: they are put back."""
        kept = self.engine.snapshot()
        # other kernels round otherwise
        with kept_states(self.flat.device), torch.backends.cudnn.flags(allow_tf32=False):
            try:
                yield
            finally:
                self.flat.rest()
                kept.restore()

    def _problem(self, outputs: Any, targets: Any) -> str | None:
        """What the loss says against these targets."""
        try:
            return None if bool(torch.isfinite(self.loss_fn(outputs, targets)).all()) else "its loss is not finite"
        except IndexError as error:  # what a class number out of range gives
            return str(error).removesuffix(".")
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            # on the host, a loss whose weights are on a device fails by that
            return None if self.flat.device.type != "cpu" else str(error).removesuffix(".")

    def snapshot(self) -> Snapshot:
        """What the model and the loss keep besides the trainable parameters."""
        return self.engine.snapshot()

    @contextlib.contextmanager
    def _in_full_precision(self) -> Iterator[None]:
        narrow, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = narrow

    def _key(self, inputs: Any) -> Any:
        """What rules and layouts depend on: modules, their modes, what is trainable, and shapes short of the batch size."""
        modules = tuple((id(module), type(module), module.training) for module in self.model.modules())
        parameters = tuple((id(parameter), parameter.requires_grad) for parameter in self.model.parameters())
        return modules, parameters, tuple(shape if shape is None else shape[1:] for shape in shapes(inputs))

    def _refuse(self) -> None:
        for name, module in self.model.named_modules():
            if reason := reason_to_refuse(module):
                raise ValueError(f"{name or 'The model'} ({type(module).__name__}) cannot be trained privately: {reason}.")

    def _size(self, inputs: Any, targets: Any) -> int:
        size = batch_size(inputs)
        if not size:
            raise ValueError(f"Expected a batch of at least one record, got {size}.")
        other = batch_size(targets)
        if other is not None and other != size:
            raise ValueError(f"Expected as many targets as inputs, got {other} and {size}.")
        return size

    def ordinary_losses(self, inputs: Any, targets: Any) -> Tensor:
        """The losses (b,) of records as the model and the loss give them to one ordinary batch, with a graph."""
        inputs, targets = packed(inputs), packed(targets)
        if self.autocast is None:
            losses = self.loss_fn(call_model(self.model, inputs), targets)
        else:
            with torch.autocast(self.flat.device.type, dtype=self.autocast):
                losses = self.loss_fn(call_model(self.model, inputs), targets)
        size = self._size(inputs, targets)
        shape = tuple(getattr(losses, "shape", ()))
        if shape != (size,):
            raise ValueError(
                f"Expected loss_fn to give one loss per record, shape ({size},), got {shape}: use reduction='none' and "
                "average over everything but the first axis. For one record, squeeze() drops that axis, too: name another."
            )
        return losses.to(torch.promote_types(self.flat.dtype, torch.float32))


def per_example(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], **facts: Any) -> ModuleObjective:
    """`ModuleObjective(model, loss_fn, **facts)`."""
    return ModuleObjective(model, loss_fn, **facts)


def _shards(model: nn.Module) -> ShardedParameters | None:
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return None
    from dperm.torch.parameters.fully_sharded import ShardedParameters  # which loads much of torch.distributed

    return ShardedParameters(model)

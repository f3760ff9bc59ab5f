"""A torch model and a per-record loss as an objective: exact per-example gradients from one forward and one backward."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm._family import written_here
from dperm.objectives.facts import PublicFacts
from dperm.privacy.events import Relation
from dperm.torch.coins import AlignedPass, axes_of
from dperm.torch.cuts import Cut, calls_watched
from dperm.torch.evaluating import evaluating
from dperm.torch.flat import FlatParameters
from dperm.torch.guard import fresh_masks
from dperm.torch.records import NOBODY, TorchRecords
from dperm.torch.rules import fallback, reason_to_refuse, record_by_record
from dperm.torch.scratch import Pool
from dperm.torch.state import Snapshot
from dperm.torch.structure import FAILURES, batch_size, call_model, map_tensors, shapes, take
from dperm.torch.tape import Axis, RecordsLostError
from dperm.torch.tapped import Tapped, TorchPass
from dperm.torch.verify import BackwardError, Sample, UsedElsewhereError, Verifier

if TYPE_CHECKING:
    from dperm.torch.sharded import ShardedParameters

__all__ = ["ModuleObjective", "per_example"]

_CHECKED = 16  # records that a model is checked on
_COARSE = 0.1  # relative errors above this are no rounding
_MOVED = (0.1, 1.0, 1.0, 1.0)  # shares of their size by which parameters are moved, to see what layers of zeros hide
_REMEMBERED = 256  # shapes whose check is not repeated


class ModuleObjective:
    """Σ_i loss_i(model(inputs), targets)_i over records, with exact per-example gradients.

    `loss_fn(outputs, targets) -> (b,)` gives one loss per record, unreduced. `inputs` is a tensor, a tuple of arguments
    or a dict of keyword arguments of the model, each tensor with the records along its first axis; `targets` is passed
    on. Only trainable parameters count, in `named_parameters()` order; tied weights count once. The model is not
    wrapped or changed; gradients and sums are in single precision at least.

    Layers in `dperm.torch.rules` have a rule each; other modules with parameters run under vmap (`fallbacks` names
    them). The first evaluation, and every change of the model's modes, layers or input shapes, is checked against autograd
    on up to 16 of the records. `relation`, `public_size` and `person_rows` (records are persons of so many rows at most) are
    public facts for plans; `autocast` names a narrower type for the forward.

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
        person_rows: int | None = None,
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
        self.person_rows = person_rows
        #: the same as `flat`, where each rank has a part of each parameter
        self.shards = _shards(model)
        self.flat: FlatParameters = self.shards or FlatParameters(model)
        self._pool = Pool()
        self._known: dict[Any, Tapped] = {}
        self._tapped: Tapped | None = None
        self._drawn: dict[Any, list[Axis | None]] = {}  # by key, what a pass of a replayed run draws: of the last shapes seen
        self._passes = 0
        self._sample: tuple[Any, Any] | None = None  # that all ranks have, where parameters are sharded
        #: a batch (inputs, targets) and some of its records collated alone, see `check_collated`; None: nothing to compare
        self.collated: tuple[Any, Any, Sequence[tuple[int, Any, Any]]] | None = None
        #: whether each pass draws its masks from a seed of its own, by the operating system: not in tests and audits
        self.secret_masks = True

    @property
    def groups(self) -> tuple[str, ...]:
        """The modules that own trainable parameters: what per-layer bounding bounds one by one."""
        return self.flat.groups

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Modules without a rule of their own, known after the first evaluation: exact, and slower. They run under vmap, or one
        record at a time where vmap cannot run them."""
        return self._run_by(fallback, record_by_record)

    @property
    def record_by_record(self) -> tuple[str, ...]:
        """The fallbacks that run one record at a time."""
        return self._run_by(record_by_record)

    @property
    def foreign_rules(self) -> tuple[Any, ...]:
        """The rules in use that dperm did not write, known after the first evaluation."""
        chosen = {} if self._tapped is None else self._tapped.rules
        return tuple(dict.fromkeys(rule for rule in chosen.values() if not written_here(rule)))

    def _run_by(self, *rules: Any) -> tuple[str, ...]:
        names = {module: name or "the whole model" for name, module in self.model.named_modules()}
        chosen = {} if self._tapped is None else self._tapped.rules
        return tuple(names[module] for module, rule in chosen.items() if rule in rules)

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
            person_rows=self.person_rows,
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
        self._passes += 1
        looks_again = self._passes & (self._passes - 1) == 0  # parameters have moved, and other records came
        if self.flat.sharded:
            return self._per_example_in_step(batch, norms_only, looks_again)
        inputs, targets = batch
        if looks_again:
            self.check_again(inputs, targets, apart=self._passes > 1)
            self._check_collated(_MOVED[:1])
        return self.evaluate(inputs, targets, norms_only=norms_only)

    def _per_example_in_step(self, batch: Any, norms_only: bool, looks_again: bool) -> TorchPass:
        """The pass where every rank has to run the model as often as the others: what is checked is the sample that all have,
        and a rank without records runs one of it, and counts it nowhere."""
        if self._sample is None:
            raise ValueError("Expected share_sample, with records that all ranks have, before passes over sharded parameters.")
        if looks_again:
            self.check_again(*self._sample, apart=self._passes > 1)
            self._check_collated(_MOVED[:1])
        if batch is not NOBODY:
            return self.evaluate(*batch, norms_only=norms_only)
        one = torch.tensor([0])
        size = self._size(*self._sample)
        return self.evaluate(*(take(part, one, size) for part in self._sample), norms_only=True).of_nobody()

    def share_sample(self, inputs: Any, targets: Any) -> None:
        """Records that all ranks have, where parameters are sharded: the model is checked on them."""
        self._sample = inputs, targets

    def evaluate(self, inputs: Any, targets: Any, *, norms_only: bool = False) -> TorchPass:
        """The pass at the model's current parameters. With `norms_only` it has norms and losses, and holds no gradients."""
        self.prepare(inputs, targets)
        kept = Snapshot((self.model, self.loss_fn), without=self.model.parameters(), light=True)
        begun = AlignedPass.begun(inputs, self._size(inputs, targets))

        def evaluated() -> TorchPass:
            if begun is None:
                return self._evaluate(inputs, targets, norms_only)
            return self._evaluate_aligned(begun, inputs, targets, norms_only, kept)

        try:
            with fresh_masks(self.flat.device) if self.secret_masks else contextlib.nullcontext():
                try:
                    return evaluated()
                except RecordsLostError:
                    if self.flat.sharded:
                        raise
                    # this batch takes another way through the model than the one that was checked: check that way
                    self._known.pop(self._key(inputs), None)
                    self.prepare(inputs, targets)
                    try:
                        return evaluated()
                    except RecordsLostError as error:  # and not the records that were looked at
                        self._take_apart(inputs, targets, str(error))
                        return evaluated()
        finally:
            self.flat.rest()
            kept.restore()  # what the pass left behind is of records

    def _evaluate_aligned(self, begun: AlignedPass, inputs: Any, targets: Any, norms_only: bool, kept: Snapshot) -> TorchPass:
        """The pass of a replayed run. What it draws is seen on a few records first, which leaves the model as it was `kept`."""
        size = self._size(inputs, targets)

        def run_on(count: int) -> None:
            some = torch.arange(count) % size
            self._evaluate(take(inputs, some, size), take(targets, some, size), norms_only)
            kept.restore()

        key = self._key(inputs)
        if key not in self._drawn:
            self._drawn = {key: axes_of(run_on, self.flat.device)}
        with begun.drawing(self.flat.device, self._drawn[key]):
            return self._evaluate(inputs, targets, norms_only)

    def hessian_product(self, theta: Tensor, records: TorchRecords, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Σ ∇²ℓ_i)·v (p,) at θ, of the model in evaluation mode; leaves the model at θ. Twice the memory of a training step."""
        if self.flat.sharded:
            raise TypeError("Expected parameters whole on one device for second derivatives, got sharded ones.")
        buffer, parameters = self.flat.buffer, self.flat.parameters
        self.flat.put(theta)
        parts = list(self.flat.parts(torch.as_tensor(vector).to(buffer)))
        total = torch.zeros_like(buffer)
        kept = Snapshot((self.model, self.loss_fn), without=self.model.parameters(), light=True)
        try:
            with evaluating(self.model), self._in_full_precision():
                for inputs, targets in records.batches():
                    losses = self._losses(inputs, targets).sum()
                    slopes = torch.autograd.grad(losses, parameters, create_graph=True, materialize_grads=True)
                    along = torch.stack([(slope * part).sum() for slope, part in zip(slopes, parts, strict=True)]).sum()
                    if along.requires_grad:  # not that of a loss without curvature
                        curved = torch.autograd.grad(along, parameters, materialize_grads=True)
                        total += torch.cat([part.flatten() for part in curved])
        finally:
            kept.restore()
        return total.double().cpu().numpy()

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Find where the records are, and check the model on some of them, unless that was done for these modules, modes and
        shapes: see `dperm.torch.verify`.

        ValueError where the model's gradients cannot be told apart by record. Leaves parameters, buffers and random state
        as they were.
        """
        self.flat.check()
        key = self._key(inputs)
        known = self._known.get(key)
        if known is not None:
            self._tapped = known
            return
        if self.flat.sharded and self._known:
            raise ValueError(
                "Expected records of one shape, and a model in one mode, where parameters are sharded: pad all to one length, "
                "and leave model.train() and eval() to the trainer."
            )
        self._refuse()
        size = self._size(inputs, targets)
        verifier = self._verifier
        with verifier.quiet(), self._in_full_precision():
            kept = verifier.finite(Sample(inputs, targets, size))
            sample = _some(kept.inputs, kept.targets, kept.size)
            verifier.check_records(sample)
            if not sample.distinct() and (anew := verifier.anew(sample)) is not None:
                verifier.check_records(anew)
            if verifier.random(sample):  # draws would differ between ways through the model
                for module in self.model.modules():
                    module.training = False
            self._settle(sample, verifier)
            telling = sample.distinct() and verifier.is_finite(sample)
        if telling or self.flat.sharded:  # equal records, or such that are not finite, cannot show whether they are kept apart
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            assert self._tapped is not None
            self._known[key] = self._tapped

    @property
    def _verifier(self) -> Verifier:
        return Verifier(self.model, self.loss_fn, self._losses, self.flat)

    def check_collated(self, inputs: Any, targets: Any, alone: Sequence[tuple[int, Any, Any]]) -> None:
        """ValueError where a record of this batch has another loss when it is collated by itself: `alone` has (place in the
        batch, inputs, targets). Here and at parameters moved, and again, until `collated` is None, in passes 1, 2, 4, 8, …"""
        self.collated = (inputs, targets, alone) if alone else None
        self._check_collated(_MOVED)

    def _check_collated(self, moved: Sequence[float]) -> None:
        if self.collated is None:
            return
        inputs, targets, alone = self.collated
        with self._verifier.quiet(), self._in_full_precision():
            self._verifier.check_collated(Sample(inputs, targets, self._size(inputs, targets)), alone, moved)

    @torch.no_grad()
    def check_targets(self, inputs: Any, chunks: Iterable[Any]) -> None:
        """ValueError, naming the record, for a target that the loss does not take, or takes to no finite number: with the outputs
        of the first of these inputs, whatever the record is."""
        first = take(inputs, torch.tensor([0]), self._size(inputs, inputs))
        with self._verifier.quiet(), self._in_full_precision():
            for module in self.model.modules():
                module.training = False
            # on the host: a loss that fails on a device may stop the device
            outputs, start = map_tensors(Tensor.cpu, call_model(self.model, first)), 0
            for chunk in chunks:
                targets = map_tensors(Tensor.cpu, chunk)
                count = batch_size(targets) or 0
                nobody = torch.zeros(count, dtype=torch.long)
                if self._problem(take(outputs, nobody, 1), targets) is not None:
                    for place in range(count):
                        if problem := self._problem(outputs, take(targets, torch.tensor([place]), count)):
                            raise ValueError(f"The target of record {start + place} cannot be trained on: {problem}.")
                start += count

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
        left_out = self.model.parameters() if self.flat.sharded else self.flat.parameters
        return Snapshot((self.model, self.loss_fn), without=left_out)

    def check_again(self, inputs: Any, targets: Any, *, apart: bool = True) -> None:
        """At the parameters of now: on up to 16 of these records, whether they are kept apart, as `prepare` found; on all of
        them, whether gradients are those of autograd. Zeros, ties and one order among the records of before may have hidden that
        gradients are given to the wrong ones: then the model runs one record at a time from now on. ValueError where records
        are not kept apart. Without `apart` only gradients are compared.
        """
        self.prepare(inputs, targets)
        verifier, size = self._verifier, self._size(inputs, targets)
        with verifier.quiet(), self._in_full_precision():
            everyone = verifier.finite(Sample(inputs, targets, size))
            sample = _some(everyone.inputs, everyone.targets, everyone.size)
            if apart:
                verifier.check_records(sample)
            if verifier.random(sample):
                return  # ways through the model that hang on draws cannot be compared
            problem = self._mismatch(verifier, self._current.cut, everyone)
        if problem is not None:
            self._take_apart(inputs, targets, problem)
            with verifier.quiet(), self._in_full_precision():
                again = self._mismatch(verifier, self._current.cut, everyone)
            if again is not None:
                raise ValueError(again)

    def _take_apart(self, inputs: Any, targets: Any, problem: str) -> None:
        """Run the model one record at a time, on input of these shapes."""
        self._refuse_sharded(problem)
        verifier, sample = self._verifier, _some(inputs, targets, self._size(inputs, targets))
        cut = Cut.last(self.model)
        with verifier.quiet(), self._in_full_precision():
            self._tapped = self._known[self._key(inputs)] = self._tapped_at(cut, sample)
        _say_what_is_slow(cut, problem)

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

    # Rules

    def _settle(self, sample: Sample, verifier: Verifier) -> None:
        """Find a cut of the model whose gradients agree with autograd's. ValueError where there is none."""
        cut: Cut | None = Cut.finest(self.model)
        problem, anew = "", verifier.anew(sample)
        while cut is not None:
            if problem or cut.copied:
                self._refuse_sharded(problem or f"The parameter {cut.copied[0][1]} is used outside of one.")
            with calls_watched() as running:
                try:
                    self._tapped = self._tapped_at(cut, sample)
                    if self.flat.sharded and self.fallbacks:
                        problem = f"{self.fallbacks[0]} has none."
                        continue
                    wrong = self._mismatch(verifier, cut, sample)
                    if wrong is None and anew is not None:
                        wrong = self._mismatch(verifier, cut, anew)
                    if wrong is None:
                        _say_what_is_slow(cut, problem)
                        return
                    problem, cut = wrong, cut.after_mismatch()
                except UsedElsewhereError as error:
                    problem, cut = str(error), cut.after_strays(self._owners(error.parameters))
                except BackwardError:
                    raise
                except RecordsLostError as error:
                    problem, cut = str(error), cut.after_failure(running)
                except FAILURES as error:  # the plain model ran: its shapes do not survive the taps
                    problem, cut = f"The model does not run when its layers are tapped ({error}).", cut.after_failure(running)
        raise ValueError(problem)

    def _mismatch(self, verifier: Verifier, cut: Cut, sample: Sample) -> str | None:
        """What is wrong with the gradients of this cut, or None. Single precision may be too coarse to tell: where it comes near,
        a copy of the model in double precision decides."""
        mismatch = verifier.mismatch(sample, self._evaluate)
        coarse = mismatch is not None and self.flat.dtype == torch.float32 and not self.flat.sharded
        if not coarse or verifier.mismatch(sample, self._evaluate, tolerance=_COARSE) is not None:
            return mismatch
        try:
            return self._mismatch_in_double(cut, sample)
        except FAILURES:  # it has no double
            return mismatch

    def _mismatch_in_double(self, cut: Cut, sample: Sample) -> str | None:
        def double(tensor: Tensor) -> Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor

        model, loss = copy.deepcopy((self.model, self.loss_fn))
        other = ModuleObjective(model.double(), loss.double() if isinstance(loss, nn.Module) else loss)
        finer = Sample(map_tensors(double, sample.inputs), map_tensors(double, sample.targets), sample.size)
        other._tapped = other._tapped_at(cut.of(model), finer)
        return other._verifier.mismatch(finer, other._evaluate)

    def _refuse_sharded(self, problem: str) -> None:
        if self.flat.sharded:
            raise ValueError(f"Expected layers that have a rule each where parameters are sharded. {problem}")

    def _owners(self, parameters: Sequence[nn.Parameter]) -> list[nn.Module]:
        chosen = set(parameters)
        return [module for module in self.model.modules() if not chosen.isdisjoint(module.parameters(recurse=False))]

    def _tapped_at(self, cut: Cut, sample: Sample) -> Tapped:
        return Tapped.at(self.model, cut, sample)

    @property
    def _current(self) -> Tapped:
        assert self._tapped is not None
        return self._tapped

    # The pass

    def _evaluate(self, inputs: Any, targets: Any, norms_only: bool = False) -> TorchPass:
        size = self._size(inputs, targets)
        return self._current.evaluate(lambda: self._losses(inputs, targets), size, self.flat, self._pool, norms_only)

    def _losses(self, inputs: Any, targets: Any) -> Tensor:
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
                "average over everything but the first axis."
            )
        return losses.to(torch.promote_types(self.flat.dtype, torch.float32))


def per_example(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], **facts: Any) -> ModuleObjective:
    """`ModuleObjective(model, loss_fn, **facts)`."""
    return ModuleObjective(model, loss_fn, **facts)


def _shards(model: nn.Module) -> ShardedParameters | None:
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return None
    from dperm.torch.sharded import ShardedParameters  # which loads much of torch.distributed

    return ShardedParameters(model)


def _some(inputs: Any, targets: Any, size: int) -> Sample:
    count = min(size, _CHECKED)
    chosen = torch.linspace(0, size - 1, count).round().long()
    return Sample(take(inputs, chosen, size), take(targets, chosen, size), count)


def _say_what_is_slow(cut: Cut, problem: str) -> None:
    text = None
    if cut.whole:
        way = "one record at a time" if cut.single else "under vmap"
        text = f"{problem} The whole model runs {way} instead: exact, but slower."
    elif cut.single:
        kinds = sorted({type(module).__name__ for module in cut.single})
        text = f"{', '.join(kinds)}: runs one record at a time. Exact, but slower than a layer with a rule."
    if text:
        warnings.warn(text, UserWarning, stacklevel=6)

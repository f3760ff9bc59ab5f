"""Gradients of each record by itself, of a model that never sees two: by construction, and not by looking for records that
mix."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks

from dperm.release import alignment
from dperm.torch.data.collation import grouped
from dperm.torch.engine.branches import Branch, BranchesDiffer
from dperm.torch.engine.by_record import Alone, InStep
from dperm.torch.engine.checkpoints import in_runs
from dperm.torch.engine.clipped_sums import ClippedSum
from dperm.torch.engine.gradient_pass import Part, TorchPass, nobody
from dperm.torch.engine.layer_taps import Partial, Tape
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.engine.randomness import Draws
from dperm.torch.engine.record_batch import Batch
from dperm.torch.engine.record_gradients import add_dense, slopes
from dperm.torch.engine.second_run import SecondRun
from dperm.torch.engine.tracing import OutsideError, RefusedError, Run
from dperm.torch.engine.whole_batch import Beside
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Leases, Pool
from dperm.torch.tensors.nested import FAILURES, padded, tensors, with_tensors
from dperm.torch.tensors.process_switches import put_switches, switches
from dperm.torch.tensors.user_code_errors import in_short


class IsolatedEngine:
    """Runs a model and its loss on one record at a time, all records of a batch in step where `torch.vmap` can.

    `losses(inputs, targets) -> (b,)` calls both, and `roots` have all that they keep, the model first. `one_by_one` says why the
    model runs one record after the other, or is None; `copied` has the trained parameters that went to a function without a
    rule: each record gets a copy of its own there.
    """

    def __init__(self, roots: Sequence[Any], losses: Callable[[Any, Any], Tensor], flat: FlatParameters) -> None:
        self.draws = Draws(flat.device)
        self.one_by_one: str | None = None
        self.copied: dict[nn.Parameter, None] = {}
        self.rules: dict[Any, None] = {}
        self.charged = False
        #: whether passes compute gradients twice, first for their norms and then for their sum, and keep none of them
        #: (`clipped_sums`): where parts of the model are checkpointed and forms are large, in its last run before the charge
        self.runs_twice = False
        #: names of trained parameters that no loss depends on, known after the first look
        self.untouched: list[str] = []
        #: what a pass changes and leaves behind, and what is put back after it, known after the first look
        self.changing: list[str] = []
        #: layers that mix records in an ordinary batch and are none of the model's, with what to do instead
        self.mixing: list[str] = []
        #: code of installed packages that ran when the model was looked at
        self.ran = set[CodeType]()
        #: whether dperm itself has a hook on what is saved for the way back
        self.hooked = False
        self.roots, self.losses, self.flat, self.pool = roots, losses, flat, Pool()
        self.own_tensors = False

    def evaluate(
        self,
        batch: Any,
        size: int,
        *,
        norms_only: bool = False,
        beside: bool = False,
        each: Callable[[Evaluation, Batch], None] | None = None,
    ) -> TorchPass:
        """The pass over `size` records, (inputs, targets) or `Ragged`. The model's state, and the global generators, are as they
        were when it ends. With `beside` records of one shape run in one ordinary batch: that none influences another is the
        caller's assumption then. `each` makes the parts of records of one shape in another way than by their gradients."""
        replayed = alignment.current()
        with self.evaluating(norms_only) as one:
            for records, inputs, targets in grouped(batch, size):
                names = None if replayed is None else replayed.names_of(inputs) or range(size)
                if each is not None:
                    each(one, Batch.whole(records, padded(inputs), padded(targets), names))
                elif beside:
                    one.beside(Batch.whole(records, inputs, targets, names))
                else:
                    one.batch(Batch.whole(records, padded(inputs), padded(targets), names))
        if not self.charged and (each is not None or not beside):
            self.runs_twice = one.runs_twice
            one.refuse_kept()
        return TorchPass(size, one.parts or [nobody(self.flat)], self.flat, one.leases)

    @contextlib.contextmanager
    def evaluating(self, norms_only: bool, step: int | None = None) -> Iterator[Evaluation]:
        """Within the block the model runs on records; afterwards its state and the global generators are as they were. Records
        share draws from the seed `step`, or those of the step that it is."""
        one = Evaluation(self, self.snapshot(), norms_only)
        with self.draws.kept(step), _without_fast_paths(), in_runs(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # of torch.vmap, to people who build PyTorch
            if self.charged:  # what a record makes the model say would be an output
                warnings.simplefilter("ignore")
            try:
                yield one
            finally:
                self.flat.rest()
                one.put_back()

    def snapshot(self) -> Snapshot:
        """What the model and the loss keep besides the trained parameters; where these are sharded, besides all parameters."""
        left_out = self.model.parameters() if self.flat.sharded else self.flat.parameters
        return Snapshot(self.roots, without=left_out, ran=self.ran)

    @property
    def model(self) -> nn.Module:
        return self.roots[0]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block a batch runs as it is, but what is refused in a run of records is refused."""
        if self.flat.sharded:
            yield
            return
        fixed = self.snapshot().left_out | {leaf.untyped_storage().data_ptr() for leaf in self.flat.leaves}
        tape = Tape(1, self.flat, True, self.pool)
        with in_runs(), Alone(None, tape, self.flat.leaves, Branch(torch.arange(1)), self.draws, fixed=fixed):
            yield

    @contextlib.contextmanager
    def paid_for(self, secret: bool) -> Iterator[None]:
        """Within the block a run is charged, with draws that are `secret`: what is wrong with a record is not said any more."""
        self.draws.secret, self.charged = secret, True
        replayed = alignment.current()
        if replayed is not None:
            replayed.charged()
        try:
            yield
        finally:
            self.draws.secret, self.charged = True, False

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """How the model has to run in the block says nothing of how it runs afterwards, in another mode."""
        before = self.one_by_one, self.own_tensors, self.runs_twice
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
        self.one_by_one, self.own_tensors, self.runs_twice = before

    def slower(self, reason: str) -> None:
        """Run one record after the other from now on."""
        if self.one_by_one is None:
            self.one_by_one = " ".join([*self.mixing, reason])
            warnings.warn(f"The model runs one record at a time: exact, but slower. {self.one_by_one}", UserWarning, stacklevel=6)


@contextlib.contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Within the block transformers' layers run as they do in training: PyTorch's short cuts for evaluation pack all records into
    one tensor, which `torch.vmap` cannot follow."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Evaluation:
    """One evaluation of all records of a batch, in as many runs as it takes."""

    def __init__(self, engine: IsolatedEngine, kept: Snapshot, norms_only: bool) -> None:
        self.parts: list[Part] = []
        self.leases: list[Leases] = []
        #: whether forms took so much memory that checkpointing saved none
        self.runs_twice = False
        self._engine, self._kept, self._norms_only, self._begun = engine, kept, norms_only, False
        trained = {leaf.untyped_storage().data_ptr() for leaf in engine.flat.leaves}
        self._fixed = kept.left_out | trained
        self._survivors: list[weakref.ref[Tensor]] = []
        self._switches = switches()

    def begin(self) -> None:
        """Put back what the last run has changed."""
        if self._begun:
            self.put_back()
        self._begun = True

    def put_back(self) -> None:
        """Leave all that the model and the loss keep, and the switches of the process, as they were before the evaluation."""
        self._kept.restore()
        put_switches(self._switches)

    def batch(self, batch: Batch) -> None:
        """Run all records, on whatever ways they go, in as many runs as there are ways. Once the run is charged, a record that
        fails changes nothing for the others: it is found by halves, and runs by itself."""
        engine, seed = self._engine, self._engine.draws.seed()
        waiting = [Branch(torch.arange(batch.size))]
        while waiting:
            branch = waiting.pop()
            mine = batch.of(branch.records) if len(branch.records) < batch.size else batch
            if engine.one_by_one is not None:
                self._one_by_one(mine)
                continue
            try:
                partial = self.in_step(branch, mine, batch.size, seed)
            except BranchesDiffer as differ:
                waiting += branch.parted(differ.groups)
            except Exception as error:
                waiting += self._after(error, branch, mine, batch.size, seed)
            else:
                if mine.names is not None and engine.draws.drawn:
                    self._one_by_one(mine)  # each must draw what it draws in the run that is compared
                else:
                    self.parts.append(self._part(branch, mine, batch.size, seed, partial))

    def _part(self, branch: Branch, mine: Batch, physical_size: int, seed: int, partial: Partial) -> Part:
        """A run in step with its forms, or where the model is checkpointed, with what repeats it."""
        engine = self._engine
        if self._norms_only or not (engine.runs_twice or (self.runs_twice and not engine.charged)):
            return Part(mine.records, partial)
        partial = replace(partial, forms=[])
        return Part(mine.records, partial, SecondRun(engine, branch, mine, physical_size, seed, partial))

    def beside(self, batch: Batch) -> None:
        """Run all records in one ordinary batch."""
        self.begin()
        try:
            partial = self._in_one_batch(batch)
        except Exception:
            if not self._engine.charged or self._engine.flat.sharded:
                raise
            self._one_by_one(batch)
            return
        self.parts.append(Part(batch.records, partial))

    def _in_one_batch(self, batch: Batch) -> Partial:
        engine, tape = self._engine, self.tape(batch.size)
        engine.draws.start(engine.draws.seed())
        run = Beside(tape, engine.flat.leaves, Branch(torch.arange(batch.size)), engine.draws, fixed=self._kept.left_out)
        run.mark((batch.inputs, batch.targets))
        with torch.enable_grad(), run:
            losses = engine.losses(batch.inputs, batch.targets)
        engine.copied |= run.copied
        engine.rules |= run.rules
        return self._collected(tape, losses)

    def _one_by_one(self, batch: Batch) -> None:
        for place in range(batch.size):
            self._alone(batch.of(torch.tensor([place])))

    def _after(self, error: Exception, branch: Branch, mine: Batch, physical_size: int, seed: int) -> list[Branch]:
        """The ways that are left after a run that failed. Before the charge, raises what is wrong with the model itself; else
        tensors that the model makes belong to records from now on, and where that is not it, records run one after the other."""
        engine = self._engine
        if engine.charged:
            if mine.size > 1:
                return branch.halves()
            if mine.names is None:
                self._alone(mine, branch, physical_size, seed)  # which draws what it would have drawn with the others
            else:
                self._alone(mine)  # by its name, as in the run that is compared
            return []
        if isinstance(error, RefusedError) or not isinstance(error, FAILURES):
            raise error
        if not engine.own_tensors and not isinstance(error, OutsideError):
            engine.own_tensors = True
            return [Branch(branch.records)]
        try:
            self._one_by_one(mine)
        except RefusedError:
            raise
        except ValueError as alone:
            raise ValueError(f"The model or the loss does not run on each record by itself: {in_short(alone)}") from alone
        engine.slower(in_short(error))
        return []

    def in_step(self, branch: Branch, batch: Batch, physical_size: int, seed: int, total: ClippedSum | None = None) -> Partial:
        """Run records of one branch in step, with draws from this seed. Their gradients go to `total`, where there is one."""
        self.begin()
        engine = self._engine
        engine.draws.start(seed)
        tape = Tape(batch.size, engine.flat, self._norms_only or engine.runs_twice, engine.pool, total)
        self.leases.append(tape.scratch)
        given = tensors((batch.inputs, batch.targets))
        axes = [0 if counted else None for counted in batch.by_record]

        def one(record: Tensor, *mine: Tensor) -> Tensor:
            run = InStep(
                record,
                physical_size,
                tape,
                engine.flat.leaves,
                branch,
                engine.draws,
                own_tensors=engine.own_tensors,
                fixed=self._fixed,
            )
            if engine.own_tensors:
                self._own_buffers(run)
            own = [tensor if axis is None else tensor.clone()[None] for tensor, axis in zip(mine, axes, strict=True)]
            return self._loss(run, batch, own)

        hooked = "A hook on saved tensors would see all records."
        no_hooks = contextlib.nullcontext() if engine.hooked else disable_saved_tensors_hooks(hooked)
        with torch.enable_grad(), no_hooks:
            # the tensor in front belongs to records, whatever else does
            losses = torch.vmap(one, in_dims=(0, *axes), randomness="different")(torch.zeros(batch.size), *given)
        if engine.draws.strayed:
            raise OutsideError("The model draws by a function that dperm does not know.")
        found = self._collected(tape, losses)
        self.runs_twice |= tape.forms_are_large
        return found

    def _collected(self, tape: Tape, losses: Tensor) -> Partial:
        """Run the way back, and take what the taps read. OutsideError where autograd still finds a trained parameter, which has
        gone to a function that nobody saw."""
        flat = self._engine.flat
        with torch.enable_grad():
            stray = slopes(losses, [tape.anchor, *flat.leaves])[1:]
        if outside := [name for name, slope in zip(flat.names, stray, strict=True) if slope is not None]:
            raise OutsideError(f"{', '.join(outside[:3])}: used where torch's functions do not see it.")
        with torch.no_grad():
            return tape.collected(losses.detach())

    def _own_buffers(self, run: Run) -> None:
        """Buffers of each record's own, for models that write into them; they are put back with all else that the model keeps."""
        for root in self._engine.roots:
            for module in root.modules() if isinstance(root, nn.Module) else ():
                for name, buffer in list(module.named_buffers(recurse=False)):
                    setattr(module, name, run.each(buffer))

    def _alone(
        self, batch: Batch, branch: Branch | None = None, physical_size: int | None = None, seed: int | None = None
    ) -> None:
        """Run one record by itself; with a `branch`, the one on it, which draws what it draws in its physical batch from `seed`.

        Once the run is charged an error would be an output: a record that fails contributes zero.
        """
        self.begin()
        engine, flat = self._engine, self._engine.flat
        own = engine.draws.seed() if batch.names is None else engine.draws.seed_of_record(batch.names[0])
        engine.draws.start(own if seed is None else seed, own)
        try:
            mine = batch, branch or Branch(torch.arange(1)), physical_size
            tape, losses = contextvars.copy_context().run(self._slopes_alone, *mine)  # layers may run again on the way back
        except Exception:
            if not engine.charged:
                raise
            tape, losses = self.tape(1), torch.zeros(1, dtype=flat.dtype, device=flat.device)
        with torch.no_grad():
            partial = tape.collected(losses.detach())
        self.parts.append(Part(batch.records, partial))

    def _slopes_alone(self, batch: Batch, branch: Branch, physical_size: int | None) -> tuple[Tape, Tensor]:
        tape = self.tape(1)
        losses, found = self.slopes_alone(tape, batch, branch, physical_size)
        add_dense(tape, found)
        return tape, losses

    def slopes_alone(
        self, tape: Tape, batch: Batch, branch: Branch, physical_size: int | None = None
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The loss (1,) of one record by itself, and its gradient for each trained parameter, None where it does not depend."""
        flat = self._engine.flat
        with torch.enable_grad():
            run = Alone(physical_size, tape, flat.leaves, branch, self._engine.draws, fixed=self._fixed)
            losses = self._loss(run, batch, [tensor.clone() for tensor in tensors((batch.inputs, batch.targets))])[None]
            found = slopes(losses, flat.leaves)
        return losses, [slope.to_dense() if slope is not None and slope.is_sparse else slope for slope in found]

    def tape(self, size: int) -> Tape:
        tape = Tape(size, self._engine.flat, self._norms_only, self._engine.pool)
        self.leases.append(tape.scratch)
        return tape

    def _loss(self, run: Run, batch: Batch, mine: list[Tensor]) -> Tensor:
        """The loss of one record (), as a batch of which `mine` are the tensors; the list is emptied."""
        run.branch.begin()
        run.watch(mine)
        inputs, targets = with_tensors((batch.inputs, batch.targets), mine)
        mine.clear()
        with run:
            loss = self._engine.losses(inputs, targets)[0]
        del inputs, targets
        self._engine.copied |= run.copied
        self._engine.rules |= run.rules
        if run.stopped is not None:
            raise run.stopped
        self._survivors += [made for made in run.kept([loss]) if not self._kept.holds(made())]
        return loss

    def refuse_kept(self) -> None:
        """RefusedError where somebody outside of the model and the loss still holds what a run in step made of records."""
        if any(kept() is not None for kept in self._survivors):
            gc.collect()  # cycles, such as those of frames, hold tensors a while
        if left := sum(kept() is not None for kept in self._survivors):
            raise RefusedError(
                f"Something outside of the model and the loss keeps {left} tensors of records, such as a global list or a "
                "closure: what it holds would leave the run without noise."
            )

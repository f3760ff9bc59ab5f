"""One pass: layers tap their outputs on the way forward; gradients become per-example forms on the way back.

A tap is an identity in the graph of activations. Functions run with detached parameters, so autograd computes gradients of
their outputs only; every tap hands its output gradient G to the function's rule as soon as it is known, and G and the
layer's input are freed with the graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.engine.clipped_sums import ClippedSum, lost_squares, measured
from dperm.torch.engine.derived import Derived
from dperm.torch.engine.gradient_forms import Form, total
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Pool

#: (output gradient, *saved) → pairs of a parameter, or of what is derived from parameters, and a form
Reader = Callable[..., Iterable[tuple[Any, Form]]]

_LARGE = 3  # times what parts are given: insides of one part and the scores of words take as much


@dataclass(frozen=True)
class Partial:
    """What one run leaves, of all its records: `losses` (k,), squared norms `squares` (k, groups), those of each parameter that a
    loss depends on, `by_parameter` (k,), which records are `bad` (k,) and count as zero, and the forms of gradients, if any are
    kept."""

    losses: Tensor
    squares: Tensor
    by_parameter: Mapping[nn.Parameter, Tensor]
    bad: Tensor
    forms: Sequence[Form | None]


class Tape:
    """What one forward and one backward of `size` records at the parameters of `flat` leave behind.

    Memory for the forms comes from `pool`. With `norms_only`, forms are dropped as soon as their norms are known; with a `total`,
    they are added to it instead.
    """

    def __init__(self, size: int, flat: FlatParameters, norms_only: bool, pool: Pool, total: ClippedSum | None = None) -> None:
        self.size = size
        self.flat = flat
        self.scratch = pool.lease()
        self._pool = pool
        self._total = total
        self.norms_only = norms_only
        self.forms: dict[nn.Parameter, Form] = {}
        self.squares: dict[nn.Parameter, Tensor] = {}
        self._finished = set[nn.Parameter]()
        #: numbers that all forms hold, and bytes of what checkpointed parts are given
        self.kept_numbers = self.given_bytes = 0
        #: by the identities of their values, which stay theirs as long as the tape does
        self.derived: dict[int, Derived] = {}
        #: what reads taps of a checkpointed part's first run, in place of their readers: nothing should
        self.instead: Reader | None = None
        #: the number of the run of a checkpointed part that computes it again, and in which of them derived values were made
        self._round = self._rounds = 0
        self._made_in: dict[Tensor, int] = {}
        self._uses: dict[Tensor, int] = {}
        self._pending: dict[Tensor, list[Form]] = {}
        self.anchor = torch.zeros((), dtype=flat.dtype, device=flat.device, requires_grad=True)

    def tap(self, output: Tensor, parameters: Iterable[Tensor], reader: Reader, saved: tuple[Tensor, ...]) -> Tensor:
        """`output`, whose gradient will be read; `parameters` are those that the reader will speak of."""
        self.expect(parameters)
        reader, saved = (reader, saved) if self.instead is None else (self.instead, ())
        return _Tap.apply(output, self.anchor, self, reader, *saved)  # type: ignore[no-any-return]

    def derive(self, derived: Derived) -> None:
        """Count a function of parameters among them."""
        self.derived[id(derived.tensor)] = derived
        self._made_in[derived.tensor] = self._round

    def expect(self, parameters: Iterable[Tensor]) -> None:
        """One more use of each of `parameters` is on its way forward. What a part computes again was expected when it first ran,
        but for what it makes itself."""
        for parameter in parameters:
            if self._made_in.get(parameter, 0) == self._round:
                if parameter not in self._uses and id(parameter) in self.derived:
                    self.expect(self.derived[id(parameter)].parameters)
                self._uses[parameter] = self._uses.get(parameter, 0) + 1

    @contextlib.contextmanager
    def again(self) -> Iterator[Tensor]:
        """Within the block a checkpointed part runs again: taps are read, and none is expected twice. Yields the end of its
        graph, for the graph of its first run has another."""
        kept = self.anchor, self._round, self.instead
        self._rounds += 1
        self.anchor, self._round, self.instead = self.anchor.detach().requires_grad_(), self._rounds, None
        try:
            yield self.anchor
        finally:
            self.anchor, self._round, self.instead = kept

    @property
    def forms_are_large(self) -> bool:
        """Whether parts of the model are checkpointed, and forms take much more than what these are given: a model would then
        save no memory by them."""
        return self._rounds > 0 and self.kept_numbers * self.flat.dtype.itemsize > _LARGE * self.given_bytes

    def add(self, forms: Iterable[tuple[Tensor, Form]]) -> None:
        """Take forms in; a parameter's norm is computed when its last use has arrived."""
        for parameter, form in forms:
            pending = self._pending.setdefault(parameter, [])
            pending.append(form)
            if len(pending) == self._uses[parameter]:
                self._finish(parameter, self._pending.pop(parameter))

    def finish(self) -> None:
        """Take in what is left, once the backward has run: uses that no loss depends on have come to nothing."""
        for parameter in [parameter for parameter in self._pending if id(parameter) in self.derived]:
            self._finish(parameter, self._pending.pop(parameter))
        for parameter in list(self._pending):
            self._finish(parameter, self._pending.pop(parameter))

    def collected(self, losses: Tensor) -> Partial:
        """What the run has left, once its backward has run."""
        self.finish()
        by_group = ((self.flat.group_of[parameter], values) for parameter, values in self.squares.items())
        squares = _by_group(by_group, len(self.flat.groups), losses.new_zeros(self.size)).to(losses.dtype)
        # squares below the smallest normal number may be gone, one for each parameter: norms are never understated
        squares += torch.tensor(_tiny(self.flat), dtype=squares.dtype, device=squares.device)
        # a record whose gradient is not finite contributes zero; so does one whose norm overflows
        bad = ~torch.isfinite(squares.sum(1))
        if bool(bad.any()):
            self._drop(bad)
            squares[bad] = 0.0
        forms = [] if self.norms_only else [self.forms.get(parameter) for parameter in self.flat.leaves]
        return Partial(losses, squares, self.squares, bad, forms)

    def _finish(self, parameter: Any, pending: list[Form]) -> None:
        form = total(pending)
        if (derived := self.derived.get(id(parameter))) is not None:
            self.add(derived.taken_back(form))
            return
        if parameter in self._finished:
            raise ValueError("A checkpointed part uses other parameters when it runs again than when it first ran.")
        self._finished.add(parameter)
        self.kept_numbers += form.kept_numbers
        if self._total is not None:
            self._total.add(parameter, form)
        elif self.norms_only:
            self.squares[parameter] = measured(form, self._pool)
        else:
            settled = self.forms[parameter] = form.settled(self.scratch)
            self.squares[parameter] = settled.squares()

    def _drop(self, bad: Tensor) -> None:
        """Zero the contributions of the records in `bad` (b,): 0·nan is nan, so a factor of 0 is not enough."""
        for parameter, form in self.forms.items():
            self.forms[parameter] = form.without(bad)


class _Tap(torch.autograd.Function):
    """The identity. In place, so that layers that overwrite their input (ReLU(inplace=True)) may follow."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, tape: Tape, reader: Reader, *saved: Tensor) -> Tensor:
        ctx.tape, ctx.reader = tape, reader
        ctx.save_for_backward(*saved)
        ctx.count = len(saved)
        if 0 in output.stride():  # copies that share memory cannot be overwritten
            return output.view_as(output)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0]
        # detached: a view of a saved output would hold the graph, and the graph holds this tape
        given = [gradient.detach(), *(tensor.detach() for tensor in ctx.saved_tensors)]
        device = gradient.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                ctx.tape.add(ctx.reader(*given))
        else:  # the context takes as long as a product of small layers
            ctx.tape.add(ctx.reader(*given))
        return gradient, None, None, None, *[None] * ctx.count


def _by_group(squares: Iterable[tuple[int, Tensor]], groups: int, nothing: Tensor) -> Tensor:
    """(b, groups) the sums, in double precision, of values (b,) that each belong to a group; `nothing` (b,) is zero."""
    by_group: list[list[Tensor]] = [[] for _ in range(groups)]
    for group, values in squares:
        by_group[group].append(values)
    total = torch.zeros(len(nothing), groups, dtype=torch.float64, device=nothing.device)
    for row in itertools.zip_longest(*by_group, fillvalue=nothing):  # one value of each group at a time
        total += torch.stack([values.double() for values in row] if len({each.dtype for each in row}) > 1 else row, dim=1)
    return total


def _tiny(flat: FlatParameters) -> list[float]:
    """By group, what squares of its parameters may lose to underflow."""
    sizes = [0] * len(flat.groups)
    for parameter, group in zip(flat.parameters, flat.group_index, strict=True):
        sizes[group] += parameter.numel()
    return [lost_squares(size, flat) for size in sizes]

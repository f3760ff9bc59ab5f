"""A model with its layers tapped: one forward and one backward give every record's own gradient, by each layer's rule."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.objectives.per_example import Pass
from dperm.torch.cuts import Cut
from dperm.torch.flat import FlatParameters
from dperm.torch.forms import Dense, Form
from dperm.torch.layout import find_layouts, overridden
from dperm.torch.scratch import Leases, Pool
from dperm.torch.tape import Call, CallLayout, RecordsLostError, Tape, repeated
from dperm.torch.verify import Sample, UsedElsewhereError, gradients

__all__ = ["Tapped", "TorchPass"]


class TorchPass(Pass):
    """Per-example quantities of b records at the model's parameters; tensors on the model's device, without a graph."""

    __slots__ = ("_flat", "_forms", "_leases", "_losses", "_squares")

    def __init__(
        self, losses: Tensor, squares: Tensor, forms: Sequence[Form | None], flat: FlatParameters, leases: Leases
    ) -> None:
        self._losses = losses
        self._squares = squares
        self._forms = forms
        self._flat = flat
        self._leases = leases  # the forms' memory is used again when the pass is gone

    @property
    def losses(self) -> Tensor:
        return self._losses

    @property
    def norms(self) -> Tensor:
        return self._squares.sum(1).sqrt()

    @property
    def group_norms(self) -> Tensor:
        """(b, groups): norms of the parts of the gradient that belong to each module, see `ModuleObjective.groups`."""
        return self._squares.sqrt()

    @property
    def bytes_held(self) -> int:
        """Memory that lasts as long as the pass."""
        return self._leases.bytes_held

    def of_nobody(self) -> TorchPass:
        """The pass without its records, whose sums are zero here."""
        nothing = [None] * len(self._flat.parameters)
        return TorchPass(self._losses[:0], self._squares[:0], nothing, self._flat, self._leases)

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Tensor:
        """Σ_i factors_i·∇ℓ_i (p,); factors (b,), or (b, groups) to weigh each module's part by itself."""
        if not self._forms:
            raise ValueError("A pass for norms only keeps no gradients.")
        factors = torch.as_tensor(factors, dtype=self._squares.dtype, device=self._squares.device)
        if bound is not None:
            lengths = (self._squares if factors.dim() > 1 else self._squares.sum(1, keepdim=True)).sqrt()
            lengths = torch.linalg.vector_norm(lengths * (factors if factors.dim() > 1 else factors[:, None]), dim=1)
            share = (bound / lengths).clamp(max=1.0)
            factors = factors * (share if factors.dim() == 1 else share[:, None])
        # factors that are no normal numbers have lost digits, or are none
        usual = factors.isfinite() & (factors.abs() >= torch.finfo(factors.dtype).tiny)
        factors = torch.where(usual, factors, torch.zeros_like(factors))
        fills = [
            form and functools.partial(form.add_weighted, factors if factors.dim() == 1 else factors[:, group])
            for form, group in zip(self._forms, self._flat.group_index, strict=True)
        ]
        return self._flat.filled(fills, self._squares.device)


@dataclass(frozen=True)
class Tapped:
    """A cut of a model into pieces, with each piece's rule and the places of records in its tensors: of one set of modules, modes
    and shapes."""

    model: nn.Module
    cut: Cut
    rules: dict[nn.Module, Callable[..., Any]]
    layouts: dict[nn.Module, list[CallLayout]]

    @classmethod
    def at(cls, model: nn.Module, cut: Cut, sample: Sample) -> Tapped:
        """Rules and layouts of this cut, as the model runs on a sample."""

        def shadowed(count: int) -> contextlib.AbstractContextManager[None]:
            return _shadowing([(owner, name, repeated(parameter.detach(), count, True)) for owner, name, parameter in cut.copied])

        layouts = find_layouts(model, list(cut.pieces), sample.inputs, sample.size, shadowed)
        rules = {module: cut.rule(module, layouts[module]) for module in cut.pieces}
        return cls(model, cut, rules, layouts)

    def evaluate(
        self, run: Callable[[], Tensor], size: int, flat: FlatParameters, pool: Pool, norms_only: bool = False
    ) -> TorchPass:
        """The pass of `run`, which calls the model and gives the losses (size,) of its records.

        UsedElsewhereError where a parameter is used outside of the module that owns it, RecordsLostError where the model takes
        another way than it did on the sample.
        """
        tape = Tape(size, flat, norms_only, pool)
        with torch.enable_grad(), overridden(self._forwards(tape)), _shadowing(self._copies(tape)):
            losses = run()
            tape.recording = False
            stray = gradients(losses, [tape.anchor, *flat.leaves])[1:]
        outside = [name for name, gradient in zip(flat.names, stray, strict=True) if gradient is not None]
        if outside:
            text = f"{', '.join(outside)}: used outside of the module that owns it, where its per-example gradients are not seen."
            raise UsedElsewhereError(
                text, [p for p, gradient in zip(flat.parameters, stray, strict=True) if gradient is not None]
            )
        with torch.no_grad():
            return _collected(tape, flat, losses.detach(), norms_only)

    def _forwards(self, tape: Tape) -> dict[nn.Module, Callable[..., Any]]:
        return {module: functools.partial(self._call, tape, module, [0]) for module in self.rules}

    def _copies(self, tape: Tape) -> list[tuple[nn.Module, str, Tensor]]:
        """One copy per record of each parameter that its module uses by itself, tapped."""
        return [
            (owner, name, tape.tap(repeated(parameter.detach(), tape.size, True), [parameter], _reader(parameter), ()))
            for owner, name, parameter in self.cut.copied
        ]

    def _call(self, tape: Tape, module: nn.Module, count: list[int], *args: Any, **kwargs: Any) -> Any:
        layouts = self.layouts[module]
        if not layouts:
            raise RecordsLostError(f"{type(module).__name__} runs now but did not when the model was checked.")
        # a module that runs more often than it did when checked is taken to run as it last did
        layout = layouts[min(count[0], len(layouts) - 1)]
        if tape.recording:
            count[0] += 1
        return self.rules[module](module, Call(tape, layout), *args, **kwargs)


def _collected(tape: Tape, flat: FlatParameters, losses: Tensor, norms_only: bool) -> TorchPass:
    tape.finish()
    squares = torch.zeros(tape.size, len(flat.groups), dtype=torch.float64, device=losses.device)
    for group, values in tape.squares:
        squares[:, group] += values
    squares = squares.to(losses.dtype)
    # squares below the smallest normal number may be gone, one for each parameter: norms are never understated
    squares += torch.tensor(_tiny(flat), dtype=squares.dtype, device=squares.device)
    # a record whose gradient is not finite contributes zero; so does one whose norm overflows
    bad = ~torch.isfinite(squares.sum(1))
    if bool(bad.any()):
        tape.drop(bad)
        squares[bad] = 0.0
    forms = [] if norms_only else [tape.forms.get(parameter) for parameter in flat.leaves]
    return TorchPass(losses, squares, forms, flat, tape.scratch)


def _tiny(flat: FlatParameters) -> list[float]:
    """By group, what squares of its parameters may lose to underflow."""
    sizes = [0] * len(flat.groups)
    for parameter, group in zip(flat.parameters, flat.group_index, strict=True):
        sizes[group] += parameter.numel()
    return [4 * size * torch.finfo(flat.dtype).tiny for size in sizes]


def _reader(parameter: nn.Parameter) -> Callable[[Tensor], list[tuple[nn.Parameter, Form]]]:
    return lambda gradient: [(parameter, Dense(gradient[:, None]))]


@contextlib.contextmanager
def _shadowing(copies: list[tuple[nn.Module, str, Tensor]]) -> Iterator[None]:
    """Within the block modules see these tensors where they look up a parameter: an attribute hides a parameter's name."""
    for owner, name, tensor in copies:
        vars(owner)[name] = tensor
    try:
        yield
    finally:
        for owner, name, _ in copies:
            del vars(owner)[name]

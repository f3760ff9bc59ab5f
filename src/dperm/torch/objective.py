"""A torch model and a per-record loss as an objective: exact per-example gradients from one forward and one backward."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dperm.objectives.facts import PublicFacts
from dperm.objectives.per_example import Pass
from dperm.privacy.events import Relation
from dperm.torch.flat import FlatParameters
from dperm.torch.forms import Dense, Form
from dperm.torch.layout import RecordsLostError as _RecordsLostError
from dperm.torch.layout import find_layouts, overridden
from dperm.torch.rules import fallback, reason_to_refuse, rule_of
from dperm.torch.scratch import Leases, Pool
from dperm.torch.structure import batch_size, call_model, take
from dperm.torch.tape import Call, CallLayout, Tape, repeated

__all__ = ["ModuleObjective", "TorchPass", "per_example"]

#: Records in the check of per-example gradients against autograd.
_CHECKED = 3


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

    def weighted_sum(self, factors: Any) -> Tensor:
        """Σ_i factors_i·∇ℓ_i (p,); factors (b,), or (b, groups) to weigh each module's part by itself."""
        if not self._forms:
            raise ValueError("A pass for norms only keeps no gradients.")
        factors = torch.as_tensor(factors, dtype=self._squares.dtype, device=self._squares.device)
        out = torch.zeros(self._flat.size, dtype=self._flat.dtype, device=self._squares.device)
        for form, part, group in zip(self._forms, self._flat.parts(out), self._flat.group_index, strict=True):
            if form is not None:
                part.copy_(form.weighted_sum(factors if factors.dim() == 1 else factors[:, group]))
        return out


class ModuleObjective:
    """Σ_i loss_i(model(inputs), targets)_i over records, with exact per-example gradients.

    `loss_fn(outputs, targets) -> (b,)` gives one loss per record, unreduced. `inputs` is a tensor, a tuple of arguments
    or a dict of keyword arguments of the model, each tensor with the records along its first axis; `targets` is passed
    on. Only trainable parameters count, in `named_parameters()` order; tied weights count once. The model is not
    wrapped or changed; gradients and sums are in single precision at least.

    Layers in `dperm.torch.rules` have a rule each; other modules with parameters run under vmap (`fallbacks` names
    them). The first evaluation, and every change of the model's mode or layers, is checked against autograd on three
    records. `relation` and `public_size` are public facts for plans; `autocast` names a narrower type for the forward.

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
        self.flat = FlatParameters(model)
        self._pool = Pool()
        self._way = _Way.COPIES
        self._known: tuple[Any, ...] | None = None
        self._rules: dict[nn.Module, Callable[..., Any]] = {}
        self._layouts: dict[nn.Module, list[CallLayout]] = {}

    @property
    def groups(self) -> tuple[str, ...]:
        """The modules that own trainable parameters: what per-layer bounding bounds one by one."""
        return self.flat.groups

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Modules without a rule of their own, known after the first evaluation: exact under vmap, and slower."""
        names = {module: name or "the whole model" for name, module in self.model.named_modules()}
        return tuple(names[module] for module, rule in self._rules.items() if rule is fallback)

    @property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            dimension=self.flat.size,
            data_norm=math.inf,
            lipschitz=math.inf,
            smoothness=math.inf,
            relation=self.relation,
            public_size=self.public_size,
            rank_one=False,
        )

    @property
    def theta(self) -> Tensor:
        """The flat buffer (p,) that the trainable parameters are views of: changing it changes the model."""
        return self.flat.buffer

    def per_example(self, theta: Tensor, batch: Any) -> TorchPass:
        """The pass at θ (p,) on a batch (inputs, targets); leaves the model at θ."""
        buffer = self.flat.buffer
        if theta is not buffer:
            buffer.copy_(theta)
        inputs, targets = batch
        return self.evaluate(inputs, targets)

    def evaluate(self, inputs: Any, targets: Any, *, norms_only: bool = False) -> TorchPass:
        """The pass at the model's current parameters. With `norms_only` it has norms and losses, and holds no gradients."""
        self.prepare(inputs, targets)
        return self._evaluate(inputs, targets, norms_only)

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Find where the records are and check a few gradients against autograd, unless that is known for this mode.

        ValueError where the model's gradients cannot be told apart by record. Touches no parameter.
        """
        known = self._signature()
        if known == self._known:
            return
        self.flat.check()
        self._refuse()
        size = self._size(inputs, targets)
        few = torch.arange(_CHECKED) % size
        sample = take(inputs, few, size), take(targets, few, size)
        if self._mixes(*sample):
            raise ValueError(
                "One record's loss depends on another record: a layer or the loss mixes the records of a batch, and such a "
                "model has no per-example gradients. Look for normalisation over the batch and for losses that compare records."
            )
        problem: str | None = None
        for self._way in _Way:
            if self._way is _Way.WHOLE:
                text = f"{problem} The whole model runs under vmap instead: exact, but slower."
                warnings.warn(text, UserWarning, stacklevel=3)
            try:
                self._find_rules(inputs, size)
                problem = self._mismatch(*sample)
            except _RecordsLostError as error:
                problem = str(error)
            if problem is None:
                break
        if problem is not None:
            raise ValueError(problem)
        self._known = known

    def _signature(self) -> tuple[Any, ...]:
        """What the rules and layouts depend on, short of the data."""
        modes = tuple(module.training for module in self.model.modules())
        frozen = tuple(parameter.requires_grad for parameter in self.model.parameters())
        return modes, frozen

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

    def _find_rules(self, inputs: Any, size: int) -> None:
        if self._way is _Way.WHOLE:
            modules, self._copied = [self.model], []
        else:
            modules, self._copied = _tapped_modules(self.model, copies=self._way is _Way.COPIES)

        def shadowed(count: int) -> contextlib.AbstractContextManager[None]:
            return _shadowing([(owner, name, repeated(parameter.detach(), count)) for owner, name, parameter in self._copied])

        self._layouts = find_layouts(self.model, modules, inputs, size, shadowed)
        whole = self._way is _Way.WHOLE
        self._rules = {module: (None if whole else rule_of(module, self._layouts[module])) or fallback for module in modules}

    def _copies(self, tape: Tape) -> list[tuple[nn.Module, str, Tensor]]:
        """One copy per record of each parameter that its module uses by itself, tapped."""
        return [
            (owner, name, tape.tap(repeated(parameter.detach(), tape.size), [parameter], _reader(parameter), ()))
            for owner, name, parameter in self._copied
        ]

    def _forwards(self, tape: Tape) -> dict[nn.Module, Callable[..., Any]]:
        return {module: functools.partial(self._call, tape, module, [0]) for module in self._rules}

    def _call(self, tape: Tape, module: nn.Module, count: list[int], *args: Any, **kwargs: Any) -> Any:
        layouts = self._layouts[module]
        if not layouts:
            raise ValueError(f"{type(module).__name__} runs now but did not when the model was checked.")
        # a module that runs more often than it did when checked is taken to run as it last did
        layout = layouts[min(count[0], len(layouts) - 1)]
        if tape.recording:
            count[0] += 1
        return self._rules[module](module, Call(tape, layout), *args, **kwargs)

    # The pass

    def _evaluate(self, inputs: Any, targets: Any, norms_only: bool) -> TorchPass:
        size = self._size(inputs, targets)
        parameters = self.flat.parameters
        tape = Tape(size, self.flat.group_of, norms_only, self._pool)
        with torch.enable_grad(), overridden(self._forwards(tape)), _shadowing(self._copies(tape)):
            losses = self._losses(inputs, targets)
            tape.recording = False
            stray = _gradients(losses, [tape.anchor, *parameters])[1:]
        outside = [name for name, gradient in zip(self.flat.names, stray, strict=True) if gradient is not None]
        if outside:
            raise _UsedElsewhereError(
                f"{', '.join(outside)}: used outside of the module that owns it, where its per-example gradients are not seen."
            )
        with torch.no_grad():
            return self._collected(tape, losses.detach(), norms_only)

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
        return losses.float() if losses.dtype in (torch.float16, torch.bfloat16) else losses

    def _collected(self, tape: Tape, losses: Tensor, norms_only: bool) -> TorchPass:
        tape.finish()
        squares = torch.zeros(tape.size, len(self.groups), dtype=losses.dtype, device=losses.device)
        for group, values in tape.squares:
            squares[:, group] += values
        # a record whose gradient is not finite contributes zero; so does one whose norm overflows
        bad = ~torch.isfinite(squares.sum(1))
        if bool(bad.any()):
            tape.drop(bad)
            squares[bad] = 0.0
        forms = [] if norms_only else [tape.forms.get(parameter) for parameter in self.flat.parameters]
        return TorchPass(losses, squares, forms, self.flat, tape.scratch)

    # The check

    def _mixes(self, inputs: Any, targets: Any) -> bool:
        """Whether the first record's loss changes with the last one, in the mode the model is in."""
        device = self.flat.device
        kinds = "cuda" if device.type == "cuda" else "cpu"
        found: list[Tensor] = []
        for last in (_CHECKED - 1, 1):
            chosen = torch.tensor([*range(_CHECKED - 1), last])
            with torch.no_grad(), torch.random.fork_rng([device.index or 0] if kinds == "cuda" else [], device_type=kinds):
                torch.manual_seed(0)  # the same dropout masks both times; the fork restores the state
                found.append(self._losses(take(inputs, chosen, _CHECKED), take(targets, chosen, _CHECKED))[:-1])
        tolerance = 1e-4 if found[0].dtype == torch.float32 else 1e-9
        return not torch.allclose(found[0], found[1], rtol=tolerance, atol=tolerance, equal_nan=True)

    def _mismatch(self, inputs: Any, targets: Any) -> str | None:
        """Compare with autograd on a few records, without dropout: what is wrong, or None."""
        modes = [(module, module.training) for module in self.model.modules()]
        autocast, self.autocast = self.autocast, None
        try:
            for module, _ in modes:
                module.training = False
            with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
                plain = self._losses(inputs, targets)
                theirs = [self._autograd(loss) for loss in plain]
            try:
                mine = self._evaluate(inputs, targets, norms_only=False)
            except _UsedElsewhereError as error:
                return str(error)
            except RuntimeError as error:  # the plain model ran: its shapes do not survive the taps
                if self._way is _Way.WHOLE:
                    raise
                return f"The model does not run when its layers are tapped ({error})."
        finally:
            self.autocast = autocast
            for module, mode in modes:
                module.training = mode
        tolerance = 1e-3 if plain.dtype == torch.float32 else 1e-8
        if not torch.allclose(mine.losses, plain.detach(), rtol=tolerance, atol=tolerance, equal_nan=True):
            return "The model's losses change when its layers are tapped."
        for index, gradient in enumerate(theirs):
            size = gradient.norm()
            if not torch.isfinite(size):
                continue
            only = torch.zeros_like(mine.losses)
            only[index] = 1.0
            error = (mine.weighted_sum(only) - gradient).norm()
            if error > tolerance * size + 1e-6 * tolerance:
                return (
                    f"Per-example gradients do not agree with autograd's (record {index}: off by {float(error):.3g} of "
                    f"{float(size):.3g}). Some layer or the loss mixes records."
                )
        return None

    def _autograd(self, loss: Tensor) -> Tensor:
        found = _gradients(loss, self.flat.parameters, retain_graph=True)
        filled = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self.flat.parameters, found, strict=True)
        ]
        return torch.cat([gradient.flatten() for gradient in filled])


class _UsedElsewhereError(ValueError):
    """A parameter reaches the loss around its module's tap."""


class _Way(enum.Enum):
    """How parameters without a layer of their own are treated, in the order in which it is tried."""

    COPIES = "parameters of shape (1, ...) that a module with children uses itself get one copy per record"
    SUBTREES = "modules with children and parameters of their own run under vmap, children and all"
    WHOLE = "the whole model runs under vmap"


def _gradients(losses: Tensor, sources: Sequence[Tensor], retain_graph: bool = False) -> tuple[Tensor | None, ...]:
    """Gradients of the sum of `losses`, None where it does not depend on a source. ValueError where autograd fails."""
    if not losses.requires_grad:
        raise ValueError("The losses do not depend on any trainable parameter.")
    try:
        return torch.autograd.grad(losses, list(sources), torch.ones_like(losses), retain_graph, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise ValueError(
                "The model overwrites, in place, a layer's input that the layer's gradient needs: replace the in-place "
                f"operation by one that makes a new tensor. PyTorch says: {error}"
            ) from error
        if "use_reentrant" in str(error):
            raise ValueError("Expected torch.utils.checkpoint with use_reentrant=False.") from error
        raise


def per_example(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], **facts: Any) -> ModuleObjective:
    """`ModuleObjective(model, loss_fn, **facts)`."""
    return ModuleObjective(model, loss_fn, **facts)


_Owned = tuple[nn.Module, str, nn.Parameter]


def _tapped_modules(model: nn.Module, *, copies: bool) -> tuple[list[nn.Module], list[_Owned]]:
    """The outermost modules that a rule or the fallback stands for, each with trainable parameters; and, with `copies`,
    the parameters of shape (1, ...), such as class tokens and positions, that modules with children use themselves."""
    found: list[nn.Module] = []
    copied: list[_Owned] = []

    def visit(module: nn.Module) -> None:
        if module in found or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]
        if rule_of(module) is not None or hasattr(module, "parametrizations"):
            found.append(module)
            return
        leaf = next(module.children(), None) is None
        if own and (leaf or not copies or any(p.dim() == 0 or p.shape[0] != 1 for _, p in own)):
            found.append(module)
            return
        copied.extend((module, name, parameter) for name, parameter in own)
        for child in module.children():
            visit(child)

    visit(model)
    return found, copied


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

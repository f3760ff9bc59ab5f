"""What is looked at before a run is charged: a model, its loss and its targets on some records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from dperm.torch.engine import IsolatedEngine
from dperm.torch.engine.ordinary_losses import OrdinaryLosses, evaluating
from dperm.torch.engine.state_changes import name_of_layer
from dperm.torch.independence.agreement import disagreement, mixing
from dperm.torch.independence.refusals import reason_to_refuse, refuse_hooks
from dperm.torch.tensors.global_randomness import kept_states
from dperm.torch.tensors.nested import batch_size, call_model, map_tensors, packed, shapes, size_of, take

_COMPARED, _LOOKED_AT = 8, 16  # records on which gradients are compared with autograd's; where mixing is looked for
#: what else to do with a layer that mixes records in what a loss holds, such as a generator
OUT_OF_THE_LOSS = (
    "or keep what holds it out of the loss: make its outputs on public values in trainer.public_step, and let the loss draw from "
    "these (docs/generative.md)"
)
_REMEMBERED = 256  # shapes whose check is not repeated


class Inspection:
    """Looks at how the model of an engine treats records. With `tested` they run in one ordinary batch, and mixing is looked for.

    `sample` has records that all ranks have, where parameters are sharded: the model is looked at on them, or ranks would wait
    for each other. Parameters, buffers and random states are left as they were.
    """

    sample: tuple[Any, Any] | None = None

    def __init__(self, engine: IsolatedEngine, losses: OrdinaryLosses, tested: bool) -> None:
        self._engine, self._losses, self._tested = engine, losses, tested
        self._checked: set[Any] = set()

    def look(self, inputs: Any, targets: Any) -> None:
        """Compare losses and gradients of some of these records with those of one ordinary batch, unless that was done for
        these modules, modes and shapes. ValueError where they differ, with what to do."""
        engine = self._engine
        if engine.flat.sharded and self.sample is not None:
            inputs, targets = self.sample
        key = _key(self._losses.model, inputs)
        if key in self._checked:
            return
        refuse_modules(self._losses.model)
        size = size_of(inputs, targets)
        chosen = torch.linspace(0, size - 1, min(size, _LOOKED_AT if self._tested else _COMPARED)).round().long()
        some = take(inputs, chosen, size), take(targets, chosen, size)
        if not self._tested:
            refuse_hooks(engine.flat.leaves, engine.flat.names)
        with self.looking(), self._losses.in_full_precision(), self._noting_layers():
            problem = mixing(engine, *some, len(chosen)) if self._tested else None
            problem = problem or disagreement(engine, *some, len(chosen), beside=self._tested)
        if problem is not None:
            raise ValueError(" ".join([*engine.mixing, problem]))
        if moving := engine.snapshot().uncopied:
            kinds = ", ".join(dict.fromkeys(moving))
            raise ValueError(
                f"The model or the loss keeps what cannot be put back after each pass ({kinds}): draw from the global "
                "generators, and keep no iterators."
            )
        if len(self._checked) >= _REMEMBERED:
            self._checked.clear()
        self._checked.add(key)

    @torch.no_grad()
    def look_at_targets(self, inputs: Any, chunks: Iterable[Any]) -> None:
        """ValueError, naming the record, for a target that the loss does not take, or takes to no finite number: with the
        outputs of the first of these inputs, whatever the record is."""
        model = self._losses.model
        first = take(inputs, torch.tensor([0]), size_of(inputs, inputs))
        with self.looking(), self._losses.in_full_precision(), evaluating(model):
            # on the host: a loss that fails on a device may stop the device
            with torch.enable_grad():  # which a penalty on gradients needs
                outputs = call_model(model, packed(first))
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
    def looking(self) -> Iterator[None]:
        """Within the block the model and the global generators may change: they are put back."""
        flat, kept = self._engine.flat, self._engine.snapshot()
        # other kernels round otherwise
        with kept_states(flat.device), torch.backends.cudnn.flags(allow_tf32=False):
            try:
                yield
            finally:
                flat.rest()
                kept.restore()

    @contextlib.contextmanager
    def _noting_layers(self) -> Iterator[None]:
        """Within the block layers that the loss runs beside the model's, and that mix records, are noted by name: each record is
        alone there, which is not what such a layer is for, and may be slow, or not run at all."""
        engine, own, seen = self._engine, set(self._losses.model.modules()), set[nn.Module]()
        kept = engine.snapshot()

        def note(layer: nn.Module, given: Any) -> None:
            if layer in own or layer in seen:
                return
            seen.add(layer)
            if reason := reason_to_refuse(layer):
                engine.mixing.append(
                    f"The loss runs {name_of_layer(kept, layer)} ({type(layer).__name__}) on records, one at a time: "
                    f"{reason}; {OUT_OF_THE_LOSS}."
                )

        engine.mixing.clear()
        handle = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def _problem(self, outputs: Any, targets: Any) -> str | None:
        """What the loss says against these targets."""
        try:
            return None if bool(torch.isfinite(self._losses.loss_fn(outputs, targets)).all()) else "its loss is not finite"
        except IndexError as error:  # what a class number out of range gives
            return str(error).removesuffix(".")
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            # on the host, a loss whose weights are on a device fails by that
            return None if self._engine.flat.device.type != "cpu" else str(error).removesuffix(".")


def _key(model: nn.Module, inputs: Any) -> Any:
    """What rules and layouts depend on: modules, their modes, what is trainable, and shapes short of the batch size."""
    modules = tuple((id(module), type(module), module.training) for module in model.modules())
    parameters = tuple((id(parameter), parameter.requires_grad) for parameter in model.parameters())
    return modules, parameters, tuple(shape if shape is None else shape[1:] for shape in shapes(inputs))


def refuse_modules(model: nn.Module, instead: str = "") -> None:
    """ValueError where a module has no per-example gradient, such as batch normalisation; `instead` is what else to do."""
    for name, module in model.named_modules():
        if reason := reason_to_refuse(module):
            more = f"; {instead}" if instead and module is not model else ""
            raise ValueError(f"{name or 'The model'} ({type(module).__name__}) cannot be trained privately: {reason}{more}.")

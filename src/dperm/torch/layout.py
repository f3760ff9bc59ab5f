"""Where the records are: found by running the model on two and on three records and seeing which axes grow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dperm.torch.structure import call_model, map_tensors, take, tensors
from dperm.torch.tape import PACKED, Axis, CallLayout, repeated

__all__ = ["Layouts", "RecordsLostError", "find_layouts", "overridden"]

Layouts = dict[nn.Module, list[CallLayout]]
#: number of records → what is entered around a run on that many
Around = Callable[[int], contextlib.AbstractContextManager[None]]
_Shapes = tuple[list[torch.Size], list[torch.Size]]


@contextlib.contextmanager
def overridden(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within the block each module's `forward` is another; a forward that calls its own module gets the original."""
    inside: set[nn.Module] = set()

    def guarded(module: nn.Module, other: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if module in inside:
                return original(*args, **kwargs)
            inside.add(module)
            try:
                return other(*args, **kwargs)
            finally:
                inside.discard(module)

        return forward

    before = {module: vars(module).get("forward") for module in forwards}
    for module, other in forwards.items():
        module.forward = guarded(module, other, module.forward)
    try:
        yield
    finally:
        for module, old in before.items():
            if old is None:
                del module.forward
            else:
                module.forward = old


class RecordsLostError(ValueError):
    """A tensor's shape does not follow from the number of records."""


def find_layouts(model: nn.Module, modules: list[nn.Module], inputs: Any, size: int, around: Around) -> Layouts:
    """The layout of every call of each of `modules` when `model` runs on `inputs` of `size` records, in call order.

    A call without any record's tensor (positions, looked up once for all) gives one copy per record when it is tapped;
    what follows then sees records, so the model is run until nothing changes. `around(count)` is entered around a run on
    `count` records. Random state is left as it was. Raises RecordsLostError.
    """
    layouts: Layouts = {module: [] for module in modules}
    for _ in range(len(modules) + 1):
        two, three = (_observe(model, layouts, inputs, size, count, around) for count in (2, 3))
        found: Layouts = {
            module: [
                CallLayout(_axes(module, first[0], second[0]), _axes(module, first[1], second[1]))
                for first, second in zip(two[module], three[module], strict=True)
            ]
            for module in modules
        }
        if found == layouts:
            break
        layouts = found
    return layouts


def _observe(
    model: nn.Module, layouts: Layouts, inputs: Any, size: int, count: int, around: Around
) -> dict[nn.Module, list[_Shapes]]:
    """Shapes of the tensors among arguments and outputs of every call, on `count` records."""
    seen: dict[nn.Module, list[_Shapes]] = {module: [] for module in layouts}

    def spy(module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            number = len(seen[module])
            output = original(*args, **kwargs)
            seen[module].append((_shapes((args, kwargs)), _shapes(output)))
            known = layouts[module][number : number + 1]
            if known and known[0].shared:
                return map_tensors(lambda tensor: repeated(tensor, count), output)
            return output

        return forward

    device = next((tensor.device for tensor in tensors(inputs)), torch.device("cpu"))
    chosen = torch.arange(count, device=device) % size
    kind = "cuda" if device.type == "cuda" else "cpu"
    with (
        torch.no_grad(),
        torch.random.fork_rng([device.index or 0] if kind == "cuda" else [], device_type=kind),
        overridden({module: spy(module, module.forward) for module in layouts}),
        around(count),
    ):
        try:
            call_model(model, take(inputs, chosen, size))
        except RuntimeError as error:
            raise RecordsLostError(f"The model does not run on {count} records ({error}).") from error
    return seen


def _shapes(value: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors(value)]


def _axes(module: nn.Module, two: list[torch.Size], three: list[torch.Size]) -> tuple[Axis | None, ...]:
    return tuple(_axis(module, a, b) for a, b in zip(two, three, strict=True))


def _axis(module: nn.Module, two: torch.Size, three: torch.Size) -> Axis | None:
    if len(two) == len(three):
        grown = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        if not grown:
            return None
        if len(grown) == 1:
            dim = grown[0]
            if two[dim] % 2 == 0 and three[dim] == two[dim] // 2 * 3:
                return Axis(dim, two[dim] // 2)
            return PACKED
    raise RecordsLostError(
        f"{type(module).__name__} sees a tensor of shape {tuple(two)} with two records and {tuple(three)} with three: "
        "records do not stay apart along one axis."
    )

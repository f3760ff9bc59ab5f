"""Where the records are: found by running the model on two and on three records and seeing which axes grow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dperm.torch.structure import FAILURES, call_model, map_tensors, shapes, take
from dperm.torch.tape import PACKED, Axis, CallLayout, RecordsLostError, repeated

__all__ = ["Layouts", "axis_of", "find_layouts", "overridden"]

Layouts = dict[nn.Module, list[CallLayout]]
#: number of records → what is entered around a run on that many
Around = Callable[[int], contextlib.AbstractContextManager[None]]
_Seen = dict[nn.Module, list["_Shapes"]]
_Shapes = tuple[list[torch.Size | None], list[torch.Size | None]]


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

    # layers that look at their parameters may take a shortcut past their children: not while these are watched
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    before = {module: vars(module).get("forward") for module in forwards}
    for module, other in forwards.items():
        module.forward = guarded(module, other, module.forward)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, old in before.items():
            if old is None:
                del module.forward
            else:
                module.forward = old


def find_layouts(model: nn.Module, modules: list[nn.Module], inputs: Any, size: int, around: Around) -> Layouts:
    """The layout of every call of each of `modules` when `model` runs on `inputs` of `size` records, in call order.

    A call without any record's tensor (positions, looked up once for all) gives one copy per record when it is tapped;
    what follows then sees records, so the model is run until nothing changes. `around(count)` is entered around a run on
    `count` records. Seeds the random state. Raises RecordsLostError.
    """
    layouts: Layouts = {module: [] for module in modules}
    before: tuple[_Seen, _Seen] = ({}, {})
    for _ in range(len(modules) + 1):
        two = _observe(model, layouts, before[0], inputs, size, 2, around)
        three = _observe(model, layouts, before[1], inputs, size, 3, around)
        before = two, three
        updated: Layouts = {module: _call_layouts(module, two[module], three[module]) for module in modules}
        if updated == layouts:
            break
        layouts = updated
    return layouts


def _observe(model: nn.Module, layouts: Layouts, before: _Seen, inputs: Any, size: int, count: int, around: Around) -> _Seen:
    """Shapes of the tensors among arguments and outputs of every call, on `count` records.

    Outputs of calls that saw no record `before`, and see the same shapes now, are repeated for each record.
    """
    seen: _Seen = {module: [] for module in layouts}

    def spy(module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            number = len(seen[module])
            output = original(*args, **kwargs)
            seen[module].append((shapes((args, kwargs)), shapes(output)))
            known = layouts[module][number : number + 1]
            if known and known[0].shared and before[module][number][0] == seen[module][number][0]:
                return map_tensors(lambda tensor: repeated(tensor, count, known[0].leading_one), output)
            return output

        return forward

    chosen = torch.arange(count) % size
    with torch.no_grad(), overridden({module: spy(module, module.forward) for module in layouts}), around(count):
        torch.manual_seed(0)  # the same random choices with two and with three records
        try:
            call_model(model, take(inputs, chosen, size))
        except FAILURES as error:
            raise RecordsLostError(f"The model does not run on {count} records ({error}).") from error
    return seen


def _call_layouts(module: nn.Module, two: list[_Shapes], three: list[_Shapes]) -> list[CallLayout]:
    if len(two) != len(three):
        raise RecordsLostError(f"{type(module).__name__} runs {len(two)} times on two records and {len(three)} times on three.")
    return [_call_layout(module, first, second) for first, second in zip(two, three, strict=True)]


def _call_layout(module: nn.Module, two: _Shapes, three: _Shapes) -> CallLayout:
    arguments = tuple(axis_of(type(module).__name__, a, b) for a, b in zip(two[0], three[0], strict=True))
    outputs = tuple(axis_of(type(module).__name__, a, b) for a, b in zip(two[1], three[1], strict=True))
    first = two[1][0] if two[1] else None
    shared = not any(arguments)
    return CallLayout(arguments, outputs, shared and bool(first) and first[0] == 1)


def axis_of(what: str, two: torch.Size | None, three: torch.Size | None) -> Axis | None:
    """Where the records are in a tensor that `what` sees, of these shapes with two records and with three; None where it
    belongs to none. RecordsLostError where they are not along one axis."""
    if two is None or three is None:
        return PACKED
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
        f"{what} sees a tensor of shape {tuple(two)} with two records and {tuple(three)} with three: "
        "records do not stay apart along one axis."
    )

"""Random numbers of a model while a run is replayed: those of a record are its own, the others are drawn as in any run.

`Alignment` says why. Which numbers are a record's is seen from the shapes that an operation draws for two records and for three.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dperm.release.alignment import current, seed_of
from dperm.torch.guard import kept_states, seed_all, seed_torch
from dperm.torch.layout import axis_of
from dperm.torch.structure import map_tensors
from dperm.torch.tape import PACKED, Axis, RecordsLostError

__all__ = ["AlignedPass", "axes_of", "drawing_alone", "drawing_for"]


class _Drawing(TorchDispatchMode):
    """Sees every operation that draws from torch's own generators. `alone` is the place of the record that runs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.alone: int | None = None

    @abstractmethod
    def draws(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation that draws."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return self.draws(func, args, kwargs)

    @contextlib.contextmanager
    def record(self, place: int) -> Iterator[None]:
        self.alone = place
        try:
            yield
        finally:
            self.alone = None


class _Watch(_Drawing):
    """Notes the shapes of what is drawn, in order, but for what is drawn for one record alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def draws(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if self.alone is None:
            self.shapes.append(_first(result).shape)
        return result


class _Coins(_Drawing):
    """Draws for a pass: what is a record's from a seed made of its name, everything else from one of the pass's number.

    `axes` says of each operation where the records are in what it draws: None, where it draws for none.
    """

    def __init__(self, names: tuple[object, ...], number: int, axes: list[Axis | None], device: torch.device) -> None:
        super().__init__()
        self._names = names
        self._number = number
        self._axes = axes
        self._device = device
        self._counts: dict[int | None, Iterator[int]] = {}
        self._state = _state(device)

    def draws(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not all(map(torch.equal, self._state, _state(self._device))):
            return func(*args, **kwargs)  # the model seeds the generator itself: as it does in any run
        place = next(self._counts.setdefault(self.alone, itertools.count()))
        try:
            if self.alone is not None:
                seed_torch(seed_of("record", self._names[self.alone], "alone", place))
                return func(*args, **kwargs)
            seed_torch(seed_of("pass", self._number, place))
            result = func(*args, **kwargs)
            axis = self._axis(place, _first(result).shape)
            return result if axis is None else self._by_record(func, args, kwargs, result, place, axis)
        finally:
            _restore(self._state, self._device)

    def _axis(self, place: int, shape: torch.Size) -> Axis | None:
        """Where the records are in this shape. An operation that draws otherwise than it did for two and three records has them
        along the first axis that is as long as there are records."""
        size = len(self._names)
        axis = self._axes[place] if place < len(self._axes) else None
        if axis is not None and axis.dim < len(shape) and shape[axis.dim] == size * axis.multiple:
            return axis
        if axis is None and place < len(self._axes):
            return None
        return next((Axis(dim) for dim, length in enumerate(shape) if length == size), None)

    def _by_record(self, func: Any, args: Any, kwargs: Any, whole: Any, place: int, axis: Axis) -> Any:
        """The same operation, record by record: on the parts of the tensors that have the records where the result has them, and
        on sizes that are the result's."""
        shape = _first(whole).shape
        parts: list[Any] = []
        for number, name in enumerate(self._names):

            def own(value: Tensor, number: int = number) -> Tensor:
                if value.dim() == len(shape) and value.shape[axis.dim] == shape[axis.dim]:
                    return value.narrow(axis.dim, number * axis.multiple, axis.multiple)
                return value

            seed_torch(seed_of("record", name, place))
            mine = [_shortened(value, shape, axis) if _is_size(value) else map_tensors(own, value) for value in args]
            parts.append(func(*mine, **map_tensors(own, kwargs)))
        if args and whole is args[0]:
            return whole  # which was overwritten part by part
        drawn = [(each,) if isinstance(each, Tensor) else each for each in parts]
        joined = tuple(torch.cat(several, dim=axis.dim) for several in zip(*drawn, strict=True))
        if joined[0].shape != shape:
            raise ValueError(_TOGETHER.format(func))
        return joined[0] if isinstance(whole, Tensor) else joined


_running: ContextVar[_Drawing | None] = ContextVar("drawing", default=None)


@contextlib.contextmanager
def _entered(mode: _Drawing) -> Iterator[None]:
    token = _running.set(mode)
    try:
        with mode:
            yield
    finally:
        _running.reset(token)


def drawing_alone(place: int) -> contextlib.AbstractContextManager[None]:
    """Within the block a model runs on the record at this place of the batch alone."""
    mode = _running.get()
    return contextlib.nullcontext() if mode is None else mode.record(place)


@contextlib.contextmanager
def drawing_for(number: int, device: torch.device) -> Iterator[None]:
    """Within the block a data set makes a record: in a replay what it draws by the global generators is the record's own."""
    alignment = current()
    if alignment is None:
        yield
        return
    with kept_states(device):
        seed_all(seed_of("item", alignment.name_of(number)))
        yield


@dataclass(frozen=True)
class AlignedPass:
    """A pass over a physical batch of a replayed run: its records' names, and its number."""

    names: tuple[object, ...]
    number: int

    @classmethod
    def begun(cls, inputs: Any, size: int) -> AlignedPass | None:
        """The next pass; None where the run is no replay. Records of a batch that no stream handed out are named by their
        places."""
        alignment = current()
        if alignment is None:
            return None
        return cls(alignment.names_of(inputs) or tuple(range(size)), alignment.next_pass())

    @contextlib.contextmanager
    def drawing(self, device: torch.device, axes: list[Axis | None]) -> Iterator[None]:
        """Within the block the pass draws as `_Coins` do, by these axes of its operations."""
        with _entered(_Coins(self.names, self.number, axes, device)):
            yield


def axes_of(run_on: Callable[[int], object], device: torch.device) -> list[Axis | None]:
    """Where the records are in what each operation of a pass draws, as far as passes over two records and over three draw alike.
    `run_on(count)` makes the pass over so many. ValueError where that does not say whose it is."""
    with kept_states(device):
        two, three = (_shapes_of(run_on, count) for count in (2, 3))
    return _axes(two, three)


def _shapes_of(run_on: Callable[[int], object], count: int) -> list[torch.Size]:
    watch = _Watch()
    with _entered(watch):
        run_on(count)
    return watch.shapes


def _axes(two: list[torch.Size], three: list[torch.Size]) -> list[Axis | None]:
    """As far as both draw alike."""
    try:
        axes = [axis_of("An operation that draws", *shapes) for shapes in zip(two, three, strict=False)]
    except RecordsLostError as error:
        raise ValueError(str(error)) from error
    if PACKED in axes:
        raise ValueError(_TOGETHER.format("not in proportion to how many there are"))
    return axes


_TOGETHER = (
    "The model draws random numbers for all records together ({}): whose they are cannot be told, and neighbours cannot be "
    "compared. Draw them for each record, or audit the model without them."
)


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _is_size(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(each) is int for each in value)


def _shortened(value: Any, shape: torch.Size, axis: Axis) -> Any:
    """A size of one record where it is that of all."""
    if tuple(value) != tuple(shape):
        return value
    return [axis.multiple if dim == axis.dim else length for dim, length in enumerate(shape)]


def _state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _restore(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)

"""A run of the model and its loss in which code sees one record: what becomes of each call of torch's functions in it, and which
rule stands for which function.

`InStep` runs all records of a physical batch in step, under `torch.vmap`: the model sees one record, whatever it does, so
that no record can influence another. A function that is given a trained parameter goes through its rule
(`dperm.torch.engine.rules`), which taps its output; where there is none, the record gets a copy of the parameter of its own,
and the copy is tapped. `Alone` runs one record by itself, for what `torch.vmap` cannot run: there the gradient is autograd's.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dperm.torch.engine.branches import Branch
from dperm.torch.engine.gradient_forms import Dense
from dperm.torch.engine.layer_taps import Tape
from dperm.torch.engine.randomness import Draws, draws_by_name
from dperm.torch.tensors.user_code_errors import line_of_model


class RefusedError(ValueError):
    """The model does what no record may do by itself. The message says what, and what to do instead."""


class OutsideError(ValueError):
    """Records cannot run in step: the model does what torch's functions do not see. Each can run by itself."""


def detached(parameter: Tensor | None) -> Any:
    """The parameter as a constant of the graph, whose gradient is read at a tap instead."""
    return None if parameter is None else parameter.detach()


class Run(TorchFunctionMode):
    """What a model's and a loss's calls of torch's functions go through, for `tape.size` records.

    `tape` takes the taps, `trained` has the trained parameters, `branch` the values that records of this run agree on, and
    `draws` the randomness of the step. `fixed` says where the numbers of tensors are that nobody puts back after the run.
    `copied` collects the parameters of which each record got a copy of its own.
    """

    def __init__(
        self,
        tape: Tape,
        trained: Iterable[nn.Parameter],
        branch: Branch,
        draws: Draws,
        *,
        own_tensors: bool = False,
        fixed: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.tape, self.branch, self.draws = tape, branch, draws
        self.own_tensors = own_tensors
        self.copied: dict[nn.Parameter, None] = {}
        self.rules: dict[Any, None] = {}
        #: by the identity of a packed sequence's batch sizes, these and its lengths
        self.packed: dict[int, tuple[Tensor, Tensor]] = {}
        self._fixed = fixed
        self._trained = {id(parameter) for parameter in trained}
        #: why the run has no result, although the model may have gone on
        self.stopped: Exception | None = None
        self._copies: dict[int, Tensor] = {}
        self._made: list[weakref.ref[Tensor]] = []

    def stop(self, error: Exception) -> Exception | None:
        """What ends the run after a call of a function that failed, whatever the model makes of the error."""
        return error

    # What rules need

    @abstractmethod
    def together(
        self,
        body: Callable[..., Any],
        *tensors: Tensor | None,
        axes: Sequence[int | None] | None = None,
        returned: Sequence[int] | None = None,
    ) -> Any:
        """`body` on the numbers of all records of this run: tensors (b, ...) with the records first, None where None is given.

        For a run that sees a batch, `axes` says which axis counts the batch in each of `tensors`, None where none does, and
        `returned` in each tensor that is returned; the first where nothing is said.
        """

    @abstractmethod
    def rows(self, tensor: Tensor) -> Tensor | None:
        """(b, ...) the numbers of each record, detached; None where they belong to no record."""

    def trains(self, tensor: Any) -> bool:
        """Whether it is a trained parameter."""
        return id(tensor) in self._trained

    def learned(self, *parameters: Tensor | None) -> list[Any]:
        """Those of the parameters that are trained."""
        return [parameter for parameter in parameters if self.trains(parameter)]

    def constant(self, *tensors: Tensor | None) -> bool:
        """Whether all are parameters, or None: the same for every record."""
        return all(tensor is None or isinstance(tensor, nn.Parameter) for tensor in tensors)

    def agreed(self, tensor: Tensor) -> Tensor:
        """The numbers of a tensor as a constant. Raises `BranchesDiffer` where the records of this run do not agree on them."""
        return self.branch.agreed(tensor, self.rows)

    def own(self, parameter: Any) -> Tensor:
        """A copy of a trained parameter for each record, tapped; the same copy in all of the run."""
        copy = self._copies.get(id(parameter))
        if copy is None:

            def body() -> Tensor:
                copies = parameter.detach().expand(self.tape.size, *parameter.shape)
                return self.tape.tap(copies, [parameter], lambda gradient: [(parameter, Dense(gradient))], ())

            copy = self._copies[id(parameter)] = self.together(body)
            self.copied[parameter] = None
        return copy

    # Every call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.stopped is not None:
            raise self.stopped
        try:
            output = self._called(func, args, kwargs or {})
        except RefusedError as error:
            self.stopped = RefusedError(f"{error}{line_of_model(traceback.extract_stack())}")
            raise self.stopped from error
        except Exception as error:
            self.stopped = self.stop(error)
            raise
        if isinstance(output, Tensor):
            self._made.append(weakref.ref(output))
        elif isinstance(output, (tuple, list)):
            self.watch(part for part in output if isinstance(part, Tensor))
        return output

    def watch(self, made: Iterable[Tensor]) -> None:
        """Tensors that nobody should hold when the run has ended."""
        self._made += map(weakref.ref, made)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("generator") is not None:
            raise RefusedError(
                "The model draws from a generator of its own, whose numbers records share: draw from torch's global generator, "
                "without generator=."
            )
        self._refuse_write(func, _written(func, args, kwargs))
        for name in ("out", "running_mean", "running_var"):
            self._refuse_write(func, kwargs.get(name))
        output = self._special(func, args, kwargs)
        if output is not NotImplemented:
            return output
        if not any(map(_is_parameter, args)) and not any(map(_is_parameter, kwargs.values())):
            return self._of_no_record(func, args, kwargs)
        return self._of_parameters(func, args, kwargs)

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        special = SPECIAL.get(func)
        return NotImplemented if special is None else special(self, func, *args, **kwargs)

    def _of_parameters(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = RULES.get(func)
        if rule is not None:
            output = rule(self, *args, **kwargs)
            if output is not NotImplemented:
                self.rules[rule] = None
                return output
        if is_property(func):
            return func(*args, **kwargs)

        def mine(value: Any) -> Any:
            if self.trains(value):
                return self.own(value)
            if type(value) in (tuple, list):
                return type(value)(map(mine, value))
            return value

        return self._call(func, tuple(map(mine, args)), {name: mine(value) for name, value in kwargs.items()})

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _refuse_write(self, func: Any, written: Any) -> None:
        """RefusedError where a write would stay: in a trained parameter, or in a tensor that is too large to be put back."""
        if type(written) in (tuple, list):
            for part in written:
                self._refuse_write(func, part)
        elif self.trains(written) or (isinstance(written, Tensor) and self._is_fixed(written)):
            raise RefusedError(
                f"The model writes into a trained parameter, or into a tensor of more than a million numbers, while it runs "
                f"({func.__name__}). Neither is put back after each pass, and what is written may be of records."
            )

    def _is_fixed(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._fixed

    def _of_no_record(self, func: Any, args: Any, kwargs: Any) -> Any:
        output = self._call(func, args, kwargs)
        if self.own_tensors and func in FACTORIES and isinstance(output, Tensor) and self.rows(output) is None:
            return self.each(output)
        return output

    def dropout(self, numbers: Tensor, chance: float) -> Tensor:
        """Numbers (b, ...) of all records, each left out by this chance, and the others as much larger."""
        return F.dropout(numbers, chance)

    def each(self, tensor: Tensor) -> Tensor:
        """A copy for each record of a tensor that belongs to none."""
        return self.together(lambda: tensor.detach().expand(self.tape.size, *tensor.shape).clone())

    def kept(self, besides: Iterable[Tensor]) -> list[weakref.ref[Tensor]]:
        """Tensors of records, made in this run, that somebody still holds, `besides` those."""
        known = {id(tensor) for tensor in besides} | {id(copy) for copy in self._copies.values()}
        pairs = ((made, made()) for made in self._made)
        return [
            made for made, tensor in pairs if tensor is not None and id(tensor) not in known and self.rows(tensor) is not None
        ]


class _ByRecord(Run):
    """A run of the records at `branch.records` in a physical batch of `physical_size` records, each of which draws its own
    numbers.

    Where `physical_size` is None, a record draws from the global generator, so that checkpointed layers draw the same again when
    they are run once more on the way back.
    """

    def __init__(self, physical_size: int | None, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.physical_size = physical_size

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.physical_size is None or not draws_by_name(func.__name__) or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        return self._drawn(func, args, kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function that draws returns: each record's own numbers."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        written = _written(func, args, kwargs)
        if written is not None and _inplace(func) is not None:
            place = _inplace(func)
            args = tuple(False if number == place else value for number, value in enumerate(args))
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}

        def one(*mine: Tensor) -> Any:
            left = iter(mine if written is None else (mine[0].clone(), *mine[1:]))
            each = [next(left) if isinstance(value, Tensor) else value for value in args]
            return func(*each, **{name: next(left) if isinstance(value, Tensor) else value for name, value in kwargs.items()})

        def body(*numbers: Tensor) -> Any:
            return self._made_by_place(func.__name__, one, *numbers)

        output = self.together(body, *given)
        return output if written is None else written.copy_(output)

    def dropout(self, numbers: Tensor, chance: float) -> Tensor:
        """Numbers (k, ...) of all records with each record's own left out by this chance, and the others as much larger."""

        def one(mine: Tensor) -> Tensor:
            return F.dropout(mine, chance)

        return self._made_by_place("dropout", one, numbers)

    def _made_by_place(self, name: str, draw: Callable[..., Any], *given: Tensor) -> Any:
        """The next draw on this branch, `draw` of each record's numbers in `given` (k, ...)."""
        assert self.physical_size is not None
        return self.draws.made(name, self.branch.path, self.branch.records, self.physical_size, draw, *given)


class InStep(_ByRecord):
    """All records of a physical batch in step, under `torch.vmap`: `record` is any tensor of the record."""

    def __init__(self, record: Tensor, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._record = record

    def together(self, body: Callable[..., Any], *tensors: Tensor | None, **axes: Any) -> Any:
        size = self.tape.size

        def whole(*found: tuple[Tensor | None, int | None]) -> Any:
            return body(*(_records_first(numbers, axis, size) for numbers, axis in found))

        return together(whole, self._record, *tensors)

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        if any(generator.initial_seed() != seed for generator, seed in self.draws.seeded):  # what is drawn would hang on places
            raise OutsideError("The model seeds torch's generator.")
        _see_one_record(func, args, kwargs)
        return super()._special(func, args, kwargs)

    def _is_fixed(self, tensor: Tensor) -> bool:
        numbers = self.rows(tensor)
        return super()._is_fixed(tensor if numbers is None else numbers)

    def rows(self, tensor: Tensor) -> Tensor | None:
        found: list[Tensor | None] = []

        def look(given: tuple[Tensor, int | None]) -> Tensor:
            numbers, axis = given
            found.append(None if axis is None else numbers.detach().movedim(axis, 0))
            return torch.zeros(self.tape.size)

        together(look, self._record, tensor)
        return found[0]


class Alone(_ByRecord):
    """One record by itself: nothing but it is there."""

    def together(self, body: Callable[..., Any], *tensors: Tensor | None, **axes: Any) -> Any:
        outputs = body(*(None if tensor is None else tensor[None] for tensor in tensors))
        return tuple(output[0] for output in outputs) if isinstance(outputs, tuple) else outputs[0]

    def stop(self, error: Exception) -> Exception | None:
        """Nothing that it can catch says anything of another record."""
        return None

    def _of_parameters(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._call(func, args, kwargs)

    def rows(self, tensor: Tensor) -> Tensor | None:
        return tensor.detach()[None]


def _records_first(numbers: Tensor | None, axis: int | None, size: int) -> Tensor | None:
    if numbers is None:
        return None
    return numbers.expand(size, *numbers.shape) if axis is None else numbers.movedim(axis, 0)


def _see_one_record(func: Any, args: Any, kwargs: Any) -> None:
    """OutsideError for a call in which code that neither PyTorch nor dperm wrote would see the numbers of all records."""
    module = getattr(func, "__module__", None) or ""
    if module.startswith("torch._ops.") and module.rpartition(".")[2] not in _OWN_OPERATORS:
        raise OutsideError(
            f"The operator {module.removeprefix('torch._ops.')}::{func.__name__} may have a batching rule of its own."
        )
    if func.__name__ == "custom_function_call" and not args[0].__module__.startswith(("torch.", "dperm.")):
        raise OutsideError(f"{args[0].__name__} is a torch.autograd.Function, whose code may see all records.")
    for value in (*args, *kwargs.values()):
        for part in value if type(value) in (tuple, list) else (value,):
            if isinstance(part, Tensor) and type(part) not in _PLAIN:
                raise OutsideError(f"{func.__name__} is given a {type(part).__name__}, whose code may see all records.")
            if isinstance(part, FunctionType | MethodType | partial):
                raise OutsideError(f"{func.__name__} is given a function, whose code may see all records.")


_OWN_OPERATORS = ("aten", "prims", "torchvision", "profiler")
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it is a dropout that draws nothing: in evaluation mode, or with a chance of zero."""
    if "dropout" not in func.__name__:
        return False
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return not training or chance == 0


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function writes into: a tensor, or a list of them; None where it writes into nothing that it is given."""
    name = func.__name__.split(".")[0]
    if name == "__set__":  # an attribute: of its numbers, in other words, or of whether it has a gradient
        writes = func in _NUMBERS_SET
    elif name.startswith("__"):
        writes = name == "__setitem__" or (name.startswith("__i") and name not in ("__int__", "__invert__", "__index__"))
    else:
        place = _inplace(func)
        asked = kwargs.get("inplace") or (place is not None and len(args) > place and args[place])
        writes = name.endswith("_") or bool(asked)
    given = (*args, *kwargs.values())
    return given[0] if writes and given else None


@functools.lru_cache(maxsize=4096)
def _inplace(func: Any) -> int | None:
    """The place of the argument that says whether a function writes into its first; None where it has none."""
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # of functions that are not written in Python
        return None
    return names.index("inplace") if "inplace" in names else None


def is_property(func: Any) -> bool:
    """Whether it says something of a tensor that is not its numbers."""
    return func in PROPERTIES or (func.__name__ == "__get__" and func not in VIEWS)


def _is_parameter(value: Any) -> bool:
    return isinstance(value, nn.Parameter) or (type(value) in (tuple, list) and any(map(_is_parameter, value)))


# What functions are, where that matters. All are public functions of torch.

#: special(run, function, *args, **kwargs) → what the call returns, or NotImplemented
SPECIAL: dict[Any, Callable[..., Any]] = {}

#: rule(run, *args, **kwargs) → what the function returns, tapped, or NotImplemented
RULES: dict[Any, Callable[..., Any]] = {}

#: They say something of a tensor that is not its numbers.
PROPERTIES = {
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous,
    Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size, Tensor.get_device, Tensor.__len__, Tensor.__hash__,
    Tensor.data_ptr, torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel, torch.result_type,
}  # fmt: skip

#: Attributes that are tensors with the same numbers.
VIEWS = {getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag")}

_NUMBERS_SET = {getattr(Tensor, name).__set__ for name in ("data", "real", "imag")}

#: They make tensors that may be written into.
FACTORIES = {
    torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.arange, torch.linspace, torch.tensor, torch.zeros_like,
    torch.ones_like, torch.empty_like, torch.full_like, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full,
    Tensor.new_tensor, Tensor.clone, torch.clone,
}  # fmt: skip


def together(body: Callable[..., Any], record: Tensor, *tensors: Tensor | None) -> Any:
    """`body` on the numbers of all records, under `torch.vmap` over one record at a time.

    Parameters
    ----------
    body : function of one tuple for each of `tensors`: (numbers, axis). `axis` says where the records are in `numbers`; None
        says that these numbers belong to no record. It returns a tensor, or a tuple of tensors, with the records first.
    record : any tensor of the record. It makes sure that the call belongs to the records, whatever else it is given.
    tensors : tensors as the run sees them. Each may be None.

    Returns
    -------
    What `body` returns, as the run sees it: without the axis of the records.
    """
    return _Together.apply(body, record, *tensors)


class _Together(torch.autograd.Function):
    """A function that only has a batching rule, which is the only public way to reach the numbers of all records."""

    @staticmethod
    def forward(body: Callable[..., Any], record: Tensor, *tensors: Tensor | None) -> Any:
        raise RuntimeError("Expected a call under torch.vmap.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """There is nothing to keep: what `body` runs is differentiated by itself."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        body, _, *tensors = given
        outputs = body(*zip(tensors, in_dims[2:], strict=True))
        return outputs, (0,) * len(outputs) if isinstance(outputs, tuple) else 0


#: rule(run, *args, **kwargs) → what the function returns, tapped; NotImplemented where the rule does not fit these arguments
Rule = Callable[..., Any]


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """The decorated rule stands for these functions of torch wherever they are given a parameter."""

    def keep(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return keep

"""A run of the model and its loss in which code sees one record: what becomes of each call of torch's functions in it, and which
rule stands for which function.

`InStep` runs all records of a physical batch in step, under `torch.vmap`: the model sees one record, whatever it does, so
that no record can influence another. A function that is given a trained parameter goes through its rule
(`dperm.torch.engine.rules`), which taps its output. A function that is given parameters and nothing of a record's runs once for
all, and its result counts as a parameter (`dperm.torch.engine.derived`). Everywhere else the record gets a copy of the parameter
of its own, and the copy is tapped. `Alone` runs one record by itself, for what `torch.vmap` cannot run: there the gradient is
autograd's.
"""

from __future__ import annotations

import contextlib
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dperm.torch.engine.branches import Branch
from dperm.torch.engine.derived import Derived, way_back
from dperm.torch.engine.gradient_forms import Dense
from dperm.torch.engine.known_functions import (
    CHECKPOINTING,
    ENTRYWISE,
    FACTORIES,
    PLACING,
    is_property,
    module_of,
    places_of_statistics,
    written_by,
)
from dperm.torch.engine.layer_taps import Tape
from dperm.torch.engine.randomness import Draws, draws_by_name
from dperm.torch.engine.running import RUNNING
from dperm.torch.engine.watch import Watch
from dperm.torch.tensors.nested import map_tensors, tensors
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

    in_step = False  #: whether `torch.vmap` is there

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
        #: of the checkpointed parts that the run is in
        self._watches: list[Watch] = []
        #: by identity, what stands for tensors of the run of which this one computes a part again
        self._renewed: dict[int, Tensor] = {}

    def __enter__(self) -> Run:
        self._before = RUNNING.set(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        RUNNING.reset(self._before)
        super().__exit__(*error)

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

    def together_unless_common(self, body: Callable[[Tensor], Tensor], tensor: Tensor) -> Any:
        """`body` on the numbers of all records, as `together` gives it; NotImplemented where the tensor is `common`."""
        return NotImplemented if self.common(tensor) else self.together(body, tensor)

    @abstractmethod
    def rows(self, tensor: Tensor) -> Tensor | None:
        """(b, ...) the numbers of each record, detached; None where they belong to no record."""

    def trains(self, tensor: Any) -> bool:
        """Whether it is a trained parameter, or a function of trained parameters alone."""
        return id(tensor) in self._trained or id(tensor) in self.tape.derived

    def learned(self, *parameters: Tensor | None) -> list[Any]:
        """Those of the parameters that are trained."""
        return [parameter for parameter in parameters if self.trains(parameter)]

    def constant(self, *tensors: Tensor | None) -> bool:
        """Whether all are parameters, functions of trained ones, or None: the same for every record."""
        return all(tensor is None or isinstance(tensor, nn.Parameter) or self.trains(tensor) for tensor in tensors)

    def common(self, tensor: Tensor) -> bool:
        """Whether it belongs to no record, and depends on nothing that is trained: a buffer, or a tensor that the model makes."""
        return not tensor.requires_grad and self.rows(tensor) is None

    def agreed(self, tensor: Tensor) -> Tensor:
        """The numbers of a tensor as a constant. Raises `BranchesDiffer` where the records of this run do not agree on them."""
        return self.branch.agreed(tensor, self.rows)

    def own(self, parameter: Any, *, noted: bool = True) -> Tensor:
        """A copy of a trained parameter for each record, tapped; the same copy in all of the run. `noted` in `copied`, unless the
        function that it goes to makes no more of it than it would of the parameter."""
        copy = self._copies.get(id(parameter))
        if copy is None:

            def body() -> Tensor:
                copies = parameter.detach().expand(self.tape.size, *parameter.shape)
                return self.tape.tap(copies, [parameter], lambda gradient: [(parameter, Dense(gradient))], ())

            copy = self._copies[id(parameter)] = self.together(body)
        if noted:
            derived = self.tape.derived.get(id(parameter))
            self.copied |= dict.fromkeys([parameter] if derived is None else derived.parameters)
        return copy

    def owned(self, value: Any, *, noted: bool = True) -> Any:
        """`value`, or a list or tuple, with a copy for each record in place of trained parameters."""
        if self.trains(value):
            return self.own(value, noted=noted)
        if type(value) in (tuple, list):
            return type(value)(self.owned(part, noted=noted) for part in value)
        return value

    # Checkpointed parts

    def checkpointed(self, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """What `torch.utils.checkpoint.checkpoint` gives: here by running the function, with nothing thrown away."""
        return function(*args, **{name: value for name, value in settings.items() if name not in CHECKPOINTING})

    @contextlib.contextmanager
    def apart(self, instead: Callable[..., Any] | None) -> Iterator[Watch]:
        """Within the block a checkpointed part runs, with copies of parameters of its own, and taps that are read by `instead`
        where it is given. Yields what is watched."""
        watch = Watch()
        copies, self._copies = self._copies, {}
        before, self.tape.instead = self.tape.instead, instead
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)
            self._copies, self.tape.instead = copies, before

    def made_apart(self, output: Any) -> None:
        """What a checkpointed part has given to the run."""
        self.watch(tensors(output))
        for watch in self._watches:
            watch.made(output)

    def renewed(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of the run of which this one computes a part again."""
        return self._renewed.get(id(tensor), tensor)

    # Every call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.stopped is not None:
            raise self.stopped
        kwargs = kwargs or {}
        if self._renewed:
            args, kwargs = map_tensors(self.renewed, (tuple(args), kwargs))
        for watch in self._watches:
            watch.see(func, tensors((args, kwargs)))
        try:
            output = self._called(func, args, kwargs)
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
        for watch in self._watches:
            watch.made(output)
        return output

    def watch(self, made: Iterable[Tensor]) -> None:
        """Tensors that nobody should hold when the run has ended."""
        self._made += map(weakref.ref, made)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs and kwargs.get("generator") is not None:
            raise RefusedError(
                "The model draws from a generator of its own, whose numbers records share: draw from torch's global generator, "
                "without generator=."
            )
        if module_of(func) == "torch._ops.quantized" and any(each.requires_grad for each in tensors(args)):
            raise RefusedError(
                f"The operator quantized::{func.__name__} has no gradient: what is trained before it would stay as it is. Keep "
                "weights of frozen layers in int8 and multiply them by their scales in forward, or quantise only what comes "
                "before all that is trained."
            )
        if (written := written_by(func, args, kwargs)) is not None:
            self._refuse_write(func, written)
        for name in _WRITTEN_BY_NAME if kwargs else ():
            self._refuse_write(func, kwargs.get(name))
        for place in places_of_statistics(func):
            self._refuse_write(func, args[place] if len(args) > place else None)
        output = self._special(func, args, kwargs)
        if output is not NotImplemented:
            return output
        if any(map(self._is_parameter, args)) or (kwargs and any(map(self._is_parameter, kwargs.values()))):
            return self._of_parameters(func, args, kwargs)
        return self._of_no_record(func, args, kwargs)

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
        given = _flat((*args, *kwargs.values()))
        parameters = [value for value in given if self.trains(value)]
        if parameters and self._is_derived(func, parameters, given, args, kwargs):
            return self._derive(func, parameters, args, kwargs)
        return self._by_copies(func, parameters, args, kwargs)

    def _by_copies(self, func: Any, parameters: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """What a function without a rule returns, by a copy of each trained parameter for each record."""
        if not parameters:
            return self._of_no_record(func, args, kwargs)
        noted = func not in ENTRYWISE and func not in PLACING
        mine = {name: self.owned(value, noted=noted) for name, value in kwargs.items()}
        return self._call(func, tuple(self.owned(value, noted=noted) for value in args), mine)

    def _is_derived(self, func: Any, parameters: Sequence[Any], given: Sequence[Any], args: Any, kwargs: Any) -> bool:
        """Whether a call makes functions of parameters, and of what belongs to no record, in tensors of their own."""
        if (
            self.own_tensors
            or written_by(func, args, kwargs) is not None
            or kwargs.get("out") is not None
            or draws_by_name(func.__name__)
        ):
            return False
        others = [value for value in given if isinstance(value, Tensor) and not self._is_parameter(value)]
        if others and func in ENTRYWISE and all(parameter.dim() < 2 for parameter in parameters):
            return False  # a copy of a vector costs less than to look whether the other factor is of records
        return all(self.rows(value) is None for value in others)

    def _derive(self, func: Any, parameters: Sequence[Any], args: Any, kwargs: Any) -> Any:
        output = func(*args, **kwargs)
        if any(tensor.is_complex() for tensor in tensors(output)):  # rules and forms are those of real numbers
            return self._by_copies(func, parameters, args, kwargs)
        found: dict[nn.Parameter, None] = {}
        for parameter in parameters:
            derived = self.tape.derived.get(id(parameter))
            found |= dict.fromkeys([parameter] if derived is None else derived.parameters)
        for value in _flat(output if isinstance(output, (tuple, list)) else (output,)):
            if isinstance(value, Tensor) and value.requires_grad and not self.trains(value):
                self.tape.derive(Derived(value, list(found), way_back(func, args, value)))
        return output

    def _is_parameter(self, value: Any) -> bool:
        kind = type(value)
        if kind is Tensor:  # asked first: whether something is an nn.Parameter is found out in Python, at each call
            return id(value) in self.tape.derived
        if kind in _NO_TENSORS:
            return False
        if kind in (tuple, list):
            return any(map(self._is_parameter, value))
        return isinstance(value, nn.Parameter) or (isinstance(value, Tensor) and id(value) in self.tape.derived)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _refuse_write(self, func: Any, written: Any) -> None:
        """RefusedError where a write would stay: in a trained parameter, or in a tensor that is too large to be put back."""
        if type(written) in (tuple, list):
            for part in written:
                self._refuse_write(func, part)
        elif isinstance(written, Tensor) and id(written) in self.tape.derived:
            raise RuntimeError(f"{func.__name__} writes into a tensor that is made of parameters alone.")
        elif self.trains(written) or (isinstance(written, Tensor) and self._is_fixed(written)):
            raise RefusedError(
                f"The model writes into a trained parameter, or into a tensor of more than a million numbers, while it runs "
                f"({func.__name__}). Neither is put back after each pass, and what is written may be of records: write between "
                "steps."
            )

    def _is_fixed(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._fixed

    def _of_no_record(self, func: Any, args: Any, kwargs: Any) -> Any:
        output = self._call(func, args, kwargs)
        makes_tensors = self.own_tensors and (func in FACTORIES or func in RULES)  # also frozen layers on a constant
        if makes_tensors and isinstance(output, Tensor) and self.rows(output) is None:
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
        held = [(made, tensor) for made in self._made if (tensor := made()) is not None and id(tensor) not in known]
        belong = self.belonging([tensor for _, tensor in held])
        return [made for (made, _), belongs in zip(held, belong, strict=True) if belongs]

    def belonging(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Whether each of these tensors belongs to records."""
        return [self.rows(tensor) is not None for tensor in tensors]


#: names of arguments that functions write into
_WRITTEN_BY_NAME = ("out", "running_mean", "running_var")

#: types of most other arguments, that are no tensors and hold none
_NO_TENSORS = frozenset({int, float, bool, str, type(None), slice, type(...), torch.dtype, torch.device, torch.Size})


def _flat(values: Iterable[Any]) -> list[Any]:
    """All that is in lists and tuples, however deep."""
    return [part for value in values for part in (_flat(value) if isinstance(value, (tuple, list)) else (value,))]


# What functions are, where that matters. All are public functions of torch.

#: special(run, function, *args, **kwargs) → what the call returns, or NotImplemented
SPECIAL: dict[Any, Callable[..., Any]] = {}

#: rule(run, *args, **kwargs) → what the function returns, tapped, or NotImplemented
RULES: dict[Any, Callable[..., Any]] = {}

#: rule(run, *args, **kwargs) → what the function returns, tapped; NotImplemented where the rule does not fit these arguments
Rule = Callable[..., Any]


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """The decorated rule stands for these functions of torch wherever they are given a parameter."""

    def keep(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return keep

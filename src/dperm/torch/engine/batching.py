"""The numbers of all records, from within `torch.vmap`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor


def together(body: Callable[..., Any], record: Tensor, *tensors: Tensor | None) -> Any:
    """`body` on the numbers of all records, under `torch.vmap` over one record at a time.

    Parameters
    ----------
    body : function of one tuple for each of `tensors`: (numbers, axis). `axis` says where the records are in `numbers`; None
        says that these numbers belong to no record. It returns a tensor, or a tuple of tensors, with the records first;
        NotImplemented and None are returned as they are.
    record : any tensor of the record. It makes sure that the call belongs to the records, whatever else it is given.
    tensors : tensors as the run sees them. Each may be None.

    Returns
    -------
    What `body` returns, as the run sees it: without the axis of the records.
    """
    # each thing that PyTorch is given costs time, for it looks for tensors in it again and again: the body goes beside it, and
    # the record only where nothing else belongs to records
    token = _CALLED.set((body, len(tensors)))
    try:
        if not tensors:
            return _Together.apply(record)
        try:
            return _Together.apply(*tensors)
        except _OfNoRecordError as error:
            if error.body is not body:  # of a call within the body, which has run
                raise
            return _Together.apply(*tensors, record)
    finally:
        _CALLED.reset(token)


#: the body that `together` is called with in this thread, and how many tensors
_CALLED: ContextVar[tuple[Callable[..., Any], int]] = ContextVar("_CALLED")


class _OfNoRecordError(RuntimeError):
    """No tensor of the call with this body belongs to records."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__("Expected a call under torch.vmap, with a tensor of records.")
        self.body = body


class _Together(torch.autograd.Function):
    """A function that only has a batching rule, which is the only public way to reach the numbers of all records."""

    @staticmethod
    def forward(*given: Any) -> Any:
        raise _OfNoRecordError(_CALLED.get()[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """There is nothing to keep: what `body` runs is differentiated by itself."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        body, count = _CALLED.get()
        outputs = body(*zip(given[:count], in_dims[:count], strict=True))
        if outputs is NotImplemented or outputs is None:
            return outputs, None
        return outputs, (0,) * len(outputs) if isinstance(outputs, tuple) else 0


# PyTorch asks for the signature at each call: found out once, it costs a tenth
cast(Any, _Together.forward).__signature__ = inspect.signature(_Together.forward)

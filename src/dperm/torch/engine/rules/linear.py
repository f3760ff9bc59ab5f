"""Linear layers: y = xWᵀ + bias with any axes between the records and the features.

Row i of a product of a matrix and a constant depends on row i of the matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Dense, Form, Outer
from dperm.torch.engine.tracing import Run, detached, rule_for


@rule_for(F.linear)
def linear(run: Run, input: Tensor, weight: Any, bias: Any = None) -> Any:
    return _of_records(run, lambda x: affine(run, x, weight, bias), input, weight, bias)


@rule_for(torch.addmm, Tensor.addmm)
def addmm(run: Run, bias: Any, input: Tensor, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """bias + xW, as in Hugging Face's Conv1D, which keeps W as (inputs, outputs)."""
    if (beta, alpha) != (1, 1) or bias.dim() != 1:
        return NotImplemented
    return _of_records(run, lambda x: affine(run, x, weight, bias, turned=True), input, weight, bias)


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(run: Run, input: Tensor, weight: Any) -> Any:
    if not run.learned(weight) or weight.dim() != 2:
        return NotImplemented
    return _of_records(run, lambda x: affine(run, x, weight, None, turned=True), input, weight)


def _of_records(run: Run, body: Callable[[Tensor], Tensor], input: Tensor, *parameters: Any) -> Any:
    """The layer on the numbers of all records. NotImplemented where no parameter is trained, so that there is nothing to tap,
    where one of them is a tensor of another kind, and where no record is in the input: the output is a function of parameters
    alone then."""
    if not run.learned(*parameters) or not run.constant(*parameters) or run.trains(input):
        return NotImplemented
    return run.together_unless_common(body, input)


def affine(run: Run, x: Tensor, weight: Any, bias: Any, *, turned: bool = False) -> Tensor:
    """xWᵀ + bias, or xW + bias where the weight is `turned`, tapped: x (b, ..., features)."""
    matrix = detached(weight).T if turned else detached(weight)
    output = F.linear(x, matrix, detached(bias))
    learned = run.learned(weight, bias)
    if not learned:
        return output
    size = len(x)

    def read(gradient: Tensor, *saved: Tensor) -> list[tuple[nn.Parameter, Form]]:
        left = gradient.reshape(size, -1, gradient.shape[-1])
        forms: list[tuple[nn.Parameter, Form]] = []
        for parameter in learned:
            if parameter is weight:
                right = saved[0].reshape(size, -1, saved[0].shape[-1])
                forms.append((parameter, Outer(right, left) if turned else Outer(left, right)))
            else:
                forms.append((parameter, Dense(left[:, 0] if left.shape[1] == 1 else left.sum(1))))
        return forms

    return run.tape.tap(output, learned, read, (x,) if run.trains(weight) else ())

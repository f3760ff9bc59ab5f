"""Normalisation within one record: layer, RMS, group and instance normalisation. Scale and shift act elementwise.

Means and variances are of one record's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Dense, Form, wide
from dperm.torch.engine.tracing import Run, detached, rule_for


@rule_for(F.layer_norm, torch.layer_norm)
def layer_norm(
    run: Run, input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    shape = list(normalized_shape)
    return _last_axes(run, lambda x, w, c: F.layer_norm(x, shape, w, c, eps), input, len(shape), weight, bias)


@rule_for(F.rms_norm, torch.rms_norm)
def rms_norm(run: Run, input: Tensor, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    shape = list(normalized_shape)
    return _last_axes(run, lambda x, w, _: F.rms_norm(x, shape, w, eps), input, len(shape), weight, None)


def _last_axes(
    run: Run, normalise: Callable[[Tensor, Any, Any], Tensor], input: Tensor, axes: int, weight: Any, bias: Any
) -> Any:
    if not run.constant(weight, bias) or run.trains(input) or (weight is bias and run.trains(weight)):
        return NotImplemented
    learned = run.learned(weight, bias)
    if not learned:  # there is nothing to tap
        return NotImplemented

    def body(x: Tensor) -> Tensor:
        def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
            for parameter in learned:
                values = wide(gradient if parameter is bias else gradient * normalise(saved, None, None))
                yield parameter, Dense(values.reshape(len(values), -1, *values.shape[values.dim() - axes :]).sum(1))

        output = normalise(x, detached(weight), detached(bias))
        return run.tape.tap(output, learned, read, (x,))

    return run.together(body, input)


@rule_for(F.group_norm, torch.group_norm)
def group_norm(run: Run, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return _channels(run, lambda x, w, c: F.group_norm(x, num_groups, w, c, eps), input, weight, bias)


@rule_for(F.instance_norm, torch.instance_norm)
def instance_norm(
    run: Run,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    def normalise(x: Tensor, w: Any, c: Any) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, w, c, use_input_stats, momentum, eps)

    if use_input_stats and running_mean is not None:
        return NotImplemented
    return _channels(run, normalise, input, weight, bias)


def _channels(run: Run, normalise: Callable[[Tensor, Any, Any], Tensor], input: Tensor, weight: Any, bias: Any) -> Any:
    """Input (n, channels, ...) of a record that counts as a batch of n, one in most models."""
    if not run.constant(weight, bias) or run.trains(input) or input.dim() < 2 or (weight is bias and run.trains(weight)):
        return NotImplemented
    learned = run.learned(weight, bias)

    def body(x: Tensor) -> Tensor:
        size, several = x.shape[:2]

        def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
            for parameter in learned:
                values = wide(gradient if parameter is bias else gradient * normalise(saved, None, None))
                summed = values.flatten(2).sum(2) if values.dim() > 2 else values
                yield parameter, Dense(summed.view(size, several, -1).sum(1))

        images = x.flatten(0, 1)
        output = normalise(images, detached(weight), detached(bias))
        output = run.tape.tap(output, learned, read, (images,)) if learned else output
        return output.unflatten(0, (size, several))

    return run.together(body, input)

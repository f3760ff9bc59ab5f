"""Convolutions in one, two and three dimensions, and transposed ones: a linear layer on patches of the input.

Per record the weight's gradient is Gᵀ·patches, one product of (channels out, positions) and (positions, patch). Patches
come from a strided view of the padded input with channels last, copied once. Image i of the output depends on image i alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.grad
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Dense, Form, Outer, wide
from dperm.torch.engine.lengths import ghost_squares
from dperm.torch.engine.rules.patches import Geometry, patch_gram, patches
from dperm.torch.engine.tracing import Run, detached, rule_for
from dperm.torch.tensors.buffers import Scratch, record_chunks

_FORWARD: list[Any] = [F.conv1d, F.conv2d, F.conv3d]
_WORTH_IT = 2.0  # times fewer products: benchmarks/convolutions.py
_WEIGHT: list[Any] = [torch.nn.grad.conv1d_weight, torch.nn.grad.conv2d_weight, torch.nn.grad.conv3d_weight]


@rule_for(F.conv1d, F.conv2d, F.conv3d)
def convolution(
    run: Run,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Input (n, channels, ...) of a record that counts as a batch of n, or (channels, ...)."""
    if not run.constant(weight, bias) or run.trains(input):
        return NotImplemented
    axes = weight.dim() - 2
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    learned = run.learned(weight, bias)

    def body(x: Tensor) -> Tensor:
        size, several = len(x), x.dim() == axes + 3
        images = x.flatten(0, 1) if several else x
        images, zeros = _padded(images, padding, weight.shape[2:], dilation)
        geometry, multiple = Geometry(stride, zeros, dilation, groups), len(images) // size

        def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
            for parameter in learned:
                if parameter is weight:
                    yield parameter, ConvGradient(saved[0], gradient, weight.shape, geometry, multiple)
                else:
                    yield parameter, Dense(per_channel(gradient, multiple))

        output = _FORWARD[axes - 1](images, kernel(run, weight), detached(bias), stride, zeros, dilation, groups)
        if learned:
            output = run.tape.tap(output, learned, read, (images,) if run.trains(weight) else ())
        return output.unflatten(0, (size, multiple)) if several else output

    return run.together(body, input)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes if len(value) == 1 else 1)


def kernel(run: Run, weight: Any) -> Tensor:
    """A weight as a constant of the graph, in the memory format in which the model came: layers that follow run in it too."""
    memory_format = run.tape.flat.formats.get(weight)
    return detached(weight) if memory_format is None else detached(weight).to(memory_format=memory_format)


def _padded(images: Tensor, padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """The images, padded where the convolution itself cannot, and the symmetric zero padding that is left to it."""
    if padding == "valid":
        return images, (0,) * len(kernel)
    if padding != "same":
        return images, per_axis(padding, len(kernel))
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if all(total % 2 == 0 for total in totals):
        return images, tuple(total // 2 for total in totals)
    flat = [amount for total in reversed(totals) for amount in (total // 2, total - total // 2)]
    return F.pad(images, flat), (0,) * len(kernel)


def per_channel(gradient: Tensor, multiple: int) -> Tensor:
    """(b, channels) sums over positions, and over the `multiple` images of a record."""
    summed = wide(gradient).flatten(2).sum(2)
    return summed if multiple == 1 else summed.view(-1, multiple, summed.shape[1]).sum(1)


class ConvGradient(Form):
    """Gradients of a convolution's weight (out, in/groups, *kernel) from its input and its output's gradient."""

    def __init__(self, input: Tensor, gradient: Tensor, shape: Sequence[int], geometry: Geometry, multiple: int = 1) -> None:
        self.input, self.gradient = wide(input), wide(gradient)
        self.shape = torch.Size(shape)
        self.geometry = geometry
        self.multiple = multiple

    def _outers(self) -> Iterator[tuple[slice, Outer]]:
        """Blocks of records, each as one sum of outer products per record and group: left (b·groups, T, out/groups), right
        (b·groups, T, patch). The patches of a block are gone when the next is made: they share memory."""
        groups, multiple = self.geometry.groups, self.multiple
        kernel, positions = self.shape[2:], self.gradient.shape[2:]
        patch = math.prod(positions) * math.prod(kernel) * self.shape[1] * groups * multiple
        memory = self.input.new_empty(0)
        for part in record_chunks(len(self.gradient) // multiple, patch, self.input):
            images = slice(part.start * multiple, part.stop * multiple)
            view = patches(self.input[images], kernel, positions, self.geometry)
            if memory.numel() < view.numel():
                memory = self.input.new_empty(view.numel())
            right = memory[: view.numel()].view(view.shape).copy_(view)
            left = self.gradient[images].reshape(len(view), groups, -1, math.prod(positions))
            right = right.view(len(view), groups, math.prod(positions), -1)
            if multiple != 1:
                left = left.unflatten(0, (-1, multiple)).movedim(1, 3).flatten(3)
                right = right.unflatten(0, (-1, multiple)).movedim(1, 2).flatten(2, 3)
            yield part, Outer(left.flatten(0, 1).mT, right.flatten(0, 1))

    def squares(self) -> Tensor:
        if self._pixels_are_cheaper:
            return self._squares_by_pixels()
        parts = [outer.squares() for _, outer in self._outers()]
        return torch.cat(parts).view(-1, self.geometry.groups).sum(1)

    @property
    def _pixels_are_cheaper(self) -> bool:
        """Whether inner products of pixels are fewer than products of gradients and patches. Sizes of double precision would
        not stay within doubles there."""
        if self.input.dtype == torch.float64:
            return False
        outer, inner, *kernel = self.shape
        outer, cells = outer // self.geometry.groups, math.prod(kernel)
        positions, pixels = (self.multiple * values[0, 0].numel() for values in (self.gradient, self.input))
        # a sum of slices is bound by memory, a product is not
        products = pixels**2 * inner + positions**2 * (outer + 4 * cells)
        return _WORTH_IT * products < positions * cells * inner * outer

    def _squares_by_pixels(self) -> Tensor:
        """Ghost norms (see `dperm.torch.engine.gradient_forms`) with inner products of patches from those of pixels."""
        groups, images = self.geometry.groups, self.multiple
        sizes, positions = self.input.shape[2:], self.gradient.shape[2:]
        right_gram = functools.partial(
            patch_gram, sizes=sizes, kernel=self.shape[2:], positions=positions, geometry=self.geometry
        )
        parts: list[Tensor] = []
        numbers = 4 * groups * images**2 * (self.input[0, 0].numel() ** 2 + self.gradient[0, 0].numel() ** 2)
        for part in record_chunks(len(self.gradient) // images, numbers, self.input):
            block = slice(part.start * images, part.stop * images)
            left, right = (_by_position(values[block], groups, images) for values in (self.gradient, self.input))
            parts.append(ghost_squares(left, right, right_gram).view(-1, groups).sum(1))
        return torch.cat(parts)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        factors = factors.repeat_interleave(self.multiple) if self.multiple != 1 else factors
        gradient = self.gradient * factors.view(-1, *[1] * (self.gradient.dim() - 1))
        g = self.geometry
        weight = _WEIGHT[len(g.stride) - 1]
        return weight(self.input, self.shape, gradient, g.stride, g.padding, g.dilation, g.groups)

    def dense(self) -> Tensor:
        return self._channels_last(lambda shape, like: like.new_empty(shape)).dense()

    def _channels_last(self, scratch: Scratch) -> ChannelsLast:
        records, groups = len(self.gradient) // self.multiple, self.geometry.groups
        out, inner, *kernel = self.shape
        values = scratch((records, groups, out // groups, self.shape.numel() // out), self.input)
        squares: list[Tensor] = []
        for part, outer in self._outers():
            outer.products(values[part].flatten(0, 1))
            squares.append(Dense(values[part]).squares())  # while the block is in the cache
        return ChannelsLast(values.view(-1, out, *kernel, inner), torch.cat(squares))

    def without(self, bad: Tensor) -> ConvGradient:
        spread = bad.repeat_interleave(self.multiple).view(-1, *[1] * (self.gradient.dim() - 1))
        clean = [torch.where(spread, torch.zeros_like(values), values) for values in (self.input, self.gradient)]
        return ConvGradient(clean[0], clean[1], self.shape, self.geometry, self.multiple)

    @property
    def _is_stored(self) -> bool:
        held = (self.input.numel() + self.gradient.numel()) // self.gradient.shape[0] * self.multiple
        return not self._pixels_are_cheaper and self.shape.numel() <= 3 * held

    @property
    def kept_numbers(self) -> int:
        if self._is_stored:
            return len(self.gradient) // self.multiple * self.shape.numel()
        return self.input.numel() + self.gradient.numel()

    def settled(self, scratch: Scratch) -> Form:
        return self._channels_last(scratch) if self._is_stored else self


def _by_position(images: Tensor, groups: int, multiple: int) -> Tensor:
    """(b·groups, multiple·positions, channels/groups) from (b·multiple, channels, *positions)."""
    apart = images.unflatten(1, (groups, -1)).flatten(3).unflatten(0, (-1, multiple))
    return apart.permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)


class ChannelsLast(Form):
    """All gradients of a convolution's weight, stored with the input channels last: values (b, out, *kernel, in/groups)."""

    def __init__(self, values: Tensor, squares: Tensor) -> None:
        self.stored = Dense(values, squares)
        _, out, *kernel, inner = values.shape
        self.shape = torch.Size((out, inner, *kernel))

    def squares(self) -> Tensor:
        return self.stored.squares()

    @property
    def kept_numbers(self) -> int:
        return self.stored.kept_numbers

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self.stored.weighted_sum(factors).movedim(-1, 1)

    def dense(self) -> Tensor:
        return self.stored.values.movedim(-1, 2)

    def without(self, bad: Tensor) -> ChannelsLast:
        clean = self.stored.without(bad)
        return ChannelsLast(clean.values, clean.squares())


_TRANSPOSED: list[Any] = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


@rule_for(*_TRANSPOSED)
def transposed_convolution(
    run: Run,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Input (n, channels, ...) of a record that counts as a batch of n, or (channels, ...).

    The weight's gradient is that of the convolution that this one is the transpose of. That convolution takes outputs to inputs,
    so the output's gradient plays the input and the input plays the gradient. Image i of the output depends on image i alone.
    """
    if not run.constant(weight, bias) or run.trains(input):
        return NotImplemented
    axes = weight.dim() - 2
    stride, padding, dilation = (per_axis(value, axes) for value in (stride, padding, dilation))
    geometry, learned = Geometry(stride, padding, dilation, groups), run.learned(weight, bias)

    def body(x: Tensor) -> Tensor:
        size, several = len(x), x.dim() == axes + 3
        images = x.flatten(0, 1) if several else x
        multiple = len(images) // size

        def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
            for parameter in learned:
                if parameter is weight:
                    yield parameter, ConvGradient(gradient, saved[0], weight.shape, geometry, multiple)
                else:
                    yield parameter, Dense(per_channel(gradient, multiple))

        extra = per_axis(output_padding, axes)
        output = _TRANSPOSED[axes - 1](images, kernel(run, weight), detached(bias), stride, padding, extra, groups, dilation)
        if learned:
            output = run.tape.tap(output, learned, read, (images,) if run.trains(weight) else ())
        return output.unflatten(0, (size, multiple)) if several else output

    return run.together(body, input)

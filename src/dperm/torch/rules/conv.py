"""Convolutions in one, two and three dimensions: a linear layer on patches of the input.

Per record the weight's gradient is Gᵀ·patches, one product of (channels out, positions) and (positions, patch). Patches
come from a strided view of the padded input with channels last, copied once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.grad
from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, Outer, wide
from dperm.torch.rules.patches import Geometry, patch_gram, patches
from dperm.torch.rules.registry import detached, records_first, register, trainable
from dperm.torch.scratch import Scratch, record_chunks
from dperm.torch.tape import Call

__all__ = ["ConvGradient", "convolution", "kernel"]

_FORWARD: list[Any] = [F.conv1d, F.conv2d, F.conv3d]
_WORTH_IT = 2.0  # times fewer products: benchmarks/convolutions.py
_RAISED = 2e-3  # squared norms that must be raised by more for their rounding are computed from patches
_WEIGHT: list[Any] = [torch.nn.grad.conv1d_weight, torch.nn.grad.conv2d_weight, torch.nn.grad.conv3d_weight]


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d, fits=records_first)
def convolution(module: Any, call: Call, input: Tensor) -> Tensor:
    input, padding = _padded(module, input)
    geometry = Geometry(module.stride, padding, module.dilation, module.groups)
    forward = _FORWARD[len(padding) - 1]
    output = forward(
        input, kernel(call, module.weight), detached(module.bias), module.stride, padding, module.dilation, module.groups
    )
    learned = trainable(module.weight, module.bias)
    multiple = call.multiple(output)

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        for parameter in learned:
            if parameter is module.weight:
                yield parameter, ConvGradient(saved[0], gradient, module.weight.shape, geometry, multiple)
            else:
                yield parameter, Dense(_per_channel(gradient, multiple))

    return call.tap(output, learned, read, *([input] if module.weight.requires_grad else []))


def kernel(call: Call, weight: Any) -> Tensor:
    """A weight as a constant of the graph, in the memory format in which the model came: layers that follow run in it too."""
    memory_format = call.tape.flat.formats.get(weight)
    return detached(weight) if memory_format is None else detached(weight).to(memory_format=memory_format)


def _padded(module: Any, input: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded where the convolution itself cannot, and the symmetric zero padding that is left to it."""
    if module.padding == "valid":
        sides = [(0, 0)] * len(module.kernel_size)
    elif module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(p, p) for p in module.padding]
    if module.padding_mode == "zeros" and all(before == after for before, after in sides):
        return input, tuple(before for before, _ in sides)
    flat = [amount for before, after in reversed(sides) for amount in (before, after)]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(input, flat, mode=mode), (0,) * len(sides)


def _per_channel(gradient: Tensor, multiple: int) -> Tensor:
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
        if not self._pixels_are_cheaper:
            return self._squares_by_patches()
        squares, doubtful = self._squares_by_pixels()
        if bool(doubtful.any()):
            squares[doubtful] = self._of(doubtful)._squares_by_patches()
        return squares

    def _squares_by_patches(self) -> Tensor:
        parts = [outer.squares() for _, outer in self._outers()]
        return torch.cat(parts).view(-1, self.geometry.groups).sum(1)

    @property
    def _pixels_are_cheaper(self) -> bool:
        """Whether inner products of pixels are fewer than products of gradients and patches, and precise enough."""
        outer, inner, *kernel = self.shape
        outer, cells = outer // self.geometry.groups, math.prod(kernel)
        positions, pixels = (self.multiple * values[0, 0].numel() for values in (self.gradient, self.input))
        # a sum of slices is bound by memory, a product is not
        products = pixels**2 * inner + positions**2 * (outer + 4 * cells)
        # where gradients of positions are at right angles, the square of their lengths' sum is `positions` times the result
        precise = 2 * self._rounding * positions < _RAISED
        return precise and _WORTH_IT * products < positions * cells * inner * outer

    @property
    def _rounding(self) -> float:
        """What rounding takes from inner products of pixels, and adds in a sum over records, relative to the lengths."""
        outer, inner, *kernel = self.shape
        terms = [inner, outer // self.geometry.groups, math.prod(kernel)]
        return (8 + sum(map(math.sqrt, terms))) * torch.finfo(self.input.dtype).eps

    def _squares_by_pixels(self) -> tuple[Tensor, Tensor]:
        """Σ_tt' ⟨left_t, left_t'⟩·⟨right_t, right_t'⟩ (ghost norm: Li et al. 2021; Bu, Mao and Xu 2022), raised by what
        rounding may take from it, and the records where that is much of the result."""
        groups, images = self.geometry.groups, self.multiple
        sizes, positions = self.input.shape[2:], self.gradient.shape[2:]
        parts: list[Tensor] = []
        doubtful: list[Tensor] = []
        numbers = 2 * groups * images**2 * (self.input[0, 0].numel() ** 2 + self.gradient[0, 0].numel() ** 2)
        for part in record_chunks(len(self.gradient) // images, numbers, self.input):
            block = slice(part.start * images, part.stop * images)
            right, right_size = _normalised(_by_position(self.input[block], groups, images))
            left, left_size = _normalised(_by_position(self.gradient[block], groups, images))
            rights = patch_gram(right, sizes, self.shape[2:], positions, self.geometry)
            lefts = left @ left.mT
            lengths = (lefts.diagonal(dim1=1, dim2=2) * rights.diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt().sum(1)
            squares = (lefts * rights).sum((1, 2)).clamp(min=0)
            # the sum over records takes another order over the positions: see Outer
            ordered = (8 + math.sqrt(lefts.shape[1])) * torch.finfo(squares.dtype).eps
            rounding = self._rounding * lengths.square() + 2 * ordered * lengths * squares.sqrt()
            scale = (left_size * right_size).square()
            doubtful.append((rounding > _RAISED * squares).view(-1, groups).any(1))
            parts.append(((squares + rounding) * scale).view(-1, groups).sum(1))
        return torch.cat(parts), torch.cat(doubtful)

    def _of(self, records: Tensor) -> ConvGradient:
        images = records.repeat_interleave(self.multiple)
        return ConvGradient(self.input[images], self.gradient[images], self.shape, self.geometry, self.multiple)

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

    def settled(self, scratch: Scratch) -> Form:
        if self._pixels_are_cheaper:
            return self
        held = (self.input.numel() + self.gradient.numel()) // self.gradient.shape[0] * self.multiple
        return self._channels_last(scratch) if self.shape.numel() <= 3 * held else self


def _by_position(images: Tensor, groups: int, multiple: int) -> Tensor:
    """(b·groups, multiple·positions, channels/groups) from (b·multiple, channels, *positions)."""
    apart = images.unflatten(1, (groups, -1)).flatten(3).unflatten(0, (-1, multiple))
    return apart.permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)


def _normalised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values (b, T, n) brought to size 1, where their squares neither underflow nor overflow, and the sizes (b,)."""
    sizes = values.abs().amax((1, 2)).clamp(min=torch.finfo(values.dtype).tiny)
    return values / sizes[:, None, None], sizes


class ChannelsLast(Form):
    """All gradients of a convolution's weight, stored with the input channels last: values (b, out, *kernel, in/groups)."""

    def __init__(self, values: Tensor, squares: Tensor) -> None:
        self.stored = Dense(values, squares)
        _, out, *kernel, inner = values.shape
        self.shape = torch.Size((out, inner, *kernel))

    def squares(self) -> Tensor:
        return self.stored.squares()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self.stored.weighted_sum(factors).movedim(-1, 1)

    def dense(self) -> Tensor:
        return self.stored.values.movedim(-1, 2)

    def without(self, bad: Tensor) -> ChannelsLast:
        clean = self.stored.without(bad)
        return ChannelsLast(clean.values, clean.squares())

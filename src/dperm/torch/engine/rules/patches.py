"""What the output positions of a convolution see: patches of the input, and the inner products of patches.

⟨r_t, r_t'⟩ of two patches is the sum over the kernel's cells of inner products of single pixels. So a Gram matrix of the
input's P pixels, P²·c products for c channels, gives that of T patches of K cells without making one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from dperm.torch.engine.lengths import gram


@dataclass(frozen=True)
class Geometry:
    """Strides, zero padding on both sides and dilation, one number per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def inside(self, axis: int, cell: int, positions: int, pixels: int) -> tuple[slice, slice]:
        """The positions along an axis whose pixel under this cell of the kernel is no padding, and those pixels."""
        stride, offset = self.stride[axis], cell * self.dilation[axis] - self.padding[axis]
        first = max(0, math.ceil(-offset / stride))
        stop = max(first, min(positions, (pixels - 1 - offset) // stride + 1))
        start = first * stride + offset
        return slice(first, stop), slice(start, start + (stop - first) * stride, stride)


def patches(input: Tensor, kernel: Sequence[int], positions: Sequence[int], geometry: Geometry) -> Tensor:
    """A view (b, groups, *positions, *kernel, channel) of what each output position sees."""
    padding = [amount for p in reversed(geometry.padding) for amount in (p, p)]
    last = F.pad(input.movedim(1, -1), (0, 0, *padding)) if any(padding) else input.movedim(1, -1)
    last = last.contiguous()
    inner = last.shape[-1] // geometry.groups
    spatial = last.stride()[1:-1]
    return last.as_strided(
        (len(last), geometry.groups, *positions, *kernel, inner),
        (
            last.stride(0),
            inner,
            *(step * s for step, s in zip(spatial, geometry.stride, strict=True)),
            *(step * d for step, d in zip(spatial, geometry.dilation, strict=True)),
            1,
        ),
    )


def patch_gram(
    pixels: Tensor, sizes: Sequence[int], kernel: Sequence[int], positions: Sequence[int], geometry: Geometry
) -> Tensor:
    """Inner products (b, T, T) of the patches of images of these sizes, in double precision, from their pixels (b, images·P,
    channels).

    The T patches are those of all images of a record, image by image.
    """
    count = len(pixels)
    images = pixels.shape[1] // math.prod(sizes)
    products = gram(pixels).view(count, images, *sizes, images, *sizes)
    out = products.new_zeros(count, images, *positions, images, *positions)
    everything = slice(None)
    for cell in itertools.product(*map(range, kernel)):
        axes = [geometry.inside(axis, k, t, size) for axis, (k, t, size) in enumerate(zip(cell, positions, sizes, strict=True))]
        to, of = ([each[side] for each in axes] for side in (0, 1))
        out[(everything, everything, *to, everything, *to)] += products[(everything, everything, *of, everything, *of)]
    total = images * math.prod(positions)
    return out.view(count, total, total)

"""Inner products of a convolution's patches, and the norms that come from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dperm.torch.engine.rules import conv
from dperm.torch.engine.rules.conv import ConvGradient
from dperm.torch.engine.rules.patches import Geometry, patch_gram, patches

few = settings(max_examples=40, deadline=None)


def sizes_out(sizes: list[int], kernel: list[int], geometry: Geometry) -> list[int]:
    each = zip(sizes, kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in each]


@few
@given(
    axes=st.lists(
        st.tuples(*[st.integers(1, 5), *[st.integers(1, 3)] * 2, st.integers(0, 2), st.integers(1, 2)]), min_size=1, max_size=3
    ),
    images=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_inner_products_of_patches_are_sums_of_those_of_pixels(axes: list[Any], images: int, seed: int) -> None:
    sizes, kernel, stride, padding, dilation = ([axis[i] for axis in axes] for i in range(5))
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), 1)
    positions = sizes_out(sizes, kernel, geometry)
    assume(min(positions) > 0)
    x = torch.randn(2 * images, 3, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rows = patches(x, kernel, positions, geometry).reshape(2, images * math.prod(positions), -1)
    pixels = x.flatten(2).mT.reshape(2, -1, 3)
    torch.testing.assert_close(patch_gram(pixels, sizes, kernel, positions, geometry), rows @ rows.mT)


def norms(form: ConvGradient) -> Tensor:
    """Of all gradients, in double precision."""
    exact = ConvGradient(form.input.double(), form.gradient.double(), form.shape, form.geometry, form.multiple)
    return exact.dense().flatten(1).norm(dim=1)


def a_form(groups: int = 1, images: int = 1, stride: int = 1, channels: int = 48, seed: int = 0) -> ConvGradient:
    generator = torch.Generator().manual_seed(seed)
    geometry = Geometry((stride, stride), (1, 1), (1, 1), groups)
    x = torch.randn(5 * images, channels * groups, 4, 4, generator=generator)
    slopes = torch.randn(5 * images, 40 * groups, 4 // stride, 4 // stride, generator=generator)
    return ConvGradient(x, slopes, (40 * groups, channels, 3, 3), geometry, images)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many records the norms came from pixels, call by call."""
    calls: list[int] = []

    def counting(pixels: Tensor, **rest: Any) -> Tensor:
        calls.append(len(pixels))
        return patch_gram(pixels, **rest)

    monkeypatch.setattr(conv, "patch_gram", counting)
    return calls


@pytest.mark.parametrize(("groups", "images", "stride"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2)])
def test_norms_of_many_channels_come_from_pixels(groups: int, images: int, stride: int, counted: list[int]) -> None:
    form = a_form(groups, images, stride)
    found, exact = form.squares().sqrt().double(), norms(form)
    assert sum(counted) == 5 * groups
    assert bool((found >= exact).all())
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=0)


def test_few_channels_keep_patches(counted: list[int]) -> None:
    form = a_form(channels=1)
    torch.testing.assert_close(form.squares().sqrt().double(), norms(form), rtol=1e-4, atol=0)
    assert not counted


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e10, 1e18])
def test_sizes_that_squares_cannot_hold(size: float, counted: list[int]) -> None:
    form = a_form()
    form = ConvGradient(form.input * size, form.gradient / size, form.shape, form.geometry)
    torch.testing.assert_close(form.squares().sqrt().double(), norms(form), rtol=1e-3, atol=0)
    assert counted


def test_where_pixels_cancel_double_precision_decides(counted: list[int]) -> None:
    """All positions see nearly the same, and slopes nearly cancel: inner products of pixels leave nothing of the norm."""
    form = a_form()
    slopes = form.gradient[:, :, :2, :2]
    slopes = slopes - slopes.mean((2, 3), keepdim=True)
    form = ConvGradient(1 + 0.02 * form.input, slopes, form.shape, Geometry((1, 1), (0, 0), (1, 1), 1))
    found, exact = form.squares().sqrt().double(), norms(form)
    assert counted == [5, 5]
    assert bool((found >= exact).all())
    torch.testing.assert_close(found, exact, rtol=2e-3, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_touch_their_record_only(bad: float) -> None:
    form = a_form()
    form.input[3, 0, 0, 0] = bad
    found = form.squares()
    assert not bool(torch.isfinite(found[3]))
    assert bool(torch.isfinite(found[[0, 1, 2, 4]]).all())


def test_a_gradient_of_zero_has_no_norm() -> None:
    form = a_form()
    form.gradient[2] = 0
    assert float(form.squares()[2]) == 0

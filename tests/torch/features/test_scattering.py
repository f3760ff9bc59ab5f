"""The scattering transform: against coefficients of another implementation, and by its properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import PrivateTrainer, Scattering2D, scattering_features, scattering_scale

# Made by kymatio 0.3.0 (SciPy 1.14, single precision): images as bytes, and each stride-th of their coefficients.
REFERENCE: dict[str, Any] = dict(np.load(Path(__file__).with_name("scattering_reference.npz")))
CASES = [name for name in REFERENCE if name.startswith("coefficients")]


def images(count: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def transform(dtype: torch.dtype = torch.float64, J: int = 2, side: int = 16) -> Any:
    return Scattering2D(J, (side, side)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_coefficients_are_kymatio_s(case: str, dtype: torch.dtype) -> None:
    J, height, width, L, order, stride = map(int, case.split("_")[1:])
    x = torch.from_numpy(REFERENCE[f"images_{height}_{width}"]).to(dtype) / 255
    scattering = Scattering2D(J, (height, width), L, order)
    found = scattering(x)
    assert found.dtype == dtype
    assert found.shape == (len(x), scattering.coefficients, height // 2**J, width // 2**J)
    expected = REFERENCE[case]
    assert np.abs(found.numpy().ravel()[::stride] - expected).max() < 1e-6
    assert np.abs(expected).max() > 0.5


def test_the_usual_number_of_coefficients() -> None:
    assert Scattering2D(2, (28, 28)).coefficients == 81
    assert Scattering2D(2, (28, 28), max_order=1).coefficients == 17
    assert Scattering2D(3, (32, 32)).coefficients == 217


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_each_image_is_transformed_by_itself(dtype: torch.dtype) -> None:
    x = images(5, 16, 16, dtype=dtype)
    scattering, tolerance = transform(), 1e-6 if dtype == torch.float32 else 1e-14
    whole = scattering(x)
    for index in range(5):
        assert torch.allclose(scattering(x[index : index + 1])[0], whole[index], rtol=0, atol=tolerance)
    x[2] = torch.nan
    spoilt = scattering(x)
    assert bool(spoilt[2].isnan().all())
    assert torch.allclose(spoilt[[0, 1, 3, 4]], whole[[0, 1, 3, 4]], rtol=0, atol=tolerance)


def test_leading_axes_are_kept() -> None:
    x = images(6, 16, 16)
    scattering = transform()
    whole = scattering(x)
    assert torch.equal(scattering(x.view(2, 3, 16, 16)), whole.view(2, 3, 81, 4, 4))
    assert torch.allclose(scattering(x[0]), whole[0], rtol=0, atol=1e-14)
    assert scattering(x[:0]).shape == (0, 81, 4, 4)  # an empty batch of Poisson sampling


def test_it_repeats_and_has_nothing_to_train_or_to_save() -> None:
    x, scattering = images(3, 16, 16), transform()
    assert torch.equal(scattering(x), Scattering2D(2, (16, 16))(x))
    assert list(scattering.parameters()) == [] and scattering.state_dict() == {}


def test_a_flat_image_has_no_detail() -> None:
    found = transform()(torch.full((16, 16), 0.7, dtype=torch.float64))
    assert float((found[0] - 0.7).abs().max()) < 1e-4
    assert float(found[1:].abs().max()) < 1e-12


def test_stripes_are_seen_by_the_wavelet_across_them() -> None:
    columns = torch.cos(0.75 * torch.pi * torch.arange(16, dtype=torch.float64)).expand(16, 16)
    for image, angle in ((columns, 7), (columns.T, 3)):  # waves along the columns' axis, and along the rows'
        assert int(transform()(image)[1:9].mean((1, 2)).argmax()) == angle


def test_a_small_shift_changes_little() -> None:
    x = torch.zeros(3, 32, 32, dtype=torch.float64)
    for shift in range(3):
        x[shift, 10 + shift : 20 + shift, 10:20] = 1.0
    first, second, third = transform(J=3, side=32)(x).flatten(1)
    distance = float((first - second).norm() / first.norm())
    pixels = float((x[0] - x[1]).norm() / x[0].norm())
    assert 0 < distance < pixels / 3
    assert distance < float((first - third).norm() / first.norm())


@pytest.mark.parametrize(("case", "least"), [("noise", 0.1), ("edges", 0.1), ("impulse", 0.1), ("light", 0.65), ("shift", 0.04)])
def test_differences_do_not_grow(case: str, least: float) -> None:
    """‖Sx − Sy‖ ≤ ‖x − y‖, coefficients counted for the 4^J pixels that they stand for (Mallat 2012, proposition 2.5). The
    squares of the filters sum to 1.0001 at most, and folding may add a little."""
    x = images(20, 16, 16)
    if case == "edges":
        x = (x > 0.5).double()
    y = {"impulse": x.clone(), "light": x + 0.5, "shift": x.roll(1, -1)}.get(case, x.flip(0))
    if case == "impulse":
        y[:, 8, 8] += 1.0
    moved = 4 * (transform()(x) - transform()(y)).flatten(1).norm(dim=1)
    allowed = F.pad(x - y, (4, 4, 4, 4), mode="reflect").flatten(1).norm(dim=1)
    assert bool((moved <= 1.01 * allowed).all())
    assert bool((moved > least * allowed).all())


def test_gradients_reach_the_image() -> None:
    scattering = Scattering2D(2, (8, 8), L=2)
    assert torch.autograd.gradcheck(scattering, images(1, 8, 8).requires_grad_())
    black = torch.zeros(8, 8, dtype=torch.float64, requires_grad=True)
    scattering(black).sum().backward()
    assert black.grad is not None and bool(black.grad.isfinite().all())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((2, (30, 28)), r"multiples of 2\^J = 4"),
        ((3, (28, 28)), r"multiples of 2\^J = 8"),
        ((2, (4, 8)), "larger than it"),
        ((2, (28,)), "two multiples"),
        ((0, (28, 28)), "J >= 1"),
        ((2, (28, 28), 0), "L >= 1"),
        ((2, (28, 28), 8, 3), "max_order 1 or 2"),
    ],
)
def test_settings_that_do_not_fit(arguments: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Scattering2D(*arguments)


def test_images_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"of shape \(16, 16\), got \(3, 16, 12\)"):
        transform()(images(3, 16, 12))
    for unfit in (torch.zeros(3, 16, 16, dtype=torch.uint8), images(3, 16, 16).half()):
        with pytest.raises(TypeError, match="single or double precision"):
            transform()(unfit)
    with pytest.raises(TypeError, match="numbers in"):
        scattering_features(torch.zeros(3, 16, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\(n, C, H, W\)"):
        scattering_features(images(16, 16))


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_features_of_a_data_set(batch: int) -> None:
    colour = images(10, 3, 16, 12)
    found = scattering_features(colour, batch=batch)
    assert found.dtype == torch.float32 and found.shape == (10, 3 * 81, 4, 3)
    expected = Scattering2D(2, (16, 12))(colour)
    assert torch.allclose(found.double(), expected.flatten(1, 2), atol=1e-6)
    grey = scattering_features(colour[:, 1], batch=batch)
    assert torch.allclose(grey, found[:, 81:162], atol=1e-6)
    assert scattering_features(colour[:0]).shape == (0, 3 * 81, 4, 3)


@pytest.mark.parametrize("J", [1, 2, 3])
def test_the_typical_scale_is_that_of_natural_spectra(J: int) -> None:
    rng = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(32), np.fft.fftfreq(32)))
    frequency[0, 0] = np.inf  # no mean
    noise = np.fft.ifft2(np.fft.fft2(rng.normal(size=(50, 32, 32))) / frequency).real
    x = torch.from_numpy((0.5 + 0.25 * noise / noise.std((1, 2), keepdims=True)).clip(0, 1))
    found = scattering_features(x, J).square().mean((0, 2, 3)).sqrt()
    ratio = found / scattering_scale(J)
    assert float(ratio.min()) > 0.3 and float(ratio.max()) < 1.2
    assert torch.equal(scattering_scale(J, channels=3), scattering_scale(J).repeat(3))
    assert len(scattering_scale(J, L=4, max_order=1)) == Scattering2D(J, (32, 32), 4, 1).coefficients


def test_it_trains_privately_as_a_model_s_first_layer() -> None:
    """The checks of a private training find that it keeps records apart; features made beforehand give the same run."""
    x = images(60, 8, 8, dtype=torch.float32)
    y = (x[:, :4].mean((1, 2)) > 0.5).long()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "public_size": 60, "random_state": 0}
    settings |= {"epochs": 2, "expected_batch_size": 2, "clipping_norm": 1.0}
    weights: list[Tensor] = []
    for first, inputs in ((Scattering2D(2, (8, 8)), x), (nn.Identity(), scattering_features(x))):
        torch.manual_seed(0)
        model = nn.Sequential(first, nn.Flatten(), nn.Linear(81 * 4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        PrivateTrainer(model, nn.CrossEntropyLoss(reduction="none"), optimizer, **settings).fit((inputs, y))
        weights.append(model[2].weight.detach())
    assert torch.allclose(*weights, atol=1e-5)

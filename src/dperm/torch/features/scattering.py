"""The scattering transform of images: fixed features, to be computed once, on which small private models do well.

A cascade of wavelet moduli and averages (Mallat 2012, "Group invariant scattering"; Bruna and Mallat 2013, "Invariant
scattering convolution networks"), with the Morlet filters of the latter. Before a linear model or a small network it is what
Tramèr and Boneh 2021 ("Differentially private learning needs better features") train on.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm import _validate as check
from dperm._types import Array

_WIDTH = 0.8  # the finest wavelet's envelope, in pixels
_FREQUENCY = 0.75 * np.pi  # the finest wavelet's, in radians a pixel
# Published results come from filters normalised by this number. With π itself, coefficients of order m would be 3·10⁻⁵·(m + 1)
# smaller.
_ROUNDED_PI = 3.1415
# Root mean squares of coefficients of order 0, 1, 2 of images in [0, 1] of mean ½ and standard deviation ¼ whose spectrum falls
# with frequency f as natural images' does, 1/f; orders 1 and 2 rounded up, for sharper edges. They change little with J.
_TYPICAL = (0.5, 0.04, 0.005)
_PERIODS = np.arange(-2, 3)  # of the padded image, over which a filter is summed; its envelope is far smaller than one


class Scattering2D(nn.Module):
    """Scattering coefficients (…, K, H/2^J, W/2^J) of images (…, H, W), in single or double precision.

    J: averages extend over 2^J pixels, and are taken every 2^J pixels. shape: (H, W), multiples of 2^J and larger than it. L:
    angles of the wavelets. max_order: 1 or 2 moduli. K = 1 + J·L, and L²·J·(J − 1)/2 more at order 2: 81 for J = 2, L = 8.

    Coefficients are in the order, and for divisible shapes have the values, of kymatio 0.3: the average; |x ∗ ψ₁| by scale and
    angle; ||x ∗ ψ₁| ∗ ψ₂| by (scale₁, angle₁, scale₂, angle₂), for scale₂ > scale₁. Channels are transformed each by itself.

    It has nothing to train, and each image is transformed without regard to the others, so that it costs no privacy. For speed
    transform the data set once (`scattering_features`). Gradients pass to the images; where a modulus is zero, as zero.

    Raises ValueError for a shape that does not fit, TypeError for images of another type.
    """

    def __init__(self, J: int, shape: tuple[int, int], L: int = 8, max_order: int = 2) -> None:
        super().__init__()
        self.J, self.L = check.integer("J", J), check.integer("L", L)
        self.max_order = check.integer("max_order", max_order)
        if self.max_order > 2:
            raise ValueError(f"Expected max_order 1 or 2, got {max_order!r}.")
        step = 2**self.J
        if len(shape) != 2 or any(side % step or side <= step for side in shape):
            raise ValueError(f"Expected a shape of two multiples of 2^J = {step}, and larger than it, got {shape!r}: pad images.")
        self.shape = (int(shape[0]), int(shape[1]))
        padded = (self.shape[0] + 2 * step, self.shape[1] + 2 * step)
        for scale in range(self.J):
            for name, size in zip(("rows", "columns"), padded, strict=True):
                self._keep(f"{name}_{scale}", _averages(size, self.J, scale))
            filters = np.stack([_morlet(padded, scale, turn, self.L) for turn in range(self.L)])
            for level in range(max(scale, 1)):
                seen = _cropped(_cropped(filters, level, 1), level, 2) / 4 ** (scale - level)  # the sums of `_modulus` are means
                self._keep(f"wavelets_{scale}_{level}", np.repeat(seen, 2, axis=2))  # for a real and an imaginary part each

    def _keep(self, name: str, values: Array) -> None:
        self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def coefficients(self) -> int:
        """K."""
        return 1 + self.J * self.L + (self.max_order - 1) * self.L**2 * self.J * (self.J - 1) // 2

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"Expected images in single or double precision, got {images.dtype}: scale bytes to [0, 1].")
        if images.shape[-2:] != self.shape:
            raise ValueError(f"Expected images of shape {self.shape}, got {tuple(images.shape)}.")
        border, leading = 2**self.J, images.shape[:-2]
        if 0 in leading:  # Fourier transforms refuse an empty batch, Poisson sampling makes them
            return images.new_zeros(*leading, self.coefficients, *(side // border for side in self.shape))
        padded = F.pad(images.reshape(-1, 1, *self.shape), (border,) * 4, mode="reflect")
        zeroth, first, second = self._average(padded, 0), list[Tensor](), list[Tensor]()
        spectrum = torch.fft.fft2(padded)
        for scale in range(self.J):
            moduli = self._modulus(spectrum, scale, 0)
            first.append(self._average(moduli, scale))
            if self.max_order < 2 or scale == self.J - 1:
                continue
            for angle in range(self.L):  # one at a time: its L·(J − 1 − scale) paths stay in cache
                inner = torch.fft.fft2(moduli[:, angle : angle + 1])
                for outer in range(scale + 1, self.J):
                    second.append(self._average(self._modulus(inner, outer, scale), outer))
        coefficients = torch.cat([zeroth, *first, *second], dim=1)
        return coefficients.view(*leading, *coefficients.shape[1:])

    def _modulus(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """|u ∗ ψ| for all angles of a scale, at each 2^scale-th pixel: (b, L, ·, ·), from the spectrum (b, 1, m, m') of u at each
        2^level-th pixel."""
        wavelets = self.get_buffer(f"wavelets_{scale}_{level}").to(spectrum.real.dtype)
        pairs = torch.view_as_real(spectrum).flatten(-2) * wavelets
        for _ in range(scale - level):  # to drop every other pixel is to add the spectrum's halves
            rows, columns = pairs.shape[-2] // 2, pairs.shape[-1] // 2
            pairs = pairs[..., :rows, :] + pairs[..., rows:, :]
            pairs = pairs[..., :columns] + pairs[..., columns:]
        return torch.fft.ifft2(torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))).abs()

    def _average(self, values: Tensor, scale: int) -> Tensor:
        """Values (b, c, m, m') at each 2^scale-th pixel, averaged at each 2^J-th, without the border."""
        rows, columns = (self.get_buffer(f"{name}_{scale}").to(values.dtype) for name in ("rows", "columns"))
        return rows @ values @ columns.T

    def extra_repr(self) -> str:
        return f"J={self.J}, shape={self.shape}, L={self.L}, max_order={self.max_order}"


def scattering_features(images: Tensor, J: int = 2, batch: int = 128, *, L: int = 8, max_order: int = 2) -> Tensor:
    """Coefficients (n, C·K, H/2^J, W/2^J), in single precision, of images (n, H, W) or (n, C, H, W); see `Scattering2D`.

    They take `batch` images at a time in memory, on the device of the images. Images should be in [0, 1]; TypeError for bytes.
    """
    if not isinstance(images, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a tensor, got {type(images).__name__}: torch.from_numpy(images).float() / 255 for bytes.")
    if images.ndim not in (3, 4):
        raise ValueError(f"Expected images (n, H, W) or (n, C, H, W), got {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise TypeError(f"Expected images of floating-point numbers in [0, 1], got {images.dtype}: bytes are .float() / 255.")
    check.integer("batch", batch)
    height, width = images.shape[-2:]
    transform = Scattering2D(J, (height, width), L, max_order).to(images.device)
    channels = images.shape[1] if images.ndim == 4 else 1
    size = (channels * transform.coefficients, height // 2**J, width // 2**J)
    features = torch.empty(len(images), *size, dtype=torch.float32, device=images.device)
    with torch.no_grad():
        for start in range(0, len(images), batch):
            part = images[start : start + batch].float()
            features[start : start + batch] = transform(part).reshape(len(part), *size)
    return features


def scattering_scale(J: int = 2, *, L: int = 8, max_order: int = 2, channels: int = 1) -> Tensor:
    """Typical root mean squares (C·K,) of the coefficients of natural images in [0, 1]: public, known without any data set.

    Orders differ a hundredfold; `private_channel_statistics` needs to know.
    """
    counts = (1, J * L, L**2 * J * (J - 1) // 2)[: max_order + 1]
    return torch.cat([torch.full((count,), typical) for count, typical in zip(counts, _TYPICAL, strict=False)]).repeat(channels)


# Filters: waves under Gaussian envelopes, periodic in the padded image (Bruna and Mallat 2013, section 2.1)


def _morlet(shape: tuple[int, int], scale: int, turn: int, L: int) -> Array:
    """The real spectrum (m, m') of an oriented wavelet: a wave minus as much of its envelope as makes its mean zero.

    Across the wave the envelope is L/4 times as long as along it.
    """
    angle = np.pi * (L // 2 - 1 - turn) / L
    rows, columns = ((np.arange(size) + size * _PERIODS[:, None]).ravel() for size in shape)
    along = rows[:, None] * np.cos(angle) + columns * np.sin(angle)
    across = columns * np.cos(angle) - rows[:, None] * np.sin(angle)
    width, slant = _WIDTH * 2**scale, 4.0 / L
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * _ROUNDED_PI * width**2)
    wave = envelope * np.exp(1j * _FREQUENCY / 2**scale * along)
    wavelet = wave - envelope * (wave.sum() / envelope.sum())
    return np.fft.fft2(_folded(_folded(wavelet, 0), 1)).real


def _averages(size: int, J: int, scale: int) -> Array:
    """The matrix (H/2^J, m) that averages m = size/2^scale values by a Gaussian and keeps those every 2^J pixels, but for the
    border: in two dimensions the Gaussian is a product, and averages are the products of two matrices."""
    width = _WIDTH * 2 ** (J - 1)
    places = (np.arange(size) + size * _PERIODS[:, None]).ravel()
    gaussian = _folded(np.exp(-(places**2) / (2 * width**2)) / np.sqrt(2 * _ROUNDED_PI * width**2), 0)
    kernel = np.fft.ifft(_cropped(np.fft.fft(gaussian).real, scale, 0)).real
    kept = np.arange(1, size // 2**J - 1) * 2 ** (J - scale)
    return kernel[(kept[:, None] - np.arange(len(kernel))) % len(kernel)]


def _folded(values: NDArray[np.generic], axis: int) -> NDArray[np.generic]:
    """The sum over periods along an axis."""
    shape = values.shape
    return values.reshape(*shape[:axis], len(_PERIODS), -1, *shape[axis + 1 :]).sum(axis)


def _cropped(spectrum: Array, level: int, axis: int) -> Array:
    """The frequencies that remain at each 2^level-th pixel: −m/2 … m/2 − 1."""
    size = spectrum.shape[axis]
    half = size // 2 ** (level + 1)
    return np.take(spectrum, np.r_[:half, size - half : size], axis)

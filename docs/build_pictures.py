"""Draws the pictures of the pages: `python docs/build_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from dperm.gradient.correlation import Once, Workload
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.privacy import Gaussian, PoissonSampled, SelfComposed, calibrate
from dperm.privacy.events import CyclicSampled

matplotlib.use("agg")
import matplotlib.pyplot as plt

PICTURES = Path(__file__).parent / "pictures"
STEPS, SHARE, EPSILON, DELTA = 500, 0.01, 4.0, 1e-5


def correlated_noise() -> None:
    """Noise in one weight: a run of each kind, and its standard deviation, at the same ε."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    generator = np.random.default_rng(4)
    fresh = generator.normal(size=STEPS)
    for bands, colour, name in ((1, "#b2473e", "DP-SGD"), (8, "#c9932e", "8 bands"), (32, "#2f6f9f", "32 bands")):

        def event(noise: float, bands: int = bands) -> SelfComposed:
            if bands == 1:
                return SelfComposed(PoissonSampled(SHARE, Gaussian(noise)), STEPS)
            return SelfComposed(CyclicSampled(bands * SHARE, Gaussian(noise), bands), -(-STEPS // bands))

        strategy = BandedToeplitz(bands, Workload(of="all"))
        noise = calibrate(event, EPSILON, DELTA) * np.sqrt(strategy.squared_sensitivity(Once(bands), STEPS))
        sums = np.cumsum(strategy.inverted(np.eye(1, STEPS)[0], STEPS))  # of a step's fresh noise, in each later iterate
        if bands <= 8:
            left.plot(noise * np.convolve(sums, fresh)[:STEPS], color=colour, lw=1.3)
        right.plot(noise * np.sqrt(np.cumsum(sums**2)), color=colour, lw=1.8, label=name)
    left.set(title="Noise in a weight, in one run", xlabel="step", ylabel="in clipping norms × learning rate")
    right.set(title="Its standard deviation", xlabel="step", ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, STEPS)
    left.axhline(0, color="#999999", lw=0.6)
    figure.savefig(PICTURES / "correlated-noise.png", dpi=110)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    correlated_noise()

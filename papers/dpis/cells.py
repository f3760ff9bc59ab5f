"""A cell of a table: the settings of one training, and its result on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Cell", "load", "save"]

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Cell:
    """One training. What differs from the defaults is its name."""

    dataset: str  # mnist, fashion_mnist, cifar10, imdb
    epsilon: float
    model: str = "tanh"  # tanh, relu: a CNN on pixels, or the RNN on reviews; scattering: a CNN on scattering coefficients
    sampler: str = "poisson"  # or importance
    accounting: str = "rdp"  # rdp: the Rényi accountant, or filter; pld: exact, or the filter by privacy profiles
    bounding: str = "clip"  # or normalise
    batch: float = 512
    epochs: int = 20
    learning_rate: float = 0.5
    optimizer: str = "sgd"  # with momentum 0.9; or adam
    clipping_norm: float = 0.1
    decay: float = 0.0
    k: float = 2.0
    norm_noise: float | None = None  # σ_K ÷ N; None: the library's rule
    worst_case_share: float = 0.8  # a_E
    pass_every: int = 1
    adaptive: bool = False
    ceiling: float = 4.0  # C* ÷ C₁
    scale: float = 1.0  # λ
    seed: int = 0  # of the initial weights; noise and sampling are never seeded
    borrowed: bool = False  # Poisson sampling with the noise that importance sampling had, epoch by epoch: at another ε
    records: int | None = None  # the first so many only, for tests

    @property
    def name(self) -> str:
        """A file name: data set, ε, and every setting that is not the default."""
        parts = [self.dataset, f"epsilon={self.epsilon:g}"]
        for item in fields(self)[2:]:
            value = getattr(self, item.name)
            if value != item.default:
                parts.append(f"{item.name}={value:g}" if isinstance(value, float) else f"{item.name}={value}")
        return ",".join(parts)

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.name}.json"


def load(cell: Cell) -> dict[str, Any] | None:
    """The cell's result, or None where it was not run yet."""
    return json.loads(cell.path.read_text()) if cell.path.exists() else None


def save(cell: Cell, result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    beside = cell.path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"cell": asdict(cell), **result}, indent=1))
    beside.rename(cell.path)  # whole or not at all

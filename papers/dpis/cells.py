"""A cell of a table: the settings of one training, and its result, a line of its data set's file."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock

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
    channel_noise: float = 0.0  # noise multiplier of means and deviations that channels are normalised by; 0: GroupNorm, free
    borrowed: bool = False  # Poisson sampling with the noise that importance sampling had, epoch by epoch: at another ε
    records: int | None = None  # the first so many only, for tests

    @property
    def name(self) -> str:
        """Data set, ε, and every setting that is not the default."""
        parts = [self.dataset, f"epsilon={self.epsilon:g}"]
        for item in fields(self)[2:]:
            value = getattr(self, item.name)
            if value != item.default:
                parts.append(f"{item.name}={value:g}" if isinstance(value, float) else f"{item.name}={value}")
        return ",".join(parts)


def load(cell: Cell) -> dict[str, Any] | None:
    """The cell's result, or None where it was not run yet."""
    path = _path(cell)
    if not path.exists():
        return None
    version = path.stat()
    return _cached(path, (version.st_ino, version.st_mtime_ns, version.st_size)).get(cell)


def save(cell: Cell, result: dict[str, Any]) -> None:
    """Lines are sorted by name, so that a new cell is one new line."""
    path = _path(cell)
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # other processes train other cells
        found = _read(path) if path.exists() else {}
        found[cell] = {**result, "cell": asdict(cell)}
        beside = path.with_suffix(".part")
        beside.write_text("".join(json.dumps(found[each]) + "\n" for each in sorted(found, key=lambda each: each.name)))
        beside.replace(path)  # whole or not at all


def _path(cell: Cell) -> Path:
    return RESULTS / f"{cell.dataset}.jsonl"


@functools.lru_cache(maxsize=8)
def _cached(path: Path, version: tuple[int, ...]) -> dict[Cell, dict[str, Any]]:
    """A file as it was at this version."""
    return _read(path)


def _read(path: Path) -> dict[Cell, dict[str, Any]]:
    results = [json.loads(line) for line in path.read_text().splitlines()]
    return {Cell(**result["cell"]): result for result in results}

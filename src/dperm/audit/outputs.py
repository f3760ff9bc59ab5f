"""What leaves a training: as something to compare, and as numbers to score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_array_api_obj, to_device

from dperm._types import Array
from dperm.release import SpendLog
from dperm.release.ledger import thrown_away

#: (done, in all)
Progress = Callable[[int, int], None]


def one_at_a_time(train: Callable[[Any], Any], progress: Progress | None = None) -> Callable[[Any, int], Array]:
    """`train(data) -> output` of any library, as a function (data, m) → outputs (m, k) for `distinguish`."""

    def outputs(data: Any, trials: int) -> Array:
        rows: list[Array] = []
        with unlogged():
            for done in range(trials):
                rows.append(flat(leaving(train(data))))
                if progress is not None:
                    progress(done + 1, trials)
        if len({len(output) for output in rows}) > 1:
            raise ValueError("Expected a training to return as many numbers every time.")
        return np.stack(rows)

    return outputs


@contextmanager
def unlogged() -> Iterator[SpendLog]:
    """Charges of audits go to a spend log that is thrown away: nothing that they train is released."""
    with thrown_away() as log:
        yield log


def leaving(output: Any) -> list[Any]:
    """Everything in what a training gave, in a fixed order: arrays (float64), and texts and the keys of dicts as they are.

    TypeError for an object that it cannot look into: what cannot be compared cannot be audited.
    """
    if output is None or isinstance(output, str):
        return [output]
    if isinstance(output, dict):
        return [item for name in sorted(output, key=str) for item in (str(name), *leaving(output[name]))]
    if isinstance(output, (list, tuple)):
        return [item for part in output for item in leaving(part)]
    if isinstance(output, (bool, int, float, np.number, np.bool_)):
        return [np.atleast_1d(np.float64(output))]
    if sp.issparse(output):
        return [np.asarray(output.toarray(), dtype=np.float64)]
    if is_array_api_obj(output):
        plain = output if isinstance(output, np.ndarray) else np.asarray(to_device(output, "cpu"))
        return [np.asarray(plain, dtype=np.float64)] if plain.dtype.kind in "fiub" else [str(plain.tolist())]
    raise TypeError(f"Expected a training to return arrays, numbers, texts, or dicts and sequences of them, got {output!r}.")


def flat(items: list[Any]) -> Array:
    """All numbers among `leaving`'s items, one after the other."""
    arrays = [item for item in items if isinstance(item, np.ndarray)]
    if not arrays:
        raise TypeError("Expected a training to return numbers, got none.")
    return np.concatenate([array.ravel() for array in arrays])

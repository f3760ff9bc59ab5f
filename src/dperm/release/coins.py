"""Coins of single records: a toss depends on a secret, on the coin and on the number of the record, and on nothing else."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array

Indices = NDArray[np.intp]

#: A coin of a run: of which draw, and which of its coins.
Coin = tuple[int, int]

#: (m,) numbers in [0, 1), one for each of these records.
Coins = Callable[[Indices, Coin], Array]


def coins_of(generator: np.random.Generator) -> Coins:
    """Coins whose secret is the state that this generator is in: it stays as it is. Processes that draw from one state have the
    same coins, whatever part of a draw they look at."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = hashlib.blake2b(pickle.dumps(generator.bit_generator.state), digest_size=32, person=b"dperm coins").digest()
    cipher = Cipher(algorithms.AES(key), modes.ECB())  # blocks differ, so that they come out as if at random

    def tossed(numbers: Indices, coin: Coin) -> Array:
        draw, which = coin
        blocks = np.empty((len(numbers), 2), dtype="<u8")
        blocks[:, 0], blocks[:, 1] = numbers, (draw << 8) | which
        words = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), dtype="<u8")[::2]
        return (words >> 11).astype(np.float64) * 2.0**-53

    return tossed

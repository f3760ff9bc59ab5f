"""Where every random number comes from: two separate streams, seeded by the operating system.

Noise is a keyed keystream (AES-256 in counter mode) turned into normals by Box and Muller's transform; sampling
draws use a NumPy generator of its own. A fixed seed exists for tests only and marks whatever it makes not private.
The draws are double-precision reals: a keystream does not answer attacks on floating point, and the
certificate says so.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NoiseStream", "Randomness"]

_BLOCK = 1 << 16  # normals made at once: large enough to amortise a call, small enough to stay in cache
_TWO_PI = 2.0 * np.pi


class NoiseStream:
    """Independent standard normals from an AES-CTR keystream. Each draw is handed out once.

    Two 53-bit uniforms make two normals; the largest possible magnitude is √(2·53·ln 2) = 8.57, which a real
    normal exceeds with probability 1e-17 (part of the real-arithmetic assumption on the certificate).
    """

    def __init__(self, key: bytes) -> None:
        # Imported here: accounting commands never draw noise and should not pay for OpenSSL's start-up.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._normals = np.empty(0)
        self._next = 0
        self._zeros = b""

    def raw(self, count: int) -> bytes:
        """`count` fresh bytes of the keystream."""
        return self._cipher.update(bytes(count))

    def fill(self, buffer: Any) -> None:
        """Overwrite `buffer` (bytes), all but its last 15 (the cipher's room to work in), with fresh bytes of the keystream."""
        size = len(buffer) - 15
        if len(self._zeros) != size:
            self._zeros = bytes(size)
        self._cipher.update_into(self._zeros, buffer)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """`count` uniforms on (0, 1], multiples of 2⁻⁵³."""
        raw = np.frombuffer(self.raw(8 * count), dtype=np.uint64)
        return np.asarray((raw >> np.uint64(11)) + np.uint64(1), dtype=np.float64) * 2.0**-53

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """`size` normals, shape (size,); the caller owns the array."""
        end = self._next + size
        if end > self._normals.size:
            self._refill(size)
            end = self._next + size
        drawn = self._normals[self._next : end]
        self._next = end
        return drawn

    def _refill(self, size: int) -> None:
        half = max(_BLOCK, size + 1) // 2
        uniforms = self.uniforms(2 * half)
        radius = np.sqrt(-2.0 * np.log(uniforms[:half]))
        angle = _TWO_PI * uniforms[half:]
        self._normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        self._next = 0

    def gamma(self, shape: int, scale: float) -> float:
        """One Gamma(shape, scale) draw for an integer shape: a sum of exponentials."""
        return float(-scale * np.log(self.uniforms(shape)).sum())

    def laplace(self, scale: float) -> float:
        first, second = np.log(self.uniforms(2))
        return float(scale * (first - second))


class Randomness:
    """The pair of streams of one run: `noise` (secret, never replayed) and `sampling`."""

    def __init__(self, noise: NoiseStream, sampling: np.random.Generator, policy: str, *, private: bool) -> None:
        self.noise = noise
        self.sampling = sampling
        self.policy = policy
        self.private = private

    @classmethod
    def from_system(cls) -> Randomness:
        """Fresh streams from the operating system's generator."""
        sampling = np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(32), "little")))
        policy = "fresh from the operating system for this run; noise: AES-256-CTR keystream; sampling: SFC64"
        return cls(NoiseStream(os.urandom(32)), sampling, policy, private=True)

    @classmethod
    def fixed(cls, seed: Any) -> Randomness:
        """Reproducible streams for tests. Whoever knows the seed can subtract the noise: nothing is private."""
        digest = hashlib.sha256(f"dperm fixed seed {seed!r}".encode()).digest()
        sampling = np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little") ^ 1))
        return cls(NoiseStream(digest), sampling, "fixed by the caller: NOT PRIVATE", private=False)

    @classmethod
    def of(cls, random_state: Any) -> Randomness:
        """`None` → from the system. An int or a NumPy generator → fixed (a generator gives its next integer)."""
        if random_state is None:
            return cls.from_system()
        if isinstance(random_state, np.random.RandomState):
            return cls.fixed(int(random_state.randint(0, 2**31 - 1)))
        if isinstance(random_state, np.random.Generator):
            return cls.fixed(int(random_state.integers(2**62)))
        return cls.fixed(random_state if isinstance(random_state, str) else int(random_state))

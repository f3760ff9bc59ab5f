"""Where every random number comes from: two separate streams, seeded by the operating system.

Noise is a keyed keystream (AES-256 in counter mode), taken for the binary digits of real numbers, and those rounded exactly to
the integers that are released: no low bit of a double gets out. Sampling draws use a NumPy generator of its own. A fixed
seed exists for tests only and marks whatever it makes not private.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._exact import Digits, direction_times_length, failures, largest, normals, rounded, stretched
from dperm._types import Array

Words = NDArray[np.uint64]
_Pairs = list[tuple[Digits, Digits]]

#: How far one of `NoiseStream.standard_normal` may lie from the real normal that it stands for.
NORMAL_ERROR = 2.0**-42
#: The largest scale of rounded numbers: beyond, doubles could not hold them to one unit.
LARGEST_SCALE = 2.0**48

_PAIRS = 1 << 13  # made at once: many enough to amortise a call, few enough to stay in cache
_WORD = np.dtype("<u8")
_HALF_TURN = math.pi * 2.0**-64
# Errors of doubles against the real numbers whose first 64 digits are known. A platform's logarithm, sine, cosine and tangent are
# taken to be right to 8 units in the last place (libraries state 1 to 4, and a test measures it): radius·cosine is then within
# radius·2⁻⁴⁸, and the radius within (2⁻⁵² + 1/k)/radius for the integer k that its 64 digits make.
_FUNCTIONS = 2.0**-48
_DIGITS = 2.0**-52
_ANGLE = 2 * math.pi * 2.0**-64  # what the digits of an angle that are not known may add to it
_USUAL = 2.0**-43  # the largest such error, but for pairs that are set aside
_FEW_DIGITS, _SHORT = 2.0**48, 2.0**-8  # those with less k, or with a shorter radius
# The platform's widest numbers, in which the few that doubles leave in doubt are made again: those of 64 or 113 binary digits. Of
# pairs of doubles, as some platforms have, nobody measured the functions.
_WIDEST: Any = np.longdouble if np.finfo(np.longdouble).nmant in (63, 112) else np.float64
_PI = math.pi, 1.2246467991473532e-16  # as the sum of two doubles


def _wide() -> tuple[Any, float]:
    """The widest numbers that the processor computes with now, for a program may have made them shorter; and a unit in their last
    place, as a part of a double's."""
    shorter = 2.0 ** (52 - int(np.finfo(_WIDEST).nmant))
    if _WIDEST(1.0) + _WIDEST(_DIGITS * shorter) == 1:
        return np.float64, 1.0
    return _WIDEST, shorter


class NoiseStream:
    """Normals, and vectors of density e^{−‖b‖}, as real numbers from an AES-CTR keystream. Each is handed out once.

    Threads may share it. Belongs to the process that made it: RuntimeError in a forked one, whose draws would be the parent's
    again.
    """

    def __init__(self, key: bytes) -> None:
        self._words = _Keystream(key)
        self._further = _Keystream(hashlib.sha256(key + b"further digits").digest())
        self._block = _Block(_PAIRS)
        self._next = 2 * _PAIRS  # nothing is left of it
        self._process = os.getpid()
        self._lock = threading.Lock()

    def standard_normal(self, size: int) -> Array:
        """(size,) doubles, each within `NORMAL_ERROR` of a real normal: of tails as long as a normal has."""
        parts: list[Array] = []
        with self._lock:
            for block, start, stop in self._pieces(size):
                values = block.normals[start:stop].copy()
                for place in np.flatnonzero(np.isnan(values)):
                    scale = 2.0**45
                    values[place] = self._settled(block, start + int(place), scale) / scale
                parts.append(values)
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)])

    def rounded_normal(self, scale: float, size: int) -> Array:
        """(size,) integers, as doubles: exactly independent N(0, scale²), rounded to the nearest."""
        assert 0 < scale <= LARGEST_SCALE
        with self._lock:
            parts = [self._rounded(block, start, stop, scale) for block, start, stop in self._pieces(size)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)])

    def rounded_ball(self, scale: float, size: int, count: int = 1) -> Array:
        """(count, size) integers, as doubles: scale·b rounded to the nearest, each row b of density ∝ e^{−‖b‖}.

        The norm of b is Gamma(size), its direction uniform (Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1); Laplace noise
        where size = 1.
        """
        assert 0 < scale * size <= LARGEST_SCALE
        with self._lock:
            return self._rounded_balls(scale, size, count)

    def rounded_balls(self, scales: Sequence[float], size: int) -> Array:
        """(K, size) integers, as doubles: scales[k]·b_k rounded to the nearest, each b_k of density ∝ e^{−‖b‖}, for scales that
        fall. Each row is the one after it plus a vector that is independent of it and of all that follow.

        The characteristic function of s·b is (1 + s²t²)^{−(p + 1)/2}. That of scale s over that of scale r < s is the generating
        function of a negative binomial number N, of (p + 1)/2 successes of chance ρ = (r/s)², at (1 + r²t²)^{−1}: so the vector
        between them is r√(2·Gamma(N)) times p normals (the gamma law is self-decomposable: Sato 1999, section 15).
        """
        assert 0 < scales[0] * size <= LARGEST_SCALE and all(low <= high for high, low in itertools.pairwise(scales))
        with self._lock:
            self._check_process()
            steps = [self._ball(scales[-1], size)]
            steps += [self._between(low, high, size) for high, low in reversed(list(itertools.pairwise(scales)))]
        values, doubt = np.zeros(size), np.zeros(size)
        rows: list[Array] = []
        for stop, step in enumerate(steps, start=1):
            values, doubt = values + step.values, doubt + step.doubt
            doubt += (np.abs(values) + np.abs(step.values)) * 2.0**-51  # of this sum
            integers = np.rint(values)
            with np.errstate(invalid="ignore"):
                places = np.flatnonzero(~(np.abs(values - integers) < 0.5 - doubt))
            if len(places):
                with self._lock:
                    integers[places] = _rounded_sum(steps[:stop], places.tolist())
            rows.append(_unsigned_zeros(integers))
        return np.array(rows[::-1])

    def chosen(self, scores: Array, scale: float) -> int:
        """The place of the largest of scores (k,) + scale·Gumbel noise: i with probability ∝ e^{scores[i]/scale}, exactly.

        Gumbel noise is −ln E of an exponential E = −ln(1 − w), w uniform: where the noise is large w is small, and known well.
        """
        assert scale > 0 and np.isfinite(scores).all()
        with self._lock:
            self._check_process()
            words = self._words.words(len(scores))
            places = _hopeful(scores, scale, words)
            values, doubt = _with_gumbel(scores[places], scale, words[places])
            lowest = values - doubt
            lowest[~np.isfinite(lowest)] = -np.inf
            contenders = places[~(values + doubt < lowest.max())]
            if len(contenders) == 1:
                return int(contenders[0])
            digits = [Digits(int(words[place]), 64, self._more) for place in contenders]
            return int(contenders[largest(scores[contenders].tolist(), digits, scale)])

    def _rounded_balls(self, scale: float, size: int, count: int) -> Array:
        values, doubt, digits_of = self._balls(scale, size, count)
        integers = np.rint(values)
        with np.errstate(invalid="ignore"):
            clear = (np.abs(values - integers) < 0.5 - doubt).all(axis=1)
        for row in np.flatnonzero(~clear):
            pairs, lengths = digits_of(int(row))
            every = [*lengths, *itertools.chain.from_iterable(pairs)]
            integers[row] = rounded(
                lambda real, pairs=pairs, lengths=lengths: direction_times_length(pairs, lengths, size, real), every, scale
            )
        return _unsigned_zeros(integers)

    def _balls(self, scale: float, size: int, count: int) -> tuple[Array, Array, Callable[[int], tuple[_Pairs, list[Digits]]]]:
        """scale·b (count, size), how far off each number may be (∞: any), and the digits that a row is made of: of its direction,
        and of its length."""
        self._check_process()
        pairs = (size + 1) // 2
        directions = _Block(count * pairs).refill(self._words)
        words = self._words.words(count * size).reshape(count, size)
        direction = _interleaved(directions.normals.reshape(2, count, pairs), size)
        digits = words.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            length = -np.log(digits * 2.0**-64).sum(axis=1)
            norm = np.linalg.norm(direction, axis=1)
            turned = np.sign(direction) if size == 1 else direction / norm[:, None]
            values = scale * length[:, None] * turned
            # how far off a number of the direction, the direction's norm, and the sum of logarithms may be
            part = np.abs(turned)
            astray = 0.0 if size == 1 else (1 + size**0.5 * part) * (_USUAL / norm)[:, None] + part * size * _DIGITS
            doubt = scale * (length[:, None] * (astray + part * 2.0**-48) + part * size * 2.0**-46)
        known = (digits > _FEW_DIGITS).all(axis=1) & (np.abs(direction[:, 0]) > 2 * _USUAL)

        def digits_of(row: int) -> tuple[_Pairs, list[Digits]]:
            own = [directions.digits(row * pairs + pair, self._more) for pair in range(pairs)]
            return own, [Digits(int(word), 64, self._more) for word in words[row]]

        doubt[~known] = np.inf
        return values, doubt, digits_of

    def _ball(self, scale: float, size: int) -> _Part:
        values, doubt, digits_of = self._balls(scale, size, 1)
        pairs, lengths = digits_of(0)

        def exactly(places: Sequence[int], real: Any) -> Mapping[int, Any]:
            return dict(enumerate(direction_times_length(pairs, lengths, size, real)))

        return _Part(values[0], doubt[0], scale, [*lengths, *itertools.chain.from_iterable(pairs)], exactly)

    def _between(self, low: float, high: float, size: int) -> _Part:
        """What lies between the scales `low` and `high`: see `rounded_balls`."""
        count = failures(Digits(int(self._words.words(1)[0]), 64, self._more), size + 1, low, high)
        if not count:
            return _Part(np.zeros(size), np.zeros(size), low, [], lambda places, real: dict.fromkeys(places, real.mpf(0)))
        block = _Block((size + 1) // 2).refill(self._words)
        words = self._words.words(count)
        numbers = words.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma = -np.log(numbers * 2.0**-64).sum()
            spread = np.sqrt(2 * gamma)
            normal = _interleaved(block.normals.reshape(2, 1, -1), size)[0]
            values = low * spread * normal
            astray = (gamma * 2.0**-48 + count * 2.0**-46) / spread + spread * 2.0**-50
            doubt = low * (spread * _USUAL + np.abs(normal) * astray)
        if not (numbers > _FEW_DIGITS).all() or not gamma > _SHORT:
            doubt = np.full(size, np.inf)
        pairs = [block.digits(pair, self._more) for pair in range(len(block))]
        lengths = [Digits(int(word), 64, self._more) for word in words]
        every = [*lengths, *itertools.chain.from_iterable(pairs)]
        return _Part(values, doubt, low, every, lambda places, real: stretched(pairs, lengths, places, real))

    def _pieces(self, size: int) -> Iterator[tuple[_Block, int, int]]:
        """Slices of blocks that hold the next `size` normals."""
        self._check_process()
        while size > 0:
            if self._next == 2 * _PAIRS:
                self._block.refill(self._words)
                self._next = 0
            start = self._next
            stop = self._next = min(start + size, 2 * _PAIRS)
            size -= stop - start
            yield self._block, start, stop

    def _rounded(self, block: _Block, start: int, stop: int, scale: float) -> Array:
        values = block.normals[start:stop] * scale
        integers = np.rint(values)
        values -= integers
        np.abs(values, out=values)
        # |scale·z| < 10·scale: its own rounding is below scale·2⁻⁴⁹
        if not values.max() < 0.5 - scale * 2 * _USUAL:  # also where a pair was set aside
            doubtful = np.flatnonzero(~(values < 0.5 - scale * 2 * _USUAL))
            better, errors = block.found(start + doubtful)
            better *= scale
            integers[doubtful] = np.rint(better)
            better -= integers[doubtful]
            for place in doubtful[~(np.abs(better) < 0.5 - scale * errors)]:
                integers[place] = self._settled(block, start + int(place), scale)
        return _unsigned_zeros(integers)

    def _settled(self, block: _Block, place: int, scale: float) -> int:
        """The integer nearest to scale times the normal at `place`, from as many digits as it takes."""
        pair = block.digits(place % len(block), self._more)
        return rounded(lambda real: (normals(*pair, real)[place // len(block)],), pair, scale)[0]

    def _more(self, bits: int) -> int:
        return int.from_bytes(self._further.bytes(bits // 8), "little")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("This process was forked from one that holds the same noise: open a source of noise of its own.")


@dataclass(frozen=True)
class _Part:
    """scale times a vector of real numbers: doubles, each as near as `doubt` says (nan and ∞: nothing is known), the digits
    that it is made of, and the numbers at some places from these, exactly and without the scale."""

    values: Array
    doubt: Array
    scale: float
    digits: list[Digits]
    exactly: Callable[[Sequence[int], Any], Mapping[int, Any]]


def _rounded_sum(parts: Sequence[_Part], places: Sequence[int]) -> list[int]:
    """The integers nearest to the parts' sum at these places."""

    def total(real: Any) -> list[Any]:
        exact = [(part.exactly(places, real), real.mpf(part.scale)) for part in parts]
        return [sum((numbers[place] * scale for numbers, scale in exact), real.mpf(0)) for place in places]

    return rounded(total, [item for part in parts for item in part.digits], 1.0)


def _with_gumbel(scores: Array, scale: float, words: Words) -> tuple[Array, Array]:
    """scores/scale + noise of uniform numbers with these first 64 digits, and how far off each may be: not a number where
    nothing is known."""
    numbers = words.astype(np.float64)
    with np.errstate(all="ignore"):
        uniform = numbers * 2.0**-64
        exponential = -np.log1p(-uniform)
        values = scores / scale - np.log(exponential)
        # of the digits that are not known yet; of 1 − w, which has few where w is near 1; of functions and sums
        doubt = 1 / numbers + 2.0**-52 / ((1 - uniform) * exponential)
        doubt += 2.0**-46 + (np.abs(values) + np.abs(scores / scale)) * 2.0**-50
    return values, doubt


def _hopeful(scores: Array, scale: float, words: Words) -> NDArray[np.intp]:
    """Places among which the largest score with noise is, mostly few. An exponential E = −ln(1 − w) is no less than w, so that
    only where w ≤ e^{largest score/scale − v} can the noise reach a value v that is known to be there."""
    highest = scores.argmax()
    values, doubt = _with_gumbel(*(scores[[words.argmin(), highest]], scale, words[[words.argmin(), highest]]))
    known = values[doubt < 0.01]
    if not len(known):
        return np.arange(len(scores))
    reached = float(known.max()) - 0.02
    most = scores[highest] / scale - reached
    hopeful = scores / scale > reached - 45  # −ln of the least number that 64 digits are
    if most < 0:
        hopeful &= words <= np.uint64(math.exp(most) * 2.0**64)
    hopeful[words == 0] = True
    return np.flatnonzero(hopeful)


def _unsigned_zeros(integers: Array) -> Array:
    """0 in place of −0, in place: with a query that was rounded to −0 it would stay one, and tell which side both were of."""
    integers += 0.0
    return integers


def _interleaved(pairs: Array, size: int) -> Array:
    """(count, size) numbers of (2, count, pairs): both of the first pair, both of the second, and so on."""
    return np.stack([pairs[0], pairs[1]], axis=-1).reshape(pairs.shape[1], -1)[:, :size]


class _Keystream:
    """Fresh bytes of AES-256 in counter mode."""

    def __init__(self, key: bytes) -> None:
        # Imported here: accounting commands never draw noise and should not pay for OpenSSL's start-up.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._zeros = b""

    def bytes(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))

    def words(self, count: int) -> Words:
        """(count,) uniform 64-bit integers."""
        return np.frombuffer(self.bytes(8 * count), dtype=_WORD)

    def fill(self, buffer: bytearray) -> None:
        """Fresh bytes in all of `buffer` but its last 15, which the cipher needs to work in."""
        if len(self._zeros) != len(buffer) - 15:
            self._zeros = bytes(len(buffer) - 15)
        self._cipher.update_into(self._zeros, buffer)


class _Block:
    """Pairs of normals, each of two uniform numbers whose first 64 binary digits are `first` and `second` (pairs,).

    `normals` (2·pairs,): the pairs' cosines, then their sines, each within 2⁻⁴³ of the real number; nan where they may not be.
    Its memory is used again: large arrays cost more to ask for than to fill.
    """

    def __init__(self, pairs: int) -> None:
        self._raw = bytearray(16 * pairs + 15)
        self._words: Words = np.frombuffer(self._raw, _WORD, 2 * pairs).reshape(2, pairs)
        self._digits: dict[int, tuple[Digits, Digits]] = {}
        self._work = np.empty((2, pairs))
        self.normals = np.empty(2 * pairs)

    def __len__(self) -> int:
        return self._words.shape[1]

    def refill(self, stream: _Keystream) -> _Block:
        stream.fill(self._raw)
        self._digits.clear()
        numbers, radius = self._work
        np.copyto(numbers, self._words[0])  # to the nearest double
        usual = numbers >= _FEW_DIGITS
        numbers *= 2.0**-64
        with np.errstate(divide="ignore"):
            np.log(numbers, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        usual &= radius >= _SHORT
        if not usual.all():
            radius[~usual] = np.nan
        # cos 2a = (1 − t²)/(1 + t²) and sin 2a = 2t/(1 + t²) for t = tan a: one function in place of two
        cosine, sine = self.normals.reshape(2, -1)
        np.copyto(sine, self._words[1])
        sine *= _HALF_TURN
        np.tan(sine, out=sine)
        np.multiply(sine, sine, out=cosine)
        np.add(cosine, 1.0, out=numbers)
        np.divide(radius, numbers, out=radius)
        np.subtract(1.0, cosine, out=cosine)
        cosine *= radius
        sine *= radius
        sine *= 2.0
        return self

    def found(self, places: NDArray[np.intp]) -> tuple[Any, Any]:
        """Those of `normals` at `places` in the platform's widest numbers, and how far each real number may be from it, also
        after it was multiplied: ∞ where that is not known."""
        pairs = places % len(self)
        wide, shorter = _wide()
        numbers = self._words[0, pairs].astype(wide)
        turn = (wide(_PI[0]) + wide(_PI[1])) * wide(2.0**-63)
        with np.errstate(divide="ignore", invalid="ignore"):
            radius = np.sqrt(-2 * np.log(numbers * wide(2.0**-64)))
            angle = turn * self._words[1, pairs].astype(wide)
            values = radius * np.where(places < len(self), np.cos(angle), np.sin(angle))
            errors = radius * (2 * _FUNCTIONS * shorter + _ANGLE) + (_DIGITS * shorter + 1 / numbers) / radius
        unknown = ~np.isfinite(errors)  # numbers of 0 and, in doubles, of 1
        return np.where(unknown, 0.0, values), np.where(unknown, np.inf, errors)

    def digits(self, pair: int, more: Callable[[int], int]) -> tuple[Digits, Digits]:
        """Both uniform numbers of a pair. Kept: its other normal is made of the same."""
        if pair not in self._digits:
            first, second = (Digits(int(word), 64, more) for word in self._words[:, pair])
            self._digits[pair] = first, second
        return self._digits[pair]


@dataclass(frozen=True, eq=False)
class Randomness:
    """The pair of streams of one run: `noise` (secret, never replayed) and `sampling`. `seeded` says how, in words."""

    noise: NoiseStream
    sampling: np.random.Generator
    seeded: str
    private: bool = field(kw_only=True)

    @classmethod
    def from_system(cls) -> Randomness:
        """Fresh streams from the operating system's generator."""
        sampling = np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(32), "little")))
        seeded = "fresh from the operating system for this run; noise: AES-256-CTR keystream; sampling: SFC64"
        return cls(NoiseStream(os.urandom(32)), sampling, seeded, private=True)

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

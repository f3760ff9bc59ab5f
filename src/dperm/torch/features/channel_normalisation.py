"""Private normalisation of channels: means and standard deviations of the data set, released once with noise.

Features whose channels have mean zero and unit variance train in fewer steps, which is worth its price in privacy (Tramèr and
Boneh 2021, "Differentially private learning needs better features", on data normalisation). Their other way needs no statistics
and costs nothing: each record normalised by itself, by `torch.nn.GroupNorm` over groups of channels, 27 for the 81 of
`Scattering2D`, as the first layer: `GroupNorm(27, 81, affine=False)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dperm import _validate as check
from dperm._remind import remind_of_delta, remind_of_size
from dperm.privacy import Assumption, Certificate, Gaussian, Provenance, Relation
from dperm.privacy.certificates import assumptions as statements
from dperm.release import GaussianNoise
from dperm.torch.ranks import RankError, Ranks
from dperm.torch.ranks.tensor_noise import open_channel, told_of

_AT_ONCE = 1024  # records in double precision
# A record's weight in the count ÷ clipping_norm: sensitivity grows by 3 %, and the count's noise is 4.1 times the multiplier.
_COUNT_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Means and standard deviations (K,) of channels, over records and places, as far as noise and clipping let them be known.

    `size` is the number of records that they were divided by: public, or noisy. `certificate` says what they cost, which adds to
    what a training costs: compose the two events.
    """

    mean: Tensor
    std: Tensor
    size: float
    certificate: Certificate

    def normalise(self, features: Tensor) -> Tensor:
        """(features − mean) ÷ std, for features (…, K, h, w), in their type and on their device."""
        if features.ndim < 3 or features.shape[-3] != len(self.mean):
            raise ValueError(f"Expected features (…, {len(self.mean)}, h, w), got {tuple(features.shape)}.")
        mean, std = (values.to(features)[:, None, None] for values in (self.mean, self.std))
        return (features - mean) / std


def private_channel_statistics(
    features: Tensor,
    *,
    noise_multiplier: float,
    delta: float,
    scale: float | Tensor,
    clipping_norm: float | None = None,
    floor: float = 0.1,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    public_size: int | None = None,
    label: str = "",
    random_state: Any = None,
) -> ChannelStatistics:
    """Means and standard deviations of the channels of `features` (n, K, h, w), by one release of noisy sums.

    A record's part in the sums is its means over places of x/scale and of (x/scale)², 2·K numbers scaled down to an L2 norm of
    at most `clipping_norm`; a record with non-finite numbers has none. The noise on a channel's mean is then about
    noise_multiplier · clipping_norm · scale ÷ n.

    noise_multiplier : noise standard deviation ÷ sensitivity. With 8, 60,000 records and 81 channels, means err by 1 to 3 % of a
        standard deviation; it costs epsilon = 0.43 at delta = 1e-5.
    scale : typical root mean squares of the channels, one number or (K,): public, for example `scattering_scale()`. Where
        channels differ much, one number for all leaves the small ones to the noise.
    clipping_norm : None: 3·√K. A record as large as `scale` everywhere has at most √(2K).
    floor : the least standard deviation ÷ scale. It never falls below the noise on the variance either.
    relation : "add_or_remove_one" or "replace_one"; the relation of the training to come.
    public_size : publicly known number of records. None under add/remove: a noisy count is part of the release.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    Raises ValueError or TypeError for anything unusable before anything is charged.
    """
    records, channels = _size_of(features)
    units = _units(scale, channels).to(features.device)
    relation = Relation(relation)
    size = _size(public_size, records, relation)
    if size is not None:
        remind_of_delta(check.fraction("delta", delta), size, stacklevel=2)
    moments = _ClippedMoments(
        check.positive("clipping_norm", 3 * math.sqrt(channels) if clipping_norm is None else clipping_norm), counted=size is None
    )
    sensitivity = moments.sensitivity(relation)
    floor = check.positive("floor", floor)
    event = Gaussian(check.positive("noise_multiplier", noise_multiplier), relation)
    channel = open_channel(random_state, features.device, label=label)
    facts = {"channels": channels, "scale": units.tolist(), "clipping_norm": moments.clipping_norm, "floor": floor}
    certificate = _certificate(event, check.fraction("delta", delta), moments, size, facts, channel.provenance)
    query = moments.total(features, units)
    asked = {"event": event, "relation": relation, "label": label, "random_state": told_of(random_state)}
    _refuse_others(query, {**certificate.public_facts, **asked})
    channel.charge(event, certificate.mechanism)
    noise_std = event.noise_multiplier * sensitivity
    sums = channel.release(query, GaussianNoise(sensitivity, event.noise_multiplier))
    if size is None:
        size = max(1.0, float(sums[-1]) / moments.count_weight)
    mean, square = sums[:channels] / size, sums[channels : 2 * channels] / size
    variance = (square - mean.square()).clamp_min(max(floor**2, noise_std / size))
    return ChannelStatistics(mean * units, variance.sqrt() * units, float(size), certificate)


def _size_of(features: Tensor) -> tuple[int, int]:
    """How many records and channels there are."""
    if not features.is_floating_point():
        raise TypeError(f"Expected features of floating-point numbers, got {features.dtype}.")
    if features.ndim != 4 or 0 in features.shape[1:]:
        raise ValueError(f"Expected features (n, K, h, w), got {tuple(features.shape)}.")
    return features.shape[0], features.shape[1]


def _certificate(
    event: Gaussian, delta: float, moments: _ClippedMoments, size: int | None, facts: dict[str, Any], provenance: Provenance
) -> Certificate:
    return Certificate.issue(
        mechanism="normalisation of channels",
        event=event,
        delta=delta,
        paper="Tramèr and Boneh 2021; Gaussian noise: Balle and Wang 2018",
        assumptions=_assumptions(moments, size if event.relation is Relation.ADD_OR_REMOVE_ONE else None),
        public_facts={**facts, "public_size": size},
        not_charged=_NOT_CHARGED,
        provenance=provenance,
    )


def _refuse_others(query: Tensor, settings: dict[str, Any]) -> None:
    """RankError, on every rank of a run, where they do not ask for the same of the same features: one of them is answered."""
    ranks = Ranks.here()
    ranks.same(settings)
    everyone = ranks.gathered(query.cpu())
    if not all(torch.allclose(sums, everyone[0], rtol=1e-9) for sums in everyone):
        raise RankError("Expected the same features on every rank: the statistics are of one set.")


@dataclass(frozen=True)
class _ClippedMoments:
    """Sums of vectors no longer than `clipping_norm`, with a count of records where their number is private."""

    clipping_norm: float
    counted: bool

    @property
    def count_weight(self) -> float:
        return _COUNT_SHARE * self.clipping_norm

    def sensitivity(self, relation: Relation) -> float:
        """L2 sensitivity of `total`. Under replace-one there is nothing to count."""
        if relation is Relation.REPLACE_ONE:
            return 2 * self.clipping_norm
        return math.hypot(self.clipping_norm, self.count_weight) if self.counted else self.clipping_norm

    @torch.no_grad()
    def total(self, features: Tensor, units: Tensor) -> Tensor:
        """(2·K,), or (2·K + 1,) with the count, in double precision."""
        channels = len(units)
        sums = torch.zeros(2 * channels + self.counted, dtype=torch.float64, device=features.device)
        for start in range(0, len(features), _AT_ONCE):
            scaled = features[start : start + _AT_ONCE].double() / units[:, None, None]
            vectors = torch.cat([scaled.mean((2, 3)), scaled.square().mean((2, 3))], dim=1)
            norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
            usable = norms.isfinite()  # chosen, not multiplied by zero: 0 · nan is nan
            sums[: 2 * channels] += torch.where(usable, vectors * (self.clipping_norm / norms).clamp_max(1.0), 0.0).sum(0)
            if self.counted:
                sums[-1] += self.count_weight * usable.sum(dtype=torch.float64)
        return sums


def _units(scale: float | Tensor, channels: int) -> Tensor:
    """(K,) in double precision."""
    units = torch.as_tensor(scale, dtype=torch.float64)
    if units.ndim and units.shape != (channels,):
        raise ValueError(f"Expected scale to be a number or of shape ({channels},), got {tuple(units.shape)}.")
    if not bool((units.isfinite() & (units > 0)).all()):
        raise ValueError(f"Expected scale > 0 and finite, got {scale!r}.")
    return units.expand(channels)


def _size(public_size: int | None, records: int, relation: Relation) -> int | None:
    """The public number of records, if there is one."""
    size = None if public_size is None else check.integer("public_size", public_size)
    if relation is Relation.REPLACE_ONE:
        if size not in (None, records):
            raise ValueError(f"Expected public_size={records}, the number of records, under replace-one, got {size}.")
        if not records:
            raise ValueError("Expected at least one record under replace-one.")
        return records
    if size is not None:
        remind_of_size(size, records, "means will be that much off.", stacklevel=3)
    return size


def _assumptions(moments: _ClippedMoments, stated_size: int | None) -> list[Assumption]:
    assumptions = [statements.ONE_RECORD, statements.FEATURES_APART, statements.moments_norm(moments.clipping_norm)]
    return assumptions if stated_size is None else [*assumptions, statements.known_size(stated_size)]


_NOT_CHARGED = (statements.settings("scale", "clipping norm", "features"), statements.INPUT_CHECKS)

"""Noise for tensors: the keyed keystream's, but on CUDA devices, which use their own counter-based generator."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dperm._random import Randomness
from dperm.privacy import Event, Provenance
from dperm.privacy.events import chosen_on_the_way, released_leaves
from dperm.release import Channel, Noise, Source, SystemSource
from dperm.release.source import in_earnest, provenance_of
from dperm.torch.ranks import LogOfFirst, Ranks, RankSource, Shards, ShardSource

_ENDS = 8.57  # standard deviations, where normals made of 53 bits end
_STEPS, _NOISE = 100_000, 0.5  # of runs that choose theirs on the way: more steps and less noise than are usual
_SHARE = 1e-2  # of δ: what ends of tails may cost

_BLOCK = 1 << 14  # numbers at once, so that what is made of them on the way stays in cache
_DEVICE_BLOCK = 1 << 23  # the same on a device, whose double precision would take several times a query's memory otherwise
_SEEDED = "; noise on {}: the device's generator, seeded with 63 bits by the operating system"
_DEVICE_NOISE = (
    "Noise is rounded to a public grid of powers of two, and added there: a query's low bits are gone. It is made of the normals "
    "of the {} generator, in double precision, which are taken for normals: their tails end at 8.57 standard deviations, and "
    "their own low bits are not examined."
)


@in_earnest
class TorchSource(SystemSource):
    """Adds noise to tensors, in their type and memory; everything else is the system source's."""

    def __init__(self, randomness: Randomness, device: torch.device) -> None:
        super().__init__(randomness)
        self._device = device
        self._generator: torch.Generator | None = None
        if device.type == "cuda":
            self._generator = torch.Generator(device)
            words = None if randomness.private else randomness.noise.standard_normal(2)
            seed = int.from_bytes(os.urandom(8), "little") >> 1 if words is None else int(abs(words[0]) * 2**48)
            self._generator.manual_seed(seed)

    @property
    def provenance(self) -> Provenance:
        provenance = super().provenance
        if self._generator is None:
            return provenance
        kind = self._device.type
        return Provenance(provenance.seeded + _SEEDED.format(kind), _DEVICE_NOISE.format(kind), provenance.private)

    def noisy(self, query: Any, noise: Noise) -> Any:
        """Tensors get their noise in place: a step's query has no other use."""
        if not isinstance(query, Tensor):
            return super().noisy(query, noise)
        if noise.kind != "gaussian":
            raise NotImplementedError(f"Expected Gaussian noise for a tensor, got {type(noise).__name__}.")
        scale, step = noise.level / noise.step, noise.step
        if self._generator is not None:
            for part in query.detach().view(-1).split(_DEVICE_BLOCK):
                normal = torch.randn(part.shape, generator=self._generator, dtype=torch.float64, device=part.device)
                normal.mul_(scale).round_().add_(part.double().div_(step).round_()).mul_(step)
                part.copy_(normal)
            return query
        held = query.detach().cpu()  # the same memory, where it is on the CPU
        flat = held.view(-1).numpy()
        for start in range(0, len(flat), _BLOCK):
            part = flat[start : start + _BLOCK]
            normal = self.randomness.noise.rounded_normal(scale, len(part))
            wide = part.astype(np.float64)
            wide /= step
            normal += np.rint(wide, out=wide)
            normal *= step
            part[...] = normal
        return query if held.data_ptr() == query.data_ptr() else query.copy_(held)


def admit_tails(event: Event, size: int, delta: float, device: torch.device) -> None:
    """ValueError where normals that end early may cost a hundredth of δ, in `size` coordinates and all releases of the event.

    A record moves coordinate i of a release by Δᵢ, ‖Δ‖ the sensitivity. What one side can reach and the other cannot has a
    probability of at most Σᵢ 2φ(8.57)·Δᵢ/σ ≤ 2φ(8.57)·√size/noise_multiplier. Noise made on the CPU has whole tails.
    """
    if device.type != "cuda":
        return
    steps = 0.0
    for leaf, count in released_leaves(event).items():
        paid = leaf.pays_for
        if paid is not None and paid.kind == "gaussian":
            steps += count * leaf.releases / paid.noise
        elif chosen_on_the_way(leaf):
            steps += _STEPS / _NOISE
    lost = steps * math.sqrt(size) * 2 * math.exp(-(_ENDS**2) / 2) / math.sqrt(2 * math.pi)
    if lost > _SHARE * delta:
        raise ValueError(
            f"Expected delta >= {lost / _SHARE:.2g} on a CUDA device, whose normals end at {_ENDS} standard deviations, got "
            f"{delta:g}: train on the CPU."
        )


def open_channel(random_state: Any, device: torch.device, *, label: str = "", shards: Shards | None = None) -> Channel:
    """A channel whose noise is made for `device`; a fixed `random_state`, or an audit's source, makes the run not private. Where
    a run has several ranks, it is one for all; with `shards`, each has numbers of its own."""
    ranks = Ranks.here()
    audit = random_state if isinstance(random_state, Source) else None
    randomness = Randomness.of(None if audit else random_state)
    own = TorchSource(randomness, device)
    if ranks.size == 1:
        return Channel.audited(audit, own, label=label) if audit else Channel(own, label=label)
    given = audit.over(own) if audit else own, ranks, randomness.sampling
    source = RankSource(*given) if shards is None else ShardSource(*given, shards)
    channel = Channel(source, log=LogOfFirst(ranks), label=label)
    if audit:
        channel.provenance = Provenance.audit()
    return channel


def told_of(random_state: Any) -> Any:
    """What the ranks of a run compare of their random states: those with private noise and those without wait for each other in
    other ways, for ever."""
    return (type(random_state), provenance_of(random_state)) if isinstance(random_state, Source) else repr(random_state)

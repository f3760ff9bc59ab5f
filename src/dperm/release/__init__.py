"""The release channel, through which every noisy value leaves, with its noise, its randomness and its spend log.

A `Channel` writes the charge to the spend log first and refuses any release that the charge does not cover. Mechanisms call
`Channel.release` with a `Noise` of this package; channels and noises that dperm did not write are refused. To add a kind of
noise, add a class in `noise.py` with its event and proof.
"""

from dperm.release.channel import Channel, UnpaidReleaseError
from dperm.release.ledger import SpendLog, spend_log
from dperm.release.noise import (
    CountNoise,
    ExponentialChoice,
    FallingNoise,
    GaussianNoise,
    HiddenNoise,
    LastIterateNoise,
    Noise,
    ObjectiveNoise,
    PureNoise,
    ThresholdNoise,
)
from dperm.release.selection import best_of_tries
from dperm.release.source import Source, SystemSource

__all__ = [
    "Channel",
    "CountNoise",
    "ExponentialChoice",
    "FallingNoise",
    "GaussianNoise",
    "HiddenNoise",
    "LastIterateNoise",
    "Noise",
    "ObjectiveNoise",
    "PureNoise",
    "Source",
    "SpendLog",
    "SystemSource",
    "ThresholdNoise",
    "UnpaidReleaseError",
    "best_of_tries",
    "spend_log",
]

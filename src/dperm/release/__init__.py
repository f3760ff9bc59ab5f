"""The release channel: the one door through which a noisy value leaves, the log that it is charged to, the noise behind it."""

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

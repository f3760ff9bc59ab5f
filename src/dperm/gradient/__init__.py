"""Gradient perturbation: samplers, bounding, noise, updates, the plan that binds them, and the one loop."""

from dperm.gradient.bounding import AdaptiveClip, Bounding, Clip, Normalise, PerLayer
from dperm.gradient.loop import NoisyGradients, descend
from dperm.gradient.noise import Constant, ExponentialDecay, NoiseSchedule
from dperm.gradient.plan import Plan
from dperm.gradient.post import Identity, Post
from dperm.gradient.sampling import FullBatch, Poisson, Sampler
from dperm.gradient.update import SGD, Adam, Averaged, ExponentialAverage, Update

__all__ = [
    "SGD",
    "Adam",
    "AdaptiveClip",
    "Averaged",
    "Bounding",
    "Clip",
    "Constant",
    "ExponentialAverage",
    "ExponentialDecay",
    "FullBatch",
    "Identity",
    "NoiseSchedule",
    "NoisyGradients",
    "Normalise",
    "PerLayer",
    "Plan",
    "Poisson",
    "Post",
    "Sampler",
    "Update",
    "descend",
]

"""Gradient perturbation: samplers, bounding, noise, updates, the plan that binds them, and the one loop."""

from dperm.gradient.bounding import Bounding, Clip, Normalise
from dperm.gradient.loop import descend
from dperm.gradient.noise import Constant, ExponentialDecay, NoiseSchedule
from dperm.gradient.plan import Plan
from dperm.gradient.post import Identity, Post
from dperm.gradient.sampling import FullBatch, Poisson, Sampler
from dperm.gradient.update import SGD, Adam, Averaged, Update

__all__ = [
    "SGD",
    "Adam",
    "Averaged",
    "Bounding",
    "Clip",
    "Constant",
    "ExponentialDecay",
    "FullBatch",
    "Identity",
    "NoiseSchedule",
    "Normalise",
    "Plan",
    "Poisson",
    "Post",
    "Sampler",
    "Update",
    "descend",
]

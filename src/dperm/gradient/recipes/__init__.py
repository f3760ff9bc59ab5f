"""Published algorithms, each one short composition that returns a plan."""

from dperm.gradient.recipes.dp_sgd import dp_sgd
from dperm.gradient.recipes.dpis import dpis
from dperm.gradient.recipes.full_batch import full_batch_descent

__all__ = ["dp_sgd", "dpis", "full_batch_descent"]

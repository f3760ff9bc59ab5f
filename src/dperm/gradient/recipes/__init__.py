"""Published algorithms, each one short composition that returns a policy."""

from dperm.gradient.recipes.dp_sgd import dp_sgd, small_scale
from dperm.gradient.recipes.dpis import dpis
from dperm.gradient.recipes.full_batch import full_batch_descent
from dperm.gradient.recipes.individual import individual_descent
from dperm.gradient.recipes.recipe import budgeted_recipe, recipe

__all__ = ["budgeted_recipe", "dp_sgd", "dpis", "full_batch_descent", "individual_descent", "recipe", "small_scale"]

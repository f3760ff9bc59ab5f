"""Recipes: functions that compose a published algorithm into a policy, such as `dp_sgd`.

A recipe is decorated with `@recipe` if it receives a noise multiplier, or with `@budgeted_recipe` if it adapts its noise and
receives the budget (ε, δ). Recipes here are certified; algorithms whose published guarantee is incorrect are in
`dperm.published`.
"""

from dperm.gradient.recipes.dp_fedavg import dp_fedavg
from dperm.gradient.recipes.dp_sgd import dp_sgd, small_scale
from dperm.gradient.recipes.dpis import dpis
from dperm.gradient.recipes.full_batch import full_batch_descent
from dperm.gradient.recipes.individual import individual_descent
from dperm.gradient.recipes.recipe import budgeted_recipe, recipe

__all__ = ["budgeted_recipe", "dp_fedavg", "dp_sgd", "dpis", "full_batch_descent", "individual_descent", "recipe", "small_scale"]

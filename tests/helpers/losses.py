"""The library's losses, found by walking: what is tested of all of them is tested of a new one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import dperm.objectives
from dperm._family import members
from dperm.objectives import Logistic, Loss
from helpers.examples import by_names

__all__ = ["all_losses", "every_loss", "labelled", "one_output", "smooth", "unweighted"]

#: what fields are set to, by name, where a loss has no defaults or others than tests want
_VALUES: dict[str, Any] = {"classes": 3, "base": Logistic(), "target_bound": 10.0, "radius": 2.0, "quantile": 0.9}


def all_losses() -> list[Loss]:
    """One of each kind, by name."""
    for module in pkgutil.iter_modules(dperm.objectives.__path__):
        import_module(f"{dperm.objectives.__name__}.{module.name}")
    kinds = sorted(members(Loss), key=lambda kind: kind.__name__)
    return [by_names(kind, _VALUES, "tests/helpers/losses.py") for kind in kinds]


def every_loss(*chosen: Loss, of: Callable[[Loss], bool] = lambda loss: True) -> list[Loss]:
    """The chosen losses, and one of each other kind that a test is `of`."""
    there = {type(loss) for loss in chosen}
    return [*chosen, *(loss for loss in all_losses() if type(loss) not in there and of(loss))]


def one_output(loss: Loss) -> bool:
    return loss.outputs == 1


def smooth(loss: Loss) -> bool:
    """Of one output, and with a curvature: what minimisers are found of."""
    return one_output(loss) and bool(np.isfinite(loss.smoothness(1.0)))


def unweighted(loss: Loss) -> bool:
    return not loss.weighs


def labelled(loss: Loss, signs: Any) -> Any:
    """Targets that the loss takes: its extremes where signs are 1 and where they are −1."""
    return np.where(np.asarray(signs) > 0, *loss.targets.extremes)

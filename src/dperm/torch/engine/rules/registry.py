"""Which rule stands for which function of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dperm.torch.engine.tracing import RULES

#: rule(run, *args, **kwargs) → what the function returns, tapped; NotImplemented where the rule does not fit these arguments
Rule = Callable[..., Any]


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """The decorated rule stands for these functions of torch wherever they are given a parameter."""

    def keep(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return keep

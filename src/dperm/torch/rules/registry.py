"""Which rule stands for which layer, and which layers no rule can stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.tape import CallLayout

__all__ = [
    "Rule",
    "detached",
    "reason_to_refuse",
    "records_first",
    "register",
    "register_named",
    "rule_of",
    "trainable",
    "weight_by_hook",
]

#: rule(module, call, *args, **kwargs) → what module(*args, **kwargs) returns, tapped
Rule = Callable[..., Any]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

#: Whether a rule can take a module (where None stands for the layout), and a call of it with this layout.
Fits = Callable[[Any, CallLayout | None], bool]

_RULES: dict[Any, tuple[Rule, Fits]] = {}


def register(*kinds: type[nn.Module], fits: Fits = lambda module, layout: True) -> Callable[[Rule], Rule]:
    """The decorated rule stands for the `forward` of these classes, on the modules and calls for which `fits` holds."""

    def keep(rule: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind.forward] = (rule, fits)
        return rule

    return keep


def register_named(*names: str, fits: Fits = lambda module, layout: True) -> Callable[[Rule], Rule]:
    """The same for classes of libraries that need not be installed, by module and name. That such a class is what the rule takes
    it for is checked, as for all rules, when a model's gradients are compared with autograd's."""

    def keep(rule: Rule) -> Rule:
        for name in names:
            _RULES[f"{name}.forward"] = (rule, fits)
        return rule

    return keep


def weight_by_hook(module: nn.Module) -> bool:
    """Whether its weight is made of other parameters at every call, as by `torch.nn.utils.spectral_norm`."""
    return isinstance(vars(module).get("weight"), Tensor)


def rule_of(module: nn.Module, layouts: Sequence[CallLayout] = ()) -> Rule | None:
    """The rule for `module` and these calls of it, or None where there is none or its forward or parameters are not the
    class's own."""
    if "forward" in vars(module) or hasattr(module, "parametrizations") or weight_by_hook(module):
        return None
    forward: Any = type(module).forward
    named = f"{forward.__module__}.{forward.__qualname__}" if hasattr(forward, "__qualname__") else ""
    rule, fits = _RULES.get(forward) or _RULES.get(named) or (None, lambda module, layout: False)
    return rule if all(fits(module, layout) for layout in (None, *layouts)) else None


def records_first(module: Any, layout: CallLayout | None) -> bool:
    """For rules of layers that take (records, channels, ...)."""
    return layout is None or (layout.arguments[0] is not None and layout.arguments[0].dim == 0)


def trainable(*parameters: Tensor | None) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if isinstance(parameter, nn.Parameter) and parameter.requires_grad]


def detached(parameter: Tensor | None) -> Any:
    """The parameter as a constant of the graph; a frozen one as it is."""
    return None if parameter is None else parameter.detach() if parameter.requires_grad else parameter


def reason_to_refuse(module: nn.Module) -> str | None:
    """Why `module` has no per-example gradient, in words for its user; None where it may have one."""
    if type(module).__name__ == "OptimizedModule":
        return "a compiled model cannot be looked into: pass the model that was given to torch.compile"
    if isinstance(module, torch.jit.ScriptModule):
        return "a traced or scripted model cannot be looked into: pass the model that it was made of"
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "it adds up raw gradients: pass the model inside it (.module); a run by torchrun is parallel as it is"
    if isinstance(module, _BATCH_NORMS) and (module.training or not module.track_running_stats):
        return (
            "batch normalisation mixes the records of a batch: replace it by nn.GroupNorm, or keep it in eval mode with "
            "statistics from public data"
        )
    if (
        isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d))
        and module.track_running_stats
        and module.training
    ):
        return "its running statistics leave the run without noise: use track_running_stats=False"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "max_norm rescales rows in place, depending on which records come together: clip the rows afterwards"
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters(recurse=False)):
        return "its parameters have no shape yet: run the model once on public input first"
    return None

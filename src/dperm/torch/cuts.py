"""Where a model is cut into pieces whose per-example gradients are found one by one: by a rule, under vmap, or record by record.

The first cut is as fine as it can be: the outermost modules that own parameters. A piece that fails under vmap is run record by
record; where something between the pieces fails, or uses a parameter of one of them, the module around it becomes one piece. The
last cut is the whole model, record by record, which is what a per-example gradient is by definition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dperm.torch.rules import fallback, record_by_record, rule_of, weight_by_hook
from dperm.torch.tape import CallLayout

__all__ = ["Cut", "Owned", "calls_watched"]

Owned = tuple[nn.Module, str, nn.Parameter]


@dataclass(frozen=True)
class Cut:
    """`pieces`: modules that a rule or a fallback stands for. `copied`: parameters of shape (1, ...), such as class tokens and
    positions, that modules with children use themselves: one copy per record. `single`: pieces that run record by record."""

    model: nn.Module
    pieces: tuple[nn.Module, ...]
    copied: tuple[Owned, ...] = ()
    single: frozenset[nn.Module] = frozenset()
    whole: bool = False  # the model is the one piece, and no rule stands for it

    @classmethod
    def finest(cls, model: nn.Module, *, copies: bool = True) -> Cut:
        pieces: list[nn.Module] = []
        copied: list[Owned] = []

        def visit(module: nn.Module) -> None:
            if module in pieces or not any(parameter.requires_grad for parameter in module.parameters()):
                return
            own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.requires_grad]
            if rule_of(module) is not None or hasattr(module, "parametrizations") or any(map(weight_by_hook, module.children())):
                pieces.append(module)
                return
            leaf = next(module.children(), None) is None
            if own and (leaf or not copies or any(p.dim() == 0 or p.shape[0] != 1 for _, p in own)):
                pieces.append(module)
                return
            copied.extend((module, name, parameter) for name, parameter in own)
            for child in module.children():
                visit(child)

        visit(model)
        return cls(model, tuple(pieces), tuple(copied))

    @classmethod
    def last(cls, model: nn.Module) -> Cut:
        """The whole model, one record at a time."""
        return cls(model, (model,), single=frozenset([model]), whole=True)

    def rule(self, module: nn.Module, layouts: Sequence[CallLayout]) -> Callable[..., Any]:
        if module in self.single:
            return record_by_record
        return (None if self.whole else rule_of(module, layouts)) or fallback

    def of(self, model: nn.Module) -> Cut:
        """The same cut of a copy of the model."""
        twin = dict(zip(self.model.modules(), model.modules(), strict=True))
        copied = tuple((twin[owner], name, getattr(twin[owner], name)) for owner, name, _ in self.copied)
        single = frozenset(twin[module] for module in self.single)
        return Cut(model, tuple(twin[piece] for piece in self.pieces), copied, single, self.whole)

    def after_failure(self, running: Sequence[nn.Module]) -> Cut | None:
        """The next cut, where something failed while these modules were running, outermost first; None where there is none."""
        place = next((place for place, module in enumerate(running) if module in self.pieces), None)
        if place is None:
            return self._joined(running[-1:]) if running else self._after_vmap()
        piece = running[place]
        if piece not in self.single and (self.whole or rule_of(piece) is None):
            return replace(self, single=self.single | set(self._alike(piece, self.pieces)))
        return self._joined(running[place - 1 : place])

    def after_strays(self, owners: Iterable[nn.Module]) -> Cut | None:
        """The next cut, where parameters of these modules are used outside of the pieces that they belong to."""
        owners = set(owners)
        around = {piece for piece in self.pieces if not owners.isdisjoint(piece.modules())}
        return self._joined([module for module in self.model.modules() if not (around | owners).isdisjoint(module.children())])

    def after_mismatch(self) -> Cut | None:
        """The next cut, where numbers are wrong and nobody is to blame."""
        if self.copied:
            return Cut.finest(self.model, copies=False)
        return self._joined([self.model])

    def _after_vmap(self) -> Cut | None:
        """On the way back nothing says where the failure was: all that ran under vmap."""
        rest = [piece for piece in self.pieces if piece not in self.single and (self.whole or rule_of(piece) is None)]
        return replace(self, single=self.single | set(rest)) if rest else self.after_mismatch()

    def _joined(self, modules: Sequence[nn.Module]) -> Cut | None:
        """With these modules, and others that are built like them, as one piece each."""
        if self.whole:
            return None if self.single else Cut.last(self.model)
        if not modules or self.model in modules:
            return Cut(self.model, (self.model,), whole=True)
        joined = {other for module in modules for other in self._alike(module, self.model.modules())}
        outermost = [module for module in joined if not any(module in set(other.modules()) - {other} for other in joined)]
        inside = {part for module in outermost for part in module.modules()}
        kept = {piece for piece in self.pieces if piece not in inside} | set(outermost)
        pieces = tuple(module for module in self.model.modules() if module in kept)
        copied = tuple(owned for owned in self.copied if owned[0] not in inside)
        return Cut(self.model, pieces, copied, self.single - inside)

    def _alike(self, module: nn.Module, others: Iterable[nn.Module]) -> list[nn.Module]:
        built = [type(part) for part in module.modules()]
        return [other for other in others if type(other) is built[0] and [type(part) for part in other.modules()] == built]


@contextlib.contextmanager
def calls_watched() -> Iterator[list[nn.Module]]:
    """The modules that are running, outermost first; after an exception, those that were running then."""
    running: list[nn.Module] = []

    def enter(module: nn.Module, args: Any) -> None:
        running.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        while running and running.pop() is not module:
            pass  # calls that failed, and whose failure the model caught

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()

"""Gradients that are computed a second time, and summed as they come: each is cut to the length that it had at first.

A pass over a checkpointed model would keep what checkpointing throws away, if it held the factors of all gradients until the
norms are known. So where these are large it computes norms alone, and lets every form go. Once the clipping factors are known,
the same run is repeated with the same draws, and each form is added to the sum as soon as it is complete (the two passes of ghost
clipping, Li et al. 2021, but for the cut).

*Sensitivity.* Let s_k be the squared norm of a record's gradient with respect to parameter k in the first run, and h_k that
gradient in the second run. It is added once: a limit is used up by what it admits. The record's factor f was made of
n = √Σ_k s_k, so that f·n ≤ C. The sum takes f·h_k·min(1, √s_k/‖h_k‖), where ‖h_k‖ is measured of the very form that is added.
Its length is at most f·√s_k, and that of all parameters together at most f·√Σ_k s_k = f·n ≤ C, *whatever the second run
computes*. No other record moves s_k, f or h_k, for in both runs the model sees one record. So a record adds a function of itself,
of released numbers and of what is drawn for it, no longer than C: as in a pass that keeps its forms, and on the same
assumptions.

Where both runs compute the same, min(1, ·) is 1, and the sum is that of the clipped gradients. Where they do not (a clock, a
kernel that adds up in any order), it is one of other gradients, cut more: a matter of accuracy, and not of privacy. Before the
charge, sums are compared with autograd's, and a model that computes something else each time is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Form
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Pool


def measured(form: Form, pool: Pool) -> Tensor:
    """(b,) squared norms of the gradients, as `ClippedSum` adds them up."""
    return torch.cat([block.squares() for _, block in form.blocks(pool.lease, summed=False)])


class ClippedSum:
    """Σ_i factors_i·g_i (p,) of gradients that come a parameter at a time.

    `limits` has the squared norms (b,) of each parameter's gradients in the first run, and `bad` (b,) says which records count as
    zero. `factors` are (b,), or (b, groups). The vector is made when the first gradient comes.
    """

    def __init__(
        self, flat: FlatParameters, limits: Mapping[nn.Parameter, Tensor], bad: Tensor, factors: Tensor, pool: Pool
    ) -> None:
        self._flat, self._limits, self._bad, self._factors, self._pool = flat, dict(limits), bad, factors, pool
        self._parts: dict[nn.Parameter, Tensor] = {}
        #: (p,), or None where nothing has come
        self.total: Tensor | None = None

    def add(self, parameter: nn.Parameter, form: Form) -> None:
        """Add a parameter's gradients, each no longer than its limit."""
        if self.total is None:
            self.total = self._flat.filled([None] * len(self._flat.leaves), self._factors.device)
            self._parts = dict(zip(self._flat.leaves, self._flat.parts(self.total), strict=True))
        factors = self._factors if self._factors.dim() == 1 else self._factors[:, self._flat.group_of[parameter]]
        limits = self._limits.pop(parameter, None)  # a second time nothing may be added
        limits = torch.zeros_like(factors) if limits is None else limits
        for part, block in form.blocks(self._pool.lease, summed=True):
            self._add(block, limits[part], self._bad[part], factors[part], self._parts[parameter])

    def _add(self, form: Form, limits: Tensor, bad: Tensor, factors: Tensor, out: Tensor) -> None:
        squares = form.squares().double()
        # what squares below the smallest normal number may have lost is part of the norm, as in `Tape.collected`
        lost = lost_squares(out.numel(), self._flat)
        shares = ((limits.double() + lost) / (squares + lost)).clamp(max=1.0).sqrt()
        bad = bad | ~squares.isfinite()
        if bool(bad.any()):
            form = form.without(bad)  # 0·nan is nan, so a factor of 0 is not enough
        form.add_weighted(usual(torch.where(bad, 0.0, factors.double() * shares).to(factors.dtype)), out)


def lost_squares(size: int, flat: FlatParameters) -> float:
    """Return a bound on the underflow in the sum of squares of `size` numbers."""
    return 4 * size * torch.finfo(flat.dtype).tiny


def usual(factors: Tensor) -> Tensor:
    """Replace factors that are subnormal, infinite or NaN by zero: such factors have lost digits or have no value."""
    normal = factors.isfinite() & (factors.abs() >= torch.finfo(factors.dtype).tiny)
    return torch.where(normal, factors, torch.zeros_like(factors))

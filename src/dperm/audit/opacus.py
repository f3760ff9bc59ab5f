"""White-box audits of training with Opacus: our canaries in its loop, its own sampler, clipping and noise.

Nothing of Opacus is imported here: the caller makes the private model, optimiser and loader as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm import _validate as check
from dperm.audit.canary_statistics import Watched, judge
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult
from dperm.privacy import Gaussian, PoissonSampled, Relation, SelfComposed

if TYPE_CHECKING:
    from torch import Tensor, nn

#: (model, data set) → what Opacus' `make_private` gives: private model, optimiser and loader
MakePrivate = Callable[[Any, Any], tuple[Any, Any, Any]]


def audit_opacus(
    make_private: MakePrivate,
    make_model: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    rate: float,
    steps: int,
    delta: float,
    canaries: int = 200,
    runs: int = 1,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
) -> AuditResult:
    """Audit the training that `make_private(model, dataset) -> (model, optimizer, loader)` sets up with Opacus.

    The model gets a linear layer beside it, whose weights only canaries touch, and the data set `canaries` records for it:
    with a gradient in one world, without in the other, so that the number of records, which Opacus reads its rate and
    denominator from, is the same in both. Their coordinates in the optimiser's noisy gradient are watched for `steps`
    steps, `runs` times in each world. The claim: Poisson sampling at `rate` with this `noise_multiplier` and
    `max_grad_norm`, under add/remove with a public number of records. `loss_fn(outputs, targets) -> (b,)` is unreduced.
    The loop is the usual one: zero_grad, mean loss, backward, step.
    """
    from dperm.audit._opacus_loop import watch

    check.integer("canaries", canaries, minimum=20)
    check.integer("steps", steps)
    check.integer("runs", runs)
    check.fraction("rate", rate, one=True)
    check.positive("noise_multiplier", noise_multiplier)
    check.positive("max_grad_norm", max_grad_norm)
    worlds: list[list[Watched]] = [[], []]
    for _ in range(runs):
        for world, sign in enumerate((0.0, 1.0)):
            made = watch(make_private, make_model, loss_fn, inputs, targets, sign, canaries, max_grad_norm, steps)
            rates = np.full(steps, rate)
            worlds[world].append(Watched(made.values, np.full(steps, noise_multiplier), made.drawn, made.inclusions, rates))
    return judge(
        *worlds,
        event=SelfComposed(PoissonSampled(rate, Gaussian(noise_multiplier)), steps),
        relation=Relation.ADD_OR_REMOVE_ONE,
        size=len(targets) + canaries,
        delta=delta,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        mechanism="training with Opacus",
    )

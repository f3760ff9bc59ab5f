"""What is left of a run's charge: how many steps, what they would cost, and how a run that stopped gives them back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dperm.privacy import Event
from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.certificates.assumptions import Assumption
from dperm.release.ledger import Settlement
from dperm.torch.training.training_run import COARSE, PrivateRun


@dataclass(frozen=True)
class Remaining:
    """What is left of the steps that a run was charged for.

    `steps_charged` is the sum of the steps taken, lost (reserved before an interruption, and never drawn again), given back by a
    settlement, and left. `epsilon_charged` is what the run is certified at. `epsilon_taken` and `epsilon_left` are what the
    steps taken so far, and those left, cost alone at `delta` in a run that was *planned* for so many: a run that stops by
    what it released has the ε of its whole charge, whatever it took (docs/budgets.md). They do not add up to the charged ε, since
    ε grows more slowly than the number of steps.
    """

    steps_charged: int
    steps_taken: int
    steps_lost: int
    steps_given_back: int
    steps_left: int
    delta: float
    epsilon_charged: float | None
    epsilon_taken: float
    epsilon_left: float


def remaining_of(run: PrivateRun) -> Remaining:
    """What is left of a run that was charged."""
    charged, settlement = run.plan.steps, run.settlement
    left = charged - run.step
    epsilon_left = 0.0
    if settlement is not None:
        left = 0
    elif left and run.plan.claim is not None:
        epsilon_left = math.inf
    elif left:
        rest: Event = run.plan.event(run.objective.relation, run.step)
        most = run.certificate.epsilon or math.inf
        epsilon_left = min(best_epsilon(rest, run.certificate.delta, COARSE)[0], most)
    return Remaining(
        steps_charged=charged,
        steps_taken=run.step - run.lost,
        steps_lost=run.lost,
        steps_given_back=0 if settlement is None else charged - run.step,
        steps_left=left,
        delta=run.certificate.delta,
        epsilon_charged=run.certificate.epsilon,
        epsilon_taken=run.epsilon,
        epsilon_left=epsilon_left,
    )


def settled(run: PrivateRun, *, public_validation: bool) -> Settlement:
    """Close the run's channel, and give back to the data set's budget what it was charged for and never released. ValueError
    where what stopped it may not have been released."""
    if run.open:
        raise ValueError("Expected a run that stopped: leave the loop over its steps first.")
    if run.failed:
        raise ValueError(
            "Nothing is given back after a step that failed: that it failed may follow from its records, and is not covered by "
            "noise. The whole charge stands."
        )
    if run.observed_privately:
        raise ValueError(
            "Nothing is given back after show_private=True: what was shown of single batches was not released, and may have been "
            "the reason to stop. The whole charge stands."
        )
    if run.validated and not public_validation:
        raise ValueError(
            "The run was scored on validation records without noise, which may have been the reason to stop. Expected "
            "public_validation=True, where these are public; where they are protected, nothing is given back."
        )
    if len(run.charged.events) > 1:
        raise ValueError("Nothing is given back of a run that was charged again after an interruption: the whole charge stands.")
    run.settlement = run.channel.settle()
    unreleased = run.settlement.unreleased.to_dict()
    facts = {"settled": str(run.settlement), "steps_taken": run.step - run.lost, "never_released": unreleased}
    assumed: tuple[Assumption, ...] = (statements.STOPPED_BY_RELEASES,)
    if run.validated:
        assumed += (statements.PUBLIC_HELD_OUT,)
    run.certificate = run.certificate.settled(facts, *assumed)
    return run.settlement

"""The mutable side of a private training run: what is charged, which step comes next, where the weights and its history are."""

from __future__ import annotations

import functools
import math
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dperm.gradient import Gradients, Policy
from dperm.gradient.policy import may_resize
from dperm.objectives.per_example import Pass
from dperm.privacy import Certificate, Composed, Event
from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.events import chosen_on_the_way
from dperm.release import Channel
from dperm.release.grid import admit_noise
from dperm.release.ledger import Settlement
from dperm.torch.data.records import TorchRecords
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.ranks import Ranks
from dperm.torch.ranks.tensor_noise import admit_tails

COARSE = 1e-2  # grid of ε so far: an upper bound, and quick where ε is large
_SECONDS_AT_ONCE = 10.0  # about how much training is lost, of what was paid for, when a run is killed


@dataclass(frozen=True)
class Charged:
    """What a run has paid: the events of all its charges, the last charge's id, and the step that charge starts at; and the noise
    multiplier that it paid for, where there is one."""

    events: tuple[Event, ...]
    charge_id: str
    first: int = 0
    noise: float | None = None


@dataclass
class PrivateRun:
    """One plan in progress on one model. `next` gives the next noisy gradient, or None after the last step; `update` moves the
    model by it, `averaged` is where training would leave it now. `history` has what happened by epoch.

    Where the run has checkpoints it `reserves` steps in the spend log before they are drawn: whoever continues it starts after
    everything that may have been drawn, with fresh noise.

    `open` says that a loop over its steps has not ended; `failed`, that a step did not come to its end; `validated` and
    `observed_privately`, that somebody saw scores without noise, of held-out records and of batches; `settlement`, what was given
    back once it stopped.
    """

    plan: Policy
    objective: ModuleObjective
    channel: Channel
    certificate: Certificate
    charged: Charged
    gradients: Gradients[Policy]
    reserves: bool = False
    lost: int = 0
    #: whether functions on public values read the released model between its steps
    public_steps: bool = False
    update_state: Any = None
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    open: bool = False
    failed: bool = False
    validated: bool = False
    observed_privately: bool = False
    settlement: Settlement | None = None
    _raw: tuple[Tensor, Tensor] | None = None  # where training stopped, and the average that it left in its place
    _reserved: int = 0
    _block: int = 1
    _since: float = field(default_factory=time.monotonic)
    _seen: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    _trained: list[nn.Parameter] = field(default_factory=list[nn.Parameter])

    @classmethod
    def start(
        cls,
        plan: Policy,
        objective: ModuleObjective,
        records: TorchRecords,
        channel: Channel,
        certificate: Certificate,
        charged: Charged,
        *,
        reserves: bool = False,
        first: int = 0,
        observe: bool = False,
    ) -> PrivateRun:
        """A run from step `first` on; the channel is open for the plan's steps."""
        seen: list[tuple[Tensor, Tensor]] = []

        def note(at_theta: Pass) -> None:
            seen.append((at_theta.losses, at_theta.norms))  # not the pass: it holds gradients

        gradients = plan.gradients(objective, records, channel, first=first, observe=note if observe else None)
        lost = gradients.step - first
        if lost:
            warnings.warn(
                f"{lost} of {plan.steps} steps are passed over: they are paid for, but their records were drawn together with "
                "those of steps before the interruption.",
                stacklevel=8,
            )
        return cls(
            plan, objective, channel, certificate, charged, gradients, reserves, lost, observed_privately=observe,
            _seen=seen, _reserved=first, _trained=list(objective.flat.parameters),
        )  # fmt: skip

    @property
    def step(self) -> int:
        """Steps done or lost."""
        return self.gradients.step

    def next(self) -> Tensor | None:
        self._seen.clear()
        self.follow()
        if self.reserves:
            self._reserve()
        if self.step >= self.plan.steps:
            return None
        self.failed = True  # unless it comes to its end
        self.objective.engine.draws.next_step()
        gradient = self.objective.flat.without_padding(self.gradients(self.objective.theta))
        self.failed = False
        return gradient

    def follow(self) -> None:
        """Go on with the parameters that are trainable now, where a loop or a callback has frozen, unfrozen, added or removed
        some since the last step. Steps cost the same as before, for their sensitivity does not depend on how many numbers are
        trained.

        ValueError where the plan, the optimiser or a layer does not allow it. The change follows from what was released alone,
        and so does this error, which may therefore be raised after the charge.
        """
        flat, before = self.objective.flat, self._trained
        if not self._changed():
            return
        if flat.sharded or not may_resize(self.plan):
            raise ValueError(
                "Expected the same trained parameters throughout the run: "
                + ("these are sharded." if flat.sharded else "this plan's steps are proved for one number of them.")
            )
        self.objective.refuse_modules()
        Ranks.here().same({"the trained parameters": flat.names})
        event = self.channel.event
        assert event is not None
        admit_noise(event, flat.whole)
        admit_tails(event, flat.whole, self.certificate.delta, flat.device)
        theta = self.objective.theta
        if self.update_state is not None:
            moved = functools.partial(flat.moved, before)
            self.update_state = self.plan.update.resized(self.update_state, moved, theta)
        else:
            self.plan.update.resized({}, lambda vector, new: new, theta)
        self._trained = list(flat.parameters)

    def _changed(self) -> bool:
        flat = self.objective.flat
        flat.check()
        now = flat.parameters
        return len(now) != len(self._trained) or any(a is not b for a, b in zip(now, self._trained, strict=True))

    def _reserve(self) -> None:
        if self.step < self._reserved or self.step >= self.plan.steps:
            return
        now = time.monotonic()
        if self.step and now - self._since < _SECONDS_AT_ONCE:
            self._block *= 2
        self._since = now
        first, before = self.charged.first, self.step
        while self._reserved <= self.step < self.plan.steps:  # where steps are drawn together, more are skipped than were taken
            start, stop = self.channel.reserve(self._block, self.plan.steps - first, self.step - first)
            self.gradients.skip(first + start - self.step)
            self._reserved = first + stop
        skipped = self.step - before
        self.lost += skipped
        if skipped:
            warnings.warn(
                f"{skipped} of {self.plan.steps} steps were reserved before an interruption, or by a copy of this run, or drawn "
                "together with some that were, and are in no checkpoint: they are paid for and skipped, not drawn again.",
                stacklevel=5,
            )

    def observed(self) -> tuple[float, float]:
        """Mean loss and share of bounded records of the last step's batch. Not private."""
        bound = self.gradients.clipping_norm
        count = max(1, sum(len(losses) for losses, _ in self._seen))
        loss = sum(float(losses.sum()) for losses, _ in self._seen)
        longer = sum(int((norms > bound).sum()) for _, norms in self._seen)
        return loss / count, longer / count

    def update(self, gradient: Tensor) -> None:
        """Move the model by a noisy gradient."""
        if self._changed():
            raise ValueError(
                "Parameters were frozen, unfrozen, added or removed between a step and its update: do so in on_step or on_epoch."
            )
        if self.update_state is None:
            self.update_state = self.plan.update.init(self.objective.theta)
        if self.plan.update.needs_noise:
            self.plan.update.told_noise(self.gradients.noise_deviation, self.update_state)
        self.objective.theta = self.plan.update.step(self.objective.theta, gradient, self.update_state)

    def leave(self) -> None:
        """Put the model where training leaves it: of a run that stopped early, `go_on` puts it back."""
        at = self.objective.theta
        left = self.averaged(at)
        self._raw = (at.clone(), left.clone()) if left is not at and self.step < self.plan.steps else None
        self.objective.theta = left

    def go_on(self) -> None:
        """Put the model back to where training stopped, unless it was moved since."""
        if self._raw is not None:
            at, left = self._raw
            if self.objective.flat.everywhere(torch.equal(self.objective.theta, left)):
                self.objective.theta = at
            self._raw = None

    def averaged(self, theta: Tensor) -> Tensor:
        """Where training would leave a model that is at θ (p,): there, or at an average of where it was."""
        self.follow()
        return theta if self.update_state is None else self.plan.update.result(theta, self.update_state)

    @property
    def epsilon(self) -> float:
        """ε of everything so far: the steps, what was spent on the number of records, and earlier charges of the run. inf where
        the algorithm is only claimed."""
        if self.plan.claim is not None:
            return math.inf
        spent: list[Event] = list(self.charged.events[:-1])
        last = self.charged.events[-1]
        if chosen_on_the_way(last) and self.plan.budgeted is None:
            spent.append(last)  # the steps were chosen by the size that was released: the filter vouches for no less
        elif steps := self.gradients.spent(self.objective.relation, self.charged.first):
            spent.append(steps)
        if not spent:
            return 0.0
        return min(best_epsilon(Composed(tuple(spent)), self.certificate.delta, COARSE)[0], self.certificate.epsilon or math.inf)

    def contents(self) -> dict[str, Any]:
        """What a checkpoint keeps of the run, beside what it trains."""
        return {
            "step": self.step,
            "lost": self.lost,
            "public steps": self.public_steps,
            "charge_id": self.charged.charge_id,
            "first": self.charged.first,
            "events": [event.to_dict() for event in self.charged.events],
            "private": self.channel.private,
            "gradients": self.gradients.public(),
            "private state": {name: torch.from_numpy(values) for name, values in self.gradients.private().items()},
            "plan": {name: str(value) for name, value in self.plan.describe().items() if name != "update"},
        }

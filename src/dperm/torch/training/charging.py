"""The charge of a private run, anew or from a checkpoint: what is planned, paid and certified before its first step."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from typing import Any

from dperm import _validate as check
from dperm._remind import remind_of_delta
from dperm.gradient import PlannedRun, Policy
from dperm.gradient.policy import paid_from, pays_for, runs_by_parts
from dperm.objectives import RECORD
from dperm.privacy import Certificate, Composed, Event, Relation
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.events import chosen_on_the_way, event_from_dict
from dperm.release import Channel
from dperm.release.grid import admit_noise
from dperm.release.sizing import NOMINAL_SIZES, CountFirst
from dperm.torch.data.records import TorchRecords
from dperm.torch.ranks import Ranks
from dperm.torch.ranks.tensor_noise import admit_tails, open_channel
from dperm.torch.training.certification import Certification
from dperm.torch.training.preflight import vectors_at_once
from dperm.torch.training.settings import TrainingSpec
from dperm.torch.training.training_run import Charged, PrivateRun


class Charging:
    """Charges one run and hands it out: `fresh`, or `again` and then `continued`. ValueError where the run cannot be, before it
    is charged.

    `certificate` is known from the charge on, whatever fails later.
    """

    certificate: Certificate | None = None
    _noise: float | None = None  # the noise multiplier, where the plan has one

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec, self.ranks, self.relation = spec, Ranks.here(), spec.objective.relation
        self._planner, self._certification = spec.planner, Certification(spec)

    def fresh(self, records: TorchRecords) -> PrivateRun:
        """A new run, charged."""
        channel = self._channel()
        stated = self._planner.stated_size
        # Under replace-one the number of records is public by definition.
        size = len(records) if self.relation is Relation.REPLACE_ONE else stated
        if self.relation is Relation.REPLACE_ONE and stated not in (None, size):
            whom = f"{self.spec.unit_is}s"
            raise ValueError(f"Expected public_size={size}, the number of {whom}, under replace-one, got {stated}.")
        if size is not None:
            remind_of_delta(self._planner.budget.delta, size, stacklevel=5)
            # found by one rank: the last digits may be others elsewhere
            noise = self.ranks.first(functools.partial(self._planner.noise_within, size, self.relation))
            plan, event = self._planned(size, noise)
            self._charge(channel, event, plan, len(records))
        elif self._planner.adaptive:
            plan, event = self._sized_by_itself(channel, len(records))
        else:
            plan, event = self._sized_first(channel, len(records))
        if size is None:  # by now the plan is known for the number of records that was released
            self._certify(event, channel, plan, self._planner.budget.target)
        assert channel.charge_id is not None
        return self._run(plan, records, channel, Charged((event,), channel.charge_id, noise=self._noise))

    def with_public_steps(self, run: PrivateRun) -> None:
        """State on the certificate that functions on public values read the released model."""
        assert self.certificate is not None
        if statements.PUBLIC_STEPS not in self.certificate.assumptions:
            assumptions = (*self.certificate.assumptions, statements.PUBLIC_STEPS)
            self.certificate = replace(self.certificate, assumptions=assumptions)
        run.public_steps, run.certificate = True, self.certificate

    def planned(self) -> Certificate:
        """What `fresh` would certify, where the number of records is stated."""
        if self._planner.stated_size is None:
            raise ValueError("Expected public_size: where the number of records is released, noise is set by what was released.")
        size = self._planner.stated_size
        plan, event = self._planned(size, self._planner.noise_within(size, self.relation))
        return self._certify(event, self._channel(), plan, self._planner.budget.target)

    def preview(self, records: int | None) -> PlannedRun:
        """What `fresh` would run, where the number of records is stated or would be found to be `records`."""
        planner, size = self._planner, self._planner.stated_size
        if size is None and records is None:
            raise ValueError(
                "Expected public_size, or preview(records=…) with a number to plan for: steps and noise follow from how many "
                f"{self.spec.unit_is}s there are."
            )
        planned_for = check.integer("records", records) if size is None else size
        if size is None and self.relation is not Relation.REPLACE_ONE:  # where a number is released first, and paid for
            if planner.adaptive:
                self._noise = None
                sized = self.spec.with_update(planner.within_budget(None, self.relation))
                plan, event = sized.with_released_size(planned_for), sized.event(self.relation)
            else:
                first = self._count_first()
                self._noise = noise = first.noise_below(functools.partial(self._event_at, planned_for))
                plan, event = self._fitted(planner.at(noise, planned_for), planned_for), first.charged
        else:
            plan, event = self._planned(planned_for, planner.noise_within(planned_for, self.relation))
        self._certification.refuse(plan)
        plan.refuse(self.spec.objective)
        certificate = self._certify(event, self._channel(), plan, planner.budget.target)
        spent = self.spec.settings.spent
        target = planner.budget.epsilon if isinstance(planner.budget.epsilon, float) else None
        total = Certificate.of_all([*spent, certificate], planner.budget.delta, target) if spent else None
        clients = plan.trains_on_rows and self.spec.settings.unit.max_rows is not None
        whom, steps_are = ("clients", "rounds") if clients else (f"{self.spec.unit_is}s", "steps")
        return PlannedRun(plan, certificate, total, self.spec.settings.label, whom, steps_are)

    def again(self, settings: dict[str, Any], state: dict[str, Any]) -> Policy:
        """The plan of a checkpoint with these settings and this state of its run. ValueError where it was another."""
        self._noise = settings["noise_multiplier"]
        if self._noise is None and not self._planner.adaptive and self._planner.fixed is None:
            raise ValueError("The checkpoint was made by a plan that chooses its noise on the way: pass the same plan.")
        plan = self.spec.with_update(self._planner.again(self._noise, settings["public_size"], self.relation))
        self._certification.refuse(plan)
        described = {name: str(value) for name, value in plan.describe().items() if name != "update"}
        if changed := [name for name, value in described.items() if state["plan"].get(name) != value]:
            raise ValueError(f"The checkpoint was made by another plan: {', '.join(changed)} differ.")
        return plan

    def continued(self, plan: Policy, records: TorchRecords, state: dict[str, Any]) -> PrivateRun:
        """The run of a checkpoint, with fresh noise. Where the log that it was charged to is not at hand, the rest is paid
        for again."""
        channel = self._channel()
        events = tuple(event_from_dict(event) for event in state["events"])
        done, first = state["step"], state["first"]
        charged = Charged(events, state["charge_id"], first, self._noise)
        sized_first = chosen_on_the_way(events[-1]) and plan.budgeted is None
        if not sized_first and not pays_for(plan, events[-1], self.relation, first):
            raise ValueError("The checkpoint's charge is not what this plan costs.")
        if any(charge.id == charged.charge_id for charge in channel.log.charges()):
            channel.resume(charged.charge_id, events[-1])
            if sized_first:
                channel.reopen(plan.event(self.relation), first=0)
        elif done < plan.steps:
            # nobody can tell what was drawn since
            rest = plan.event(self.relation, done)
            charge_id = self._charge_rest(channel, rest)
            charged = Charged((*events, rest), charge_id, paid_from(plan, self.relation, done), self._noise)
            if not state["private"]:
                channel.not_private_before()
        if len(charged.events) == 1:
            self._certify(charged.events[0], channel, plan, self._planner.budget.target)
        else:  # what was paid twice may exceed the target: the certificate states the sum and no target
            self._certify(Composed(charged.events), channel, plan, None)
        run = self._run(plan, records, channel, charged, first=done)
        run.lost += state["lost"]
        if state.get("public steps"):
            self.with_public_steps(run)
        run.gradients.restore(state["gradients"], {name: value.numpy() for name, value in state["private state"].items()})
        return run

    # Charges: what can fail fails before them

    def _planned(self, size: int, noise: float | None) -> tuple[Policy, Event]:
        self._noise = noise
        plan = self._planner.within_budget(size, self.relation) if noise is None else self._planner.at(noise, size)
        plan = self._fitted(plan, size)
        return plan, plan.event(self.relation)

    def _fitted(self, plan: Policy, size: int) -> Policy:
        """The plan with the update that runs, of the size that it was asked for."""
        if plan.public_size != size:
            raise ValueError(f"Expected a plan for public_size={size}, got one for {plan.public_size}.")
        return self.spec.with_update(plan)

    def _sized_by_itself(self, channel: Channel, records: int) -> tuple[Policy, Event]:
        """The number of records is one of the plan's own releases."""
        plan = self.spec.with_update(self._planner.within_budget(None, self.relation))
        event = plan.event(self.relation)
        self._charge(channel, event, plan, records)
        return plan.sized(channel, records), event

    def _sized_first(self, channel: Channel, records: int) -> tuple[Policy, Event]:
        """Release the number of records with noise, then choose the plan by it, below a privacy profile that was charged with
        it."""
        first, least = self._count_first(), self._planner.least_size()
        self._charge(channel, first.charged, None, records)
        size = max(first.release(channel, records), least)  # the charge is made
        self._noise = noise = self.ranks.first(lambda: first.noise_below(functools.partial(self._event_at, size)))
        plan = self._fitted(self._planner.at(noise, size), size)
        first.admit(channel, plan.event(self.relation))
        return plan, first.charged

    def _count_first(self) -> CountFirst:
        """What is charged where the number of records is released first: it, and a profile above whatever runs by it."""
        budget, relation = self._planner.budget, self.relation
        if budget.epsilon is None:
            raise ValueError("Expected public_size where the noise is set by hand: rates and denominators need it.")
        like = self._planner.at(1.0, NOMINAL_SIZES[0])
        if like.needs_size:
            raise ValueError(f"Expected public_size for batches drawn as {like.kind}: what is charged depends on it.")
        runs = [functools.partial(self._event_at, size) for size in NOMINAL_SIZES]

        def profiled(epsilon: float) -> CountFirst:
            return CountFirst.profiled(epsilon, budget.delta, relation, runs, earlier=budget.earlier)

        epsilon = budget.epsilon_for(lambda e: profiled(e).charged)
        assert epsilon is not None
        return self.ranks.first(lambda: profiled(epsilon))

    def _event_at(self, size: int, noise: float) -> Event:
        """What a run of this size with this noise costs: plans must work whatever the number of records is."""
        return self._fitted(self._planner.at(noise, size), size).event(self.relation)

    def _charge(self, channel: Channel, event: Event, plan: Policy | None, records: int) -> None:
        like = self._certification.like(plan)
        if like.anchored:
            raise TypeError("Expected a plan of gradients at one θ: a network's have no differences. It is for linear models.")
        self._certification.refuse(like)
        self.ranks.same(like.describe())
        like.refuse(self.spec.objective)
        like.refuse_size(records)
        if self.spec.settings.checkpoint is not None and not like.continues:
            raise ValueError("Expected no checkpoint folder with this plan, whose runs cannot go on after an interruption.")
        if like.claim and plan is None:
            raise ValueError(f"Expected public_size for a plan that is only claimed ({like.kind}).")
        certificate = self._certify(event, channel, plan, self._planner.budget.target)
        if like.claim:
            warnings.warn(
                f"{like.kind} is run as it was published and is not private at the epsilon that it states: the certificate "
                "claims, and has no epsilon.",
                stacklevel=6,
            )
        admit_noise(event, self.spec.objective.flat.whole)
        admit_tails(event, self.spec.objective.flat.whole, self._planner.budget.delta, self.spec.objective.flat.device)
        continuable = self.spec.settings.checkpoint is not None
        channel.charge(event, certificate.mechanism, persons=certificate.of_persons, continuable=continuable)

    def _charge_rest(self, channel: Channel, rest: Event) -> str:
        persons = self.spec.objective.unit != RECORD
        return channel.charge(rest, "continued private training", persons=persons, continuable=True)

    def _certify(self, event: Event, channel: Channel, plan: Policy | None, target: float | None) -> Certificate:
        self.certificate = self._certification.certificate(event, plan, channel.provenance, target)
        return self.certificate

    def _channel(self) -> Channel:
        objective, settings = self.spec.objective, self.spec.settings
        return open_channel(settings.random_state, objective.flat.device, label=settings.label, shards=objective.shards)

    def _run(self, plan: Policy, records: TorchRecords, channel: Channel, charged: Charged, first: int = 0) -> PrivateRun:
        assert self.certificate is not None
        if runs_by_parts(plan):
            records.share = records.share.dealt_out()
        if plan.holds_vectors and self.spec.settings.physical_batch_size is None:
            records.physical_batch_size = min(records.physical_batch_size, vectors_at_once(self.spec.objective))
        return PrivateRun.start(
            plan, self.spec.objective, records, channel, self.certificate, charged,
            reserves=self.spec.settings.checkpoint is not None, first=first, observe=self.spec.options.show_private,
        )  # fmt: skip

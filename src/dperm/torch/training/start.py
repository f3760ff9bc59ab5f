"""How a private run starts, anew or from a checkpoint: what is planned, charged and certified before its first step."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dperm._family import states
from dperm._remind import remind_of_delta
from dperm.gradient import Policy
from dperm.gradient.policy import runs_by_parts
from dperm.gradient.third_party_parts import foreign_parts
from dperm.privacy import Assumption, Certificate, Composed, Event, Relation, Risk
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.events import chosen_on_the_way, event_from_dict
from dperm.release import Channel
from dperm.release.grid import admit_noise
from dperm.release.sizing import NOMINAL_SIZES, CountFirst
from dperm.torch.data.records import TorchRecords
from dperm.torch.module_objective import Independence, ModuleObjective
from dperm.torch.ranks import Ranks
from dperm.torch.ranks.tensor_noise import admit_tails, open_channel
from dperm.torch.training.plan_settings import Planner
from dperm.torch.training.training_run import Charged, PrivateRun


@dataclass
class Starter:
    """Starts one run: `fresh`, or `again` and then `continued`. ValueError where the run cannot be, before it is charged.

    `certificate` is known from the charge on, whatever fails later; `noise`, the noise multiplier where there is one, from when
    the plan is. `with_update` puts the update that runs into a plan.
    """

    objective: ModuleObjective
    planner: Planner
    with_update: Callable[[Policy], Policy]
    shares_epsilon: bool
    own_loop: bool
    folder: Path | None
    observe: bool
    label: str
    random_state: Any
    certificate: Certificate | None = None
    noise: float | None = None

    @property
    def ranks(self) -> Ranks:
        return Ranks.here()

    @property
    def relation(self) -> Relation:
        return self.objective.relation

    def fresh(self, records: TorchRecords) -> PrivateRun:
        """A new run, charged."""
        channel = self._channel()
        stated = self.planner.stated_size
        # Under replace-one the number of records is public by definition.
        size = len(records) if self.relation is Relation.REPLACE_ONE else stated
        if self.relation is Relation.REPLACE_ONE and stated not in (None, size):
            whom = "records" if self.objective.max_rows_per_unit is None else "persons"
            raise ValueError(f"Expected public_size={size}, the number of {whom}, under replace-one, got {stated}.")
        if size is not None:
            remind_of_delta(self.planner.delta, size, stacklevel=5)
            # found by one rank: the last digits may be others elsewhere
            plan, event = self._planned(size, self.ranks.first(functools.partial(self._noise, size)))
            self._charge(channel, event, plan, len(records))
        elif self.planner.adaptive:
            plan, event = self._sized_by_itself(channel, len(records))
        else:
            plan, event = self._sized_first(channel, len(records))
        if size is None:  # by now the plan is known for the number of records that was released
            self._certify(event, channel, plan, self._target)
        assert channel.charge_id is not None
        return self._run(plan, records, channel, Charged((event,), channel.charge_id))

    def planned(self) -> Certificate:
        """What `fresh` would certify, where the number of records is stated."""
        if self.planner.stated_size is None:
            raise ValueError("Expected public_size: where the number of records is released, noise is set by what was released.")
        size = self.planner.stated_size
        plan, event = self._planned(size, self._noise(size))
        return self._certify(event, self._channel(), plan, self._target)

    def again(self, settings: dict[str, Any], state: dict[str, Any]) -> Policy:
        """The plan of a checkpoint with these settings and this state of its run. ValueError where it was another."""
        self.noise = settings["noise_multiplier"]
        if self.noise is None and not self.planner.adaptive and self.planner.fixed is None:
            raise ValueError("The checkpoint was made by a plan that chooses its noise on the way: pass the same plan.")
        plan = self.with_update(self.planner.again(self.noise, settings["public_size"], self.relation))
        self._refuse_groups(plan)
        self._refuse_ranks(plan)
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
        charged = Charged(events, state["charge_id"], first)
        sized_first = chosen_on_the_way(events[-1]) and plan.budgeted is None
        if not sized_first and not plan.pays_for(events[-1], self.relation, first):
            raise ValueError("The checkpoint's charge is not what this plan costs.")
        if any(charge.id == charged.charge_id for charge in channel.log.charges()):
            channel.resume(charged.charge_id, events[-1])
            if sized_first:
                channel.reopen(plan.event(self.relation))
        elif done < plan.steps:
            # nobody can tell what was drawn since
            rest = plan.rest(self.relation, done)
            charged = Charged((*events, rest), self._charge_rest(channel, rest), done)
            if not state["private"]:
                channel.not_private_before()
        if len(charged.events) == 1:
            self._certify(charged.events[0], channel, plan, self._target)
        else:  # what was paid twice may exceed the target: the certificate states the sum and no target
            self._certify(Composed(charged.events), channel, plan, None)
        run = self._run(plan, records, channel, charged, first=done)
        run.lost += state["lost"]
        run.gradients.restore(state["gradients"], {name: value.numpy() for name, value in state["private state"].items()})
        return run

    # Charges: what can fail fails before them

    def _noise(self, size: int) -> float | None:
        return self.planner.noise_within(self.planner.epsilon, self.planner.delta, size, self.relation)

    def _planned(self, size: int, noise: float | None) -> tuple[Policy, Event]:
        self.noise = noise
        plan = self.planner.within_budget(size, self.relation) if noise is None else self.planner.at(noise, size)
        plan = self._fitted(plan, size)
        return plan, plan.event(self.relation)

    def _fitted(self, plan: Policy, size: int) -> Policy:
        """The plan with the update that runs, of the size that it was asked for."""
        if plan.public_size != size:
            raise ValueError(f"Expected a plan for public_size={size}, got one for {plan.public_size}.")
        return self.with_update(plan)

    def _sized_by_itself(self, channel: Channel, records: int) -> tuple[Policy, Event]:
        """The number of records is one of the plan's own releases."""
        plan = self.with_update(self.planner.within_budget(None, self.relation))
        event = plan.event(self.relation)
        self._charge(channel, event, plan, records)
        return plan.sized(channel, records), event

    def _sized_first(self, channel: Channel, records: int) -> tuple[Policy, Event]:
        """Release the number of records with noise, then choose the plan by it, below a privacy profile that was charged with
        it."""
        epsilon, delta, relation = self.planner.epsilon, self.planner.delta, self.relation
        if epsilon is None:
            raise ValueError("Expected public_size where the noise is set by hand: rates and denominators need it.")

        like = self.planner.at(1.0, NOMINAL_SIZES[0])
        if like.needs_size:
            raise ValueError(f"Expected public_size for batches drawn as {like.kind}: what is charged depends on it.")

        def run(size: int, noise: float) -> Event:  # plans must work whatever the number of records is
            return self._fitted(self.planner.at(noise, size), size).event(relation)

        runs = [functools.partial(run, size) for size in NOMINAL_SIZES]
        earlier = self.planner.earlier
        if isinstance(epsilon, Risk):
            epsilon = epsilon.epsilon_for(
                lambda e: Composed((*earlier, CountFirst.profiled(e, delta, relation, runs, earlier=earlier).charged))
            )
        whole = epsilon
        first = self.ranks.first(lambda: CountFirst.profiled(whole, delta, relation, runs, earlier=earlier))
        self._charge(channel, first.charged, None, records)
        size = first.release(channel, records)
        self.noise = noise = self.ranks.first(lambda: first.noise_below(functools.partial(run, size)))
        plan = self._fitted(self.planner.at(noise, size), size)
        first.admit(channel, plan.event(relation))
        return plan, first.charged

    def _charge(self, channel: Channel, event: Event, plan: Policy | None, records: int) -> None:
        like = plan or self.planner.at(1.0, NOMINAL_SIZES[0])
        if like.anchored:
            raise TypeError("Expected a plan of gradients at one θ: a network's have no differences. It is for linear models.")
        self._refuse_groups(like)
        self._refuse_ranks(like)
        self.ranks.same(like.describe())
        like.refuse(self.objective, records)
        if like.claim and plan is None:
            raise ValueError(f"Expected public_size for a plan that is only claimed ({like.kind}).")
        certificate = self._certify(event, channel, plan, self._target)
        if like.claim:
            warnings.warn(
                f"{like.kind} is run as it was published and is not private at the epsilon that it states: the certificate "
                "claims, and has no epsilon.",
                stacklevel=6,
            )
        admit_noise(event, self.objective.flat.whole)
        admit_tails(event, self.objective.flat.whole, self.planner.delta, self.objective.flat.device)
        continuable = self.folder is not None
        channel.charge(event, certificate.mechanism, persons=certificate.of_persons, continuable=continuable)

    def _charge_rest(self, channel: Channel, rest: Event) -> str:
        persons = self.objective.max_rows_per_unit is not None
        return channel.charge(rest, "continued private training", persons=persons, continuable=True)

    def _refuse_groups(self, plan: Policy) -> None:
        if self.objective.facts.unit.several_rows and not plan.grouped:
            raise ValueError(
                f"Expected one row a person for gradient perturbation ({plan.kind}): it has no proof for persons of several "
                "rows. Use max_rows_per_unit=1, or Poisson sampling or full batches."
            )

    def _refuse_ranks(self, plan: Policy) -> None:
        said = "by_ranks" if states(type(plan), "by_ranks") else "by_parts"  # a stranger's plan must say it itself
        if self.ranks.size > 1 and not (getattr(plan, said) and states(type(plan), said)):
            raise ValueError(
                f"Expected one process for {plan.kind}, which keeps something of each record, got {self.ranks.size} ranks."
            )
        if self.objective.flat.sharded and not (plan.by_shards and states(type(plan), "by_shards")):
            parts = ("bounding", "query", "post", "update")
            got = ", ".join(str(value) for name, value in plan.describe().items() if name in parts)
            raise ValueError(
                "Expected a plan that treats each number of a gradient by itself where parameters are sharded: a fixed clipping "
                f"norm, nothing done to the noisy gradient, and an optimizer of torch's. Got {got}."
            )

    @property
    def _target(self) -> float | None:
        """What this run alone is to keep within; nothing where it shares epsilon with what was spent before, or keeps a risk."""
        epsilon = self.planner.epsilon
        return None if self.shares_epsilon or isinstance(epsilon, Risk) else epsilon

    def _certify(self, event: Event, channel: Channel, plan: Policy | None, target: float | None) -> Certificate:
        if plan is not None:
            plan.refuse_uncharged_claim(event)
        facts = {name: value for name, value in self.objective.facts.to_dict().items() if value is not None}
        settings: dict[str, Any] = {} if plan is None else plan.describe()
        if self.own_loop:
            settings["update"] = "in the caller's own loop"
        if isinstance(self.planner.epsilon, Risk):
            settings["risk"] = str(self.planner.epsilon)
        if self.ranks.size > 1:
            settings["ranks"] = self.ranks.size
        if self.objective.flat.sharded:
            settings["parameters"] = "sharded"
        self.certificate = Certificate.issue(
            mechanism="gradient perturbation of a network" + ("" if plan is None else f" ({plan.kind})"),
            event=event,
            delta=self.planner.delta,
            target_epsilon=target,
            paper=(plan or self.planner.at(1.0, NOMINAL_SIZES[0])).paper,
            assumptions=[
                *(foreign_parts(plan) if plan is not None else ()),
                *self._assumptions(plan, self.planner.stated_size if self.relation is Relation.ADD_OR_REMOVE_ONE else None),
            ],
            public_facts={**facts, **settings},
            not_charged=(*_NOT_CHARGED, *((statements.SHOWN,) if self.observe else ())),
            provenance=channel.provenance,
        )
        return self.certificate

    def _assumptions(self, plan: Policy | None, stated_size: int | None) -> list[Assumption]:
        """`stated_size`: the number of records that the caller gives away although it is private, or None."""
        rows = self.objective.max_rows_per_unit
        like = plan or self.planner.at(1.0, NOMINAL_SIZES[0])
        whose = [statements.ONE_RECORD] if rows is None else statements.persons(rows, not like.by_rows)
        assumptions = [*whose, statements.RECORDS_APART, statements.MASKS, statements.SINGLE_PRECISION]
        if self.objective.independence is Independence.TESTED:
            assumptions.append(statements.RECORDS_TESTED)
        assumptions += [statements.layer_rule(rule) for rule in self.objective.foreign_rules]
        if self.ranks.size > 1:
            assumptions.append(statements.RANKS)
        if stated_size is not None:
            assumptions.append(statements.known_size(stated_size, whom="records" if rows is None else "persons"))
        return assumptions

    def _channel(self) -> Channel:
        objective = self.objective
        return open_channel(self.random_state, objective.flat.device, label=self.label, shards=objective.shards)

    def _run(self, plan: Policy, records: TorchRecords, channel: Channel, charged: Charged, first: int = 0) -> PrivateRun:
        assert self.certificate is not None
        if runs_by_parts(plan):
            records.share = records.share.dealt_out()
        return PrivateRun.start(
            plan, self.objective, records, channel, self.certificate, charged,
            folder=self.folder, first=first, observe=self.observe,
        )  # fmt: skip


_NOT_CHARGED = (
    statements.settings("hyper-parameters", "architecture", "preprocessing"),
    statements.VALIDATION,
    statements.NETWORK_CHECKS,
)

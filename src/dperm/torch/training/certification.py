"""What a network's run is certified as, and which plans can be: those with a proof for its records, ranks and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dperm._family import states
from dperm.gradient import Policy
from dperm.gradient.third_party_parts import third_party_assumptions
from dperm.privacy import Assumption, Certificate, Event, Provenance, Relation, Risk
from dperm.privacy.certificates import assumptions as statements
from dperm.release.sizing import NOMINAL_SIZES
from dperm.torch.module_objective import Independence
from dperm.torch.ranks import Ranks
from dperm.torch.training.settings import TrainingSpec


@dataclass(frozen=True)
class Certification:
    """Certifies the runs of a specification. Where the plan is not known yet, because the number of records is private, what is
    said of it is said of a plan like it."""

    spec: TrainingSpec

    def certificate(self, event: Event, plan: Policy | None, provenance: Provenance, target: float | None) -> Certificate:
        """What these charges are certified as; `target` is what they are to keep within."""
        objective, budget, options = self.spec.objective, self.spec.planner.budget, self.spec.options
        if plan is not None:
            plan.refuse_uncharged_claim(event)
        facts = {name: value for name, value in objective.facts.to_dict().items() if value is not None}
        settings: dict[str, Any] = {} if plan is None else plan.describe()
        if options.own_loop:
            settings["update"] = "in the caller's own loop"
        if isinstance(budget.epsilon, Risk):
            settings["risk"] = str(budget.epsilon)
        if (ranks := Ranks.here().size) > 1:
            settings["ranks"] = ranks
        if objective.flat.sharded:
            settings["parameters"] = "sharded"
        if self.spec.settings.views > 1:
            settings["views"] = self.spec.settings.views
        like = self.like(plan)
        if like.trains_on_rows and objective.unit.max_rows is not None:
            settings["units"] = statements.CLIENTS
        return Certificate.issue(
            mechanism="gradient perturbation of a network" + ("" if plan is None else f" ({plan.kind})"),
            event=event,
            delta=budget.delta,
            target_epsilon=target,
            paper=like.paper,
            assumptions=[*(third_party_assumptions(plan) if plan is not None else ()), *self._assumptions(like)],
            public_facts={**facts, **settings},
            not_charged=(*_NOT_CHARGED, *((statements.SHOWN,) if options.show_private else ())),
            provenance=provenance,
        )

    def like(self, plan: Policy | None) -> Policy:
        """The plan, or one that differs from it in numbers alone."""
        return plan or self.spec.with_update(self.spec.planner.at(1.0, NOMINAL_SIZES[0]))

    def _assumptions(self, like: Policy) -> list[Assumption]:
        objective = self.spec.objective
        rows = objective.unit.max_rows
        whose = [statements.ONE_RECORD] if rows is None else statements.persons(rows, not like.by_rows, like.trains_on_rows)
        assumptions = [*whose, statements.RECORDS_APART, statements.MASKS, statements.SINGLE_PRECISION]
        if objective.independence is Independence.TESTED:
            assumptions.append(statements.RECORDS_TESTED)
        assumptions += [statements.layer_rule(rule) for rule in objective.foreign_rules]
        if Ranks.here().size > 1:
            assumptions.append(statements.RANKS)
        size = self.spec.planner.stated_size
        if size is not None and objective.relation is Relation.ADD_OR_REMOVE_ONE:  # which the caller gives away, and is private
            assumptions.append(statements.known_size(size, whom=f"{self.spec.unit_is}s"))
        return assumptions

    def refuse(self, plan: Policy) -> None:
        """ValueError where a plan has no proof for persons of several rows, several ranks, or sharded parameters, or where its
        update needs to know more than it tells."""
        objective, ranks = self.spec.objective, Ranks.here()
        plan.refuse_update()
        if objective.unit.several_rows and not plan.grouped:
            raise ValueError(
                f"Expected one row a {self.spec.unit_is} for gradient perturbation ({plan.kind}): it has no proof for "
                f"{self.spec.unit_is}s of several rows. Use max_rows_per_unit=1, or Poisson sampling or full batches."
            )
        said = "by_ranks" if states(type(plan), "by_ranks") else "by_parts"  # a stranger's plan must say it itself
        if ranks.size > 1 and not (getattr(plan, said) and states(type(plan), said)):
            raise ValueError(
                f"Expected one process for {plan.kind}, which keeps something of each record, got {ranks.size} ranks."
            )
        if objective.flat.sharded and not (plan.by_shards and states(type(plan), "by_shards")):
            parts = ("bounding", "query", "post", "update")
            got = ", ".join(str(value) for name, value in plan.describe().items() if name in parts)
            raise ValueError(
                "Expected a plan that treats each number of a gradient by itself where parameters are sharded: a fixed clipping "
                f"norm, nothing done to the noisy gradient, and an optimizer of torch's. Got {got}."
            )


_NOT_CHARGED = (
    statements.settings("hyper-parameters", "architecture", "preprocessing"),
    statements.VALIDATION,
    statements.NETWORK_CHECKS,
)

"""Rounds of federated training as the server sees them: whom to ask, and how the model moves by what they reply."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from dperm._remind import remind_of_size
from dperm._types import Array
from dperm.gradient import Gradients, LocalUpdate, Plan, PlannedRun
from dperm.gradient.third_party_parts import third_party_assumptions
from dperm.objectives import RECORD, LocalSteps, MeanPass, PublicFacts
from dperm.privacy import Assumption, Certificate, Relation
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel
from dperm.release.grid import admit_noise

C = TypeVar("C", bound=Hashable)

_NO_MORE = object()  # in place of a draw

_APART = Assumption(
    "Whether a client replies, when, and with what follows from its own records, its own chance and the models that were sent to "
    "it: not from which other clients were drawn, nor from what they replied.",
    "caller",
    "stated: a client that does not reply, replies late, in another shape or with numbers that are not finite counts as zero; of "
    "several replies of one client the first counts",
    "clients apart",
)
_REGISTERED = Assumption(
    "Each person's records are with one client, which is registered once; who is registered does not depend on the records of "
    "others.",
    "caller",
    "each client is drawn once a round at most, whatever it replies",
    "registered clients",
)
_NOT_CHARGED = (
    statements.settings("hyper-parameters", "architecture", "who may register"),
    "what clients report beside their models, and evaluation on clients: leave it, or release it by a mechanism of its own",
    "the time that a round takes, which whoever watches the traffic sees",
)


class FederatedRounds(Generic[C]):
    """Draws the cohort of each round, clips what clients reply, and moves the model by the noisy sum: DP-FedAvg with a trusted
    server (McMahan, Ramage, Talwar, Zhang 2018).

    `cohort()` and then `step(replies)`, `plan.steps` times. The charge is written to the spend log before the first cohort is
    known, for all rounds, whatever happens afterwards.

    Parameters
    ----------
    plan : of `dperm.gradient.recipes.dp_fedavg`: a `Plan` whose query is a `LocalUpdate`. Clients are told its settings, and the
        bound holds whatever they do.
    theta : (p,) the initial model, which must not depend on the clients' records.
    clients : the registered clients, each once: whatever names them. Draws are of all of them, whether they are reachable or not.
    delta, target_epsilon : what the certificate states; ValueError where the plan costs more than `target_epsilon`.
    relation : "add_or_remove_one": neighbours differ by one registered client. "replace_one": one client has other records;
        `plan.public_size` is then the number of clients.
    label : names the clients in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".
    """

    certificate: Certificate | None = None

    def __init__(
        self,
        plan: Plan,
        theta: Array,
        clients: Sequence[C],
        *,
        delta: float,
        target_epsilon: float | None = None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        theta = np.array(theta, dtype=np.float64)
        if theta.ndim != 1 or not len(theta) or not np.isfinite(theta).all():
            raise ValueError(f"Expected a model as a vector (p,) of finite numbers, got an array of shape {theta.shape}.")
        if not isinstance(plan, Plan) or not isinstance(plan.query, LocalUpdate):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a plan of local updates, as dp_fedavg makes them, got {plan!r}.")
        self._names = list(clients)
        if not self._names or len(set(self._names)) < len(self._names):
            raise ValueError(f"Expected at least one registered client, and each once, got {len(self._names)} names.")
        self.plan, self.theta = plan, theta
        self._relation, self._delta, self._target = Relation(relation), delta, target_epsilon
        if self._relation is Relation.REPLACE_ONE and plan.public_size != len(self._names):
            raise ValueError(
                f"Expected public_size={len(self._names)}, the number of registered clients, under replace-one, got "
                f"{plan.public_size}."
            )
        consequence = "cohorts will be that much of what is expected, and noise is for the expected ones."
        remind_of_size(plan.public_size, len(self._names), consequence, stacklevel=3, whom="clients")
        self._objective = _Replied(len(theta), self._relation, plan.public_size)
        self._registry = _Registry(len(self._names))
        self._channel = Channel.open(random_state, label=label)
        self._gradients: Gradients[Plan] | None = None
        self._asked: list[C] | None = None
        self._state: Any = plan.update.init(theta)
        plan.refuse_update()
        plan.refuse(self._objective)
        plan.refuse_size(len(self._names))
        self._planned = self._certified()
        admit_noise(self._planned.event, len(theta))

    @property
    def model(self) -> Array:
        """(p,) what training has led to so far: the last model, or an average of models where the update averages them."""
        return self.plan.update.result(self.theta, self._state)

    @property
    def rounds_done(self) -> int:
        """Rounds that ended."""
        return 0 if self._gradients is None else self._gradients.step

    def planned(self) -> Certificate:
        """What the run will be certified as. Nothing is charged."""
        return self._planned

    def preview(self) -> PlannedRun:
        """Rounds, expected cohort, noise, ε and what would be charged. Nothing is charged."""
        return PlannedRun(self.plan, self._planned, label=self._channel.label, whom="clients", steps_are="rounds")

    def cohort(self) -> list[C]:
        """The clients of the next round, which may be none; the first call charges the whole run. Keep it secret where the plan's
        sampling is charged with amplification. ValueError before the last round ended, and after the last of all."""
        if self._asked is not None:
            raise ValueError("Expected step(replies) for the last cohort before another one is drawn.")
        if self._gradients is None:
            self._begin()
        if self.rounds_done >= self.plan.steps:
            raise ValueError(f"Expected no more than the {self.plan.steps} rounds that were charged.")
        drawn = self._registry.next_draw()
        if drawn is _NO_MORE:
            raise ValueError("Expected no more rounds: those that were charged are drawn, and some were not ended.")
        self._asked = list(self._names) if drawn is None else [self._names[int(place)] for place in drawn]
        return list(self._asked)

    def step(self, replies: Iterable[tuple[C, Any]]) -> Array:
        """Move the model by (client, update) pairs; returns it, (p,). An update is θ − θ', what the client's training took from
        the model that it was sent: (p,) numbers, or anything, which then counts as zero.

        Only clients of the cohort count, each by its first reply.
        """
        if self._asked is None or self._gradients is None:
            raise ValueError("Expected cohort() before step(replies).")
        waiting, self._asked = set(self._asked), None
        self._registry.replies = self._vectors(replies, waiting)
        gradient = self._gradients(self.theta)
        if self.plan.update.needs_noise:
            self.plan.update.told_noise(self._gradients.noise_deviation, self._state)
        with np.errstate(over="ignore", invalid="ignore"):  # of released numbers
            self.theta = self.plan.update.step(self.theta, gradient, self._state)
        return self.theta

    def _vectors(self, replies: Iterable[tuple[C, Any]], waiting: set[C]) -> Iterator[Array]:
        for client, update in replies:
            if client in waiting:
                waiting.remove(client)
                vector = _vector(update, len(self.theta))
                if vector is not None:
                    yield vector

    def _begin(self) -> None:
        certificate = self._planned
        self._channel.charge(certificate.event, certificate.mechanism, persons=True)
        self.certificate = certificate
        self._gradients = self.plan.gradients(self._objective, self._registry, self._channel)

    def _certified(self) -> Certificate:
        plan = self.plan
        event = plan.event(self._relation)
        plan.refuse_uncharged_claim(event)
        facts = {name: value for name, value in self._objective.facts.to_dict().items() if value is not None}
        size: list[Assumption] = []
        if self._relation is Relation.ADD_OR_REMOVE_ONE:
            size.append(statements.known_size(plan.public_size, whom="clients"))
        return Certificate.issue(
            mechanism=f"federated training ({plan.kind})",
            event=event,
            delta=self._delta,
            target_epsilon=self._target,
            paper=plan.paper,
            assumptions=[*third_party_assumptions(plan), _APART, _REGISTERED, *size],
            public_facts={**facts, "max_rows_per_unit": "all", "units": statements.CLIENTS, **plan.describe()},
            not_charged=_NOT_CHARGED,
            provenance=self._channel.provenance,
        )


class _Registry:
    """The registered clients as records: their draws are handed out before they reply."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._draws: Iterator[Any] = iter(())
        self.replies: Iterator[Array] = iter(())

    def __len__(self) -> int:
        return self._clients

    def stream(self, draws: Iterable[Any]) -> Iterator[Iterable[Any]]:
        self._draws = iter(draws)
        return iter(lambda: self.replies, None)

    def next_draw(self) -> Any:
        return next(self._draws, _NO_MORE)


class _Replied:
    """Σ over clients, of whom only what they replied is known."""

    strong_convexity = 0.0
    radius: float | None = None

    def __init__(self, dimension: int, relation: Relation, public_size: int) -> None:
        self.facts = PublicFacts(
            dimension=dimension,
            data_norm=math.inf,
            lipschitz=math.inf,
            smoothness=math.inf,
            relation=relation,
            public_size=public_size,
            rank_one=False,
            unit=RECORD,
        )

    def per_example(self, theta: Any, batch: Any, *, norms_only: bool = False, anchor: Any = None) -> MeanPass:
        raise TypeError("Expected a plan of local updates: clients reply with these, and have no gradients here.")

    def local_updates(self, theta: Any, batch: Array, local: LocalSteps) -> MeanPass:
        """Of one client, whose reply is the batch."""
        return MeanPass(batch[None], np.zeros(1))

    def refuse_local(self, local: LocalSteps) -> None:
        """Clients may train in whatever way."""


def _vector(update: Any, size: int) -> Array | None:
    """(size,) in double precision; None for anything that is no such vector. Errors and warnings would be outputs."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            vector = np.array(update, dtype=np.float64)
        except Exception:
            return None
    return vector if vector.shape == (size,) else None

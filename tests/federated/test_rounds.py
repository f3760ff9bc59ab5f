"""Rounds with clients elsewhere: what they may reply, what is charged before, neighbours and planted defects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Pair, Training, replay
from dperm.federated import FederatedRounds, rounds
from dperm.gradient import SGD, Adam, AdaptiveClip, Clip, FullBatch, LocalUpdate, NoisyGradients, Plan
from dperm.gradient.recipes import dp_fedavg, dp_sgd
from dperm.objectives import MeanPass
from dperm.privacy import Gaussian, PoissonSampled, Relation, SelfComposed
from dperm.release import SpendLog
from helpers.halving import is_found, places_of

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
CLIENTS, SIZE, BOUND = 12, 3, 0.5


def plan_of(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "public_size": CLIENTS,
        "rounds": 6,
        "expected_cohort": 4,
        "local_steps": 1,
        "local_learning_rate": 1.0,
        "clipping_norm": BOUND,
    }
    return dp_fedavg(**(settings | changes))


def of(clients: Any = range(CLIENTS), plan: Plan | None = None, **changes: Any) -> FederatedRounds[Any]:
    return FederatedRounds(plan or plan_of(), np.zeros(SIZE), clients, **({"delta": 1e-5, "random_state": 0} | changes))


QUIET = {"noise_multiplier": 1e-9, "update": SGD(1.0)}


def test_the_charge_is_made_before_the_first_cohort_is_known_and_is_that_of_all_rounds() -> None:
    run = of(random_state=None)
    assert run.certificate is None and SpendLog.current().charges() == []
    run.cohort()
    expected = SelfComposed(PoissonSampled(1 / 3, Gaussian(1.0, ADD)), 6)
    assert [charge.event for charge in SpendLog.current().charges()] == [expected]
    certificate = run.certificate
    assert certificate is not None and certificate.event == expected
    assert certificate.of_persons
    certificate.verify()
    assert {"trusted server", "secret cohort", "clients apart", "registered clients", "public size"} <= {
        assumption.key for assumption in certificate.assumptions
    }
    assert str(run.planned().epsilon) == str(certificate.epsilon)


def test_a_preview_says_what_would_be_charged_and_charges_nothing() -> None:
    run = of(random_state=None, label="phones")
    planned = run.preview()
    assert SpendLog.current().charges() == [] and run.certificate is None
    assert (planned.steps, planned.expected_batch_size, planned.noise_multiplier) == (6, 4, 1.0)
    assert planned.certificate.neighbours == "one client is added or removed with all its records"
    for part in ("rounds ", "4 of 12 clients", "first of the rounds, to 'phones'"):
        assert part in str(planned)
    run.cohort()
    assert [charge.event for charge in SpendLog.current().charges()] == [planned.certificate.event]


def test_rounds_are_divided_by_the_expected_cohort_whoever_replies() -> None:
    plan = plan_of(expected_cohort=CLIENTS, rounds=4, **QUIET)  # each client in every round
    run, update = of(plan=plan), np.array([0.3, 0.0, 0.0])
    for replying in (CLIENTS, 5, 1, 0):
        before = run.theta.copy()
        cohort = run.cohort()
        assert len(cohort) == CLIENTS
        run.step((client, update) for client in cohort[:replying])
        assert before - run.theta == pytest.approx(replying * update / CLIENTS, abs=1e-7)
    assert run.rounds_done == 4
    with pytest.raises(ValueError, match="no more than the 4 rounds"):
        run.cohort()


def test_only_clients_of_the_cohort_count_and_each_once() -> None:
    run = of(plan=plan_of(**QUIET))
    while len(cohort := run.cohort()) < 2:
        run.step([])
    strangers = [client for client in range(CLIENTS) if client not in cohort]
    update, other = np.array([0.1, 0.0, 0.0]), np.array([0.0, 0.4, 0.0])
    before = run.theta.copy()
    run.step([(cohort[0], update), *((client, other) for client in strangers), (cohort[0], other), ("nobody", other)])
    assert before - run.theta == pytest.approx(update / 4, abs=1e-7)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "reply",
    [
        None,
        "no numbers",
        np.full(SIZE, np.nan),
        np.array([np.inf, 0.0, 0.0]),
        np.full(SIZE, 1e300),
        np.ones(SIZE - 1),
        np.ones((SIZE, 1)),
        np.ones((1, SIZE)),
        [1.0, [2.0], 3.0],
        np.array(["a"] * SIZE),
        {"weights": np.ones(SIZE)},
        5.0,
    ],
    ids=str,
)
def test_what_is_no_update_counts_as_zero(reply: Any) -> None:
    run = of(plan=plan_of(expected_cohort=CLIENTS, **QUIET))
    good = np.array([0.0, 0.0, 0.4])
    first, second = run.cohort()[:2]
    before = run.theta.copy()
    run.step([(first, reply), (second, good), (first, good)])  # a client that spoilt its reply has no second
    assert before - run.theta == pytest.approx(good / CLIENTS, abs=1e-7)


@pytest.mark.parametrize("length", [1e-300, 0.1, 1.0, 1e100])
def test_the_server_clips_whatever_a_client_sends(length: float) -> None:
    run = of(plan=plan_of(expected_cohort=CLIENTS, **QUIET))
    run.step([(run.cohort()[0], np.array([length, 0.0, 0.0]))])
    assert -run.theta[0] * CLIENTS == pytest.approx(min(length, BOUND), abs=1e-6)


def test_servers_may_have_any_update_and_bounding() -> None:
    for changes in ({"update": Adam(0.1)}, {"clipping_norm": None, "bounding": AdaptiveClip(0.5)}, {"sampling": "fixed_order"}):
        run = of(plan=plan_of(**changes))
        for _ in range(run.plan.steps):
            run.step((client, np.full(SIZE, 0.1)) for client in run.cohort())
        assert np.isfinite(run.model).all() and np.any(run.model != 0)


def test_groups_take_turns_and_each_client_is_asked_once_an_epoch() -> None:
    run = of(plan=plan_of(sampling="fixed_order"))
    asked: list[list[int]] = []
    for _ in range(6):
        asked.append(run.cohort())
        run.step([])
    assert sorted(client for cohort in asked[:3] for client in cohort) == list(range(CLIENTS))
    assert asked[:3] == asked[3:]


def test_the_order_of_calls_is_held() -> None:
    run = of()
    with pytest.raises(ValueError, match="Expected cohort"):
        run.step([])
    run.cohort()
    with pytest.raises(ValueError, match="before another one is drawn"):
        run.cohort()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: of(clients=[]), "at least one registered client"),
        (lambda: of(clients=[1, 2, 1]), "each once"),
        (lambda: of(plan=plan_of(noise_multiplier=0.3), target_epsilon=1.0), "within epsilon = 1"),
        (lambda: of(range(CLIENTS + 1), relation="replace_one"), "under replace-one"),
        (lambda: FederatedRounds(plan_of(), np.array([1.0, np.nan]), range(CLIENTS), delta=1e-5), "finite numbers"),
        (lambda: FederatedRounds(plan_of(), np.ones((2, 2)), range(CLIENTS), delta=1e-5), "vector"),
    ],
)
def test_what_has_no_meaning_is_refused_before_a_charge(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
    assert SpendLog.current().charges() == []


def test_plans_of_gradients_are_refused() -> None:
    plan = dp_sgd(noise_multiplier=1.0, public_size=CLIENTS, expected_batch_size=4, epochs=1, clipping_norm=1.0)
    with pytest.raises(TypeError, match="plan of local updates"):
        of(plan=plan)
    with pytest.warns(UserWarning, match="12 clients"):
        of(plan=plan_of(public_size=100))


# Neighbours, and planted defects. A record is what a client adds to the model that it was sent: its replies depend on both.

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(CLIENTS, SIZE))
DATA = ROWS, np.zeros(CLIENTS)
PULL = np.array([0.0, 2.0, 0.0])


def reply_of(theta: Any, row: Any) -> Any:
    return row + 0.1 * np.tanh(theta)


def training(plan: Plan | None = None, relation: Relation = ADD, twice: bool = False) -> Training:
    plan = plan or plan_of(rounds=4)

    def made(data: Any, source: Any) -> FederatedRounds[int]:
        return of(range(len(data[0])), plan, relation=relation, random_state=source)

    def run(data: Any, source: Any) -> Any:
        server = made(data, source)
        for _ in range(plan.steps):
            replies = [(client, reply_of(server.theta, data[0][client])) for client in server.cohort()]
            server.step(replies * (1 + twice))
        return server.model

    certificate = of(plan=plan, relation=relation).planned()
    return Training("federated", certificate, run, replay_pairs=pairs(relation))


def pairs(relation: Relation) -> list[Pair]:
    if relation is REPLACE:
        start = np.vstack([ROWS[:-1], -PULL]), np.zeros(CLIENTS)
        return [Pair.replacing("a client that pulls the other way", start, PULL, 0.0)]
    rows: list[tuple[str, Any]] = [("a client that pulls", PULL), ("huge", 1e300 * PULL), ("not numbers", np.full(SIZE, np.nan))]
    return [Pair.adding(name, DATA, row, 0.0) for name, row in rows]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("sampling", ["poisson", "fixed_order"])
def test_neighbours_move_a_round_by_what_is_charged_and_no_more(relation: Relation, sampling: str) -> None:
    """A client that replies twice, too."""
    for twice in (False, True):
        result = replay(training(plan_of(rounds=6, sampling=sampling), relation, twice))
        assert result.verdict == "consistent", str(result)
        assert 0.9 <= result.details["movement"]["sum of local updates"] <= 1 + 1e-6


def test_half_of_the_sensitivity_is_refuted() -> None:
    attacked = training()
    (place,) = places_of(attacked)
    assert is_found(attacked, place)


def refuted(**how: Any) -> bool:
    return replay(training(**how)).verdict == "refuted"


def test_a_client_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Any, replies: Iterable[Any], waiting: set[Any]) -> Any:
        return (np.asarray(update) for client, update in replies if client in waiting)

    monkeypatch.setattr(FederatedRounds, "_vectors", everything)
    assert refuted(twice=True)


def test_clients_beside_the_cohort_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked, and charged as a sample: amplification without sampling."""
    sound = rounds._Registry.next_draw

    def everyone(self: Any) -> Any:
        sound(self)

    monkeypatch.setattr(rounds._Registry, "next_draw", everyone)
    assert refuted()


def test_a_denominator_of_the_replies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = NoisyGradients.bounded_sum

    def mean(self: Any, theta: Any, batches: Any, *rest: Any) -> Any:
        batches = list(batches)
        total = sound(self, theta, batches, *rest)
        return replace(total, value=4 * total.value / max(1, len(batches)))

    monkeypatch.setattr(NoisyGradients, "bounded_sum", mean)
    others = np.tile(-PULL, (CLIENTS, 1)), np.zeros(CLIENTS)  # more of them than six in every round are next to impossible
    assert replay(training(plan_of(rounds=6)), [Pair.adding("against all others", others, PULL, 0.0)]).verdict == "refuted"


def test_a_server_that_does_not_clip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clip, "factors", lambda self, norms: np.ones_like(norms))
    assert not refuted()  # the pass holds the bound
    held = MeanPass.weighted_sum
    monkeypatch.setattr(MeanPass, "weighted_sum", lambda self, factors, bound=None: held(self, factors))
    assert refuted()


def test_what_is_not_a_number_and_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanPass, "weighted_sum", lambda self, factors, bound=None: self._vectors[0] / 9)
    monkeypatch.setattr(MeanPass, "__init__", lambda self, vectors, losses: setattr(self, "_vectors", vectors))
    monkeypatch.setattr(MeanPass, "norms", property(lambda self: np.ones(1)))
    assert refuted()


def test_all_clients_in_every_round_cost_no_less_than_that() -> None:
    whole = Plan(FullBatch(), Clip(BOUND), plan_of().noise, SGD(1.0), 3, CLIENTS, query=LocalUpdate(1, 1.0))
    run = of(plan=whole)
    assert run.planned().event == SelfComposed(Gaussian(1.0, ADD), 3)
    assert run.cohort() == list(range(CLIENTS))

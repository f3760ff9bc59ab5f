"""Steps that were charged and not taken: a run goes on with them, or gives them back to the data set's budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.gradient.recipes import dp_sgd
from dperm.privacy import Certificate
from dperm.privacy.events import event_from_dict, leaves
from dperm.release import Channel, SpendLog, UnpaidReleaseError, spend_log
from dperm.release.ledger import Budget, RenyiFilter
from dperm.torch import Callback, PrivateTrainer
from helpers.oracle import cross_entropy
from helpers.said import flat

DELTA, STEPS = 1e-6, 12
RULE = RenyiFilter.of(6.0, DELTA)
RECORDS = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 2

pytestmark = pytest.mark.filterwarnings("ignore:.*were reserved before an interruption")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SpendLog]:
    with spend_log(tmp_path / "spend.db") as found:
        found.create_budget(Budget("stays", RULE, alert=1.0))
        yield found


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many values left channels."""
    counted: Counter[str] = Counter()
    honest = Channel.release

    def counting(self: Channel, *given: Any) -> Any:
        value = honest(self, *given)
        counted["released"] += 1
        return value

    monkeypatch.setattr(Channel, "release", counting)
    return counted


class StopAfter(Callback):
    """Stops after so many steps, which is what a run may be stopped by: nothing of the records."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def should_stop(self) -> bool:
        self.left -= 1
        return self.left <= 0


def trainer(**settings: Any) -> PrivateTrainer:
    model = nn.Linear(4, 2)
    given: dict[str, Any] = {
        "epsilon": 2.0, "delta": DELTA, "plan": dp_sgd, "epochs": STEPS / 6, "expected_batch_size": 20, "clipping_norm": 1.0,
        "public_size": 120, "label": "stays", **settings,
    }  # fmt: skip
    return PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **given)


def stopped(steps: int = 5, **settings: Any) -> PrivateTrainer:
    made = trainer(**settings)
    return made.fit(RECORDS, callbacks=[StopAfter(steps)], progress=False)


def take(made: PrivateTrainer, steps: int, **given: Any) -> None:
    """So many steps in a loop of the caller's own."""
    for step in made.steps(RECORDS, **given):
        assert made.optimizer is not None
        made.optimizer.step()
        steps -= 1
        if not steps or step.number == step.total:
            break


def spent(log: SpendLog) -> float:
    account = log.account("stays")
    assert account is not None
    return account.spent["divergence"]


def steps_cost(certificate: Certificate | None, steps: int) -> float:
    assert certificate is not None
    ((leaf, count),) = leaves(certificate.event).items()
    assert count == STEPS
    return steps * RULE.cost(leaf)["divergence"]


# Going on


@pytest.mark.parametrize("folder", [False, True])
def test_a_run_goes_on_up_to_its_charge(tmp_path: Path, log: SpendLog, released: Counter[str], folder: bool) -> None:
    checkpoint = tmp_path / "run" if folder else None
    for go in (
        lambda made, resume: made.fit(RECORDS, callbacks=[StopAfter(5)], progress=False, resume=resume),
        lambda made, resume: take(made, 5, resume=resume),
    ):
        released.clear()
        made = trainer(checkpoint=checkpoint and checkpoint / f"{id(go)}")
        charges = len(log.charges())
        for done in (5, 10, 12):
            go(made, done > 5)
            left = made.remaining
            assert left is not None
            assert (left.steps_taken, left.steps_left, released["released"]) == (done, STEPS - done, done)
            assert len(log.charges()) == charges + 1
        assert made.certificate is not None and made.certificate.epsilon == left.epsilon_charged
        with pytest.raises(ValueError, match="all 12 steps that were charged were taken"):
            go(made, True)
        with pytest.raises(ValueError, match="Nothing to settle"):
            made.settle()
    log.verify()


def test_what_remains_is_told(log: SpendLog) -> None:
    made = trainer()
    assert made.remaining is None
    take(made, 3)
    left = made.remaining
    assert left is not None and left.epsilon_charged is not None
    assert (left.steps_charged, left.steps_taken, left.steps_left, left.steps_lost) == (STEPS, 3, STEPS - 3, 0)
    assert 0 < left.epsilon_taken < left.epsilon_left < left.epsilon_charged <= 2.0
    assert left.epsilon_taken == made.epsilon_spent and left.delta == DELTA
    assert left.epsilon_taken + left.epsilon_left > left.epsilon_charged  # which does not grow in proportion
    take(made, STEPS, resume=True)
    left = made.remaining
    assert left is not None and (left.steps_left, left.epsilon_left) == (0, 0.0)
    assert left.epsilon_taken == pytest.approx(left.epsilon_charged, rel=1e-2)


def test_a_run_goes_on_as_it_began_or_not_at_all(log: SpendLog) -> None:
    made = stopped()
    others = tuple(part.clone() for part in RECORDS)
    refusals: list[tuple[str, Any]] = [
        ("A trainer runs once", lambda: made.fit(RECORDS)),
        ("A trainer runs once", lambda: next(made.steps(RECORDS))),
        ("the records that the run began with", lambda: made.fit(others, resume=True, progress=False)),
        ("show_private", lambda: made.fit(RECORDS, resume=True, show_private=True)),
        ("own_loop", lambda: next(made.steps(RECORDS, resume=True))),
        ("ema_decay", lambda: made.fit(RECORDS, resume=True, ema_decay=0.9)),
    ]
    for message, go in refusals:
        with pytest.raises(ValueError, match=message):
            go()
    made.fit((RECORDS[0], RECORDS[1]), resume=True, progress=False)  # another tuple of the same tensors
    assert made.remaining is not None and made.remaining.steps_left == 0


def test_one_loop_at_a_time(log: SpendLog) -> None:
    made = trainer()
    first = made.steps(RECORDS)
    next(first)
    with pytest.raises(ValueError, match="first loop over the run's steps to be left"):
        next(made.steps(RECORDS, resume=True))
    with pytest.raises(ValueError, match="leave the loop"):
        made.settle()
    first.close()
    take(made, 1, resume=True)
    assert made.remaining is not None and made.remaining.steps_taken == 2


def test_a_step_that_failed_ends_a_run_in_its_process(log: SpendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it failed may follow from its records: nothing is given back, and its draw is lost."""
    made = stopped()

    def fails(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "release", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            made.fit(RECORDS, resume=True, progress=False)
    with pytest.raises(ValueError, match="after a step that failed"):
        made.settle()
    with pytest.raises(ValueError, match="failed within a step"):
        made.fit(RECORDS, resume=True, progress=False)


def test_an_average_is_left_and_taken_back(log: SpendLog) -> None:
    """Where training stopped, not at the average that was left there, it goes on."""
    made = trainer()
    made.fit(RECORDS, callbacks=[StopAfter(5)], progress=False, ema_decay=0.5)
    run = made._session.run
    assert run is not None and run._raw is not None
    at, left = run._raw
    assert torch.equal(made.objective.theta, left) and not torch.equal(at, left)
    seen: list[Tensor] = []

    class Look(Callback):
        def on_start(self, total: int, certificate: Certificate) -> None:
            seen.append(made.objective.theta.clone())

    made.fit(RECORDS, callbacks=[Look(), StopAfter(1)], progress=False, ema_decay=0.5, resume=True)
    assert torch.equal(seen[0], at)
    with torch.no_grad():
        next(iter(made.model.parameters())).add_(1.0)  # moved by its owner meanwhile: it stays there
    moved = made.objective.theta.clone()
    made.fit(RECORDS, callbacks=[Look(), StopAfter(1)], progress=False, ema_decay=0.5, resume=True)
    assert torch.equal(seen[1], moved)


def test_a_callback_that_stops_leaves_a_checkpoint(tmp_path: Path, log: SpendLog, released: Counter[str]) -> None:
    stopped(checkpoint=tmp_path / "run")
    again = trainer(checkpoint=tmp_path / "run")
    again.fit(RECORDS, resume=True, progress=False)
    assert again.remaining is not None and len(log.charges()) == 1
    assert (
        again.remaining.steps_taken == STEPS - again.steps_lost == released["released"]
    )  # lost: reserved, and gone with the first


# Settling


@pytest.mark.parametrize("folder", [False, True])
def test_a_settled_run_gives_back_its_steps(tmp_path: Path, log: SpendLog, released: Counter[str], folder: bool) -> None:
    made = stopped(checkpoint=tmp_path / "run" if folder else None)
    charged, whole = made.certificate, spent(log)
    assert charged is not None and whole == pytest.approx(steps_cost(charged, STEPS))
    settlement = made.settle()
    assert settlement.steps_given_back == STEPS - 5 and released["released"] == 5
    assert steps_cost(charged, 5) <= spent(log) <= steps_cost(charged, 5) + 1e-9 * whole
    left = made.remaining
    assert left is not None and (left.steps_taken, left.steps_given_back, left.steps_left, left.epsilon_left) == (
        5,
        STEPS - 5,
        0,
        0,
    )
    for go in (lambda: made.fit(RECORDS, resume=True), lambda: made.settle()):
        with pytest.raises(ValueError, match="settled"):
            go()
    with pytest.raises(UnpaidReleaseError, match="closed to settle"):
        run = made._session.run
        assert run is not None
        run.gradients(made.objective.theta)
    if folder:
        with pytest.raises(UnpaidReleaseError, match="was settled"):
            trainer(checkpoint=tmp_path / "run").fit(RECORDS, resume=True, progress=False)
    assert released["released"] == 5
    trainer().fit(RECORDS, progress=False)
    log.verify()


def test_a_certificate_keeps_its_charge(log: SpendLog) -> None:
    """The ε of the steps taken is not that of a run that stopped by what it released, nor for whoever pays for more with it."""
    made = stopped()
    charged = made.certificate
    assert charged is not None
    made.settle()
    settled = made.certificate
    assert settled is not None
    assert (settled.event, settled.epsilon, settled.status) == (charged.event, charged.epsilon, "certified")
    assert "7 of 12 charged steps were never released" in flat(settled) and "still its whole charge" in flat(settled)
    assert settled.public_facts["steps_taken"] == 5
    assert leaves(event_from_dict(settled.public_facts["never_released"])) == Counter(dict.fromkeys(leaves(charged.event), 7))
    (stated,) = [each for each in settled.assumptions if each.key == "stopped by releases"]
    assert stated.responsible == "caller" and stated not in charged.assumptions
    assert Certificate.from_json(settled.to_json()) == settled
    settled.verify()
    after = trainer(epsilon=4.0, spent=[settled])
    planned = after.planned()
    assert planned.epsilon == pytest.approx(trainer(epsilon=4.0, spent=[charged]).planned().epsilon)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "private numbers were shown": ({}, {"show_private": True}, "after show_private=True"),
    "scores without noise": ({}, {"validation": RECORDS}, "Expected public_validation=True"),
    "a private number of records": ({"public_size": None}, {}, "state public_size"),
    "draws of an epoch": ({"plan": partial(dp_sgd, sampling="balls_and_bins")}, {}, "count as released"),
    "correlated noise": ({"plan": partial(dp_sgd, sampling="fixed_order", correlation="square_root")}, {}, "count as released"),
}


@pytest.mark.fast_cases("private numbers were shown", "scores without noise", "draws of an epoch", "correlated noise")
@pytest.mark.parametrize("name", REFUSED)
def test_no_run_is_settled_that_nothing_is_proved_of(log: SpendLog, name: str) -> None:
    settings, given, message = REFUSED[name]
    made = trainer(**settings)
    made.fit(RECORDS, callbacks=[StopAfter(7)], progress=False, **given)  # an epoch is six steps
    with pytest.raises(ValueError, match=message):
        made.settle()
    assert [entry["kind"] for entry in log.history()] == ["budget", "charge"]


def test_public_validation_is_stated(log: SpendLog) -> None:
    made = trainer()
    made.fit(RECORDS, (torch.randn(10, 4), torch.arange(10) % 2), callbacks=[StopAfter(6)], progress=False)
    made.settle(public_validation=True)
    assert made.certificate is not None
    assert "public held-out records" in {each.key for each in made.certificate.assumptions}


def test_nothing_is_settled_before_a_charge_nor_after_an_interruption(tmp_path: Path, log: SpendLog) -> None:
    with pytest.raises(ValueError, match="nothing is charged yet"):
        trainer().settle()
    stopped(checkpoint=tmp_path / "run")
    again = trainer(checkpoint=tmp_path / "run")
    again.fit(RECORDS, callbacks=[StopAfter(1)], progress=False, resume=True)
    with pytest.raises(ValueError, match="Only the process that made a charge"):
        again.settle()


def test_a_copy_that_goes_on_is_limited_to_what_it_reserved(tmp_path: Path, log: SpendLog, released: Counter[str]) -> None:
    """No step is both taken by a copy of the run, from its checkpoint, and given back by the run itself."""
    made = stopped(2, checkpoint=tmp_path / "run")
    copy = trainer(checkpoint=tmp_path / "run")
    steps = copy.steps(RECORDS, resume=True)
    next(steps)
    settlement = made.settle()
    with pytest.raises(ValueError, match="was settled"):
        for _ in steps:
            assert copy.optimizer is not None
            copy.optimizer.step()
    assert released["released"] + settlement.steps_given_back <= STEPS
    assert spent(log) >= steps_cost(made.certificate, released["released"]) * (1 - 1e-9)
    log.verify()

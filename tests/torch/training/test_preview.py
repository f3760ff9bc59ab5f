"""What a planned run says of itself before anything is charged is what then runs and is charged."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from dperm.gradient.recipes import dp_fedavg, dp_sgd, dpis
from dperm.privacy import Certificate, epsilon
from dperm.release import SpendLog
from dperm.torch import PrivateTrainer
from helpers.said import flat

N = 120
X, Y = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2


def trainer(plan: Any = None, **changes: Any) -> PrivateTrainer:
    model = nn.Linear(4, 2)
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "public_size": N, "label": "wards"}
    if plan is None:
        settings |= {"epochs": 2, "expected_batch_size": 30, "clipping_norm": 1.0}
    loss = nn.CrossEntropyLoss(reduction="none")
    return PrivateTrainer(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), plan, **(settings | changes))


ROUNDS = partial(dp_fedavg, rounds=4, expected_cohort=10, local_steps=1, local_learning_rate=0.1, clipping_norm=0.5)
DECAY = partial(dp_sgd, epochs=2, expected_batch_size=30, clipping_norm=1.0, decay=0.5)


@pytest.mark.parametrize(
    ("plan", "changes", "fitted"),
    [
        (None, {}, {}),
        (None, {"relation": "replace_one", "public_size": None}, {}),
        (DECAY, {}, {}),
        (ROUNDS, {"public_size": 40, "max_rows_per_unit": 3}, {"groups": [i % 40 for i in range(N)]}),
        (partial(dpis, epochs=2, expected_batch_size=30, clipping_norm=1.0), {}, {}),
    ],
    ids=["poisson", "replace-one", "decay", "clients", "noise on the way"],
)
def test_a_preview_is_what_runs_and_is_charged(plan: Any, changes: dict[str, Any], fitted: dict[str, Any]) -> None:
    made = trainer(plan, **changes)
    records = N if made.settings.unit.max_rows is None else None
    planned = made.preview(records)
    assert SpendLog.current().charges() == [] and made.certificate is None
    made.fit((X, Y), **fitted)
    assert [charge.event for charge in SpendLog.current().charges()] == [planned.certificate.event]
    certificate, ran = made.certificate, made.plan
    assert certificate is not None and ran is not None
    assert (planned.epsilon, planned.delta) == (certificate.epsilon, 1e-5)
    assert (planned.steps, planned.expected_batch_size) == (ran.steps, ran.expected_batch_size)
    assert planned.certificate.public_facts == certificate.public_facts
    assert planned.certificate.assumptions == certificate.assumptions


def test_all_of_it_is_said_in_a_few_lines() -> None:
    planned = trainer().preview()
    noise = planned.noise_multiplier
    assert noise is not None and epsilon(planned.certificate.event, 1e-5) <= 2.0
    lines = str(planned).splitlines()
    assert max(map(len, lines)) <= 110
    for line, parts in zip(
        lines,
        [
            ["nothing is charged"],
            ["steps", "8 (2 expected passes)"],
            ["expected batch", "30 of 120 records", "Poisson"],
            ["noise multiplier", f"{noise:.4g}"],
            ["privacy", "ε = 2, δ = 1e-05, when one person's record is added or removed"],
            ["would be charged", "before the first of the steps, to 'wards' in the spend log"],
        ],
        strict=True,
    ):
        assert all(part in line for part in parts), line
    first, last = trainer(DECAY).preview().plan.noise_multipliers or (0.0, 0.0)
    assert first > last and f"{first:.4g} in the first step, {last:.4g} in the last" in str(trainer(DECAY).preview())
    assert "chosen by the plan" in str(trainer(partial(dpis, epochs=2, expected_batch_size=30, clipping_norm=1.0)).preview())
    assert "NOT PRIVATE" in str(trainer(random_state=0).preview())


def test_a_number_of_records_that_a_run_would_release_is_planned_for_where_it_is_given() -> None:
    made = trainer(public_size=None)
    with pytest.raises(ValueError, match=r"preview\(records=…\).*how many records"):
        made.preview()
    few, many = made.preview(200), made.preview(20_000)
    assert few.certificate.event == many.certificate.event  # what is charged follows from no number of records
    assert (few.steps, many.steps) == (2 * 200 // 30 + 1, 2 * 20_000 // 30 + 1)
    assert few.noise_multiplier is not None and many.noise_multiplier is not None
    assert few.noise_multiplier > many.noise_multiplier
    assert few.epsilon is not None and few.epsilon <= 2.0
    stated = trainer(public_size=200).preview()
    assert (
        stated.noise_multiplier is not None and stated.noise_multiplier < few.noise_multiplier
    )  # which pays for the number, too
    assert SpendLog.current().charges() == []


def test_what_was_spent_before_is_in_the_total() -> None:
    before = trainer(epsilon=1.0)
    spent = before.preview().certificate
    planned = trainer(epsilon=2.0, spent=[spent]).preview()
    assert planned.total is not None
    assert planned.epsilon is not None
    assert planned.total.epsilon is not None
    assert planned.epsilon < planned.total.epsilon <= 2.0 and "with what was spent" in str(planned)
    assert "\n  with what was spent" not in str(before.preview())


def test_a_plan_that_cannot_run_is_refused_by_its_preview() -> None:
    with pytest.raises(ValueError, match="one row a person"):
        trainer(partial(dpis, epochs=2, expected_batch_size=30, clipping_norm=1.0), max_rows_per_unit=3).preview()
    with pytest.raises(ValueError, match="records"):
        trainer(public_size=None).preview(0)


def test_what_trains_locally_is_called_a_client_everywhere() -> None:
    groups = {"groups": [i % 40 for i in range(N)]}
    made = trainer(ROUNDS, public_size=40, max_rows_per_unit=3)
    planned = made.preview()
    assert "40 clients" in str(planned) and "rounds " in str(planned)
    with pytest.warns(UserWarning, match="public_size = 400, but there are 40 clients"):
        far = trainer(ROUNDS, public_size=400, max_rows_per_unit=3).fit((X, Y), **groups)
    with pytest.warns(UserWarning, match=r"are one client's|but there are 1 clients"):
        trainer(ROUNDS, public_size=40, max_rows_per_unit=3).fit((X, Y), groups=[0] * N)
    with pytest.raises(ValueError, match="the number of clients"):
        trainer(ROUNDS, relation="replace_one", public_size=50, max_rows_per_unit=3).fit((X, Y), **groups)
    for certificate in (planned.certificate, far.certificate, Certificate.of_all([planned.certificate, planned.certificate])):
        assert certificate is not None and certificate.of_persons
        said = flat(certificate)
        assert "one client is added or removed with all its records" in said
        assert "person" not in said.replace("Each person's records are with one client", "")
        Certificate.from_json(certificate.to_json()).verify()


def test_persons_and_records_keep_their_words() -> None:
    persons = trainer(public_size=40, max_rows_per_unit=3).preview()
    assert "40 persons" in str(persons) and "one person is added or removed with all their rows" in flat(persons.certificate)
    records = trainer(partial(ROUNDS)).preview()  # local training on single records
    assert f"{N} records" in str(records) and "one person's record is added or removed" in flat(records.certificate)
    mixed = Certificate.of_all([trainer(ROUNDS, public_size=40, max_rows_per_unit=3).preview().certificate, persons.certificate])
    assert mixed.neighbours.startswith("one person is added")

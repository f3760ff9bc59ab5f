"""The strategy for Flower: messages, replies of every kind, and what is charged; on Flower itself where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dperm.gradient import Adam, AdaptiveClip
from dperm.privacy import BoundedSquaresGaussian, Gaussian, PoissonSampled, Relation, SelfComposed
from dperm.release import SpendLog
from helpers.fake_flower import LoopbackGrid, install

install()

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402

from dperm.flower import DPFedAvg  # noqa: E402

ADD = Relation.ADD_OR_REMOVE_ONE
NODES = [11, 5, 8, 23, 42, 4]
PULLED = np.array([[0.3, 0.0], [0.0, 0.0]], dtype=np.float32)


def model() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.ones((2, 2), dtype=np.float32)),
            "bias": Array(np.zeros(3)),
            "steps": Array(np.array([7, 7], dtype=np.int64)),
        }
    )


def strategy(**changes: Any) -> DPFedAvg:
    settings: dict[str, Any] = {
        "noise_multiplier": 1e-9,
        "delta": 1e-5,
        "public_size": len(NODES),
        "rounds": 3,
        "expected_cohort": len(NODES),
        "local_steps": 5,
        "local_learning_rate": 0.1,
        "clipping_norm": 1.0,
        "random_state": 0,
        "registration_seconds": 0.0,
    }
    return DPFedAvg(**(settings | changes))


def test_a_preview_asks_nobody_and_is_what_is_charged() -> None:
    made = strategy(random_state=None, noise_multiplier=2.0)
    planned = made.preview(model())
    assert SpendLog.current().charges() == [] and made.certificate is None
    assert (planned.steps, planned.noise_multiplier, planned.whom) == (3, 2.0, "clients")
    made.start(LoopbackGrid(NODES, lambda node, message: []), model())
    assert [charge.event for charge in SpendLog.current().charges()] == [planned.certificate.event]


def arrays_of(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}


def replied(message: Any, change: Callable[[dict[str, Any]], dict[str, Any]], key: str = "arrays") -> Any:
    arrays = change(arrays_of(message.content["arrays"]))
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    metrics = MetricRecord({"loss": 1.0, "num-examples": 10})
    return Message(content=RecordDict({key: record, "metrics": metrics}), reply_to=message)


def pulls(arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays | {"weight": arrays["weight"] - PULLED}


def honest(node: int, message: Any) -> Iterator[Any]:
    yield replied(message, pulls)


def test_a_run_moves_the_model_by_the_mean_of_what_clients_did() -> None:
    run, grid = strategy(), LoopbackGrid(NODES, honest)
    result = run.start(grid=grid, initial_arrays=model())
    made = arrays_of(result.arrays)
    assert made["weight"] == pytest.approx(1 - 3 * PULLED, abs=1e-6) and made["weight"].dtype == np.float32
    assert made["bias"] == pytest.approx(np.zeros(3), abs=1e-6) and made["steps"].tolist() == [7, 7]
    assert [sorted(sent) for sent in grid.sent] == [sorted(NODES), []] * 3  # nobody is asked to evaluate


def test_clients_are_told_the_settings_and_the_round() -> None:
    seen: list[Any] = []

    def reply(node: int, message: Any) -> Iterator[Any]:
        seen.append(dict(message.content["config"]))
        yield from honest(node, message)

    run = strategy(local_batch_size=16, rounds=2)
    run.start(grid=LoopbackGrid(NODES, reply), initial_arrays=model(), train_config=ConfigRecord({"lr": 0.5}))
    assert seen[-1] == {
        "lr": 0.5, "local-steps": 5, "local-learning-rate": 0.1, "local-momentum": 0.0, "local-batch-size": 16, "server-round": 2,
    }  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda message: [],
        lambda message: [Message(Error(0, "out of memory"), reply_to=message)],
        lambda message: [replied(message, lambda a: {**a, "weight": np.full((2, 2), np.nan, dtype=np.float32)})],
        lambda message: [replied(message, lambda a: {**a, "bias": np.full(3, -np.inf)})],
        lambda message: [replied(message, lambda a: {**a, "weight": a["weight"].ravel()})],
        lambda message: [replied(message, lambda a: {**a, "more": np.ones(2)})],
        lambda message: [replied(message, lambda a: {"weight": a["weight"]})],
        lambda message: [replied(message, lambda a: {**a, "bias": np.array([1e300, 1j, 0])})],
        lambda message: [replied(message, lambda a: {**a, "bias": np.full(3, np.finfo(np.longdouble).max)})],
        lambda message: [replied(message, pulls, key="models")],
        lambda message: [Message(content=RecordDict(), reply_to=message)],
    ],
    ids=["gone", "error", "nan", "inf", "shape", "more arrays", "fewer arrays", "complex", "huge", "another key", "nothing"],
)
def test_a_client_that_replies_anything_else_counts_as_zero(wrong: Callable[[Any], list[Any]]) -> None:
    def reply(node: int, message: Any) -> Iterator[Any]:
        yield from wrong(message) if node == 8 else honest(node, message)

    run = strategy(rounds=1)
    result = run.start(grid=LoopbackGrid(NODES, reply), initial_arrays=model())
    assert arrays_of(result.arrays)["weight"] == pytest.approx(1 - PULLED * 5 / 6, abs=1e-6)


def test_the_server_clips_and_a_second_reply_does_not_count() -> None:
    def reply(node: int, message: Any) -> Iterator[Any]:
        yield replied(message, lambda a: {**a, "weight": a["weight"] - np.float32(1e6) * np.eye(2, dtype=np.float32)})
        yield from honest(node, message)

    result = strategy(rounds=1).start(grid=LoopbackGrid(NODES, reply), initial_arrays=model())
    assert arrays_of(result.arrays)["weight"] == pytest.approx(1 - np.eye(2) / np.sqrt(2), abs=1e-6)


def test_replies_to_another_round_do_not_count() -> None:
    late: list[Any] = []

    def reply(node: int, message: Any) -> Iterator[Any]:
        if node == 5:
            late.append(replied(message, pulls))
            yield from late[:1] if len(late) > 1 else ()
        else:
            yield from honest(node, message)

    result = strategy(rounds=2).start(grid=LoopbackGrid(NODES, reply), initial_arrays=model())
    assert arrays_of(result.arrays)["weight"] == pytest.approx(1 - 2 * PULLED * 5 / 6, abs=1e-6)


def test_rounds_with_nobody_are_ordinary() -> None:
    run = strategy(rounds=40, expected_cohort=0.5, secret_cohort=True, noise_multiplier=1.0)
    grid = LoopbackGrid(NODES, honest)
    made = arrays_of(run.start(grid=grid, initial_arrays=model()).arrays)
    assert any(not sent for sent in grid.sent[::2]) and any(grid.sent[::2])
    assert all(np.isfinite(array).all() for array in made.values())


def test_the_charge_is_made_before_the_first_message_leaves() -> None:
    events: list[Any] = []

    def reply(node: int, message: Any) -> Iterator[Any]:
        events.append([charge.event for charge in SpendLog.current().charges()])
        yield from honest(node, message)

    settings: dict[str, Any] = {"noise_multiplier": 1.0, "random_state": None, "expected_cohort": 2}
    secret = strategy(**settings, secret_cohort=True)
    secret.start(grid=LoopbackGrid(NODES, reply), initial_arrays=model())
    sampled = SelfComposed(PoissonSampled(1 / 3, Gaussian(1.0, ADD)), 3)
    assert secret.certificate is not None and secret.certificate.event == sampled
    assert events[0] == [sampled]
    turns = strategy(**settings)
    turns.start(grid=LoopbackGrid(NODES, honest), initial_arrays=model())
    assert turns.certificate is not None and turns.certificate.event == BoundedSquaresGaussian(1.0, 3, 1.0, ADD)
    assert turns.certificate.status == "certified" and turns.certificate.of_persons


def test_a_budget_is_kept() -> None:
    run = strategy(noise_multiplier=None, epsilon=3.0, random_state=None)
    run.start(grid=LoopbackGrid(NODES, honest), initial_arrays=model())
    assert run.certificate is not None and run.certificate.epsilon == pytest.approx(3.0, rel=1e-3)


def test_servers_have_other_updates_and_boundings() -> None:
    for changes in ({"update": Adam(0.1)}, {"clipping_norm": None, "bounding": AdaptiveClip(1.0)}):
        made = arrays_of(strategy(**changes).start(grid=LoopbackGrid(NODES, honest), initial_arrays=model()).arrays)
        assert np.isfinite(made["weight"]).all() and made["weight"][0, 0] < 1


def test_only_registered_clients_are_asked() -> None:
    run, grid = strategy(clients=[5, 8, 99]), LoopbackGrid(NODES, honest)
    run.start(grid=grid, initial_arrays=model())
    assert sorted(grid.sent[0]) == [5, 8, 99]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: strategy(epsilon=1.0), "exactly one of epsilon"),
        (lambda: strategy(clipping_norm=None), "exactly one of clipping_norm"),
        (lambda: strategy(public_size=0), "public_size"),
        (lambda: strategy().start(LoopbackGrid([], honest), model()), "at least one registered client"),
        (lambda: strategy().start(LoopbackGrid(NODES, honest), model(), 5), "num_rounds=3"),
        (lambda: strategy(clients=[5, 5]).start(LoopbackGrid(NODES, honest), model()), "each once"),
        (
            lambda: strategy(relation="replace_one", public_size=8, secret_cohort=True).start(
                LoopbackGrid(NODES, honest), model()
            ),
            "replace-one",
        ),
        (
            lambda: strategy().start(LoopbackGrid(NODES, honest), ArrayRecord({"a": Array(np.arange(3))})),
            "floating-point numbers",
        ),
        (
            lambda: strategy().start(LoopbackGrid(NODES, honest), ArrayRecord({"a": Array(np.full(3, np.nan))})),
            "finite numbers",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_a_charge(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
    assert SpendLog.current().charges() == []

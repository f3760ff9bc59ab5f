"""DP-FedAvg as a strategy of Flower: real clients, a trusted server, central noise.

    strategy = DPFedAvg(epsilon=3.0, delta=1e-5, public_size=1000, rounds=100, expected_cohort=50, local_steps=5,
                        local_learning_rate=0.1, clipping_norm=1.0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()))
    print(strategy.certificate)

Client apps stay as they are: they train the model that arrives, and reply with it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import getLogger
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._extras import needed
from dperm._types import Array as Vector
from dperm.federated import FederatedRounds
from dperm.gradient import Bounding, Plan, PlannedRun, Update
from dperm.gradient.recipes import dp_fedavg
from dperm.privacy import Certificate, Relation, calibrate

with needed("flwr", "A Flower strategy"):
    from flwr import app  # pyright: ignore[reportMissingImports]
    from flwr.serverapp.strategy import Strategy  # pyright: ignore[reportMissingImports]

__all__ = ["DPFedAvg"]

_LOG = getLogger(__name__)
_PAUSE = 0.5  # seconds between two looks at who is connected


class DPFedAvg(Strategy):
    """Federated averaging under differential privacy of clients, each with all its records.

    The server draws each round's cohort over all registered clients, clips what each reply moves the model by, adds noise to the
    sum, and divides by the constant `expected_cohort`. A client that is gone, fails, or replies with other arrays or with numbers
    that are not finite counts as zero; of several replies the first counts. What clients report beside their arrays is dropped,
    and clients are not asked to evaluate: neither is paid for.

    Parameters
    ----------
    epsilon, delta : the budget of all rounds. noise_multiplier : instead of `epsilon`, noise standard deviation ÷ sensitivity.
    public_size : the publicly known number of clients.
    rounds, expected_cohort : how many rounds, and how many clients are expected in each.
    clipping_norm : the most that a client may move the sum by, in L2, over all arrays of floating-point numbers together; or a
        `bounding` such as `AdaptiveClip`.
    local_steps, local_learning_rate, local_batch_size, local_momentum : told to clients in the `configrecord_key` record, as
        "local-steps" and so on. The guarantee does not depend on what clients make of them.
    update : the server's optimiser, of `dperm.gradient`. None: SGD(1.0), which averages models.
    secret_cohort : True states that who takes part in which round stays secret from whoever sees the models: clients are then
        drawn by Poisson sampling, and the charge is smaller for it. False: clients take turns in groups that chance makes, and
        nothing of the charge depends on who knows them.
    clients : node ids of the registered clients. None: those that are connected before the first round, which waits up to
        `registration_seconds` for `public_size` of them. Whoever connects later is not asked.
    relation : "add_or_remove_one" or "replace_one"; the latter needs `public_size` clients.
    label : names the clients in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    The charge is in the spend log before the first message leaves, for all rounds. A run that stops is not continued.
    ValueError or TypeError for settings that cannot be, before the charge.
    """

    def __init__(
        self,
        *,
        delta: float,
        public_size: int,
        rounds: int,
        expected_cohort: float,
        local_steps: int,
        local_learning_rate: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        clipping_norm: float | None = None,
        bounding: Bounding | None = None,
        local_batch_size: int | None = None,
        local_momentum: float = 0.0,
        update: Update | None = None,
        secret_cohort: bool = False,
        clients: Sequence[int] | None = None,
        registration_seconds: float = 60.0,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        label: str = "",
        random_state: Any = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("Expected exactly one of epsilon and noise_multiplier.")
        public_size = check.integer("public_size", public_size)
        turns = not secret_cohort and check.positive("expected_cohort", expected_cohort) < public_size

        def make(noise: float) -> Plan:
            return dp_fedavg(
                noise_multiplier=noise, public_size=public_size, rounds=rounds, expected_cohort=expected_cohort,
                local_steps=local_steps, local_learning_rate=local_learning_rate, local_batch_size=local_batch_size,
                local_momentum=local_momentum, clipping_norm=clipping_norm, bounding=bounding, update=update,
                sampling="fixed_order" if turns else "poisson",
            )  # fmt: skip

        self._relation = Relation(relation)
        if noise_multiplier is None:
            target = check.positive("epsilon", epsilon)
            noise_multiplier = calibrate(lambda noise: make(noise).event(self._relation), target, delta)
        self.plan = make(noise_multiplier)
        self._clients = None if clients is None else [check.integer("clients", node, minimum=0) for node in clients]
        self._seconds = check.non_negative("registration_seconds", registration_seconds)
        self._settings: dict[str, Any] = {"delta": delta, "target_epsilon": epsilon, "relation": relation, "label": label}
        self._random_state = random_state
        self._arrays_key, self._config_key = arrayrecord_key, configrecord_key
        local = {"local-steps": local_steps, "local-learning-rate": local_learning_rate, "local-momentum": local_momentum}
        self._local: dict[str, Any] = local | ({} if local_batch_size is None else {"local-batch-size": local_batch_size})
        self._rounds: FederatedRounds[int] | None = None
        self._layout: _Layout | None = None

    @property
    def certificate(self) -> Certificate | None:
        """What the run costs, and on what assumptions; None before the charge."""
        return None if self._rounds is None else self._rounds.certificate

    def preview(self, initial_arrays: app.ArrayRecord) -> PlannedRun:
        """Rounds, expected cohort, noise, ε and what would be charged, for `public_size` clients. Nothing is charged and no
        client is asked."""
        layout = _Layout({name: array.numpy() for name, array in initial_arrays.items()})
        clients = list(range(self.plan.public_size))
        return FederatedRounds(self.plan, layout.start, clients, **self._settings, random_state=self._random_state).preview()

    def summary(self) -> None:
        """Log what the strategy does."""
        _LOG.info(
            "DP-FedAvg: %d rounds of %g expected clients, %s", self.plan.steps, self.plan.expected_batch_size, self.plan.kind
        )

    def start(
        self,
        grid: Any,
        initial_arrays: app.ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: app.ConfigRecord | None = None,
        evaluate_config: app.ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Any:
        """As Flower's, for the number of rounds that is charged. `evaluate_fn` is the server's own evaluation, on public data."""
        if num_rounds not in (None, self.plan.steps):
            raise ValueError(f"Expected num_rounds={self.plan.steps}, for which the noise was made, got {num_rounds}.")
        self._register(grid, initial_arrays)
        return super().start(grid, initial_arrays, self.plan.steps, timeout, train_config, evaluate_config, evaluate_fn)

    # What Flower asks in each round

    def configure_train(
        self, server_round: int, arrays: app.ArrayRecord, config: app.ConfigRecord, grid: Any
    ) -> Iterable[app.Message]:
        """Messages to this round's cohort. The strategy holds the model: `arrays` counts in the first round alone."""
        rounds, layout = self._register(grid, arrays)
        cohort = rounds.cohort()
        told = app.ConfigRecord({**config, **self._local, "server-round": server_round})
        content = app.RecordDict({self._arrays_key: layout.record(rounds.theta), self._config_key: told})
        return [
            app.Message(content=content, message_type=app.MessageType.TRAIN, dst_node_id=node, group_id=str(server_round))
            for node in cohort
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[app.Message]) -> tuple[app.ArrayRecord | None, None]:
        """The next model. There are no metrics: they would leave without noise."""
        if self._rounds is None or self._layout is None:
            raise ValueError("Expected configure_train before aggregate_train.")
        self._rounds.step(self._updates(str(server_round), replies, self._layout, self._rounds.theta))
        self._rounds.theta = self._layout.held(self._rounds.theta)
        last = self._rounds.rounds_done == self.plan.steps
        return self._layout.record(self._rounds.model if last else self._rounds.theta), None

    def configure_evaluate(
        self, server_round: int, arrays: app.ArrayRecord, config: app.ConfigRecord, grid: Any
    ) -> Iterable[app.Message]:
        """Nobody: what clients would report of their records is not paid for."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[app.Message]) -> None:
        """Nothing."""

    def _register(self, grid: Any, arrays: app.ArrayRecord) -> tuple[FederatedRounds[int], _Layout]:
        """Once: who takes part, and the initial model. ValueError for what cannot be trained; nothing is charged yet."""
        if self._rounds is None or self._layout is None:
            layout = _Layout({name: array.numpy() for name, array in arrays.items()})
            clients = self._connected(grid) if self._clients is None else self._clients
            self._rounds = FederatedRounds(self.plan, layout.start, clients, **self._settings, random_state=self._random_state)
            self._layout = layout
        return self._rounds, self._layout

    def _connected(self, grid: Any) -> list[int]:
        """Nodes that are connected, once they are as many as are stated, or after a while."""
        end = time.monotonic() + self._seconds
        while len(nodes := sorted(set(grid.get_node_ids()))) < self.plan.public_size and time.monotonic() < end:
            time.sleep(_PAUSE)
        return nodes

    def _updates(self, group: str, replies: Iterable[app.Message], layout: _Layout, theta: Vector) -> Iterator[tuple[int, Any]]:
        """(node, θ − θ') of each reply to this round's messages; None for what is no model."""
        for reply in replies:
            if reply.metadata.group_id == group:
                yield reply.metadata.src_node_id, _moved(reply, self._arrays_key, layout, theta)


def _moved(reply: app.Message, key: str, layout: _Layout, theta: Vector) -> Vector | None:
    """θ − θ' of a reply. Whatever is wrong with it is an error of the client's, and would be an output; so would a warning."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            if reply.has_error():
                return None
            arrays = {name: array.numpy() for name, array in reply.content[key].items()}
            return theta - layout.vector(arrays)
        except Exception:
            return None


class _Layout:
    """The arrays of a model as one vector: those of floating-point numbers, in their order. Others stay as they are."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: np.asarray(array) for name, array in arrays.items()}
        self._trained = [name for name, array in self._arrays.items() if np.issubdtype(array.dtype, np.floating)]
        if not self._trained:
            raise ValueError("Expected initial arrays with floating-point numbers, which can be trained, got none.")
        self.start = self.vector(self._arrays)

    def vector(self, arrays: Mapping[str, Any]) -> Vector:
        """(p,) in double precision. ValueError for arrays of other names or shapes."""
        if set(arrays) != set(self._arrays) or any(arrays[name].shape != held.shape for name, held in self._arrays.items()):
            raise ValueError("Expected the arrays of the model that was sent.")
        return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in self._trained])

    def arrays(self, vector: Vector) -> dict[str, Any]:
        """The arrays of a vector, each of its own type and shape."""
        made, start = dict(self._arrays), 0
        with np.errstate(over="ignore"):
            for name in self._trained:
                held = self._arrays[name]
                made[name] = vector[start : start + held.size].reshape(held.shape).astype(held.dtype)
                start += held.size
        return made

    def held(self, vector: Vector) -> Vector:
        """The vector as clients get it: rounded to the arrays' types."""
        return self.vector(self.arrays(vector))

    def record(self, vector: Vector) -> app.ArrayRecord:
        """What a message carries."""
        return app.ArrayRecord({name: app.Array(array) for name, array in self.arrays(vector).items()})

"""Networks that a seeded generator makes, and what dperm does with each: refused before the charge, or how far
a query moves.

`helpers.wrong_models` has models that let one record reach another, `helpers.right_models` such as people train. Neither knows
how dperm runs a model.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm._random import Randomness
from dperm.audit.outputs import unlogged
from dperm.audit.recording import Forced, Recorder
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.release.alignment import aligned
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.data.collation import grouped
from dperm.torch.ranks.tensor_noise import TorchSource

__all__ = [
    "BODIES",
    "RECORDS",
    "Case",
    "Outcome",
    "Rows",
    "batch_way",
    "neighbours",
    "production",
    "seeded",
    "single_norms",
    "trains",
]

RECORDS = 20  # a look at records before a charge takes sixteen
STEPS = 3
EXTREME, ORDINARY = RECORDS, RECORDS + 1  # numbers of the record that joins, and of one that it is exchanged with


class Last(nn.Module):
    """The last hidden state of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


class Pooled(nn.Module):
    """The mean over places of what a layer makes."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(1)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attend = nn.Linear(3, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.attend(h, h, h, need_weights=False)[0]


class ResidualGroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.one, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.leave = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enter(x))
        return self.leave((h + torch.relu(self.norm(self.one(h)))).mean((2, 3)))


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


#: what makes 8 features of a record, and what a record looks like: "vector", "image", "series" or "tokens"
BODIES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()), "vector"),
    "deep MLP": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)), "vector"),
    "CNN": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 8)), "image"),
    "residual with GroupNorm": (ResidualGroupNorm, "image"),
    "RNN": (lambda: Last(nn.RNN(3, 8, batch_first=True)), "series"),
    "LSTM": (lambda: Last(nn.LSTM(3, 8, batch_first=True)), "series"),
    "GRU": (lambda: Last(nn.GRU(3, 8, batch_first=True)), "series"),
    "transformer layer": (lambda: Pooled(nn.Linear(3, 8), _layer()), "series"),
    "attention": (lambda: Pooled(SelfAttention()), "series"),
    "embedding bag": (lambda: nn.EmbeddingBag(20, 8), "tokens"),
    "embedding": (lambda: Pooled(nn.Embedding(20, 8), nn.Linear(8, 8)), "tokens"),
}


def records(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """RECORDS ordinary records and their classes, the extreme one, and one more ordinary one."""
    generator = torch.Generator().manual_seed(seed)
    count = RECORDS + 2
    targets = torch.randint(0, 2, (count,), generator=generator)
    if kind == "tokens":
        x = torch.randint(1, 15, (count, 5), generator=generator)
        x[EXTREME] = 19
        return x, targets
    shape = {"vector": (6,), "image": (1, 6, 6), "series": (5, 3)}[kind]
    x = torch.randn(count, *shape, generator=generator)
    x[EXTREME] *= 30
    return x, targets


class Rows(Dataset[Any]):
    """A data set of these items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self.items[index])


@dataclass(frozen=True)
class Case:
    """A model with its loss and records: `make()` gives (model, loss) and must give the same each time.

    `inputs` are tensors of RECORDS + 2 rows, or a list of as many items (input, target), which `collate` makes a batch of.
    A person has `rows` records, one after the other. `draws` says that the model or its data draw. `small` is how far losses
    and the clipping norm are scaled down. `reads` says that the model reads numbers, so that records part.
    """

    name: str
    make: Callable[[], tuple[nn.Module, Callable[[Any, Any], Tensor]]]
    inputs: Any
    targets: Tensor
    collate: Callable[[list[Any]], Any] | None = None
    draws: bool = False
    physical: int | None = None
    workers: int = 0
    rows: int = 1
    plan: str = "full batch"
    small: float = 1.0
    autocast: torch.dtype | None = None
    idiom: str = ""
    reads: bool = False

    @property
    def bound(self) -> float:
        return 0.1 * self.small

    def data(self, order: Sequence[int]) -> Any:
        if isinstance(self.inputs, list):
            return Rows([self.inputs[place] for place in order])
        places = torch.tensor(order)
        return _taken(self.inputs, places), _taken(self.targets, places)


def _taken(tensors: Any, places: Tensor) -> Any:
    if isinstance(tensors, dict):
        return {name: tensor[places] for name, tensor in tensors.items()}
    if isinstance(tensors, tuple):
        return tuple(tensor[places] for tensor in tensors)
    return tensors[places]


@dataclass
class Outcome:
    """`message` of a refusal before the charge; `moved` by each release, in charged sensitivities; warnings on the way."""

    message: str = ""
    moved: list[float] = field(default_factory=list[float])
    warned: set[str] = field(default_factory=set[str])
    error: BaseException | None = None

    @property
    def refused(self) -> bool:
        return bool(self.message)

    @property
    def furthest(self) -> float:
        return max(self.moved, default=0.0)


class FailedAfterChargeError(Exception):
    """A run failed after its charge: on another data set it may have gone on, so that failing is an output."""


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - models that are tested draw from it


def _plan(case: Case) -> dict[str, Any]:
    size = RECORDS // case.rows
    common: dict[str, Any] = {"delta": 1e-5, "public_size": size}
    if case.rows > 1:
        common["max_rows_per_unit"] = case.rows
    if case.plan == "dpis":
        return common | {
            "plan": dpis, "epsilon": 3.0, "epochs": 2, "expected_batch_size": size / 4, "clipping_norm": case.bound,
        }  # fmt: skip
    common["noise_multiplier"] = 5.0
    if case.plan == "poisson":
        return common | {"plan": partial(dp_sgd, epochs=2, expected_batch_size=size / 2, clipping_norm=case.bound)}
    return common | {"plan": partial(full_batch_descent, steps=STEPS, clipping_norm=case.bound)}


def _run(case: Case, order: Sequence[int], source: Any, align: bool) -> Outcome:
    """A run of the whole trainer. Releases move weights by about 0.2 a step, so that a zero head is none in the second."""
    seeded(1)
    outcome = Outcome()
    with warnings.catch_warnings(record=True) as warned, unlogged() as log:
        warnings.simplefilter("always")
        try:
            model, loss = case.make()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            trainer = PrivateTrainer(
                model,
                loss,
                torch.optim.SGD(trained, lr=1.0 / case.bound),
                physical_batch_size=case.physical,
                collate_fn=case.collate,
                num_workers=case.workers,
                random_state=source,
                autocast=case.autocast,
                **_plan(case),
            )
            trainer.objective.engine.draws.secret = (
                source is None
            )  # data sets and collations draw from seeds that are the same again
            groups = np.arange(len(order)) // case.rows if case.rows > 1 else None
            if align:
                with aligned(source.names):
                    trainer.fit(case.data(order), groups=groups, progress=False)
            else:
                trainer.fit(case.data(order), groups=groups, progress=False)
        except Exception as error:
            if log.charges():
                raise FailedAfterChargeError(f"{case.name}: {type(error).__name__}: {error}") from error
            outcome.message, outcome.error = f"{type(error).__name__}: {error}", error
    outcome.warned = {f"{each.category.__name__}: {each.message}" for each in warned}
    return outcome


def trains(case: Case) -> Outcome:
    """A run of the whole trainer as anybody would make it, with secret draws."""
    return _run(case, range(RECORDS), None, False)


def places_to_join(case: Case) -> tuple[int, int, int]:
    """In front, in the middle where a look at sixteen records does not fall, and at the end; people, where there are any."""
    people = RECORDS // case.rows
    looked_at = set(np.unique(np.linspace(0, people, min(16, people + 1)).round().astype(int)).tolist())
    unseen = [place for place in range(people + 1) if place not in looked_at]
    return 0, min(unseen, key=lambda place: abs(place - people // 2), default=people // 2), people


def neighbours(case: Case, places: Sequence[int] | None = None, *, align: bool | None = None) -> Outcome:
    """How far queries of whole runs move when the extreme record joins, at these of `places_to_join`.

    The neighbour's run gets the releases of the first, so that both see the same weights. With `align` (None: where the model
    draws) each record draws what it drew.
    """
    align = case.draws if align is None else align
    recorder = Recorder(TorchSource(Randomness.fixed(1), torch.device("cpu")))  # the same noise and draws each time
    outcome = _run(case, range(RECORDS), recorder, align)
    if outcome.refused:
        return outcome
    people = RECORDS // case.rows
    for place in [places_to_join(case)[number] for number in (range(3) if places is None else places)]:
        order = list(range(RECORDS))
        order[place * case.rows : place * case.rows] = [EXTREME] * case.rows
        index_map = np.array([number + (number >= place) for number in range(people)])
        forced = Forced(recorder.recording, index_map, np.array([place]))
        other = _run(case, order, forced, align)
        outcome.warned |= other.warned
        if other.refused:
            outcome.message, outcome.error = other.message, other.error
            continue
        before, after = recorder.recording.releases, forced.recording.releases
        if len(before) != len(after):
            raise AssertionError(f"{case.name}: {len(before)} releases, {len(after)} on the neighbour")
        outcome.moved += [float(np.linalg.norm(a.query - b.query)) / a.sensitivity for a, b in zip(before, after, strict=True)]
    return outcome


def production(case: Case, places: Sequence[int] | None = None, *, independence: str = "proved") -> Outcome:
    """How far the clipped sum of the others moves, in clipping norms, when an ordinary record is exchanged with the extreme one,
    and when the extreme one joins.

    This is the pass itself, as a run makes it once it has been charged: nothing is looked at. Where records are exchanged, models
    draw as in a run, from seeds that only seem to be the system's: as many numbers of the same shapes in both. Where one joins,
    the others draw what they drew (`aligned`). At the first weights, and after a random move.
    """
    outcome = Outcome()
    for place in [places_to_join(case)[number] * case.rows for number in (range(3) if places is None else places)]:
        orders = [_with_record(number, place) for number in (ORDINARY, EXTREME)]
        pairs: list[Any] = []
        if not (case.draws and case.reads):  # records that part are given the same draws in another order
            pairs.append((orders, False, (place, place)))
        if case.rows == 1:
            pairs.append(([list(range(RECORDS)), orders[1]], case.draws, (None, place)))
        for (first, second), align, at in pairs:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    one = _sums_of_others(case, first, at[0], independence, align)
                    other = _sums_of_others(case, second, at[1], independence, align)
            except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
                outcome.message, outcome.error = f"{type(error).__name__}: {error}", error
                return outcome
            outcome.moved += [float((a - b).norm()) / case.bound for a, b in zip(one, other, strict=True)]
    return outcome


@contextlib.contextmanager
def _system_seeds() -> Iterator[None]:
    """The operating system gives the same bytes each time: what draws from it is as in a run, and can be compared."""
    stream, real = random.Random(5), os.urandom
    os.urandom = stream.randbytes
    try:
        yield
    finally:
        os.urandom = real


def _with_record(number: int, place: int) -> list[int]:
    order = list(range(RECORDS))
    order[place:place] = [number]
    return order


def _sums_of_others(case: Case, order: Sequence[int], place: int | None, independence: str, align: bool) -> list[Tensor]:
    """The clipped sums of all records but the one at this place, in two steps."""
    seeded(1)
    model, loss = case.make()
    objective = ModuleObjective(model, loss, independence=independence, autocast=case.autocast)
    objective.engine.charged, objective.engine.draws.secret = True, not align
    physical = case.physical or len(order)
    moves = torch.Generator().manual_seed(3)
    sums = []
    with aligned(lambda numbers: [order[number] for number in numbers]) if align else _system_seeds():
        stream = TorchRecords(case.data(order), physical_batch_size=physical, collate_fn=case.collate, key=0)
        stream.charged = True
        for step in range(2):
            seeded(2 + step)
            objective.engine.draws.next_step()
            total: Any = 0.0
            for number, batch in enumerate(stream.batches()):
                size = min(physical, len(order) - number * physical)
                for rows, inputs, targets in grouped(batch, size):
                    found = objective.per_example(objective.theta, (inputs, targets))
                    factors = (case.bound / found.norms).clamp(max=1.0)
                    factors[rows + number * physical == (-1 if place is None else place)] = 0.0
                    total = total + found.weighted_sum(factors)
            sums.append(total)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(torch.randn(parameter.shape, generator=moves).to(parameter.dtype), alpha=0.2)
    return sums


def batch_way(case: Case, place: int = 2) -> float:
    """How far the sum of clipped gradients moves, in clipping norms, where the model sees all records at once: plain autograd."""
    sums = []
    for number in (None, EXTREME):
        order = list(range(RECORDS))
        if number is not None:
            at = places_to_join(case)[place]
            order[at:at] = [number]
        seeded(1)
        model, loss = case.make()
        batch = case.data(order)
        if isinstance(batch, Rows):
            batch = (case.collate or torch.utils.data.default_collate)([batch[index] for index in range(len(batch))])
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total: Any = 0.0
        moves = torch.Generator().manual_seed(3)
        for step in range(2):
            losses = loss(model(batch[0]), batch[1])
            for row in losses if step else ():  # what was kept of the first pass is met in the second
                gradients = torch.autograd.grad(row, parameters, retain_graph=True, allow_unused=True)
                flat = torch.cat([g.flatten() for g in gradients if g is not None])
                total = total + flat * (case.bound / flat.norm()).clamp(max=1.0).nan_to_num(0.0)
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(torch.randn(parameter.shape, generator=moves), alpha=0.3)
        sums.append(total)
    return float((sums[0] - sums[1]).norm()) / case.bound


def single_norms(model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any, call: Any) -> Tensor:
    """Gradient norms of records that are alone in their batch, by plain autograd."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for number in range(len(targets if isinstance(targets, Tensor) else next(iter(targets.values())))):
        place = torch.tensor([number])
        value = loss(call(model, _taken(inputs, place)), _taken(targets, place)).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        norms.append(torch.cat([g.double().flatten() for g in gradients if g is not None]).norm())
    return torch.stack(norms)

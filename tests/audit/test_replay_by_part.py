"""Item 10: each part of a split is replayed against what is charged for it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dperm.audit import Pair, Training, replay
from dperm.estimators import DPByPart, DPLogisticRegression
from dperm.gradient import BallsAndBins
from dperm.mechanisms import AccuracyFirst, ByPart, Coordinate, Gradient
from dperm.objectives import Records
from dperm.privacy import Certificate, Composed, Disjoint, Gaussian, SelfComposed
from dperm.release import Channel, GaussianNoise


def rows_in(part: int, count: int) -> np.ndarray:
    rows = np.random.default_rng(part + 7).uniform(-0.5, 0.5, (count, 3))
    rows[:, :2] = -np.abs(rows[:, :2])
    if part >= 0:
        rows[:, part] = 0.4
    return rows


DATA = (np.concatenate([rows_in(0, 16), rows_in(1, 15), rows_in(-1, 4)]), np.resize([1.0, 1.0, -1.0], 35))
PAIRS = [
    Pair.adding(f"one more in {part}", DATA, np.array(row), 1.0)
    for part, row in {"a": (0.9, -0.1, 0.2), "b": (-0.1, 0.9, 0.2), "none": (-0.5, -0.6, 0.3), "both": (0.5, 0.6, 0.3)}.items()
]
METHODS: dict[str, tuple[Any, Any]] = {
    "sizes that are released": (Coordinate(epochs=1), None),
    "balls and bins of unlike sizes": (
        Gradient(sampling="balls_and_bins", epochs=2, expected_batch_size=5),
        {"a": 20, "b": 30},
    ),
    "parts that stop early": (AccuracyFirst(accuracy=0.6, stops=4), {"a": 200, "b": 210}),
}


def made(name: str) -> tuple[ByPart, Any]:
    method, sizes = METHODS[name]
    estimator = DPLogisticRegression(epsilon=2.0, classes=[-1, 1], mechanism=method)
    return DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=sizes).mechanism_for(3)


@pytest.mark.fast_cases("sizes that are released")
@pytest.mark.parametrize("name", METHODS)
def test_parts_are_consistent_and_records_of_several_parts_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training.of_mechanism(*made(name))
    sound = replay(training, PAIRS, both_ways=False)
    assert sound.verdict == "consistent", str(sound)
    assert sound.details["largest_movement"] > 0.3

    def split(self: ByPart, records: Records) -> list[np.ndarray]:
        return [np.flatnonzero(records.places([column]) == 0) for column in self.columns]

    monkeypatch.setattr(ByPart, "split", split)
    assert "parts" in replay(training, PAIRS, both_ways=False).details["kinds"]


def test_all_records_of_a_part_where_some_are_charged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def streamed(self: Any, channel: Channel, records: Any, steps: int) -> Any:
        return records.stream([None for _ in self.draws(channel, len(records), steps)])

    training = Training.of_mechanism(*made("balls and bins of unlike sizes"))
    monkeypatch.setattr(BallsAndBins, "streamed", streamed)
    assert replay(training, PAIRS[:1], both_ways=False).details["kinds"] == ["draws"]


_SPLITS = (Disjoint((Gaussian(2.0), Gaussian(3.0))), Disjoint((Gaussian(4.0), Gaussian(5.0))))


@pytest.mark.parametrize("order", [(0, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("spoilt", [False, True])
def test_doors_of_unlike_splits_are_told_apart(order: Sequence[int], spoilt: bool) -> None:
    """A record in both parts of one split is found; one in a part of each is as charged."""
    event = Composed((_SPLITS[0], SelfComposed(_SPLITS[1], 2), Gaussian(9.0)))

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(event, "sums by part")
        rows = np.clip(np.nan_to_num(data[0]), -0.5, 0.5)
        told = [channel.release(rows.sum(axis=0), GaussianNoise(1.0, 9.0))]
        for number in order:
            split = _SPLITS[number]
            positive = [rows[:, number] > 0, np.full(len(rows), True) if spoilt and number else rows[:, number] <= 0]
            members = [np.flatnonzero(where) for where in positive]
            for part, mine, door in zip(split.parts, members, channel.split(split, members), strict=True):
                told.append(door.release(rows[mine].sum(axis=0), GaussianNoise(1.0, part.noise_multiplier)))
        return told

    training = Training("by hand", Certificate.issue(mechanism="by hand", event=event, delta=1e-5), run)
    result = replay(training, PAIRS)
    assert result.details["kinds"] == (["parts"] if spoilt else []), str(result)

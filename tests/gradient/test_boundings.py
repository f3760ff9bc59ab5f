"""What one record adds to a bounded sum: as much as is charged for, and no more; and what is read back from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dperm.gradient import AdaptiveClip, Bounding, Clip, Normalise, PerLayer, Unit
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
GROUPS = (slice(0, 1), slice(1, 3), slice(3, 6))
FAR, NEAR = 1e9, 0.05  # lengths beyond and within every bound here


@dataclass(frozen=True)
class Vectors:
    """A pass whose gradients (b, 6) are given."""

    gradients: Any

    @property
    def norms(self) -> Any:
        return np.linalg.norm(self.gradients, axis=1)

    @property
    def group_norms(self) -> Any:
        return np.stack([np.linalg.norm(self.gradients[:, group], axis=1) for group in GROUPS], axis=1)

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        assert bound is not None
        if factors.ndim == 1:
            parts = self.gradients * factors[:, None]
        else:
            parts = self.gradients * np.repeat(factors, [group.stop - group.start for group in GROUPS], axis=1)
        assert np.linalg.norm(parts, axis=1).max(initial=0.0) <= bound * (1 + 1e-12)
        return parts.sum(0)


BOUNDINGS: list[Bounding] = [
    Clip(0.3),
    Clip(2.0),
    Normalise(0.01),
    Unit(0.2),
    PerLayer(0.7),
    AdaptiveClip(0.4),
    AdaptiveClip(3.0, count_weight=0.8),
]


def directions() -> list[np.ndarray]:
    """Unit vectors that are long in every layer, and random ones, both ways."""
    even = np.concatenate([np.full(group.stop - group.start, (group.stop - group.start) ** -0.5) for group in GROUPS])
    drawn = np.random.default_rng(0).normal(size=(5, 6))
    return [sign * vector / np.linalg.norm(vector) for vector in (even, *drawn) for sign in (1.0, -1.0)]


def query(bounding: Bounding, gradients: Sequence[np.ndarray]) -> np.ndarray:
    made: Any = Vectors(np.array(gradients).reshape(-1, 6))
    return bounding.query(made, bounding.init())


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("bounding", BOUNDINGS, ids=repr)
def test_the_farthest_record_moves_the_sum_by_the_sensitivity(bounding: Bounding, relation: Relation) -> None:
    """Longest vectors, short ones, and of an adaptive bound also those just within it, whose count is the other one."""
    lengths = [FAR, NEAR, *([bounding.clipping_norm * (1 - 1e-12)] if isinstance(bounding, AdaptiveClip) else [])]
    records = [length * direction for direction in directions() for length in lengths]
    rest = [np.full(6, 0.1), np.arange(6.0)]
    without = query(bounding, rest)
    sums = [query(bounding, [*rest, record]) for record in records]
    if relation is ADD:
        moved = max(np.linalg.norm(one - without) for one in sums)
    else:
        moved = max(np.linalg.norm(one - other) for one in sums for other in sums)
    assert moved == pytest.approx(bounding.sensitivity(relation), rel=1e-9)


@pytest.mark.parametrize("bounding", BOUNDINGS, ids=repr)
def test_what_is_within_the_bound_is_read_back_as_it_is(bounding: Bounding) -> None:
    """The sum of short gradients, times the factor that `factors` gives each of them."""
    short = [NEAR * direction for direction in directions()[2:5]]
    released, state = query(bounding, short), bounding.init()
    read = bounding.read(released, state, 10.0)
    factor = {Normalise: 1 / (NEAR + 0.01), Unit: 1 / 0.2}.get(type(bounding), 1.0)
    assert np.allclose(read, factor * sum(short), rtol=1e-12, atol=0)
    empty = query(bounding, [])
    assert np.array_equal(bounding.empty(np.ones(6)), empty) and not empty.any()


@pytest.mark.parametrize("bounding", [Clip(0.3), PerLayer(0.7), AdaptiveClip(0.4)], ids=repr)
def test_the_norm_that_is_cut_at_is_the_longest_that_stays(bounding: Bounding) -> None:
    direction = directions()[0]  # each layer's part of it has the same length
    state = bounding.init()
    cut = bounding.cut(state)
    for length, stays in ((cut * (1 - 1e-9), True), (cut * 1.001, False)):
        made: Any = Vectors(length * direction[None])
        read = bounding.read(bounding.query(made, state), dict(state), 10.0)
        assert np.allclose(read, length * direction, rtol=1e-6, atol=0) == stays
        assert np.linalg.norm(read) <= cut * (1 + 1e-12)
    assert (Normalise().cut({}), Unit(0.1).cut({})) == (0.0, 0.0)


def test_factors_of_a_normalised_vector_by_hand() -> None:
    norms = np.array([0.0, 0.25, 1.0, 3.0])
    assert Normalise(1.0).factors(norms).tolist() == [1.0, 0.8, 0.5, 0.25]
    assert Unit(0.5).factors(norms).tolist() == [2.0, 2.0, 1.0, 1 / 3]
    assert AdaptiveClip(0.5).factors(norms).tolist() == [2.0, 2.0, 1.0, 1 / 3]
    assert PerLayer(2.0).factors(np.array([[0.5, 1.0, 2.0, 4.0]])).tolist() == [[1.0, 1.0, 0.5, 0.25]]


def test_factors_are_made_in_the_library_of_the_norms() -> None:
    """Also in a type that NumPy does not have."""
    torch = pytest.importorskip("torch")
    for bounding in BOUNDINGS:
        norms = torch.ones((3, 2) if isinstance(bounding, PerLayer) else 3, dtype=torch.bfloat16)
        assert bounding.factors(norms).dtype == torch.bfloat16


class Telling(Vectors):
    """Says how long a vector may be."""

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        return super().weighted_sum(factors, bound), bound


@pytest.mark.parametrize("bounding", [each for each in BOUNDINGS if not isinstance(each, AdaptiveClip)], ids=repr)
def test_a_pass_is_told_the_length_of_the_longest_vector(bounding: Bounding) -> None:
    made: Any = Telling(FAR * directions()[0][None])
    total, told = bounding.query(made, bounding.init())
    assert np.linalg.norm(total) == pytest.approx(told, rel=1e-9)


@pytest.mark.parametrize("first", [1, 3])
def test_parts_of_two_layers_are_clipped_each_by_itself(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At C/√2 each: of either layer the long part is cut, and the other stays."""
    monkeypatch.setitem(globals(), "GROUPS", (slice(0, first), slice(first, 6)))
    long_first = np.array([3.0, 0, 0, 0, 0, 0.1])
    found = query(PerLayer(2.0), [long_first, long_first[::-1]])
    assert found == pytest.approx([math.sqrt(2) + 0.1, 0, 0, 0, 0, math.sqrt(2) + 0.1])


def test_a_model_of_one_layer_is_clipped_as_a_whole() -> None:
    objective = LinearObjective(Logistic(), 3, data_norm=2.0)
    records = objective.records(np.random.default_rng(0).normal(size=(5, 3)), np.array([1.0, -1.0, 1.0, 1.0, -1.0]))
    (batch,) = records.batches()
    at_theta = objective.per_example(np.array([0.3, -1.0, 0.5]), batch)
    assert np.array_equal(PerLayer(0.2).query(at_theta, {}), Clip(0.2).query(at_theta, {}))


def test_only_a_bounding_without_a_state_is_shared_by_trainings() -> None:
    assert [bounding.vectorises for bounding in BOUNDINGS] == [True] * 5 + [False] * 2


# An adaptive bound


def following(share: float, times: float = 1.0, **settings: Any) -> float:
    """C after one step, from C = 2, where `share` of 8 records was within it; `times` for the count's noise."""
    bounding = AdaptiveClip(2.0, **({"quantile": 0.25, "learning_rate": 0.5, "count_weight": 0.3} | settings))
    state = bounding.init()
    within = round(8 * share)
    lengths = [1.0] * within + [5.0] * (8 - within)
    made: Any = Vectors(np.array([length * directions()[0] for length in lengths]))
    released = bounding.query(made, state)
    released[-1] *= times
    bounding.read(released, state, 8.0)
    return state["clipping_norm"]


def test_an_adaptive_bound_follows_its_quantile() -> None:
    """Geometric steps of Andrew et al. 2021: C·exp(−η·(share within C − quantile))."""
    assert following(0.25) == pytest.approx(2.0)
    for share in (0.0, 0.5, 1.0):
        assert following(share) == pytest.approx(2.0 * math.exp(-0.5 * (share - 0.25)))
    assert following(1.0, count_weight=0.01) == pytest.approx(following(1.0))  # the weight is what the count costs, no more


def test_a_record_just_as_long_as_an_adaptive_bound_is_within_it() -> None:
    bounding = AdaptiveClip(2.0, count_weight=0.5)
    made: Any = Vectors(np.array([[2.0, 0, 0, 0, 0, 0]]))
    assert bounding.query(made, bounding.init()).tolist() == [1.0, 0, 0, 0, 0, 0, 0.5]


def test_noise_in_the_count_moves_an_adaptive_bound_no_further_than_one_step_may() -> None:
    """A share of 2 or −1 is as far out as is believed, and C stays within a factor of a million of its first value."""
    assert following(1.0, 1e9) == pytest.approx(2.0 * math.exp(-0.5 * (2.0 - 0.25)))
    assert following(0.0, 1e9) == pytest.approx(2.0 * math.exp(0.5 * (1.0 + 0.25)))
    for share, end in ((1.0, 2e-6), (0.0, 2e6)):
        assert following(share, 1e9, learning_rate=1e4) == pytest.approx(end)
        far = AdaptiveClip(2.0, learning_rate=1e4)
        state = {"clipping_norm": 4.0 / end}  # the other end
        far.read(np.array([0.0, 1e9 if share else -1e9]), state, 8.0)
        assert state["clipping_norm"] == pytest.approx(end)

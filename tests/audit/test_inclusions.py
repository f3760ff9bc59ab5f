"""Tests of draws: the evidence against sound rules has a mean of at most 1, and draws that a rule does not make are refuted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Pair, Training, replay
from dperm.audit.inclusions import DrawsTested
from dperm.audit.recording import DrawRecord
from dperm.audit.result import AuditResult
from dperm.gradient.sampling import (
    BallsAndBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    Poisson,
    PoissonRows,
    PoissonUpTo,
    Reshuffled,
)
from dperm.privacy import Certificate, Gaussian, Relation
from dperm.release import Channel, GaussianNoise, SystemSource
from dperm.release.draws import Draw

Sets = Sequence[Any]


def recorded(draw: Draw, records: int, sets: Sets) -> tuple[DrawRecord, ...]:
    return tuple(
        DrawRecord(np.asarray(included, dtype=np.intp), draw, step, 0, 0, step, records) for step, included in enumerate(sets)
    )


def subsets(numbers: int) -> list[tuple[int, ...]]:
    return [each for size in range(numbers + 1) for each in itertools.combinations(range(numbers), size)]


def poisson(rate: float, numbers: int) -> list[tuple[float, tuple[int, ...]]]:
    return [(rate ** len(each) * (1 - rate) ** (numbers - len(each)), each) for each in subsets(numbers)]


def bins(batches: int, numbers: int) -> list[tuple[float, list[list[int]]]]:
    return [
        (batches**-numbers, [[number for number in range(numbers) if places[number] == step] for step in range(batches)])
        for places in itertools.product(range(batches), repeat=numbers)
    ]


def cut(rate: float, numbers: int, most: int) -> list[tuple[float, tuple[int, ...]]]:
    chances = dict.fromkeys(subsets(numbers), 0.0)
    for chance, each in poisson(rate, numbers):
        kept = list(itertools.combinations(each, min(most, len(each))))
        for some in kept:
            chances[some] += chance / len(kept)
    return [(chance, each) for each, chance in chances.items()]


#: rule, number of records, the chance and the draws of each outcome of one step, or of one epoch
EXACT: dict[str, tuple[Draw, int, list[tuple[float, Sets]]]] = {
    "Poisson": (Poisson(0.3), 2, [(chance, [each]) for chance, each in poisson(0.3, 2)]),
    "rows": (PoissonRows(0.2, 2), 1, [(chance, [each]) for chance, each in poisson(0.2, 2)]),
    "truncated": (PoissonUpTo(0.6, 1, 3), 3, [(chance, [each]) for chance, each in cut(0.6, 3, 1)]),
    "fixed": (FixedSize(2, 4), 4, [(1 / 6, [each]) for each in itertools.combinations(range(4), 2)]),
    "bins": (BallsAndBins(2), 2, bins(2, 2)),
}


@pytest.mark.fast_cases("Poisson-False", "Poisson-True", "rows-True", "truncated-True", "bins-True")
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_a1_evidence_against_a_sound_rule_has_a_mean_of_at_most_one(name: str, stops: bool) -> None:
    """By all outcomes of two runs, the first of two steps or epochs, or of one where it stops as soon as nobody is drawn."""
    draw, records, outcomes = EXACT[name]
    mean = total = 0.0
    for (p, one), (q, two), (r, three) in itertools.product(outcomes, repeat=3):
        if not p * q * r:
            continue
        first = [*one] if stops and not len(one[0]) else [*one, *two]
        tested = DrawsTested.of([recorded(draw, records, first), recorded(draw, records, three)])
        assert tested.findings == ()
        mean, total = mean + p * q * r * np.exp(tested.evidence), total + p * q * r
    assert total == pytest.approx(1)
    assert mean <= 1 + 1e-9
    if draw.independent_records:
        assert mean > 0.8  # the weights of lags that these runs do not reach are bet on nothing


#: rule, and of one record in two rounds the chance and the steps of each outcome
DEPENDENT: dict[str, tuple[Draw, list[tuple[float, tuple[int, ...]]]]] = {
    "cyclic": (
        CyclicPoisson(0.3, 2),
        [
            (0.5 * (0.3 if one else 0.7) * (0.3 if two else 0.7), (*[group] * one, *[group + 2] * two))
            for group, one, two in itertools.product((0, 1), repeat=3)
        ],
    ),
    "fixed order": (FixedOrder(2), [(0.5, (0, 2)), (0.5, (1, 3))]),
    "reshuffled": (
        Reshuffled(3, 2),
        [
            (chance / 3, (place, 3 + later))
            for place, row in enumerate([(0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (0.0, 0.5, 0.5)])
            for later, chance in enumerate(row)
            if chance
        ],
    ),
}


@pytest.mark.fast_cases("fixed order")
@pytest.mark.parametrize("name", DEPENDENT)
def test_a1_evidence_against_a_rule_whose_draws_depend_has_a_mean_of_at_most_one(name: str) -> None:
    """By all outcomes of a run of two records in two rounds, and of another one of one record in one round."""
    draw, outcomes = DEPENDENT[name]
    steps = 2 * draw.period
    mean = total = 0.0
    for (p, one), (q, two), (r, three) in itertools.product(outcomes, repeat=3):
        first = [[number for number, mine in enumerate((one, two)) if step in mine] for step in range(steps)]
        second = [[0] if step in three else [] for step in range(draw.period)]
        tested = DrawsTested.of([recorded(draw, 2, first), recorded(draw, 1, second)])
        assert tested.findings == ()
        mean, total = mean + p * q * r * np.exp(tested.evidence), total + p * q * r
    assert total == pytest.approx(1)
    assert 0.8 < mean <= 1 + 1e-9


RULES: dict[str, tuple[Draw, int]] = {
    "Poisson": (Poisson(0.25), 40),
    "seldom": (Poisson(0.02), 200),
    "rows": (PoissonRows(0.1, 3), 30),
    "truncated": (PoissonUpTo(0.25, 12, 60), 40),
    "fixed": (FixedSize(8, 40), 40),
    "bins": (BallsAndBins(4), 40),
    "cyclic": (CyclicPoisson(0.3, 3), 60),
    "order": (FixedOrder(4), 40),
    "reshuffled": (Reshuffled(4, 2), 40),
}


def runs_of(draw: Draw, records: int, make: Callable[[np.random.Generator], Sets]) -> list[tuple[DrawRecord, ...]]:
    rng = np.random.default_rng(0)
    return [recorded(draw, records, make(rng)) for _ in range(30)]


@pytest.mark.parametrize("name", RULES)
def test_a1_sound_draws_are_not_refuted_and_all_records_are(name: str) -> None:
    draw, records = RULES[name]
    sound = DrawsTested.of(runs_of(draw, records, lambda rng: list(draw.indices(rng, records, 20))))
    assert sound.findings == ()
    assert sound.evidence < np.log(1e4)
    (factor,) = sound.rates.values()
    assert factor is not None and 1 < factor < 1.5
    assert sound.unlike == ()
    everybody = np.arange(records * draw.slots)
    assert DrawsTested.of(runs_of(draw, records, lambda rng: [everybody] * 20)).findings


@pytest.mark.parametrize("name", ["Poisson", "bins", "cyclic"])
def test_a1_sound_draws_of_some_of_the_records_are_not_refuted(name: str) -> None:
    draw, records = RULES[name]
    members = np.arange(0, 3 * records, 3)
    runs = [
        [replace(item, included=members[item.included], members=members) for item in run]
        for run in runs_of(draw, records, lambda rng: list(draw.indices(rng, records, 20)))
    ]
    tested = DrawsTested.of(runs)
    assert tested.findings == () and tested.unlike == ()


def _together(rng: np.random.Generator) -> Sets:
    return [np.arange(40) if rng.random() < 0.25 else np.array([], dtype=np.intp) for _ in range(20)]


def _blocks(rng: np.random.Generator) -> Sets:
    return [np.flatnonzero(np.repeat(rng.random(10) < 0.25, 4)) for _ in range(20)]


def _of_one_size(rng: np.random.Generator) -> Sets:
    return [rng.choice(40, 10, replace=False) for _ in range(20)]


def _one_always(rng: np.random.Generator) -> Sets:
    return [np.union1d(each, [7]) for each in Poisson(0.25).indices(rng, 40, 20)]


def _in_cycles(rng: np.random.Generator) -> Sets:
    return [*Poisson(0.25).indices(rng, 40, 7)] * 3


def _shuffled(rng: np.random.Generator) -> Sets:
    return [each for _ in range(5) for each in rng.permutation(40).reshape(4, 10)]


def _seeded(rng: np.random.Generator) -> Sets:
    return [*Poisson(0.25).indices(np.random.default_rng(3), 40, 20)]


def _more_often(rng: np.random.Generator) -> Sets:
    return [*Poisson(0.3).indices(rng, 40, 20)]


def _same_bins(rng: np.random.Generator) -> Sets:
    return [*BallsAndBins(4).indices(rng, 40, 4)] * 5


def _bins_in_order(rng: np.random.Generator) -> Sets:
    return [np.arange(step % 4, 40, 4) for step in range(20)]


def _first_bin_larger(rng: np.random.Generator) -> Sets:
    places = [rng.choice(4, p=[0.4, 0.2, 0.2, 0.2], size=40) for _ in range(5)]
    return [np.flatnonzero(each == step) for each in places for step in range(4)]


def _lost_from_bins(rng: np.random.Generator) -> Sets:
    return [np.setdiff1d(each, [7]) for each in BallsAndBins(4).indices(rng, 40, 20)]


def _cyclic_chances(rng: np.random.Generator, chance: Callable[[Any, Any, int], Any]) -> Sets:
    """Of 60 records in three groups, by the chance of each: given who is of the group, and who was drawn before, and the step."""
    groups, seen = rng.integers(3, size=60), np.zeros(60, dtype=bool)
    sets = []
    for step in range(20):
        sets.append(np.flatnonzero(rng.random(60) < chance(groups == step % 3, seen, step)))
        seen[sets[-1]] = True
    return sets


def _known_groups_twice_as_often(rng: np.random.Generator) -> Sets:
    return _cyclic_chances(rng, lambda mine, seen, step: mine * np.where(seen, 0.6, 0.3))


def _later_turns_twice_as_often(rng: np.random.Generator) -> Sets:
    return _cyclic_chances(rng, lambda mine, seen, step: mine * (0.3 if step < 3 else 0.6))


def _groups_of_a_seed(rng: np.random.Generator) -> Sets:
    groups = np.random.default_rng(3).integers(3, size=60)
    return [np.flatnonzero((groups == step % 3) & (rng.random(60) < 0.3)) for step in range(20)]


def _outside_their_group(rng: np.random.Generator) -> Sets:
    return _cyclic_chances(rng, lambda mine, seen, step: mine * 0.3 + ~mine * 0.01 * (step >= 3))


def _never_again(rng: np.random.Generator) -> Sets:
    return _cyclic_chances(rng, lambda mine, seen, step: mine * ~seen * 0.3)


def _one_that_leaves_its_place(rng: np.random.Generator) -> Sets:
    sets = [*FixedOrder(4).indices(rng, 40, 19)]
    return [*sets, np.setdiff1d(sets[3], sets[3][:1])]


def _nearer(rng: np.random.Generator) -> Sets:
    return [*Reshuffled(4, 1).indices(rng, 40, 20)]


def _seldom_moved(rng: np.random.Generator) -> Sets:
    return [*FixedOrder(4).indices(rng, 40, 20)]


def _by_rank(rng: np.random.Generator) -> Sets:
    return [np.arange(step % 4 * 10, step % 4 * 10 + 10) for step in range(20)]


def _of_their_number(rng: np.random.Generator) -> Sets:
    return [*Reshuffled(4, 2).indices(np.random.default_rng(40), 40, 20)]


def _permuted(rng: np.random.Generator) -> Sets:
    return [rng.permutation(40).reshape(4, 10)[step] for step in range(4)]


def _the_same_set(rng: np.random.Generator) -> Sets:
    return [rng.choice(40, 8, replace=False)] * 20


def _of_other_sizes(rng: np.random.Generator) -> Sets:
    return [*Poisson(0.2).indices(rng, 40, 20)]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(("Poisson", make) for make in (_together, _blocks, _of_one_size, _one_always)),
        *(("Poisson", make) for make in (_in_cycles, _shuffled, _seeded, _more_often)),
        *(("bins", make) for make in (_same_bins, _bins_in_order, _first_bin_larger, _lost_from_bins)),
        *(("cyclic", make) for make in (_known_groups_twice_as_often, _later_turns_twice_as_often)),
        *(("cyclic", make) for make in (_outside_their_group, _never_again, _groups_of_a_seed)),
        *(("order", make) for make in (_bins_in_order, _first_bin_larger, _one_that_leaves_its_place)),
        *(("reshuffled", make) for make in (_nearer, _seldom_moved, _by_rank, _of_their_number, _permuted)),
        *(("fixed", make) for make in (_the_same_set, _of_other_sizes, _shuffled)),
        *(("truncated", make) for make in (_seeded, _in_cycles, _more_often)),
    ],
)  # fmt: skip
def test_a1_draws_that_a_rule_does_not_make_are_refuted(name: str, make: Callable[[np.random.Generator], Sets]) -> None:
    draw, records = RULES[name]
    tested = DrawsTested.of(runs_of(draw, records, make))
    assert [finding.kind for finding in tested.findings] == ["draws"]


@pytest.mark.fast_cases("1.0")
@pytest.mark.parametrize("factor", [1.0, 0.97])
def test_a1_a_rate_that_is_said_to_be_visible_is_refuted(factor: float) -> None:
    """In at least 17 of 20 audits, by a binomial bound."""
    rng = np.random.default_rng(1)

    def tested(rate: float) -> DrawsTested:
        return DrawsTested.of([recorded(Poisson(0.1), 30, [*Poisson(rate).indices(rng, 30, 5)]) for _ in range(10)])

    (visible,) = tested(0.1).rates.values()
    assert visible is not None
    found = sum(bool(tested(0.1 * visible * factor).findings) for _ in range(100))
    assert found > 87 if factor == 1 else found < 100


ROWS = np.random.default_rng(0).normal(size=(20, 3))
PAIRS = [Pair.adding("a record more", (ROWS, np.zeros(20)), [0.5, 0.5, 0.5], 0.0)]


def sampled(rule: Any, steps: int) -> Training:
    event = rule.event(Gaussian(5.0, Relation.ADD_OR_REMOVE_ONE), 0, steps)

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(event, "sums")
        rows = np.clip(data[0], -0.5, 0.5)
        return [
            channel.release(rows[drawn].sum(axis=0), GaussianNoise(1.0, 5.0, rule.rate))
            for drawn in rule.draws(channel, len(rows), steps)
        ]

    return Training("sums", Certificate.issue(mechanism="sums", event=event, delta=1e-5), run, replay_pairs=PAIRS)


@pytest.mark.parametrize("rule", [Poisson(0.25), BallsAndBins(4)])
def test_a1_replay_refutes_draws_of_a_fixed_seed(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay(sampled(rule, 20)).verdict == "consistent"

    def fixed(self: SystemSource, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        return draw.indices(np.random.default_rng(0), records, steps)

    monkeypatch.setattr(SystemSource, "draw", fixed)
    found = replay(sampled(rule, 20))
    assert found.details["kinds"] == ["draws"]
    assert "two runs" in str(found)


def test_a1_too_few_draws_to_test_are_said() -> None:
    result = replay(sampled(Poisson(0.01), 1))
    assert result.verdict == "consistent"
    limits = result.limits()
    assert any("Draws at a higher rate" in line and "poisson (" in line for line in limits)
    assert any("draws of its own: poisson" in line for line in limits)
    again = AuditResult.from_json(result.to_json())
    assert again == result
    assert again.limits() == limits
    with pytest.raises(ValueError, match="rates of 'poisson'"):
        AuditResult.from_dict(result.to_dict() | {"details": {"rates": {"poisson": "much"}}})

"""DPIS against plain code fed with the same draws, its estimator, its probabilities, its budget, and bad input."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dperm._random import Randomness
from dperm.audit.recording import Recorder
from dperm.estimators import DPLogisticRegression
from dperm.gradient import (
    SGD,
    Adam,
    AdaptiveNorm,
    Averaged,
    ImportanceEpoch,
    ImportanceGradients,
    ImportancePlan,
    Unit,
    descend,
)
from dperm.gradient.policy import pays_for
from dperm.gradient.recipes import dpis
from dperm.mechanisms import Budget, Gradient, GradientPerturbation, OneVsRest
from dperm.objectives import LinearObjective, Logistic, Softmax
from dperm.privacy import (
    ApproximateDP,
    BudgetExceeded,
    Composed,
    Gaussian,
    PoissonSampled,
    PrivacyProfile,
    ProfileFilter,
    PureDP,
    RdpFilter,
    Relation,
    SelfComposed,
    UnsupportedEventError,
    calibrate,
    epsilon,
    rdp_budget,
)
from dperm.privacy.accountants.privacy_filters import excess
from dperm.privacy.events import leaves
from dperm.release import Channel, GaussianNoise, Noise, Source, SpendLog, SystemSource, UnpaidReleaseError
from helpers.asked import Asked

RNG = np.random.default_rng(0)
SIZE = 400
ROWS = RNG.normal(size=(SIZE, 4)) * RNG.uniform(0.05, 1.0, size=(SIZE, 1))
LABELS = np.where(RNG.random(SIZE) < 0.5, 1.0, -1.0)
OBJECTIVE = LinearObjective(Logistic(), 4, public_size=SIZE)


def plan(**changes: Any) -> ImportancePlan:
    settings = {
        "epsilon": 2.0, "delta": 1e-5, "public_size": SIZE, "expected_batch_size": 40, "epochs": 4, "clipping_norm": 0.3,
        "update": SGD(0.5, 0.9), "average_from": None,
    }  # fmt: skip
    return _made(tuple(sorted((settings | changes).items())))


@functools.cache
def _made(settings: tuple[tuple[str, Any], ...]) -> ImportancePlan:
    """Plans are immutable, and take a search each."""
    return dpis(**dict(settings))


def profiled(epochs: int, **changes: Any) -> ImportancePlan:
    """One whose noise no budget was searched for."""
    profile = PrivacyProfile((0.0,), (0.9,))
    return ImportancePlan(profile, 40, epochs, 0.3, SGD(0.5), SIZE, **({"norm_noise": 20.0} | changes))


def renyi(**changes: Any) -> ImportancePlan:
    return plan(**({"filter": "renyi"} | changes))


def started(made: ImportancePlan, source: Source | None = None, rows: Any = ROWS, labels: Any = LABELS) -> ImportanceGradients:
    channel = Channel(source or SystemSource(Randomness.fixed(1)))
    channel.charge(made.event(OBJECTIVE.relation), "test")
    return made.gradients(OBJECTIVE, OBJECTIVE.records(rows, labels), channel)


def gradients_at(theta: np.ndarray) -> np.ndarray:
    scaled = ROWS * np.minimum(1, 1 / np.linalg.norm(ROWS, axis=1))[:, None]
    return scaled * (-LABELS / (1 + np.exp(LABELS * (scaled @ theta))))[:, None]


@pytest.mark.parametrize("kind", ["profile", "renyi"])
def test_against_plain_code_with_the_same_draws(kind: str) -> None:
    made = plan(filter=kind, adaptive=AdaptiveNorm(scale=0.9))
    recorder = Recorder(SystemSource(Randomness.fixed(3)))
    channel = Channel(recorder)
    channel.charge(made.event(OBJECTIVE.relation), "test")
    objective = replace(OBJECTIVE, strong_convexity=2.0)
    theta = descend(made, objective, objective.records(ROWS, LABELS), channel, np.zeros(4))

    recording = recorder.recording
    releases = iter(recording.releases)
    here, velocity = np.zeros(4), np.zeros(4)
    known, seen = np.zeros(SIZE), np.full(SIZE, -10)
    norm, draw = 0.3, 0
    for epoch in range(4):
        if epoch:
            release = next(releases)
            assert release.query[0] == pytest.approx(np.minimum(known, 1.2).sum(), rel=1e-5)
            assert (release.sensitivity, release.noise) == (
                pytest.approx(1.2, rel=2e-6),
                pytest.approx(1.2 * made.sum_noise, rel=2e-6),
            )
            norm = min(max(0.9 * release.released[0] / SIZE, 0.003), 1.2)
        stale = 10 * epoch - seen > 5  # not seen for half an epoch
        assert epoch == 0 or 10 < stale.sum() < SIZE - 10
        known[stale], seen[stale] = np.linalg.norm(gradients_at(here), axis=1)[stale], 10 * epoch
        release = next(releases)
        assert release.query[0] == pytest.approx(np.minimum(known, norm).sum(), rel=1e-5)
        assert release.sensitivity == pytest.approx(norm, rel=2e-6)
        assert release.noise == pytest.approx(norm * made.sum_noise, rel=2e-6)
        norm_sum = max(min(release.released[0], SIZE * norm), 40 * norm / 0.8)
        if kind == "profile":  # rates on a grid, K̃ a little larger
            norm_sum *= 1.02 ** (math.log(SIZE * norm / norm_sum) / math.log(1.02) % 1)
        for _ in range(10):
            proposed, accepted = recording.thinned[draw, 0], recording.thinned[draw, 1]
            assert set(accepted) <= set(proposed) <= set(recording.inclusions[draw])
            assert recording.drawn[draw].draw.rate == pytest.approx(40 * norm / norm_sum)
            found = gradients_at(here)
            lengths = np.linalg.norm(found, axis=1)
            known[proposed], seen[proposed] = lengths[proposed], draw
            release = next(releases)
            units = found[accepted] / np.maximum(lengths[accepted], 0.01 * norm)[:, None]
            assert np.allclose(release.query, units.sum(axis=0), atol=1e-3)
            assert 1 < release.sensitivity < 1 + 2e-6
            assert release.sampling_rate == recording.drawn[draw].draw.rate
            gradient = release.released * norm_sum / (SIZE * 40) + 2.0 / SIZE * here
            velocity = 0.9 * velocity + gradient
            here = here - 0.5 * velocity
            draw += 1
    assert next(releases, None) is None
    assert np.allclose(here, theta, atol=1e-4)


class _NoNoise(SystemSource):
    """Draws, and adds nothing."""

    def noisy(self, query: Any, noise: Noise) -> Any:
        return query + 0.0


@pytest.mark.fast_cases("1.0")
@pytest.mark.parametrize("k", [1.0, 2.0, 5.0])
def test_the_update_is_unbiased_for_the_clipped_mean(k: float) -> None:
    """At one θ over many epochs: whatever K̃ says, and for norms below the floor and above C alike."""
    made = profiled(400, proposal_factor=k, norm_floor=0.2)
    gradients = started(made, _NoNoise(Randomness.fixed(7)))
    theta = np.array([1.0, -2.0, 0.5, 0.0])
    seen = np.array([gradients(theta) for _ in range(made.steps)])
    every = gradients_at(theta)
    norms = np.linalg.norm(every, axis=1)
    assert (norms < 0.06).mean() > 0.02 and (norms > 0.3).mean() > 0.05
    target = (every * np.minimum(1, 0.3 / norms)[:, None]).mean(axis=0)
    error = (seen.mean(axis=0) - target) / (seen.std(axis=0) / np.sqrt(len(seen)))
    assert np.abs(error).max() < 5
    assert np.linalg.norm(target) > 20 * np.linalg.norm(seen.std(axis=0)) / np.sqrt(len(seen))


class _Coins(SystemSource):
    """Keeps what each coin was to show."""

    def __init__(self) -> None:
        super().__init__(Randomness.fixed(5))
        self.tossed: list[tuple[Any, np.ndarray, tuple[int, int]]] = []
        self.rates: list[float] = []
        self.stayed: dict[tuple[int, int], Any] = {}
        self.queries: list[np.ndarray] = []

    def thin(self, indices: Any, keep: np.ndarray, coin: tuple[int, int]) -> Any:
        self.tossed.append((indices, np.array(keep), coin))
        self.stayed[coin] = super().thin(indices, keep, coin)
        return self.stayed[coin]

    def noisy(self, query: Any, noise: Noise) -> Any:
        self.queries.append(np.array(query))
        return super().noisy(query, noise)

    def draw(self, draw: Any, records: int, steps: int) -> Iterator[Any]:
        for drawn in super().draw(draw, records, steps):
            self.rates.append(draw.rate)
            yield drawn


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.one_of(st.floats(0, 1e9), st.just(0.0), st.floats(1e-300, 1e-200)), min_size=1, max_size=12),
    st.floats(1.0, 50.0),
    st.floats(1e-6, 0.9),
)
def test_no_memory_makes_a_record_likelier_than_is_charged(memory: list[float], k: float, floor: float) -> None:
    """And what is released is the sum of unit vectors of those who stayed, of gradients below the floor shorter ones."""
    made = profiled(1, proposal_factor=k, norm_floor=floor)
    source = _Coins()
    gradients = started(made, source)
    theta = np.array([0.5, 0.0, -3.0, 1.0])
    gradients(theta)
    state = gradients.public()
    gradients.restore(state, {})
    gradients._norms, gradients._seen = np.resize(memory, SIZE), np.zeros(SIZE)
    source.tossed.clear()
    for _ in range(3):
        gradients(theta)
    every = gradients_at(theta)
    norms = np.linalg.norm(every, axis=1)
    for draw, query in enumerate(source.queries[-3:], start=1):
        accepted = source.stayed[draw, 1]
        units = every[accepted] / np.maximum(norms[accepted], floor * 0.3)[:, None]
        assert np.allclose(query, units.sum(axis=0), atol=1e-3)
    epoch = gradients.epochs[-1]
    assert set(source.rates) == {epoch.rate} and epoch.rate == pytest.approx(40 * 0.3 / epoch.norm_sum)
    proposals = {coin[0]: (indices, keep) for indices, keep, coin in source.tossed if coin[1] == 0}
    for indices, keep, (draw, which) in source.tossed:
        assert np.all((keep > 0) & (keep <= 1))
        if which == 1:
            drawn, first = proposals[draw]
            both = first[np.searchsorted(drawn, indices)] * keep
            counted = np.clip(norms[indices], floor * 0.3, 0.3)
            # never above what importance sampling asks for, which is never above the rate; as much where the proposal allows
            assert np.all(both * epoch.rate <= counted * 40 / epoch.norm_sum * (1 + 1e-4))
            full = first[np.searchsorted(drawn, indices)] * 0.3 >= counted
            assert np.allclose((both * epoch.rate)[full], (counted * 40 / epoch.norm_sum)[full], rtol=1e-4)


def test_what_is_continued_forgets() -> None:
    """Records may be in another order then: a record that is remembered at one place and looked at in another counts twice."""
    gradients = started(plan(epochs=2), SystemSource(Randomness.fixed(3)))
    gradients(np.zeros(4))
    assert gradients._norms.any() and not gradients.private()
    state = gradients.public()
    again = started(plan(epochs=2), SystemSource(Randomness.fixed(4)))
    again.restore(state, {"norms": gradients._norms, "seen": gradients._seen})  # as earlier versions wrote
    assert not again._norms.any() and (again._seen < 0).all()


def test_between_passes_k_is_of_the_norms_last_seen() -> None:
    made = plan(pass_every=2, epochs=4)
    recorder = Recorder(SystemSource(Randomness.fixed(3)))
    gradients = started(made, recorder)
    theta = np.zeros(4)
    for _ in range(made.steps_per_epoch):
        theta = theta - 0.5 * gradients(theta)
    remembered = gradients._norms.copy()
    fresh = np.linalg.norm(gradients_at(theta), axis=1)
    gradients(theta)
    sums = [release for release in recorder.recording.releases if release.query.size == 1]
    assert sums[1].query[0] == pytest.approx(np.minimum(remembered, 0.3).sum())
    assert sums[1].query[0] != pytest.approx(np.minimum(fresh, 0.3).sum())


@pytest.mark.parametrize("chunk", [7, 8192])
def test_a_pass_leaves_out_what_was_seen_in_the_last_half_epoch(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose norm is of the step that drew them; all others are of the pass."""
    monkeypatch.setattr("dperm.gradient.importance.run._CHUNK", chunk)
    made = plan(epochs=2)
    recorder = Recorder(SystemSource(Randomness.fixed(3)))
    gradients = started(made, recorder)
    thetas = []
    for step in range(10):
        thetas.append(np.full(4, 0.1 * step))
        gradients(thetas[-1])
    last = np.zeros(4)
    gradients(last)
    expected = np.linalg.norm(gradients_at(last), axis=1)
    kept = 0
    for step in range(5, 10):
        proposed = recorder.recording.thinned[step, 0]
        expected[proposed] = np.linalg.norm(gradients_at(thetas[step]), axis=1)[proposed]
        kept += len(proposed)
    assert kept > 100
    sums = [release for release in recorder.recording.releases if release.query.size == 1]
    assert sums[1].query[0] == pytest.approx(np.minimum(expected, 0.3).sum())


def test_records_are_included_as_often_as_their_norms_say() -> None:
    made = profiled(200)
    recorder = Recorder(_NoNoise(Randomness.fixed(11)))
    gradients = started(made, recorder)
    theta = np.array([1.0, -2.0, 0.5, 0.0])
    for _ in range(made.steps):
        gradients(theta)
    counts = np.bincount(np.concatenate([recorder.recording.thinned[draw, 1] for draw in range(made.steps)]), minlength=SIZE)
    norms = np.clip(np.linalg.norm(gradients_at(theta), axis=1), 0.003, 0.3)
    expected = sum(made.steps_per_epoch * 40 * norms / epoch.norm_sum for epoch in gradients.epochs)
    deviations = (counts - expected) / np.sqrt(expected)
    assert np.abs(deviations).max() < 6
    assert abs((deviations**2).mean() - 1) < 0.4  # Poisson-like: independent from step to step


class OneOfTwo:
    """Records of which another process has every second one, in batches of seven, as those of a trainer are: an empty draw has
    none."""

    def __init__(self, records: Any, mine: int) -> None:
        self._records, self._mine = records, mine
        self.share = self

    def __len__(self) -> int:
        return len(self._records)

    def mine(self, numbers: Any) -> Any:
        return numbers % 2 == self._mine

    def stream(self, draws: Any) -> Iterator[Any]:
        for drawn in draws:
            here = np.arange(len(self)) if drawn is None else drawn
            here = here[self.mine(here)]
            yield itertools.chain.from_iterable(self._records.stream([here[at : at + 7] for at in range(0, len(here), 7)]))


@pytest.mark.parametrize("size", [SIZE, 1])
def test_processes_that_share_the_records_sum_up_to_one_that_has_them_all(size: int) -> None:
    """Each record counts in one of them: in K, and where it was drawn, proposed and accepted."""
    made = profiled(2, norm_floor=0.5)
    records = OBJECTIVE.records(ROWS[:size], LABELS[:size])
    theta = np.array([1.0, -2.0, 0.5, 0.0])
    first = Asked()

    def run(source: Asked, given: Any) -> list[Any]:
        channel = Channel.open(source)
        channel.charge(made.event(OBJECTIVE.relation), "test")
        gradients = made.gradients(OBJECTIVE, given, channel)
        for _ in range(made.steps):
            gradients(theta)
        return [question.query for question in source.questions]

    whole = run(first, records)
    parts = [run(Asked(answers=first.given), OneOfTwo(records, rank)) for rank in (0, 1)]
    assert len(whole) == made.steps + 2
    for total, *each in zip(whole, *parts, strict=True):
        assert sum(each) == pytest.approx(total, rel=1e-9, abs=1e-6)
        assert size == 1 or all(np.any(part) for part in each)
    norms = np.linalg.norm(gradients_at(theta), axis=1)[:size]
    assert whole[0] == pytest.approx([np.minimum(norms, 0.3).sum()], rel=1e-5)


# The budget


def spent(made: ImportancePlan, gradients: ImportanceGradients) -> float:
    steps = made.steps_per_epoch
    parts = [SelfComposed(PoissonSampled(e.rate, Gaussian(e.noise_multiplier)), steps) for e in gradients.epochs]
    sums = made.epochs + (0 if made.adaptive is None else made.epochs - 1)
    parts.append(SelfComposed(Gaussian(made.sum_noise), sums))
    return RdpFilter(made.budget).cost(Composed(tuple(parts)))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("adaptive", [None, AdaptiveNorm()], ids=["fixed", "adaptive"])
def test_the_whole_budget_is_spent_and_no_more(share: float, adaptive: AdaptiveNorm | None) -> None:
    made = renyi(epochs=10, worst_case_share=share, adaptive=adaptive, norm_noise=40.0)
    gradients = started(made)
    theta = np.zeros(4)
    for _ in range(made.steps):
        theta = theta - 0.5 * gradients(theta)
    total = spent(made, gradients)
    assert total <= made.budget.rdp_budget
    assert total >= (1 - 1e-5) * made.budget.rdp_budget
    assert gradients.spent(made.budget.relation, 0) == made.budget  # a filter vouches for its budget and nothing less
    levels = [epoch.gradient_noise for epoch in gradients.epochs]
    if share > 0 and adaptive is None:
        assert levels[-1] < levels[0] * 1.001  # noise planned for the worst case never has to rise


def test_noise_in_later_epochs_is_planned_as_stated() -> None:
    made = renyi(epochs=10, worst_case_share=0.5, epsilon=1.0)
    rate = made.rate / 0.25  # K = N·C/4
    left = made.budget.rdp_budget
    held = RdpFilter(made.budget)
    statistics = [SelfComposed(Gaussian(made.sum_noise), made.schedule.sums(epoch)) for epoch in range(10)]

    def cost(at: float, noise: float) -> float:
        return made.steps_per_epoch * held.cost(PoissonSampled(at, Gaussian(noise)))

    early = made.noise_multiplier(held, 2, made.steps_per_epoch, rate)
    later = held.cost(statistics[3])
    assert cost(rate, early) + 7 * cost(made.rate, early * 0.25) + later == pytest.approx(left, rel=1e-6)
    late = made.noise_multiplier(held, 6, made.steps_per_epoch, rate)
    assert 4 * cost(rate, late) + held.cost(statistics[7]) == pytest.approx(left, rel=1e-6)
    assert late < early
    last = made.noise_multiplier(held, 9, made.steps_per_epoch, rate)
    assert cost(rate, last) == pytest.approx(left, rel=1e-6)
    held.know({"order " + f"{made.budget.order:g}": left - 0.99 * later})
    with pytest.raises(BudgetExceeded, match="Nothing is left"):
        made.noise_multiplier(held, 2, 10, rate)


@pytest.mark.parametrize("kind", ["profile", "renyi"])
def test_the_certificate_is_what_the_run_was_held_to_and_lists_the_releases(kind: str) -> None:
    made = plan(filter=kind)
    mechanism = GradientPerturbation(budget=Budget(1e-5, 2.0), plan=made)
    release = mechanism.release(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), Channel.open())
    certificate = release.certificate
    assert certificate.status == "certified" and certificate.event == made.event(OBJECTIVE.relation)
    assert certificate.accountant == ("PLD" if kind == "profile" else "Rényi filter")
    assert 1.999 < certificate.epsilon <= 2.0
    facts = certificate.public_facts
    assert [text.split(",")[0] for text in facts["releases"]] == ["K", "gradients"]
    assert any("unit vectors" in text for text in facts["differs from the paper"])
    assert [epoch["epoch"] for epoch in release.trace["epochs"]] == [0, 1, 2, 3]
    assert type(certificate).from_json(certificate.to_json()) == certificate


def test_a_private_number_of_records_is_released_within_the_budget() -> None:
    made = plan(public_size=None, epsilon=4.0)
    recorder = Recorder(SystemSource(Randomness.fixed(2)))
    channel = Channel(recorder)
    mechanism = GradientPerturbation(budget=Budget(1e-5, 4.0), plan=made)
    release = mechanism.release(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)
    first = recorder.recording.releases[0]
    assert first.query == pytest.approx([SIZE]) and first.sensitivity == pytest.approx(1.0, rel=2e-6)
    size = release.trace["public_size"]
    assert size == round(first.released[0])
    assert release.trace["steps"] == 4 * round(size / 40)
    assert channel.filter.spent <= made.budget.rdp_budget
    assert release.certificate.epsilon <= 4.0
    assert release.certificate.public_facts["releases"][0].startswith("N once")
    # far too few records for the batches: what is released is taken for the least that is not
    few = OBJECTIVE.records(ROWS[:3], LABELS[:3])
    release = mechanism.release(OBJECTIVE, few, Channel(SystemSource(Randomness.fixed(2))))
    assert release.trace["public_size"] == 50 and np.isfinite(release.theta).all()


# Defined behaviour


def test_vanishing_gradients_leave_noise_alone() -> None:
    rows = np.zeros((SIZE, 4))
    recorder = Recorder(SystemSource(Randomness.fixed(4)))
    gradients = started(plan(), recorder, rows)
    theta = np.zeros(4)
    for _ in range(plan().steps):
        theta = theta - 0.5 * gradients(theta)
    assert all(0.6 < epoch.rate <= 0.8 for epoch in gradients.epochs)  # K̃ is noise: at its lower bound, or a little above
    assert all(epoch.norm_sum >= 40 * 0.3 / 0.8 for epoch in gradients.epochs)
    steps = [release for release in recorder.recording.releases if release.query.size == 4]
    assert all(np.all(release.query == 0) for release in steps)
    assert np.isfinite(theta).all() and theta.any()


@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one_record_are_ordinary(count: int) -> None:
    theta = np.zeros(4)
    gradients = started(plan(), None, ROWS[:count], LABELS[:count])
    for _ in range(plan().steps):
        theta = theta - 0.5 * gradients(theta)
    assert np.isfinite(theta).all()


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    rows = ROWS.copy()
    rows[7] = np.nan
    recorder = Recorder(SystemSource(Randomness.fixed(4)))
    gradients = started(plan(), recorder, rows)
    for _ in range(10):
        gradients(np.zeros(4))
    zeroed = ROWS.copy()
    zeroed[7] = 0.0
    again = Recorder(SystemSource(Randomness.fixed(4)))
    other = started(plan(), again, zeroed)
    for _ in range(10):
        other(np.zeros(4))
    for a, b in zip(recorder.recording.releases, again.recording.releases, strict=True):
        assert np.array_equal(a.query, b.query)


@pytest.mark.fast_cases("Adam")
@pytest.mark.parametrize(
    ("update", "average"), [(SGD(0.5), 0.5), (SGD(0.5, 0.9), None), (Adam(0.05), None)], ids=["averaged", "momentum", "Adam"]
)
def test_it_learns_with_any_update(update: Any, average: float | None) -> None:
    objective = LinearObjective(Softmax(3), 2, intercept_scale=1.0, public_size=3000)
    centres = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
    labels = np.arange(3000) % 3
    rows = 0.6 * centres[labels] + 0.15 * RNG.normal(size=(3000, 2))
    made = plan(public_size=3000, expected_batch_size=100, epochs=8, epsilon=4.0, average_from=0.5, update=SGD(0.5))
    assert made.update == Averaged(SGD(0.5), skip=120)
    if average is None:
        made = replace(made, update=update)
    mechanism = GradientPerturbation(budget=Budget(1e-5, 4.0), plan=made)
    theta = mechanism.release(objective, objective.records(rows, labels * 1.0), Channel.open()).theta
    table = theta.reshape(3, 3)
    scores = rows @ table[:2] + table[2]
    assert (scores.argmax(axis=1) == labels).mean() > 0.85


# Bad input


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"expected_batch_size": 400}, "at most 80 % of the records"),
        ({"expected_batch_size": 4000}, "at most 80 % of the records"),
        ({"proposal_factor": 0.99}, "proposal_factor >= 1"),
        ({"norm_floor": 1.0}, "norm_floor"),
        ({"norm_floor": 0.0}, "norm_floor"),
        ({"norm_floor": 1e-9}, "norm_floor >= 1e-06"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"pass_every": 0}, "pass_every"),
        ({"worst_case_share": 1.1, "filter": "renyi"}, "worst_case_share"),
        ({"norm_noise": 0.5}, "cannot pay for K"),
        ({"norm_noise": 0.5, "filter": "renyi"}, "cannot pay for N and K"),
        ({"filter": "pld"}, "filter"),
        ({"filter": "profile", "public_size": None}, "Expected public_size"),
        ({"order": 8.0}, "filter='renyi'"),
        ({"worst_case_share": 0.5}, "filter='renyi'"),
        ({"size_noise": 5.0}, "no size_noise where public_size is stated"),
        ({"size_noise": 5.0, "filter": "renyi"}, "no size_noise where public_size is stated"),
        ({"earlier": Gaussian(0.9)}, "released earlier takes epsilon = "),
        ({"earlier": Gaussian(0.9), "filter": "renyi"}, "Earlier releases cost"),
        ({"public_size": None, "size_noise": 0.1}, "cannot pay for N and K"),
        ({"norm_noise": -1.0}, "norm_noise"),
        ({"public_size": None, "average_from": 0.5}, "needs public_size"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_bad_input_is_refused_before_anything_is_charged(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        plan(**changes)


def test_adaptive_norms_keep_within_public_bounds() -> None:
    made = plan(adaptive=AdaptiveNorm(scale=1.0, ceiling=3.0, least=0.1))
    assert made.next_clipping_norm(-1e9) == pytest.approx(0.03)
    assert made.next_clipping_norm(1e9) == pytest.approx(0.9)
    assert made.next_clipping_norm(0.2 * SIZE) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="least <= 1 <= ceiling"):
        AdaptiveNorm(ceiling=0.5)
    with pytest.raises(ValueError, match="finite ceiling"):
        AdaptiveNorm(ceiling=np.inf)


def test_replace_one_is_refused() -> None:
    objective = LinearObjective(Logistic(), 4, relation=Relation.REPLACE_ONE, public_size=SIZE)
    with pytest.raises(ValueError, match="DPIS has no other"):
        GradientPerturbation(budget=Budget(1e-5, 2.0), plan=plan()).event(objective.facts)
    with pytest.raises(ValueError, match="add/remove only"):
        ImportancePlan(rdp_budget(1.0, 1e-5, relation=Relation.REPLACE_ONE), 40, 4, 0.3, SGD(0.5), SIZE)


def test_a_channel_without_a_filter_is_refused() -> None:
    channel = Channel(SystemSource(Randomness.fixed(1)))
    channel.charge(Gaussian(1.0), "test")
    with pytest.raises(ValueError, match="within a filter"):
        plan().gradients(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)
    with pytest.raises(ValueError, match="call sized"):
        plan(public_size=None).gradients(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)


def test_a_step_costs_what_dp_sgd_with_a_larger_batch_costs() -> None:
    """r = K/(N·C): the event at (b, σ_e) is DP-SGD's with b/r, and so is the noise of the mean gradient."""
    made = renyi(epsilon=1.0)
    ratio = 0.25
    rate = made.rate / ratio
    noise = made.noise_multiplier(RdpFilter(made.budget), 0, 10, rate)
    larger = 40 / ratio
    assert rate == pytest.approx(larger / SIZE)
    # DP-SGD: noise σ·C/b' on the mean; DPIS: σ_e·K̃/(N·b)
    assert noise * 0.3 / larger == pytest.approx(noise * (ratio * SIZE * 0.3) / (SIZE * 40))
    assert epsilon(SelfComposed(PoissonSampled(rate, Gaussian(noise)), 10), 1e-5) <= 1.0


def test_units_are_never_longer_than_one() -> None:
    norms = np.array([0.0, 1e-300, 0.05, 0.1, 3.0, 1e12])
    assert np.all(Unit(0.1).factors(norms) * norms <= 1 + 1e-15)
    assert Unit(0.1).factors(norms)[3:] == pytest.approx(1 / norms[3:])
    single = np.array([0.0, 1e-37, 1.0], dtype=np.float32)
    assert np.all(Unit(1e-37).factors(single) * single <= 1 + 1e-6) and np.isfinite(Unit(1e-37).factors(single)).all()
    assert Unit(0.1).sensitivity(Relation.ADD_OR_REMOVE_ONE) == 1.0


# Continued runs


def continued(
    tmp_path: Path, made: ImportancePlan, parts: list[tuple[Any, dict[str, Any]]]
) -> tuple[Channel, ImportanceGradients, Recorder]:
    """A run that starts again where the log holds these parts already."""
    log = SpendLog(tmp_path / "log.db")
    first = Channel(SystemSource(Randomness.fixed(1)), log=log)
    first.charge(made.event(OBJECTIVE.relation), "test", continuable=True)
    for part, note in parts:  # each of a copy of the run
        copy = Channel(SystemSource(Randomness.fixed(1)), log=log)
        copy.resume(first.charge_id, made.event(OBJECTIVE.relation))
        # steps are the last ones of their epoch
        starts = (note["epoch"]["epoch"] + 1) * made.steps_per_epoch - part.count if note["what"] == "steps" else None
        copy.allow(part, note, first=starts)
    recorder = Recorder(SystemSource(Randomness.fixed(2)))
    channel = Channel(recorder, log=log)
    channel.resume(first.charge_id, made.event(OBJECTIVE.relation))
    channel.reserve(made.steps, made.steps)
    gradients = made.gradients(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)
    state = {"spent": {}, "charge_id": first.charge_id, "charged_from": 0, "clipping_norm": 0.3, "epochs": []}
    gradients.restore(state, {})
    return channel, gradients, recorder


def epoch_of(made: ImportancePlan, count: int) -> tuple[Any, dict[str, Any]]:
    noted = ImportanceEpoch(0, 0.3, 60.0, 0.2, 12.0, 6.0, 0.5)
    return SelfComposed(PoissonSampled(0.2, Gaussian(12.0)), count), {"what": "steps", "epoch": asdict(noted)}


@pytest.mark.parametrize("kind", ["profile", "renyi"])
def test_an_epoch_that_was_paid_for_is_not_paid_for_again(tmp_path: Path, kind: str) -> None:
    made = plan(filter=kind)
    channel, gradients, recorder = continued(tmp_path, made, [epoch_of(made, 10)])
    before = dict(channel.filter.accounts)
    for _ in range(10):
        gradients(np.zeros(4))
    assert channel.filter.accounts == before
    assert gradients.epochs[0].noise_multiplier == 12.0
    # the memory of the checkpoint was empty: norms were looked at again, so that records are proposed as they should be
    assert sum(len(recorder.recording.thinned[draw, 1]) for draw in range(10)) > 100
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(4), GaussianNoise(1.0, 12.0, 0.2))


@pytest.mark.parametrize("kind", ["profile", "renyi"])
def test_a_copy_that_entered_an_epoch_late_paid_for_no_more_than_its_steps(tmp_path: Path, kind: str) -> None:
    """Its part must not be taken by a copy that has more of the epoch to run."""
    made = plan(filter=kind)
    channel, gradients, _ = continued(tmp_path, made, [epoch_of(made, 3)])
    before = sum(channel.filter.accounts.values())
    for _ in range(10):
        gradients(np.zeros(4))
    assert sum(channel.filter.accounts.values()) > before
    assert gradients.epochs[0].noise_multiplier != 12.0


def test_more_than_one_filter_is_refused_before_the_charge() -> None:
    part = GradientPerturbation(budget=Budget(1e-5, 2.0), plan=renyi())
    channel = Channel(SystemSource(Randomness.fixed(1)))
    with pytest.raises(ValueError, match="one filter, got one with several: nothing was charged"):
        channel.charge(OneVsRest.of(part, 3).event(OBJECTIVE.facts), "test")
    assert SpendLog.current().charges() == []


def test_settings_that_are_whole_numbers_stay_whole() -> None:
    made = plan(epochs=3.0, public_size=400.0)
    assert isinstance(made.steps, int) and isinstance(made.public_size, int)


@pytest.mark.parametrize("size", [8, 40])
def test_a_released_size_that_is_too_small_for_the_batch_is_ordinary(size: int) -> None:
    rows, labels = ROWS[:size], LABELS[:size] > 0
    model = DPLogisticRegression(
        epsilon=4.0,
        mechanism=Gradient(sampling="importance", expected_batch_size=0.95 * size, epochs=4),
        classes=[False, True],
    )
    for _ in range(3):
        assert np.isfinite(model.fit(rows, labels).coef_).all()


def test_a_plan_beyond_its_budget_is_refused() -> None:
    with pytest.raises(ValueError, match=r"may spend epsilon = 1\.9999\d*, its budget is 1"):
        GradientPerturbation(budget=Budget(1e-5, 1.0), plan=plan(epsilon=2.0))
    with pytest.raises(TypeError, match="call the recipe"):
        GradientPerturbation(budget=Budget(1e-5, 1.0), plan=dpis)
    made: Any = plan()
    with pytest.raises(TypeError, match="a budget of its own"):  # a search for its noise would find none
        GradientPerturbation.calibrate(lambda noise: made, OBJECTIVE.facts, 2.0, 1e-5)


def test_what_earlier_releases_leave_too_little_of_is_said() -> None:
    with pytest.raises(ValueError, match="released earlier takes epsilon = 3: nothing is left of 2"):
        plan(earlier=PureDP(3.0))
    with pytest.raises(ValueError, match="or use up delta"):
        plan(earlier=ApproximateDP(0.5, 1e-5 * (1 - 1e-6)))
    with pytest.raises(UnsupportedEventError, match="state public_size, and leave filter at its default"):
        renyi(earlier=ApproximateDP(0.5, 1e-6))


# Held to privacy profiles


def test_every_epoch_is_within_its_profile_and_wastes_next_to_nothing_of_it() -> None:
    made = plan(epochs=10, adaptive=AdaptiveNorm(), norm_noise=40.0)
    assert isinstance(made.budget, PrivacyProfile)
    channel = Channel(SystemSource(Randomness.fixed(1)))
    channel.charge(made.event(OBJECTIVE.relation), "test")
    gradients = made.gradients(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)
    theta = np.zeros(4)
    for step in range(made.steps):
        theta = theta - 0.5 * gradients(theta)
        expected = made.event(OBJECTIVE.relation, 0, step + 1)  # fixed beforehand: what is spent is known on the way
        assert gradients.spent(OBJECTIVE.relation, 0) == expected
    for epoch in gradients.epochs:
        steps = SelfComposed(PoissonSampled(epoch.rate, Gaussian(epoch.noise_multiplier)), made.steps_per_epoch)
        assert -1e-3 < excess(steps, made.budget) <= 0
        grid = math.log(epoch.rate / made.schedule.least_rate) / math.log(1.02)
        assert grid == pytest.approx(round(grid), abs=1e-6)
    assert channel.filter.left(made.budget) == channel.filter.left(Gaussian(40.0)) == 0
    assert leaves(made.event(OBJECTIVE.relation, 10, 10)) == {}


def test_what_ran_costs_no_more_than_what_was_charged() -> None:
    """The exact ε of the steps that happened to run, were they fixed: a bound only for runs that always run them."""
    made = dpis(epsilon=2.0, delta=1e-5, public_size=20_000, expected_batch_size=200, epochs=15, clipping_norm=1.0)
    for ratio, least in ((1.0, 0.9), (0.5, 0.93), (0.15, 0.9)):
        held = ProfileFilter(made.event(OBJECTIVE.relation))
        rate = made.schedule.least_rate / ratio
        noise = made.noise_multiplier(held, 0, 100, rate)
        ran = Composed(
            (
                SelfComposed(PoissonSampled(rate, Gaussian(noise)), 1500),
                SelfComposed(Gaussian(made.sum_noise), made.schedule.sums(0)),
            )
        )
        assert least * 2.0 < epsilon(ran, 1e-5) <= 2.0
        # the filter costs little more noise than if the ratio of all epochs had been known
        alone = calibrate(lambda x, rate=rate: SelfComposed(PoissonSampled(rate, Gaussian(x)), 1500), 2.0, 1e-5)
        assert alone < noise < 1.06 * alone


def test_without_a_place_for_k_an_epoch_takes_the_largest(tmp_path: Path) -> None:
    """Killed between K and its steps, a run has fewer K left than epochs: the last runs at the rate of DP-SGD."""
    made = plan()
    channel, gradients, _ = continued(tmp_path, made, [(Gaussian(made.sum_noise), {"what": "K"})])
    theta = np.zeros(4)
    for _ in range(made.steps):
        theta = theta - 0.5 * gradients(theta)
    *others, last = gradients.epochs
    assert last.rate == made.schedule.least_rate and last.ratio == pytest.approx(1.0)
    assert all(epoch.rate > made.schedule.least_rate for epoch in others)
    assert channel.filter.left(made.budget) == 0


def test_what_interruptions_spent_counts_as_spent(tmp_path: Path) -> None:
    """Places taken twice for one epoch are in the ε so far."""
    made = plan()
    noise = Gaussian(made.sum_noise)
    _, gradients, _ = continued(tmp_path, made, [(noise, {"what": "K"}), (noise, {"what": "K"}), epoch_of(made, 3)])
    gradients(np.zeros(4))
    assert leaves(gradients.spent(OBJECTIVE.relation, 0)) == {noise: 3, made.budget: 2}


def test_without_a_place_for_steps_nothing_runs(tmp_path: Path) -> None:
    made = plan()
    part, note = epoch_of(made, 3)
    channel, gradients, _ = continued(tmp_path, made, [(part, note)] * 4)
    with pytest.raises(BudgetExceeded, match="No epoch that was charged is left"):
        gradients(np.zeros(4))
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(4), GaussianNoise(1.0, 12.0, 0.2))


def test_profiles_that_differ_by_rounding_are_the_same_charge() -> None:
    """A run continued on another machine computes its plan again."""
    made = plan()
    shifted = replace(made.budget, deltas=tuple(value * (1 + 1e-12) for value in made.budget.deltas))
    other = replace(made, budget=shifted)
    assert pays_for(other, made.event(OBJECTIVE.relation), OBJECTIVE.relation, 0)
    assert not pays_for(plan(epsilon=2.1), made.event(OBJECTIVE.relation), OBJECTIVE.relation, 0)
    assert not pays_for(made, made.event(OBJECTIVE.relation, 10), OBJECTIVE.relation, 0)
    assert pays_for(made, made.event(OBJECTIVE.relation, 10), OBJECTIVE.relation, 10)
    almost = replace(made, norm_noise=made.norm_noise * (1 + 1e-13))
    event = made.event(OBJECTIVE.relation)
    assert pays_for(almost, event, OBJECTIVE.relation, 0)
    channel = Channel(SystemSource(Randomness.fixed(1)))
    channel.charge(event, "test")
    gradients = almost.gradients(OBJECTIVE, OBJECTIVE.records(ROWS, LABELS), channel)
    for _ in range(made.steps):
        gradients(np.zeros(4))
    assert channel.filter.left(made.budget) == channel.filter.left(Gaussian(made.norm_noise)) == 0
    assert not pays_for(plan(norm_noise=50.0), plan(norm_noise=60.0).event(OBJECTIVE.relation), OBJECTIVE.relation, 0)


def test_several_classes_share_one_filter() -> None:
    """Each class's epochs have places of their own in what is charged for all."""
    part = GradientPerturbation(budget=Budget(1e-5), plan=plan(epochs=2))
    mechanism = OneVsRest.of(part, 3)
    event = mechanism.event(OBJECTIVE.facts)
    channel = Channel(SystemSource(Randomness.fixed(1)))
    records = OBJECTIVE.records(ROWS, (np.arange(SIZE) % 3).astype(float))
    release = mechanism.release(OBJECTIVE, records, channel)
    assert release.certificate.event == event
    assert channel.filter.left(part.plan.budget) == 0
    assert epsilon(event, 1e-5) > 2.0


def test_a_budget_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="FilteredRdp or a PrivacyProfile"):
        ImportancePlan(Gaussian(1.0), 40, 4, 0.3, SGD(0.5), SIZE)
    profile = PrivacyProfile((0.1,), (1e-6,))
    with pytest.raises(ValueError, match="public_size and norm_noise"):
        ImportancePlan(profile, 40, 4, 0.3, SGD(0.5), SIZE)

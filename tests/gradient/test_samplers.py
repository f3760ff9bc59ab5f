"""Samplers draw as they say, are charged for what they draw, and what draws otherwise is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dperm.audit import AuditResult, Training, replay, white_box
from dperm.estimators import DPLogisticRegression
from dperm.gradient import (
    BallsAndBins,
    Constant,
    FixedOrder,
    FixedSize,
    FullBatch,
    Plan,
    Poisson,
    PoissonUpTo,
    Reshuffled,
    Sampler,
)
from dperm.gradient.recipes import dp_sgd
from dperm.gradient.sampling import samplings
from dperm.gradient.sampling.poisson import capacity
from dperm.gradient.sampling.rows import PoissonRows
from dperm.mechanisms import Gradient, GradientPerturbation
from dperm.objectives import RECORD, PrivacyUnit
from dperm.privacy import Gaussian, Relation, SelfComposed, TruncatedPoisson, calibrate, epsilon
from dperm.privacy.events import RowsSampled, leaves
from dperm.release import Channel, GaussianNoise, SpendLog, SystemSource, UnpaidReleaseError, spend_log
from dperm.release.draws import Draw
from helpers.catalogue.common import ADD, BUDGET, DELTA, REPLACE, SIZE, objective, plan

RNG = np.random.default_rng(0)


def drawn(sampler: Any, records: int, steps: int) -> list[np.ndarray]:
    return list(sampler.indices(np.random.default_rng(1), records, steps))


# Draws


def test_balls_and_bins_draw_each_record_once_an_epoch_and_anywhere() -> None:
    epochs, batches, records = 400, 5, 40
    draws = drawn(BallsAndBins(batches), records, epochs * batches)
    places = np.zeros((epochs, records), dtype=int)
    for epoch in range(epochs):
        together = draws[epoch * batches : (epoch + 1) * batches]
        assert np.array_equal(np.sort(np.concatenate(together)), np.arange(records))
        for step, included in enumerate(together):
            assert np.array_equal(included, np.sort(included))
            places[epoch, included] = step
    counts = np.stack([np.bincount(places[:, record], minlength=batches) for record in range(records)])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6
    sizes = np.array([len(included) for included in draws])
    assert sizes.var() == pytest.approx(records * 0.2 * 0.8, rel=0.2)  # not shuffled: batches differ in size
    assert [len(part) for part in drawn(BallsAndBins(3), 0, 4)] == [0, 0, 0, 0]


def test_fixed_sizes_are_fixed_and_uniform() -> None:
    draws = drawn(FixedSize(7, 40), 40, 3000)
    assert {len(np.unique(included)) for included in draws} == {7}
    pairs = np.zeros((40, 40))
    for included in draws:
        pairs[np.ix_(included, included)] += 1
    assert stats.chisquare(np.diag(pairs)).pvalue > 1e-6
    assert stats.chisquare(pairs[np.triu_indices(40, 1)]).pvalue > 1e-6


@pytest.mark.parametrize(
    ("sampling", "batch", "match"),
    [
        ("fixed_size", 25.5, "integer"),
        ("balls_and_bins", 70, "at most 66.6667"),
        ("truncated_poisson", 100, "below public_size = 100"),
    ],
)
def test_batches_that_a_sampler_cannot_draw_are_refused(sampling: str, batch: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dp_sgd(
            noise_multiplier=1.0, public_size=100, expected_batch_size=batch, epochs=2, clipping_norm=1.0, sampling=sampling
        )  # fmt: skip


def test_truncated_draws_keep_their_place_and_are_poisson_below_it() -> None:
    draws = drawn(PoissonUpTo(0.3, 14, 50), 40, 4000)
    sizes = np.array([len(included) for included in draws])
    assert sizes.max() == 14
    for size in (8, 11, 13):
        assert (sizes == size).mean() == pytest.approx(stats.binom.pmf(size, 40, 0.3), abs=0.02)
    counts = np.bincount(np.concatenate(draws), minlength=40)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_capacity_is_the_least_that_is_hardly_ever_reached() -> None:
    most = capacity(0.01, 11_000, 6_000)
    assert 1e-17 < 6_000 * stats.binom.sf(most, 11_000, 0.01) <= 1e-15
    assert capacity(0.5, 4, 10) == 4


@pytest.mark.parametrize(
    ("rate", "largest", "steps"), [(0.01, 1_100, 60), (0.3, 50, 1), (0.3, 50, 10**6), (1e-30, 5, 1), (0.9, 3, 9)]
)
def test_no_smaller_capacity_is_reached_so_seldom(rate: float, largest: int, steps: int) -> None:
    chances = [steps * TruncatedPoisson.overflow(rate, size, largest) for size in range(1, largest)]
    found = capacity(rate, largest, steps)
    assert found == 1 + sum(chance > 1e-15 for chance in chances)


def test_draws_and_steps_of_dp_sgd_by_hand() -> None:
    """So many draws as make up the passes asked for, and no fewer; batches beyond all records are all records."""

    def drawn_by(sampling: str, size: int, batch: float, epochs: float, **settings: Any) -> tuple[Any, int]:
        found = dp_sgd(
            noise_multiplier=1.5, public_size=size, expected_batch_size=batch, epochs=epochs, clipping_norm=1.0,
            sampling=sampling, **settings,
        )  # fmt: skip
        return found.sampler, found.steps

    assert drawn_by("poisson", 100, 30, 2.5) == (Poisson(0.3), 9)
    assert drawn_by("poisson", 100, 200, 2.5) == (Poisson(1.0), 3)
    assert drawn_by("poisson", 100, 50, 1e-9) == (Poisson(0.5), 1)
    assert drawn_by("fixed_size", 100, 30, 2.5) == (FixedSize(30, 100), 9)
    assert drawn_by("fixed_size", 100, 200, 2.5) == (FixedSize(100, 100), 3)
    assert drawn_by("balls_and_bins", 15, 10, 4) == (BallsAndBins(2), 8)
    assert drawn_by("balls_and_bins", 100, 10, 3) == (BallsAndBins(10), 30)
    sampler, steps = drawn_by("truncated_poisson", 101, 20, 2)
    assert (sampler.sampling_rate, sampler.largest, steps) == (20 / 101, 112, 11)
    assert sampler.capacity == capacity(20 / 101, 112, 11)
    assert drawn_by("rows", 100, 150, 2.5, max_rows_per_unit=4) == (PoissonRows(0.375, 4), 7)
    with pytest.raises(ValueError, match="below public_size·max_rows_per_unit = 8 rows"):
        drawn_by("rows", 4, 8, 1.0, max_rows_per_unit=2)
    with pytest.raises(ValueError, match=r"at most 9\.3333"):
        drawn_by("balls_and_bins", 14, 9.5, 1)


def test_noise_of_dp_sgd_falls_from_epoch_to_epoch_where_that_is_asked_for() -> None:
    settings: dict[str, Any] = {
        "noise_multiplier": 1.5, "public_size": 100, "expected_batch_size": 30, "epochs": 2.0, "clipping_norm": 1.0,
    }  # fmt: skip
    assert dp_sgd(**settings).noise == Constant(1.5)
    levels = [1.5, 1.5, 1.5, 1.5 * np.exp(-0.2), 1.5 * np.exp(-0.2), 1.5 * np.exp(-0.2), 1.5 * np.exp(-0.4)]
    assert list(dp_sgd(**settings, decay=0.2).noise.multipliers(7)) == pytest.approx(levels)


def test_rates_however_small_draw_next_to_nobody() -> None:
    for rate in (1e-12, 1e-17, 1e-25, 1e-300, 5e-324):
        assert [len(included) for included in drawn(Poisson(rate), 1000, 5)] == [0] * 5


class Told:
    """Hands out given numbers in place of exponential ones, in their order."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers, self.place = numbers, 0

    def standard_exponential(self, count: int) -> np.ndarray:
        self.place += count
        assert self.place <= len(self.numbers)
        return self.numbers[self.place - count : self.place]


@pytest.mark.parametrize("longest", [3.0, 2.0**44])
@pytest.mark.parametrize("at_once", [1, 20, 1 << 16])
@pytest.mark.parametrize(("records", "rate"), [(1, 0.3), (1, 1e-3), (7, 0.9), (40, 0.02), (500, 0.5), (3, 1.0), (0, 0.3)])
def test_poisson_draws_are_one_long_run_of_trials(
    records: int, rate: float, at_once: int, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exponential numbers say how many trials fail before one succeeds (Devroye 1986, chapter X.2), or that a great number fail,
    and no more; each step has so many trials as there are records, however many numbers are asked for at a time."""
    monkeypatch.setattr("dperm.gradient.sampling.poisson._SAMPLED_AT_ONCE", at_once)
    monkeypatch.setattr("dperm.gradient.sampling.poisson._LONGEST_GAP", longest)
    steps = 30
    numbers = np.random.default_rng(4).standard_exponential(40_000)
    expected: list[list[int]] = [[] for _ in range(steps)]
    place = 0
    for fails in numbers / -np.log1p(-min(rate, 1 - 1e-16)):
        place += int(min(fails, longest))
        if place >= steps * records:
            break
        if fails < longest:
            expected[place // records].append(place % records)
            place += 1
    generator: Any = Told(numbers)
    found = list(Poisson(rate).indices(generator, records, steps))
    assert [included.tolist() for included in found] == expected
    assert all(included.dtype == np.intp for included in found)


def test_rows_of_all_persons_are_drawn_and_charged_each_by_itself() -> None:
    sampler, step = PoissonRows(0.5, 3), Gaussian(2.0)
    counts = np.bincount(np.concatenate(drawn(sampler, 10, 400)))
    assert len(counts) == 30
    assert np.abs(counts - 200).max() < 60
    assert leaves(sampler.event(step, 2, 4)) == {RowsSampled(0.5, step, 3): 4}
    assert (sampler.rate, sampler.slots) == (0.5, 3)
    with pytest.raises(ValueError, match="draw persons"):
        sampler.event(Gaussian(2.0, REPLACE), 0, 1)


def test_what_an_epoch_of_balls_and_bins_tells_of_a_record() -> None:
    """The mean over the steps that it may have joined of what each would tell; steps that did not run tell nothing."""
    told = np.random.default_rng(5).normal(size=(7, 50))
    epochs = [told[:3], told[3:6], np.vstack([told[6:], np.zeros((2, 50))])]
    expected = np.sum([np.log(np.mean(np.exp(epoch), axis=0)) for epoch in epochs], axis=0)
    assert BallsAndBins(3).log_ratio(told) == pytest.approx(expected, rel=1e-12)
    assert BallsAndBins(3).rate == pytest.approx(1 / 3)


# Charges


def made(sampler: Any, relation: Relation = ADD, epsilon: float = 4.0, **changes: Any) -> Plan:
    def at(noise: float) -> Plan:
        return plan(noise, **({"sampler": sampler, "steps": 20} | changes))

    return at(calibrate(lambda noise: at(noise).event(relation), epsilon, DELTA))


CASES: list[tuple[Any, Relation]] = [
    (BallsAndBins(4), ADD),
    (FixedSize(12, 40), REPLACE),
    (PoissonUpTo(0.3, 14, 40), ADD),
    (PoissonUpTo(0.3, 14, 40), REPLACE),
]


@pytest.mark.fast_cases("truncated, add_or_remove_one", "fixed, replace_one")
@pytest.mark.parametrize(("sampler", "relation"), CASES, ids=[f"{case[0].key}, {case[1]}" for case in CASES])
def test_replay(sampler: Any, relation: Relation) -> None:
    noise = Constant(2.0)
    mechanism = GradientPerturbation(budget=BUDGET.__class__(DELTA), plan=plan(2.0, sampler=sampler, noise=noise))
    result = replay(Training.of_mechanism(mechanism, objective(relation=relation)))
    assert result.verdict == "consistent", str(result)
    assert 0.85 < result.details["largest_movement"] <= 1 + 1e-6


def test_what_is_charged_is_how_records_were_drawn() -> None:
    draws: list[tuple[Any, Relation]] = [*CASES, (Poisson(0.25), ADD)]
    for charged, relation in draws:
        for sampler, _ in draws:
            channel = Channel.open()
            channel.charge(charged.event(Gaussian(2.0, relation), 0, 4), "test")
            records = 40
            next(iter(channel.draw(sampler, records, 4)))
            if sampler == charged:
                channel.release(np.zeros(2), GaussianNoise(1.0, 2.0, sampler.rate))
            else:
                with pytest.raises(UnpaidReleaseError):
                    channel.release(np.zeros(2), GaussianNoise(1.0, 2.0, sampler.rate))


def test_records_that_are_drawn_anew_in_each_step_are_no_epoch() -> None:
    channel = Channel.open()
    sampler = BallsAndBins(4)
    channel.charge(sampler.event(Gaussian(1.0), 0, 8), "test")  # two epochs
    for _ in range(2):
        next(iter(channel.draw(sampler, 1000, 4)))
        channel.release(np.zeros(2), GaussianNoise(1.0, 1.0, 0.25))
    next(iter(channel.draw(sampler, 1000, 4)))
    with pytest.raises(UnpaidReleaseError, match="drawn anew, for 4 steps"):
        channel.release(np.zeros(2), GaussianNoise(1.0, 1.0, 0.25))


def test_an_epoch_that_was_begun_before_is_not_begun_again_by_a_continued_channel() -> None:
    sampler, query = BallsAndBins(4), np.zeros(2)
    event = sampler.event(Gaussian(1.0), 0, 8)  # two epochs
    first = Channel.open()
    charge = first.charge(event, "test", continuable=True)
    first.reserve(1, 8)
    next(iter(first.draw(sampler, 10, 8)))
    first.release(query, GaussianNoise(1.0, 1.0, 0.25))
    again = Channel.open()
    again.resume(charge, event)
    again.reserve(7, 8, 1)
    draws = again.draw(sampler, 10, 8)
    for _ in range(4):
        next(draws)
        again.release(query, GaussianNoise(1.0, 1.0, 0.25))
    next(draws)
    with pytest.raises(UnpaidReleaseError, match="drawn anew"):
        again.release(query, GaussianNoise(1.0, 1.0, 0.25))


def test_an_epoch_is_charged_as_a_whole() -> None:
    sampler, step = BallsAndBins(4), Gaussian(2.0)
    assert [sampler.event(step, first, count).count for first, count in ((0, 4), (0, 5), (3, 2), (2, 1), (4, 4), (1, 8))] == [
        1, 2, 2, 1, 1, 3,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="one noise level for each 4 steps"):
        from dperm.gradient import ExponentialDecay

        plan(2.0, sampler=sampler, noise=ExponentialDecay(2.0, 0.1, 3))


def test_a_run_goes_on_where_an_epoch_starts() -> None:
    """The draws of an epoch are one: who was seen before an interruption must not be seen after it."""
    mine, problem = made(BallsAndBins(4)), objective()
    records = problem.records(RNG.normal(size=(40, 3)), np.where(RNG.random(40) < 0.5, 1.0, -1.0))
    for first, skipped, expected in ((0, 0, 0), (5, 0, 8), (4, 0, 4), (4, 1, 8), (0, 19, 20)):
        channel = Channel.open()
        channel.charge(mine.event(ADD), "test")
        run = mine.gradients(problem, records, channel, first=first)
        run.skip(skipped)
        assert run.step == expected
        seen = 0
        while run.step < mine.steps:
            run(np.zeros(4))
            seen += 1
        assert seen == 20 - expected


def test_only_poisson_draws_are_thinned() -> None:
    channel = Channel.open()
    next(iter(channel.draw(BallsAndBins(4), 40, 4)))
    with pytest.raises(UnpaidReleaseError, match="Only Poisson"):
        channel.thin(np.arange(3), np.ones(3), (0, 0))


# Refusals, before any charge


def test_refusals() -> None:
    rows, signs = RNG.normal(size=(40, 3)), np.where(RNG.random(40) < 0.5, 1.0, -1.0)
    model = DPLogisticRegression(classes=[-1, 1], public_size=40)

    def fit(message: str, relation: str = "add_or_remove_one", **settings: Any) -> None:
        mechanism = Gradient(**settings)
        with pytest.raises(ValueError, match=message):
            size = None if relation == "replace_one" else settings.pop("public_size", 40)
            model.set_params(mechanism=mechanism, relation=relation, public_size=size).fit(rows, signs)

    fit("replace_one", sampling="fixed_size", epochs=2)
    fit("add_or_remove_one", sampling="balls_and_bins", epochs=2, relation="replace_one")
    with pytest.raises(ValueError, match="Expected public_size with sampling='truncated_poisson'"):
        model.set_params(mechanism=Gradient(sampling="truncated_poisson"), relation="add_or_remove_one", public_size=None).fit(
            rows, signs
        )
    with pytest.raises(ValueError, match="at most 33 records"):
        model.set_params(mechanism=Gradient(sampling="truncated_poisson"), public_size=30).fit(rows, signs)
    with pytest.raises(ValueError, match="size of at most records"):
        FixedSize(41, 40)
    with pytest.raises(ValueError, match="epochs"):
        dp_sgd(
            noise_multiplier=1.0,
            public_size=100,
            expected_batch_size=10,
            epochs=2.5,
            clipping_norm=1.0,
            sampling="balls_and_bins",
        )
    with pytest.raises(ValueError, match="sampling"):
        dp_sgd(noise_multiplier=1.0, public_size=100, expected_batch_size=10, epochs=2, clipping_norm=1.0, sampling="shuffled")
    assert SpendLog.current().charges() == []


class Doubled(Poisson):
    """A stranger's sampler, which draws as its base does, whatever it says of its draws."""

    def indices(self, generator: Any, records: int, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield np.arange(records)


def test_a_stranger_s_sampler_draws_as_the_one_that_it_derives_from() -> None:
    channel = Channel.open()
    sizes = [len(included) for included in Doubled(0.1).draws(channel, 1000, 20)]
    assert 50 < np.mean(sizes) < 150
    with pytest.raises(TypeError, match=r"a draw of dperm's own"):
        channel.draw(Doubled(0.1), 1000, 1)


# Training


@pytest.mark.parametrize("sampling", [name for name in samplings() if name != "poisson"])
def test_linear_models(sampling: str) -> None:
    rows = RNG.normal(size=(3000, 4)) / 4
    labels = np.where(rows[:, 0] + 0.1 * RNG.normal(size=3000) > 0, 1, 0)
    relation = "replace_one" if sampling == "fixed_size" else "add_or_remove_one"
    groups, persons = (np.arange(3000) // 3, {"public_size": 1000, "max_rows_per_unit": 3}) if sampling == "rows" else (None, {})
    settings: dict[str, Any] = {"public_size": 3000, "classes": [0, 1], "relation": relation} | persons
    mechanism = Gradient(sampling=sampling, epochs=20)
    model = DPLogisticRegression(epsilon=2.0, mechanism=mechanism, **settings).fit(rows, labels, groups=groups)
    assert model.score(rows, labels) > 0.85
    assert 1.9 < model.certificate_.epsilon <= 2.0
    assert model.certificate_.accountant == ("exact Gaussian" if sampling in ("fixed_order", "reshuffled") else "PLD")
    model.certificate_.verify()


@pytest.mark.fast_cases("rows", "fixed_order", "cyclic_poisson")
@pytest.mark.parametrize("sampling", [name for name in samplings() if name != "poisson"])
def test_networks(sampling: str) -> None:
    pytest.importorskip("torch")
    from dperm.estimators import DPMLPClassifier

    rows = RNG.normal(size=(400, 4))
    relation = "replace_one" if sampling == "fixed_size" else "add_or_remove_one"
    mechanism = Gradient(sampling=sampling, epochs=5, expected_batch_size=50)
    groups, persons = (np.arange(400) // 2, {"public_size": 200, "max_rows_per_unit": 2}) if sampling == "rows" else (None, {})
    settings: dict[str, Any] = {"public_size": 400, "classes": [0, 1], "relation": relation} | persons
    model = DPMLPClassifier(epsilon=4.0, mechanism=mechanism, **settings)
    model.fit(rows, (rows[:, 0] > 0).astype(int), groups=groups)
    assert 3.9 < model.certificate_.epsilon <= 4.0
    assert model.certificate_.mechanism == f"gradient perturbation of a network ({mechanism.words})"


def in_epochs(folder: Path, epochs: int) -> tuple[Any, Callable[[], Any]]:
    """80 records, and trainers of a network in so many epochs of 8 batches by balls and bins, with checkpoints in this folder."""
    torch = pytest.importorskip("torch")
    from dperm.torch import PrivateTrainer

    inputs = torch.as_tensor(RNG.normal(size=(80, 3)))

    def trainer() -> Any:
        model = torch.nn.Linear(3, 2, dtype=torch.float64)
        return PrivateTrainer(
            model, lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, reduction="none"),
            torch.optim.SGD(model.parameters(), 0.1), partial(dp_sgd, sampling="balls_and_bins"), epsilon=3.0, delta=1e-5,
            epochs=epochs, expected_batch_size=10, clipping_norm=1.0, public_size=80, checkpoint=folder,
        )  # fmt: skip

    return torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long()), trainer


def test_a_network_s_interrupted_epoch_is_not_gone_on_with(tmp_path: Path) -> None:
    data, trainer = in_epochs(tmp_path, 3)

    first = trainer()
    for step in first.steps(data):
        first.optimizer.step()
        if step.number == 11:
            first.save()
            break
    again = trainer()
    with pytest.warns(UserWarning, match="reserved before an interruption|passed over"):
        numbers = [step.number for step in again.steps(data, resume=True) if again.optimizer.step() is None]
    assert numbers == list(range(17, 25)) and again.steps_lost == 5


def test_no_epoch_is_drawn_twice_however_often_a_run_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every continued run starts an epoch of its own: two drawings of one epoch would be charged as one."""
    from dperm.torch.training import training_run as run

    monkeypatch.setattr(run, "_SECONDS_AT_ONCE", 0.0)
    data, trainer = in_epochs(tmp_path, 4)

    first = trainer()
    for step in first.steps(data):
        first.optimizer.step()
        if step.number == 1:
            first.save()
            break
    epochs: list[int] = []
    for _ in range(4):  # none of them saves; the last has no epoch left
        again = trainer()
        with pytest.warns(UserWarning, match="skipped|passed over"):
            for step in again.steps(data, resume=True):
                again.optimizer.step()
                epochs.append((step.number - 1) // 8)
                assert again.steps_lost == step.number - 2
                break
    assert epochs == [1, 2, 3]


def test_a_run_whose_log_is_gone_pays_from_the_epoch_that_it_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs begin where what was charged says that they do, however often it is killed."""
    from dperm.torch.training import training_run as run

    monkeypatch.setattr(run, "_SECONDS_AT_ONCE", 0.0)
    data, trainer = in_epochs(tmp_path / "run", 4)

    def train(number: int, until: int, resume: bool) -> list[int]:
        mine, done = trainer(), list[int]()
        with spend_log(tmp_path / f"{number}.db"):
            for step in mine.steps(data, resume=resume):
                mine.optimizer.step()
                done.append(step.number)
                if step.number == until:
                    mine.save()
                    break
        return done

    assert train(0, 3, resume=False) == [1, 2, 3]
    with pytest.warns(UserWarning, match="passed over"), pytest.warns(UserWarning, match="paid for again"):
        assert train(1, 11, resume=True) == [9, 10, 11]  # the other log does not hold its charge
    with pytest.warns(UserWarning, match="skipped|passed over"):
        assert train(1, 0, resume=True) == list(range(17, 33))


def test_every_sampler_makes_the_steps_it_is_asked_for() -> None:
    for sampling in samplings():
        size, rows = (500, 2) if sampling == "rows" else (1000, None)
        mine = dp_sgd(
            noise_multiplier=1.0, public_size=size, expected_batch_size=100, epochs=3, clipping_norm=1.0, sampling=sampling,
            max_rows_per_unit=rows,
        )  # fmt: skip
        assert mine.steps == 30 and mine.expected_batch_size == pytest.approx(100)
    full = dp_sgd(noise_multiplier=1.0, public_size=100, expected_batch_size=200, epochs=3, clipping_norm=1.0)
    assert full.rate == 1.0


# Audits


def audited(mine: Plan, relation: Relation = ADD, canaries: int = 200) -> AuditResult:
    problem = objective(relation=relation)
    records = problem.records(RNG.normal(size=(SIZE, 3)), np.where(RNG.random(SIZE) < 0.5, 1.0, -1.0))
    return white_box(mine, problem, records, delta=DELTA, canaries=canaries)


SOUND: list[tuple[Sampler, Relation]] = [
    (BallsAndBins(5), ADD),
    (FixedSize(52, SIZE + 200), REPLACE),
    (PoissonUpTo(0.2, 150, SIZE + 200), ADD),
    (FixedOrder(5), REPLACE),
    (Reshuffled(5, 3), ADD),
]


@pytest.mark.parametrize(("sampler", "relation"), SOUND, ids=[str(case[0].words) for case in SOUND])
def test_white_box_audits_are_tight_and_no_more(sampler: Sampler, relation: Relation) -> None:
    result = audited(made(sampler, relation, steps=60), relation)
    assert result.verdict == "consistent", str(result)
    assert 0.75 * 4 < result.estimate.epsilon < 1.45 * 4  # its standard deviation is about a tenth


def shuffled(draw: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    for start in range(0, steps, draw.batches):
        parts = np.array_split(generator.permutation(records), draw.batches)
        yield from (np.sort(part) for part in parts[: min(draw.batches, steps - start)])


def always_the_same(draw: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    places = generator.integers(draw.batches, size=records)
    for step in range(steps):
        yield np.flatnonzero(places == step % draw.batches)


def poisson(draw: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    return Poisson(draw.rate).indices(generator, records, steps)


@pytest.mark.parametrize(
    ("otherwise", "text"),
    [
        (shuffled, "vary in size otherwise"),
        (always_the_same, "repeat or exclude each other"),
        (poisson, "rule out"),
    ],
)
def test_draws_that_are_no_balls_and_bins_are_refuted(
    monkeypatch: pytest.MonkeyPatch, otherwise: Callable[..., Iterator[Any]], text: str
) -> None:
    monkeypatch.setattr(BallsAndBins, "indices", otherwise)
    result = audited(made(BallsAndBins(5), steps=60))
    assert result.refuted and any(text in finding for finding in result.findings)


def test_replay_sees_a_record_that_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BallsAndBins, "indices", poisson)
    mechanism = GradientPerturbation(budget=BUDGET, plan=made(BallsAndBins(4)))
    result = replay(Training.of_mechanism(mechanism, objective()))
    assert result.refuted and any("rule out" in finding for finding in result.findings)


def test_permuted_passes_are_not_paid_for_by_a_poisson_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made(Poisson(0.25))
    monkeypatch.setattr(Poisson, "draws", lambda self, channel, records, steps: channel.draw(BallsAndBins(4), records, steps))
    mechanism = GradientPerturbation(budget=BUDGET, plan=mine)
    result = replay(Training.of_mechanism(mechanism, objective()))
    assert result.refuted and "unpaid" in result.details["kinds"]


def test_truncation_that_is_not_charged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capacity that is often reached costs δ: a plan that leaves it out claims more than it is."""
    tight = PoissonUpTo(0.3, 20, SIZE)
    assert epsilon(tight.event(Gaussian(4.0), 0, 20), DELTA) == np.inf
    roomy = tight.event(Gaussian(4.0), 0, 20)
    assert isinstance(roomy, SelfComposed)
    assert isinstance(roomy.event, TruncatedPoisson)
    assert roomy.event.astray > 0.1
    with pytest.raises(ValueError, match="epsilon"):
        made(tight)


def test_more_than_one_kind_of_draw_is_known() -> None:
    from dperm._family import members

    keys = [kind.key for kind in members(Draw)]
    assert len(keys) == len(set(keys)) >= 4
    assert isinstance(Channel.open().source, SystemSource) and FullBatch().rate == 1.0


def test_rows_of_persons_are_drawn_from_all_their_rows_and_all_else_from_as_many_as_there_are() -> None:
    """By that number batches and steps are chosen where nobody states them."""
    of_persons = {name: kind.drawn_from(100, PrivacyUnit(8)) for name, kind in samplings().items()}
    assert of_persons.pop("rows") == 800
    assert set(of_persons.values()) == {100}
    assert samplings()["rows"].drawn_from(100, RECORD) == 100

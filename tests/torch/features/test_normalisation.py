"""Private normalisation of channels: what is charged, that no record moves the sums further, and that the numbers are right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dperm.audit import Pair, Training, replay
from dperm.audit.recording import Recorder
from dperm.privacy import Gaussian, Relation
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.release import SpendLog
from dperm.torch import ChannelStatistics, private_channel_statistics, scattering_features, scattering_scale
from helpers.halving import is_found, places_in

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
N, K = 40, 3
MEANS, STDS = torch.tensor([2.0, -0.3, 0.0]), torch.tensor([0.5, 1.0, 3.0])
SCALE = torch.tensor([2.0, 1.0, 3.0])


def features(n: int = N) -> Tensor:
    noise = torch.randn(n, K, 4, 5, generator=torch.Generator().manual_seed(0))
    return MEANS[:, None, None] + STDS[:, None, None] * noise


def statistics(data: Tensor | None = None, **changes: Any) -> ChannelStatistics:
    settings: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-5, "scale": SCALE, "random_state": 0}
    return private_channel_statistics(features() if data is None else data, **(settings | changes))


# What is charged


@pytest.mark.parametrize("size", [None, N])
def test_the_certificate_is_that_of_one_gaussian_and_is_logged(size: int | None) -> None:
    found = statistics(random_state=None, public_size=size, label="images").certificate
    assert found.epsilon == gaussian_epsilon(2.0, 1e-5) and found.delta == 1e-5
    assert found.event == Gaussian(2.0, ADD) and found.status == "certified"
    assert any(f"The number {N}" in item.text for item in found.assumptions) == (size is not None)
    [charge] = SpendLog.current().charges("images")
    assert charge.event == found.event and charge.private
    found.verify()
    assert type(found).from_json(found.to_json()) == found


def test_a_fixed_seed_is_not_private_and_repeats() -> None:
    first, second = statistics(), statistics()
    assert first.certificate.status == "not private"
    assert torch.equal(first.mean, second.mean) and torch.equal(first.std, second.std)
    assert not torch.equal(statistics(random_state=None).mean, statistics(random_state=None).mean)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"delta": 1.0}, "delta in"),
        ({"scale": 0.0}, "scale > 0"),
        ({"scale": torch.tensor([1.0, torch.nan, 1.0])}, "scale > 0"),
        ({"scale": torch.ones(2)}, r"of shape \(3,\), got \(2,\)"),
        ({"clipping_norm": -1.0}, "clipping_norm > 0"),
        ({"floor": 0.0}, "floor > 0"),
        ({"public_size": 0}, "public_size >= 1"),
        ({"relation": "neighbours"}, "neighbours"),
        ({"relation": "replace_one", "public_size": N + 1}, f"public_size={N}"),
        ({"relation": "replace_one", "data": features(0)}, "at least one record"),
        ({"data": torch.zeros(N, K)}, r"\(n, K, h, w\)"),
        ({"data": torch.zeros(N, K, 0, 2)}, r"\(n, K, h, w\)"),
    ],
)
def test_nothing_is_charged_for_what_makes_no_sense(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        statistics(**changes)
    with pytest.raises(TypeError, match="floating-point"):
        statistics(torch.zeros(N, K, 2, 2, dtype=torch.uint8))
    assert SpendLog.current().charges() == []


def test_sizes_that_cannot_be_meant_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=f"there are {N} records"):
        statistics(public_size=1000)
    with pytest.warns(UserWarning, match="whole record"):
        statistics(public_size=N, delta=0.1)


# What one record can do


def training(settings: dict[str, Any]) -> Training:
    def run(data: Any, source: Any) -> Any:
        found = statistics(data[0], **settings, random_state=source)
        return {"mean": found.mean, "std": found.std, "size": found.size, "facts": dict(found.certificate.public_facts)}

    return Training("normalisation", statistics(**settings).certificate, run)


RECORDS = {
    "zero": torch.zeros(K, 4, 5),
    "ordinary": features(1)[0],
    "large": torch.full((K, 4, 5), -1e4),
    "one place": torch.zeros(K, 4, 5).index_fill(2, torch.tensor([0]), 1e4),
    "overflowing": torch.full((K, 4, 5), 1e200, dtype=torch.float64),
    "infinite": torch.full((K, 4, 5), math.inf),
    "nan": torch.zeros(K, 4, 5).index_fill(0, torch.tensor([1]), math.nan),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(("relation", "size"), [(ADD, None), (ADD, N), (REPLACE, None)], ids=["add", "add, sized", "replace"])
def test_no_record_moves_the_sums_by_more_than_is_charged(record: str, relation: Relation, size: int | None) -> None:
    """Replay on the data with the record added, or put in the place of the last: the sums move within the sensitivity, and
    everything else that leaves is the same."""
    data = features().double()
    pair = Pair.neighbour(relation, record, (data, torch.zeros(N)), RECORDS[record].double(), 0.0)
    result = replay(training({"relation": relation, "public_size": size}), [pair])
    assert result.verdict == "consistent", str(result)
    assert result.details["largest_movement"] <= 1 + 1e-9


@pytest.mark.parametrize(("relation", "size"), [(ADD, None), (ADD, N), (REPLACE, None)], ids=["add", "add, sized", "replace"])
def test_half_of_the_sensitivity_is_refuted(relation: Relation, size: int | None) -> None:
    """Under replace-one by a record that is large in another channel: its sums are orthogonal to those of the one before."""
    data = features().double()
    data[-1] = torch.zeros(K, 4, 5).index_fill(0, torch.tensor([0]), 1e4)
    other = torch.zeros(K, 4, 5).index_fill(0, torch.tensor([1]), 1e4).double()
    pair = Pair.neighbour(relation, "another channel", (data, torch.zeros(N)), other, 0.0)
    (place,) = places_in("torch/features/channel_normalisation.py")
    assert is_found(replace(training({"relation": relation, "public_size": size}), replay_pairs=[pair]), place)


def moved(record: str, **settings: Any) -> tuple[Tensor, float]:
    """By how much a record moves the query, and the sensitivity."""
    queries: list[Tensor] = []
    data = features().double()
    recorder = Recorder()
    for rows in (data, torch.cat([data, RECORDS[record].double()[None]])):
        recorder = Recorder()
        statistics(rows, random_state=recorder, **settings)
        queries.append(torch.from_numpy(recorder.recording.releases[0].query))
    return queries[1] - queries[0], recorder.recording.releases[0].sensitivity


def test_the_bound_is_felt_and_counts_are_within_it() -> None:
    clipping_norm = 3 * math.sqrt(K)
    change, sensitivity = moved("large")
    assert float(change.norm()) == pytest.approx(sensitivity, rel=2e-6)  # on a grid
    assert float(change[:-1].norm()) == pytest.approx(clipping_norm, rel=2e-6) and float(change[-1]) == pytest.approx(
        clipping_norm / 4
    )
    change, sensitivity = moved("large", public_size=N)
    assert len(change) == 2 * K and float(change.norm()) == pytest.approx(sensitivity, rel=2e-6) == pytest.approx(
        clipping_norm, rel=4e-6
    )
    change, sensitivity = moved("large", public_size=N, clipping_norm=1.5)
    assert float(change.norm()) == pytest.approx(sensitivity, rel=2e-6) == pytest.approx(1.5, rel=4e-6)


@pytest.mark.parametrize("record", ["overflowing", "infinite", "nan"])
def test_records_that_are_no_numbers_add_nothing(record: str) -> None:
    assert float(moved(record)[0].abs().max()) == 0.0


def test_replacing_may_move_twice_as_far() -> None:
    recorder = Recorder()
    for sign in (-1.0, 1.0):
        data = features()
        data[0] = 0.1 * sign * SCALE[:, None, None]
        statistics(data, random_state=recorder, relation="replace_one", clipping_norm=0.1)
    found = statistics(relation="replace_one").certificate
    assert not any("The number" in item.text for item in found.assumptions)  # it is no secret
    before, after = recorder.recording.releases
    assert before.sensitivity == pytest.approx(0.2, rel=2e-6)
    assert before.noise == 2 * before.sensitivity
    assert len(before.query) == 2 * K
    assert 0.98 * 0.2 < float(np.linalg.norm(after.query - before.query)) <= 0.2


# What it is good for


@pytest.mark.parametrize("settings", [{}, {"public_size": 20_000}, {"relation": "replace_one"}], ids=str)
def test_statistics_are_close_to_the_truth(settings: dict[str, Any]) -> None:
    found = statistics(features(20_000), noise_multiplier=1.0, **settings)
    assert torch.allclose(found.mean.float(), MEANS, atol=0.01 * float(STDS.max()))
    assert torch.allclose(found.std.float(), STDS, rtol=0.02)
    assert found.size == 20_000 if settings else 0 < abs(found.size - 20_000) < 30


def test_noise_is_of_the_stated_size() -> None:
    """On records of zeros what is released is noise alone: multiplier · clipping_norm · scale ÷ size on the means."""
    runs = [statistics(torch.zeros(N, K, 1, 1), public_size=N, random_state=seed, clipping_norm=2.0) for seed in range(200)]
    means = torch.stack([run.mean for run in runs])
    assert torch.allclose(means.std(0).float(), 2.0 * 2.0 * SCALE / N, rtol=0.2)


def test_normalised_features_have_mean_zero_and_unit_variance() -> None:
    data = features(20_000)
    found = statistics(data, noise_multiplier=1.0)
    normal = found.normalise(data)
    assert normal.dtype == torch.float32 and normal.shape == data.shape
    assert float(normal.mean((0, 2, 3)).abs().max()) < 0.03
    assert float((normal.std((0, 2, 3)) - 1).abs().max()) < 0.03
    assert torch.equal(found.normalise(data[3]), normal[3])
    for shape in ((5, 2, 4, 4), (3, 4)):
        with pytest.raises(ValueError, match=r"\(…, 3, h, w\), got"):
            found.normalise(torch.zeros(shape))


def test_the_stated_size_is_used_and_the_number_of_records_is_not() -> None:
    with pytest.warns(UserWarning, match="records"):
        half = statistics(features(20_000), noise_multiplier=0.01, public_size=5_000)
    assert torch.allclose(half.mean.float(), 4 * MEANS, atol=0.1)


@pytest.mark.parametrize("noise", [1e-3, 1e3])
def test_standard_deviations_stay_away_from_zero(noise: float) -> None:
    flat = MEANS[:, None, None].expand(2_000, K, 2, 2)
    for seed in range(20):
        found = statistics(flat, noise_multiplier=noise, floor=0.2, random_state=seed)
        assert bool((found.std.float() >= 0.2 * SCALE * (1 - 1e-6)).all()) and bool(found.std.isfinite().all())
        # never below the noise on the variance
        sensitivity = 3 * math.sqrt(K) * math.hypot(1, 0.25)
        assert bool((found.std >= SCALE * math.sqrt(noise * sensitivity / found.size) * (1 - 1e-6)).all())
    nobody = statistics(flat[:0], noise_multiplier=noise)
    assert nobody.size >= 1 and bool(nobody.std.isfinite().all() and (nobody.std > 0).all())


def test_scattering_coefficients_are_normalised_within_their_noise() -> None:
    """All 81 channels, though they differ a hundredfold: with one scale for all the small ones would be lost."""
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.interpolate(torch.rand(1500, 1, 6, 6, generator=generator), 16, mode="bilinear")[:, 0]
    data = scattering_features(images)
    true = data.double().std((0, 2, 3))
    settings: dict[str, Any] = {"noise_multiplier": 0.3, "delta": 1e-5, "random_state": 0}
    found = private_channel_statistics(data, scale=scattering_scale(), **settings)
    assert float((found.std / true - 1).abs().median()) < 0.1
    alike = private_channel_statistics(data, scale=0.5, **settings)
    assert float((alike.std / true - 1).abs().median()) > 1
    error = (found.mean - data.double().mean((0, 2, 3))) / true
    assert float(error.abs().median()) < 0.1 and bool(error.isfinite().all())

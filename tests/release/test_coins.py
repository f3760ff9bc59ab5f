"""Coins of records: the same for whoever asks, and otherwise as if nobody had tossed them before."""

from __future__ import annotations

import numpy as np
from scipy import stats

from dperm._random import Randomness
from dperm.gradient.sampling import Poisson
from dperm.release.draws import coins_of
from dperm.release.source import SystemSource


def test_a_toss_depends_on_the_record_the_coin_and_the_secret() -> None:
    generator = np.random.Generator(np.random.SFC64(0))
    coins, again = coins_of(generator), coins_of(generator)
    numbers = np.arange(10_000)
    tossed = coins(numbers, (3, 0))
    order = np.random.default_rng(1).permutation(10_000)
    assert np.array_equal(again(order, (3, 0)), tossed[order])  # in parts, in another order, by another process
    assert np.array_equal(again(np.array([7]), (3, 0)), tossed[7:8]) and len(coins(numbers[:0], (3, 0))) == 0
    generator.random()
    others = [
        coins(numbers, (3, 1)),
        coins(numbers, (4, 0)),
        coins(numbers + 10_000, (3, 0)),
        coins_of(generator)(numbers, (3, 0)),
    ]
    for other in others:
        assert abs(np.corrcoef(tossed, other)[0, 1]) < 0.05
        assert not np.any(tossed == other)
    for values in (tossed, *others):
        assert values.min() >= 0 and values.max() < 1
        assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_no_two_records_share_a_toss_nor_two_coins_of_one_record() -> None:
    """Tosses have 53 digits: of some hundred thousand that are independent, two are alike once in a million times."""
    coins = coins_of(np.random.Generator(np.random.SFC64(3)))
    numbers = np.unique(np.concatenate([np.arange(3000), *(2**power + np.arange(-2, 3) for power in range(13, 62, 3))]))
    table = np.array(
        [coins(numbers, (draw, which)) for draw in (0, 1, 2, 7, 255, 256, 2**31, 2**40) for which in (0, 1, 2, 127, 128, 255)]
    )
    assert len(np.unique(table)) == table.size
    pairs = [(table[:, 1:], table[:, :-1]), (table[:, ::2], table[:, 1::2]), (table[1:], table[:-1])]
    for one, other in pairs:  # neither neighbours nor coins tend to go together
        width = min(one.shape[1], other.shape[1])
        together = np.corrcoef(one[:, :width].ravel(), other[:, :width].ravel())[0, 1]
        assert abs(together) < 6 / np.sqrt(one[:, :width].size)
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-4


def test_the_draws_stay_as_they_were() -> None:
    """Coins take nothing of the generator that records are drawn by."""
    plain, thinned = (SystemSource(Randomness.fixed(5)) for _ in range(2))
    wanted = list(plain.draw(Poisson(0.3), 50, 20))
    for step, drawn in enumerate(thinned.draw(Poisson(0.3), 50, 20)):
        assert np.array_equal(drawn, wanted[step])
        stayed = thinned.thin(drawn, np.full(len(drawn), 0.5), (step, 0))
        assert np.all(np.isin(stayed, drawn))
        assert len(thinned.thin(drawn, np.ones(len(drawn)), (step, 0))) == len(drawn)
        assert not len(thinned.thin(drawn, np.zeros(len(drawn)), (step, 0)))


def test_shares_stay_with_the_chance_that_is_asked_for() -> None:
    source = SystemSource(Randomness.from_system())
    (drawn,) = source.draw(Poisson(1.0), 200_000, 1)
    for which, keep in enumerate((0.01, 0.3, 0.97)):
        stayed = len(source.thin(drawn, np.full(len(drawn), keep), (0, which)))
        assert abs(stayed - keep * 200_000) < 6 * np.sqrt(keep * (1 - keep) * 200_000)

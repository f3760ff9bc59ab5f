"""What is said of targets before a charge: of texts that are no numbers, of ranges that are none, of many that are clipped."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLasso, DPPoissonRegressor, DPQuantileRegressor, DPRidge, DPSearch
from dperm.release import SpendLog
from helpers.engines import LocalEngine, cut

X = np.random.default_rng(0).random((100, 2)) / 2
Y = np.linspace(0, 90, 100)
REGRESSIONS = [DPRidge, DPLasso, DPQuantileRegressor, DPPoissonRegressor]


@pytest.mark.parametrize("kind", REGRESSIONS)
@pytest.mark.parametrize("dtype", [None, object])
def test_a_text_that_is_no_number_is_named(kind: Any, dtype: Any) -> None:
    texts = np.array(["57"] * 98 + ["57k", "1,5"], dtype=dtype)
    with pytest.raises(ValueError, match="targets y as numbers, got the text '57k' for record 98: a regression takes numbers"):
        kind(target_range=(0, 100)).fit(X, texts)
    assert not SpendLog.current().charges()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REGRESSIONS)
def test_texts_of_numbers_are_numbers(kind: Any) -> None:
    settings: dict[str, Any] = {"target_range": (0, 100), "random_state": 0}
    one, other = (kind(**settings).fit(X, targets) for targets in (Y, Y.astype(str)))
    assert np.array_equal(one.coef_, other.coef_)


@pytest.mark.parametrize("given", [{0: 1, 5: 2}, {0.0, 5.0}, frozenset({0, 5}), "05", b"05", {"low": 0, "high": 5}.keys()])
def test_a_range_has_an_order(given: Any) -> None:
    for kind in REGRESSIONS:
        with pytest.raises(TypeError, match="target_range as two numbers"):
            kind(target_range=given).fit(X, Y)


@pytest.mark.parametrize("kind", [DPRidge, DPQuantileRegressor, DPPoissonRegressor])
def test_many_clipped_targets_are_said_also_of_rows_in_parts(kind: Any) -> None:
    for most, warned in ((50.0, True), (89.0, False)):
        table = cut(X, Y, (30, 0, 70), LocalEngine())
        model = kind(target_range=(0, most))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(table, None)
        said = [str(each.message) for each in caught if "targets lie outside" in str(each.message)]
        assert len(said) == warned
        if warned:
            outside = int((most < Y).sum())
            assert said[0].startswith(f"{outside} of 100 targets lie outside [0, 50] (0 below, {outside} above)")


@pytest.mark.filterwarnings("ignore")
def test_a_search_says_once_what_is_clipped() -> None:
    search = DPSearch(DPRidge(target_range=(0, 50), public_size=100), {"radius": [2.0, 5.0]}, epsilon=4.0)
    with pytest.warns(UserWarning, match="44 of 100 targets lie outside"):
        search.fit(X, Y, held_out=(X, Y))

"""How far one record moves the counts that a schema is found by, and how rarely a value of one record is kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.stats import norm

from dperm.data import SchemaError, find
from dperm.data.schema_search import private_search as module
from dperm.data.schema_search.counting import ColumnCounts
from dperm.privacy import ApproximateDP, Composed, Gaussian, Relation, epsilon
from dperm.privacy.events import leaves
from dperm.release import CountNoise, Noise
from helpers.asked import Asked, moves

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
COLUMNS = ["a", "b", "c", "y"]


def searched(frame: pandas.DataFrame, relation: Relation) -> Any:
    def run(source: Asked) -> None:
        try:
            find(frame, "y", 1.0, relation=relation, random_state=source)
        except SchemaError:
            return  # the search was charged, and its questions asked

    return run


#: in every column more zeros than texts, and enough of both
MIXED = [["0"] * 4] * 500 + [["t"] * 4] * 400


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_each_round_is_moved_by_what_it_is_charged_and_by_no_more(relation: Relation) -> None:
    """One record more has zeros, or texts instead. Without noise the search for an upper end looks below zero once, that for a
    lower end above it at the same time: there the record counts at both ends of every column."""
    here = pandas.DataFrame([*MIXED, ["0"] * 4], columns=COLUMNS)
    there = pandas.DataFrame([*MIXED, ["t"] * 4] if relation is REPLACE else MIXED, columns=COLUMNS)
    kinds, *ends, values = [moved for _, moved in moves(searched(here, relation), searched(there, relation))]
    for moved in (kinds, max(ends), values):
        assert 0.999999 < moved <= 1


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_values_move_by_what_is_charged(relation: Relation) -> None:
    """Texts in all columns; one record has those of one half, or those of the other."""
    rest = [["v"] * 4] * 400 + [["w"] * 4] * 400
    here = pandas.DataFrame([*rest, ["v"] * 4], columns=COLUMNS)
    there = pandas.DataFrame([*rest, ["w"] * 4] if relation is REPLACE else rest, columns=COLUMNS)
    *_, (question, moved) = moves(searched(here, relation), searched(there, relation))
    assert question.query.sum() == 4 * 801 and 0.999999 < moved <= 1


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_three_rounds_together_are_the_one_gaussian_that_is_charged(relation: Relation) -> None:
    """μ of a release is its movement over its noise; together, the root of the sum of their squares."""
    frame = pandas.DataFrame(MIXED, columns=COLUMNS)
    source = Asked()
    searched(frame, relation)(source)
    mu = np.sqrt(sum(1 / question.noise**2 for question in source.questions))
    plan = module._planned(1.0, 1e-5, relation)
    assert mu == pytest.approx(1 / plan.noise, rel=1e-12)
    (selection,) = [leaf for leaf in leaves(plan.event) if isinstance(leaf, ApproximateDP)]
    together = Composed((Gaussian(1 / mu, relation), selection))
    assert epsilon(plan.event, 1e-5) == pytest.approx(epsilon(together, 1e-5), rel=1e-9)
    assert 0.999 < epsilon(plan.event, 1e-5) <= 1.0
    asked = Counter(round(question.noise, 9) for question in source.questions)
    charged = Counter[float]()
    for leaf, count in leaves(plan.event).items():
        if isinstance(leaf, Gaussian):
            charged[round(leaf.noise_multiplier, 9)] += count
    assert asked == charged


#: of each entry, how often it stands in each column, of three tables with the same entries that are otherwise as unlike as can be
ENTRIES = ["1", "7", "100", "t", "u", None]
TABLES = {
    "numbers": [800, 400, 3, 1, 1, 2000],
    "texts": [1, 2, 1, 1000, 1000, 0],
    "far numbers": [3, 800, 900, 2, 400, 3],
}


def made(counts: list[int]) -> pandas.DataFrame:
    column = np.repeat(np.array(ENTRIES, dtype=object), counts)
    return pandas.DataFrame(dict.fromkeys(COLUMNS, column))


def leaves_of(counts: list[int], source: Asked) -> Any:
    """What leaves of a search."""
    try:
        schema = find(made(counts), "y", 8.0, random_state=source)
    except SchemaError as error:
        return str(error)
    return schema.columns, schema.classes, schema.target_range, schema.missing


@pytest.mark.parametrize("there", TABLES)
@pytest.mark.parametrize("here", TABLES)
def test_a_schema_is_a_function_of_what_was_released(here: str, there: str) -> None:
    """A table that is answered as another was gets the other's schema, however unlike their counts are: kinds, what is missing,
    ends and values are decided by released counts alone. Only which texts there are is seen, and both tables have the same."""
    first = Asked()
    expected = leaves_of(TABLES[here], first)
    second = Asked(answers=first.given)
    assert leaves_of(TABLES[there], second) == expected
    assert len(second.given) == len(first.given)
    differ = [not np.array_equal(one.query, two.query) for one, two in zip(first.questions, second.questions, strict=True)]
    assert all(differ[place] for place in (0, 1, -1)) == (here != there)


def test_unlike_tables_have_unlike_schemas() -> None:
    """Otherwise the test above would say nothing."""
    found = [leaves_of(counts, Asked()) for counts in TABLES.values()]
    assert len({str(each) for each in found}) == len(found)
    assert {missing for *_, missing in found} == {"separate", "middle"}
    assert {column.type for columns, *_ in found for column in columns} == {"number", "category", "label"}


class Counts:
    """A channel that adds to counts what it is told, and keeps the noise's standard deviation."""

    std = 0.0

    def __init__(self, noise: Any) -> None:
        self.noise = noise

    def release(self, counts: Any, noise: CountNoise) -> Any:
        self.std = noise.level
        return counts + self.noise


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("columns", [1, 14, 100])
@pytest.mark.parametrize("budget", [0.1, 1.0, 50.0])
def test_a_value_that_one_record_has_is_kept_with_the_chance_that_is_charged(
    relation: Relation, columns: int, budget: float
) -> None:
    """The threshold is read off what is kept: values that one record has, each with more noise than the last. Noise is rounded to
    the step of the counts' grid, of at most 1, so that a count of 1 comes out above the threshold with a chance of at most
    P(1 + 1/2 + noise ≥ threshold); and the threshold is no more than another half above what that needs."""
    plan = module._planned(budget, 1e-5, relation)
    charged = sum(leaf.delta for leaf in leaves(plan.event) if isinstance(leaf, ApproximateDP))
    probe = Counts(0.0)
    counted = [pandas.Series({"x": 1})] * columns
    module._common(counted, probe, plan, relation is REPLACE)  # pyright: ignore[reportArgumentType]
    noise = np.linspace(0, 12 * probe.std + 3, 5001)
    names = [str(place) for place in range(len(noise))]
    alone = [pandas.Series(1, index=names), *[pandas.Series(dtype=np.int64)] * (columns - 1)]
    kept, *others = module._common(alone, Counts(noise), plan, relation is REPLACE)  # pyright: ignore[reportArgumentType]
    assert 0 < len(kept) < len(noise) and not any(others)
    threshold = 1 + noise[len(noise) - len(kept)]
    assert min(kept.values()) == threshold
    assert columns * norm.sf((threshold - 1.5) / probe.std) <= charged
    assert columns * norm.sf((threshold - (noise[1] - noise[0]) - 2) / probe.std) >= charged * (1 - 1e-6)


@pytest.mark.parametrize("low", [-3.0, 0.0, 2.5])
def test_ends_enclose_the_numbers_and_no_narrower_ones_do(low: float) -> None:
    """Without noise: the ends are the nearest of the grid beyond which nobody lies."""
    plan = module._Plan(1e-9, 1e-5, ADD)
    numbers = pandas.Series(np.linspace(low, low + 4.1, 500))
    source = Exact()
    ((found_low, found_high),) = module._ends([ColumnCounts.of(numbers, ".")], source, plan)  # pyright: ignore[reportArgumentType]
    grid = module.GRID
    assert found_low == grid[grid <= low].max() and found_high == grid[grid >= low + 4.1].min()
    assert source.asked == module._PROBES


def test_a_single_number_is_found_wherever_it_is() -> None:
    """All numbers of the grid, each in a column of its own."""
    grid = module.GRID
    columns = [ColumnCounts(3, 0, 0, 3 * (grid > value), 3 * (grid < value)) for value in grid]
    found = module._ends(columns, Exact(), module._Plan(1e-9, 1e-5, ADD))  # pyright: ignore[reportArgumentType]
    assert found == [(value, value) for value in grid]


class Exact:
    """A channel without noise."""

    asked = 0

    def release(self, query: Any, noise: Noise) -> Any:
        self.asked += 1
        return query

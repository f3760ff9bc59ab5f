"""Searches: what they charge, show and hide, and what they refuse before a charge."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from dperm.estimators import (
    DPLogisticRegression,
    DPMLPClassifier,
    DPPoissonRegressor,
    DPRidge,
    DPSearch,
    model_from_json,
    model_to_json,
)
from dperm.mechanisms import Gradient, Objective, Output
from dperm.privacy import BestOfTries, Certificate, Composed, Gaussian, PureDP, Risk, SelfComposed, calibrate, epsilon
from dperm.privacy.events import leaves
from dperm.published import PublishedNormalisedGradient
from dperm.release import Channel, Noise, PureNoise, SpendLog, best_of_tries
from dperm.release.selection import set_aside
from helpers.halving import asked, places_in
from helpers.said import flat

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3)) / 2
Y = np.where(X[:, 0] > 0, "yes", "no")
HELD = (X[:200], Y[:200])
CANDIDATES = {"mechanism": [Output(strong_convexity=modulus) for modulus in (1.0, 10.0, 100.0, 1e4)]}


def search(**changes: Any) -> DPSearch:
    settings: dict[str, Any] = {"estimator": DPLogisticRegression(classes=["no", "yes"]), "candidates": CANDIDATES}
    return DPSearch(**(settings | changes))


def test_one_charge_holds_the_search_and_its_certificate_the_model() -> None:
    found = search(epsilon=2.0, tries=6.0, how="geometric").fit(X, Y, held_out=HELD)
    (charge,) = SpendLog.current().charges()
    assert isinstance(charge.event, BestOfTries)
    assert charge.event == found.certificate_.event
    assert charge.event.mean == 6.0
    assert 1.9 < found.certificate_.epsilon <= 2.0 and found.certificate_.status == "certified"
    found.certificate_.verify()
    assert found.best_estimator_.certificate_ == found.certificate_
    assert found.best_params_["mechanism"] == found.best_estimator_.mechanism and found.how_ == "geometric"
    # how good it is hangs on a random number of tries
    assert found.score(X, Y) == np.mean(found.predict(X) == Y) and found.predict_proba(X).shape == (600, 2)
    assert set(found.predict(X)) <= {"no", "yes"}
    assert "stays secret" in flat(found.certificate_)
    again, _ = model_from_json(model_to_json(found.best_estimator_))
    assert again.certificate_ == found.certificate_


def test_nothing_tells_how_many_tries_there_were_or_what_the_others_gave(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    fit = DPLogisticRegression.fit

    def counted(self: Any, *data: Any, **more: Any) -> Any:
        warnings.warn("a try", stacklevel=2)
        fits.append(1)
        if len(fits) % 3 == 0:
            raise RuntimeError("a try that fails")
        return fit(self, *data, **more)

    monkeypatch.setattr(DPLogisticRegression, "fit", counted)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = search(epsilon=2.0, tries=30.0, how="geometric").fit(X, Y, held_out=HELD)
    assert len(fits) > 1 or len(told) == 0
    assert told == []
    assert capfd.readouterr() == ("", "")
    assert len(SpendLog.current().charges()) == 1
    shown = {name for name in vars(found) if name.endswith("_")}
    assert shown == {"best_score_", "results_", "how_", "best_params_", "best_estimator_", "certificate_"}
    assert found.results_ is None and "tries" not in str(sorted(found.certificate_.public_facts))


def test_the_best_is_that_of_the_scores() -> None:
    def scoring(model: Any, rows: Any, labels: Any) -> float:
        return model.mechanism.strong_convexity

    chosen = [
        search(epsilon=4.0, tries=12.0, scoring=scoring, random_state=seed).fit(X, Y, held_out=HELD).best_score_
        for seed in range(6)
    ]
    assert chosen.count(1e4) >= 4 and set(chosen) <= {1.0, 10.0, 100.0, 1e4}  # a fifth of searches miss the best of four


def test_each_once_where_that_is_cheaper_and_all_is_shown() -> None:
    two = {"mechanism": [Output(strong_convexity=1.0), Output(strong_convexity=100.0)]}
    assert search(candidates=two, epsilon=0.2).fit(X, Y, held_out=HELD).how_ == "each once"
    assert search(candidates=two, epsilon=2.0).fit(X, Y, held_out=HELD).how_ == "geometric"
    assert len(SpendLog.current().charges()) == 2
    found = search(candidates=two, epsilon=2.0, how="each once").fit(X, Y, held_out=HELD)
    assert found.how_ == "each once" and [set(each) for each in found.results_] == [{"mechanism", "score"}] * 2
    assert max(each["score"] for each in found.results_) == found.best_score_
    charge = SpendLog.current().charges()[-1]
    assert isinstance(charge.event, Composed) and 1.9 < found.certificate_.epsilon <= 2.0


def test_private_held_out_records_are_charged() -> None:
    found = search(epsilon=2.0).fit(X[200:], Y[200:], held_out=HELD, held_out_private=True)
    (charge,) = SpendLog.current().charges()
    assert isinstance(charge.event, BestOfTries)
    for tried in charge.event.tries:
        kinds = {type(leaf) for leaf in leaves(tried)}
        assert kinds == {Gaussian, PureDP}
    assert found.best_score_ != round(found.best_score_)  # a count with noise
    assert found.certificate_.epsilon <= 2.0


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_one_held_out_record_moves_a_score_by_all_that_is_charged(relation: str) -> None:
    """Half of it, or nine tenths, would not cover a record that is answered rightly on one side alone."""
    (place,) = places_in("estimators/search.py")
    model = DPLogisticRegression(classes=["no", "yes"], relation=relation, public_size=600)
    neighbours: list[tuple[Any, Any]] = [HELD]
    swapped = np.where(Y[:1] == "yes", "no", "yes")
    if relation == "replace_one":
        neighbours.append((X[:200], np.concatenate([swapped, Y[1:200]])))
    else:
        neighbours += [(X[:201], Y[:201]), (np.concatenate([X[:200], X[:1]]), np.concatenate([Y[:200], swapped]))]
    scores: list[list[float]] = []
    for held_out in neighbours:
        tried = search(estimator=model, epsilon=20.0, how="each once", random_state=0)
        here = asked(lambda: tried.fit(X, Y, held_out=held_out, held_out_private=True))  # noqa: B023
        scores.append([float(query[0]) / sensitivity for where, query, sensitivity in here if where == place])
    assert all(len(each) == len(CANDIDATES["mechanism"]) for each in scores)
    moved = np.abs(np.subtract(scores[1:], scores[0]))
    assert 0.95 < moved.max() <= 1


def test_mechanisms_of_every_kind_are_held_to_the_budget() -> None:
    mixed = {"mechanism": [Objective(strong_convexity=50.0), Gradient(epochs=3), Output(strong_convexity=10.0)]}
    found = search(candidates=mixed, epsilon=1.0, tries=3.0, how="logarithmic")
    found.fit(X, Y, held_out=HELD)
    assert 0.95 < found.certificate_.epsilon <= 1.0 and "objective" in found.certificate_.mechanism
    each = found.certificate_.public_facts["epsilon_of_a_try"]
    assert 0.3 < each < 1.0
    ridge = DPSearch(DPRidge(target_bound=1.0, public_size=600), {"mechanism": [Output(strong_convexity=m) for m in (1.0, 50.0)]})
    ridge.fit(X, np.clip(X[:, 0], -1, 1), held_out=(X, np.clip(X[:, 0], -1, 1)))
    assert ridge.certificate_.epsilon <= 1.0 and not hasattr(ridge, "predict_proba")


def test_a_seed_makes_it_repeatable_and_not_private() -> None:
    one, other = (search(epsilon=2.0, random_state=3).fit(X, Y, held_out=HELD) for _ in range(2))
    assert np.array_equal(one.best_estimator_.coef_, other.best_estimator_.coef_)
    assert one.certificate_.status == "not private" and not SpendLog.current().charges()[0].private


def test_it_is_an_estimator() -> None:
    model = search(epsilon=3.0)
    assert clone(model).get_params(deep=False).keys() == inspect.signature(DPSearch).parameters.keys()
    assert clone(model).set_params(estimator__data_norm=2.0).estimator.data_norm == 2.0


@pytest.mark.parametrize(
    ("settings", "fit", "message"),
    [
        ({"candidates": {"mechanism": ["output"]}}, {}, "at least two"),
        ({"candidates": {"epsilon": [1.0, 2.0]}}, {}, "without epsilon"),
        ({"candidates": {"mechanism": [Output(strong_convexity=1.0), Objective(strong_convexity=1e-3)]}}, {}, "cannot be tried"),
        ({"tries": 1.0}, {}, "more than one try"),
        ({"epsilon": Risk(advantage=0.1)}, {}, "no Risk"),
        ({"how": "grid"}, {}, "how"),
        ({"estimator": DPLogisticRegression()}, {}, "state its classes"),
        ({"estimator": DPLogisticRegression(classes=["no", "yes"], random_state=1)}, {}, "without random_state"),
        ({"estimator": DPMLPClassifier(classes=["no", "yes"])}, {}, "linear estimator"),
        ({"delta": 0.0}, {}, "delta"),
        ({}, {"held_out": (X[:5, :2], Y[:5])}, "X has 2 features"),
        ({}, {"held_out": (X[:5], ["no"] * 5)}, "more than one class"),
        ({}, {"held_out": (X[:5], [True, True, False, False, True])}, "got False"),
        ({}, {"held_out": X[:5]}, "held_out as"),
        ({"epsilon": 1e-7, "how": "geometric"}, {}, "Expected more than epsilon"),
        ({}, {"held_out": (X[:5], ["yes", "no", "yes", "no", "maybe"])}, "among classes"),
        ({}, {"held_out": (X[:5] * np.nan, Y[:5])}, "NaN"),
        ({"scoring": lambda *_: 0.0}, {"held_out_private": True}, "no scoring"),
    ],
)
def test_bad_input_is_refused_before_a_charge(settings: dict[str, Any], fit: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        search(**settings).fit(X, Y, **({"held_out": HELD} | fit))
    assert SpendLog.current().charges() == []


def test_what_is_only_claimed_has_no_search() -> None:
    claimed = {"mechanism": [PublishedNormalisedGradient(), Output(strong_convexity=1.0)]}
    with pytest.raises(ValueError):
        search(candidates=claimed, estimator=DPLogisticRegression(classes=["no", "yes"], public_size=600)).fit(
            X, Y, held_out=HELD
        )
    assert SpendLog.current().charges() == []


# Runs of any kind


class Fickle(Output):
    """Plans with one noise, and trains with another."""

    calls = 0

    def calibrated(self, facts: Any, budget: Any, models: int) -> Any:
        Fickle.calls += 1
        made: Any = super().calibrated(facts, budget, models)
        return replace(made, noise_multiplier=made.noise_multiplier * (1 + 1e-6 * Fickle.calls))


def test_a_try_that_spends_something_else_is_never_shown() -> None:
    fickle = {"mechanism": [Fickle(strong_convexity=1.0), Fickle(strong_convexity=10.0)]}
    with pytest.raises(RuntimeError, match="No try ended well"):
        search(candidates=fickle, how="geometric").fit(X, Y, held_out=HELD)
    with pytest.raises(ValueError, match="something else"):
        search(candidates=fickle, how="each once").fit(X, Y, held_out=HELD)


def test_runs_of_one_s_own() -> None:
    event = BestOfTries((Gaussian(3.0), Gaussian(4.0)), 5.0)
    with pytest.raises(ValueError, match="a run for each of 2"):
        best_of_tries(event, [lambda: (1.0, None)])
    assert SpendLog.current().charges() == []
    calls: list[int] = []

    def failing() -> tuple[float, str]:
        calls.append(1)
        raise ArithmeticError("data-dependent")

    def diverging() -> tuple[float, str]:
        return float("nan"), "never"

    with pytest.raises(RuntimeError, match="No try ended well"):
        best_of_tries(event, [failing, diverging])
    assert [charge.event for charge in SpendLog.current().charges()] == [event]
    score, result = best_of_tries(BestOfTries((Gaussian(3.0), Gaussian(4.0)), 50.0), [failing, lambda: (2.0, "fine")])
    assert (score, result) == (2.0, "fine")
    with set_aside():
        SpendLog.current().charge(Gaussian(1.0), mechanism="a part")
    assert len(SpendLog.current().charges()) == 2


def test_tries_that_share_a_result_are_refused_and_scores_that_are_no_numbers_fail() -> None:
    event = BestOfTries((Gaussian(3.0),), 50.0)
    shared: list[float] = []
    with pytest.raises(ValueError, match="one object twice"):
        for _ in range(20):  # one try is no repetition
            best_of_tries(event, [lambda: (1.0, shared)])
    with pytest.raises(RuntimeError, match="No try ended well"):
        best_of_tries(event, [lambda: (None, 1)])  # type: ignore[arg-type, return-value]


def test_the_certificate_is_dated_before_the_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    issued: list[int] = []
    issue = Certificate.issue.__func__  # type: ignore[attr-defined]

    def seen(cls: Any, **stated: Any) -> Certificate:
        if stated["mechanism"].startswith("search"):
            issued.append(len(scored))
        return issue(cls, **stated)

    monkeypatch.setattr(Certificate, "issue", classmethod(seen))
    search(scoring=lambda *_: float(scored.append(1) is None), how="geometric", epsilon=2.0).fit(X, Y, held_out=HELD)
    assert issued == [0] and scored


def test_columns_of_another_order_are_refused_before_a_charge() -> None:
    frame = pandas.DataFrame(X, columns=list("abc"))
    with pytest.raises(ValueError, match="feature names"):
        search().fit(frame, Y, held_out=(frame[["c", "b", "a"]], Y))
    assert SpendLog.current().charges() == []


def test_a_search_that_shows_its_number_is_found() -> None:
    """Without the secret, the best of K costs K tries: what `BestOfTries` states would be far too little."""
    noise = 8.0
    stated = epsilon(BestOfTries((Gaussian(noise),), 20.0), 1e-5)
    assert epsilon(Composed((Gaussian(noise),) * 20), 1e-5) > 1.8 * stated


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_the_number_of_records_is_public_under_replace_one_alone(relation: str) -> None:
    """A rule of the number of records: where it is private the events of tables of unlike sizes are the same, and pay for it."""
    model = DPLogisticRegression(classes=["no", "yes"], relation=relation)
    two = {"mechanism": [Output(), Output(strong_convexity=10.0)]}
    events = []
    for size in (300, 200):
        search(estimator=model, candidates=two, epsilon=8.0, how="each once").fit(X[:size], Y[:size], held_out=HELD)
        events.append(SpendLog.current().charges()[-1].event)
    assert events[0] == events[1]
    counted = any(isinstance(leaf, PureDP) for leaf in leaves(events[0]))
    assert counted == (relation == "add_or_remove_one")


def test_a_try_s_score_is_the_released_number_at_the_noise_that_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no number is released where held-out records are public."""
    asked: list[tuple[float, float, float]] = []

    plain = Channel.release

    def released(self: Any, query: Any, noise: Noise) -> Any:
        if not isinstance(noise, PureNoise):
            return plain(self, query, noise)
        asked.append((float(query[0]), noise.sensitivity, noise.epsilon))
        return query + 0.25

    monkeypatch.setattr(Channel, "release", released)
    found = search(epsilon=4.0, how="each once").fit(X, Y, held_out=HELD, held_out_private=True)
    event = SpendLog.current().charges()[0].event
    charged = [leaf.epsilon for leaf in leaves(event).elements() if isinstance(leaf, PureDP)]
    assert [epsilon for *_, epsilon in asked] == charged and len(charged) == 4
    assert [each["score"] for each in found.results_] == [right + 0.25 for right, *_ in asked]
    assert all(sensitivity == 1.0 for _, sensitivity, _ in asked)
    best = found.best_estimator_
    assert found.best_score_ - 0.25 == np.sum(best.predict(HELD[0]) == HELD[1])
    asked.clear()
    found = search(epsilon=4.0, how="each once").fit(X, Y, held_out=HELD)
    assert not asked
    assert found.best_score_ == found.score(*HELD)


def test_a_try_has_its_share_of_the_budget() -> None:
    """Each of four once: a quarter of δ, and the ε at which the four together cost what was asked for. At random: twice as many
    tries as candidates, on the mean, and δ over that."""
    once = search(epsilon=2.0, how="each once").fit(X, Y, held_out=HELD)
    facts = once.certificate_.public_facts
    assert facts["delta_of_a_try"] == pytest.approx(1e-5 / 4)
    each = calibrate(Gaussian, facts["epsilon_of_a_try"], facts["delta_of_a_try"])
    assert 1.95 < epsilon(SelfComposed(Gaussian(each), 4), 1e-5) <= 2.0
    drawn = search(epsilon=2.0, how="geometric").fit(X, Y, held_out=HELD)
    event = SpendLog.current().charges()[-1].event
    assert isinstance(event, BestOfTries) and event.mean == 8.0
    assert drawn.certificate_.public_facts["delta_of_a_try"] == pytest.approx(1e-5 / 8)


def test_a_search_assumes_what_each_of_its_fits_does() -> None:
    """Labels and weights of a classifier, and bounds on targets of a regression: with whatever setting, each as its own fit has
    it. The solver's tolerance and the size of noise's grid are the budget's."""
    output = Output(strong_convexity=10.0)
    values = np.clip(X[:, 0], -1, 1)
    cases: list[tuple[Any, Any, Any]] = [
        (DPLogisticRegression(classes=["no", "yes"], mechanism=output), {"class_weight": [None, {"no": 1, "yes": 4}]}, Y),
        (DPRidge(mechanism=output), {"target_bound": [1.0, 2.5]}, values),
        (DPPoissonRegressor(mechanism=output, radius=1.0), {"target_bound": [1.0, 2.5]}, np.abs(values)),
    ]
    for model, settings, targets in cases:
        found = DPSearch(model, settings, how="each once", epsilon=4.0).fit(X, targets, held_out=(X, targets))
        named = {each.text for each in found.certificate_.assumptions}
        for each in ParameterGrid(settings):
            fitted = clone(model).set_params(**each).fit(X, targets)
            own = {said.text for said in fitted.certificate_.assumptions if said.key not in ("solver", "arithmetic")}
            assert len(own) > 2 and own <= named

"""What every policy is charged, and what it says of itself, is so; and what it gives and shows follows from its releases.

Policies are found by walking, as in `test_every_policy.py`: each law is a function that says in a sentence what is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dperm.gradient import (
    AdaptiveClip,
    Clip,
    Constant,
    FixedSize,
    ImportancePlan,
    IndividualGradients,
    IndividualPlan,
    NoisyGradients,
    Plan,
    Poisson,
    Policy,
    SvrgPlan,
)
from dperm.gradient.policy import pays_for
from dperm.gradient.svrg import SvrgGradients
from dperm.privacy import Event, FilteredRdp, Gaussian, PrivacyProfile, Relation
from dperm.privacy.events import alike, leaves
from helpers.policies import EPOCH, PERSON, SIZE, STEPS, all_policies, example
from helpers.policy_runs import FEATURES, ROWS, SIGNS, Seen, Steady, moving, problem_of, ran

FEWER = SIZE - 4  # records
RENYI = FilteredRdp(8.0, 5.0)
PROFILE = PrivacyProfile((0.0, 0.5, 1.0), (0.5, 0.3, 0.15))


@functools.cache
def policies() -> tuple[Policy, ...]:
    """All of them, and those that are held to budgets of other kinds."""
    return (*all_policies(), *(example(ImportancePlan, budget=budget) for budget in (RENYI, PROFILE)))


def relation_of(policy: Policy) -> Relation:
    return problem_of(policy).relation


def records_with(policy: Policy, rows: Any, signs: Any) -> Any:
    """(n·PERSON, p) rows, of which one that is a record takes the first of each person."""
    problem = problem_of(policy)
    if problem.unit.several_rows:
        return problem.records(rows, signs, groups=np.repeat(np.arange(len(rows) // PERSON), PERSON))
    return problem.records(rows[::PERSON], signs[::PERSON])


@functools.cache  # for several laws
def ordinary(policy: Policy) -> tuple[dict[int, Seen], list[Any]]:
    """The steps of an ordinary run, and its answers."""
    source = Steady()
    return ran(policy, moving, source=source), source.given


def discloses(policy: Policy) -> str:
    """What a run gives or shows of its records beside its releases: other records, fewer of them and drawn otherwise, whose
    releases are the same, must give and show the same."""
    if policy.claim is not None:  # that it does is what is known of it
        return ""
    count = PERSON * (SIZE if policy.needs_size else FEWER)
    others = records_with(policy, -ROWS[::-1][:count], SIGNS[:count])
    whole, answers = ordinary(policy)
    there = ran(policy, moving, records=others, source=Steady(answers=answers, seed=10))
    for number, seen in whole.items():
        levels, theirs = ([(q.kind, q.sensitivity, q.noise) for q in run[number].questions] for run in (whole, there))
        if levels != theirs or not np.allclose(seen.gave, there[number].gave, rtol=1e-9, atol=1e-12):
            return f"{type(policy).__name__} gives, in step {number}, what does not follow from its releases."
        if seen.shows != there[number].shows:
            return f"{type(policy).__name__} shows, after step {number}, what does not follow from its releases."
    return ""


def weighs(policy: Policy) -> str:
    """What a run makes of the number of records, where some are absent and never drawn: nothing, but where it draws them."""
    if policy.needs_size:  # which others than the public number are refused for
        return ""
    rows = np.where(np.arange(SIZE * PERSON)[:, None] < FEWER * PERSON, ROWS, np.nan)
    fewer = records_with(policy, ROWS[: FEWER * PERSON], SIGNS[: FEWER * PERSON])
    whole = ran(policy, moving, records=records_with(policy, rows, SIGNS), source=Steady(among=FEWER))
    there = ran(policy, moving, records=fewer, source=Steady(among=FEWER))
    wrong = [number for number, seen in whole.items() if not seen.like(there[number], more=False)]
    return f"{type(policy).__name__} goes by the number of records that there are, in step {wrong[0]}." if wrong else ""


def paid_for(event: Event) -> Counter[str]:
    """How many releases an event pays for, by their noise."""
    paid = Counter[str]()
    for leaf, count in leaves(event).items():
        if leaf.pays_for is not None:
            paid[f"{leaf.pays_for.noise:.4g}"] += count * leaf.releases
    return paid


def promised(event: Event) -> dict[str, float]:
    """How much an event promises of what is chosen on the way: places, or a budget's size."""
    counts = leaves(event).items()
    return {type(leaf).__name__: count * getattr(leaf, "rdp_budget", 1.0) for leaf, count in counts if leaf.on_the_way}


def mischarges(policy: Policy) -> str:
    """What is wrong with what epochs are charged, beside what they release; what is promised is divided evenly among them."""
    name, relation = type(policy).__name__, relation_of(policy)
    (run, _), whole = ordinary(policy), policy.event(relation)
    known = paid_for(whole)
    for start in range(0, STEPS, EPOCH):
        for stop in range(start + EPOCH, STEPS + 1, EPOCH):
            event = policy.event(relation, start, stop)
            paid, promises = paid_for(event), promised(event)
            noises = (f"{question.noise:.4g}" for number in range(start, stop) for question in run[number].questions)
            asked = Counter(noise for noise in noises if noise in known or not promised(whole))
            same = asked <= paid if policy.claim else asked == paid  # those that are only claimed may release less
            shares = {kind: (stop - start) / STEPS * amount for kind, amount in promised(whole).items()}
            if not same or promises != pytest.approx(shares):
                return f"{name} charges {event} for steps {start} to {stop}, which release {dict(asked)}."
    return ""


def mismeasures(policy: Policy) -> str:
    """What is wrong with the length that gradients are said to be cut at, where one record has a long one, and others none."""
    longest = policy.longest
    if longest is None:
        return ""
    rows, signs = np.zeros((SIZE * PERSON, FEATURES)), np.ones(SIZE * PERSON)
    rows[0] = 1 / np.sqrt(FEATURES)
    run = ran(
        policy, lambda _: np.full(FEATURES, -10.0), records=records_with(policy, rows, signs), source=Steady(all_drawn=True)
    )
    for number, seen in run.items():
        lengths = [float(np.linalg.norm(question.query)) for question in seen.questions]
        if any(length and not 0.9 <= length / longest <= 1 + 1e-6 for length in lengths) or seen.cuts_at not in (0.0, longest):
            return f"{type(policy).__name__} says that gradients are cut at {longest:g}, but in step {number} they are not."
    return "" if any(run[0].questions[0].query) else f"No gradient of {type(policy).__name__} is long."


def missizes(policy: Policy) -> str:
    """What is wrong with whether the number of records must be stated: where some are refused, and only there."""

    def refused(records: int) -> bool:
        try:
            policy.refuse_size(records)
        except ValueError:
            return True
        return False

    numbers = [number for number in (0, 1, SIZE - 1, SIZE + 1, 100 * SIZE) if refused(number)]
    if policy.needs_size == bool(numbers):
        return ""
    needs = "needs" if policy.needs_size else "does not need"
    return f"{type(policy).__name__} says that it {needs} the number of records, but refuses {numbers or 'none'}."


def varied(value: Any) -> Iterator[Any]:
    """The same with one of its numbers another: a part with other settings, or what else a field may hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for other in varied(getattr(value, field.name)) if field.init else ():
                try:
                    yield dataclasses.replace(value, **{field.name: other})
                except (TypeError, ValueError):
                    continue  # there is none with it
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (2 * value, value - 1)
    elif isinstance(value, float):
        yield from (0.9 * value, 0.5)
    elif isinstance(value, tuple):
        yield from ((*value[:at], other, *value[at + 1 :]) for at, each in enumerate(value) for other in varied(each))
    elif value is None:
        yield 0.5


def conceals(policy: Policy) -> str:
    """What a policy does not describe of what it is charged for: one with another setting, and another event, must be told from
    it."""
    relation, text = relation_of(policy), json.dumps(policy.describe())
    event = policy.event(relation)
    for other in varied(policy):
        try:
            charged = other.event(relation)
        except ValueError:
            continue
        if not alike(charged, event) and json.dumps(other.describe()) == text:
            return f"{other!r} is charged otherwise than {policy!r}, and describes itself as that."
    return ""


LAWS = (discloses, weighs, mischarges, mismeasures, missizes, conceals)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_policy_is_what_it_is_charged_for(law: Callable[[Policy], str]) -> None:
    assert [wrong for policy in policies() if (wrong := law(policy))] == []


def test_no_two_policies_of_different_events_describe_alike() -> None:
    described: dict[str, Policy] = {}
    for policy in policies():
        first = described.setdefault(json.dumps(policy.describe()), policy)
        assert first is policy or alike(first.event(relation_of(first)), policy.event(relation_of(policy)))


def test_an_event_pays_for_the_steps_of_one_policy_alone() -> None:
    """Whatever a policy says of that itself."""
    made = [(policy, relation_of(policy)) for policy in policies()]
    for policy, relation in made:
        own = [policy.event(relation, first) for first in (0, EPOCH)]
        assert [pays_for(policy, event, relation, first) for first in (0, EPOCH) for event in own] == [True, False, False, True]
        for other, theirs in made:
            event = other.event(theirs)
            assert pays_for(policy, event, relation, 0) == (event == own[0])
    accepting = example(planted(Plan, pays_for=lambda self, *of: True))
    assert not pays_for(accepting, Gaussian(1e-3), Relation.ADD_OR_REMOVE_ONE, 0)


def test_each_statement_is_made_by_some_policy_and_not_by_all() -> None:
    """Otherwise a law would ask nothing."""
    for state in (lambda policy: policy.longest is None, lambda policy: policy.needs_size, lambda policy: policy.claim is None):
        made = list(map(bool, map(state, policies())))
        assert 1 <= sum(made) <= len(made) - 1


# Planted: policies that state what is not so


def planted(base: type[Policy], **stated: Any) -> type[Any]:
    return type(f"Planted{base.__name__}", (base,), stated)


class Realised(NoisyGradients):
    """Divides by the number of records that there are."""

    def __call__(self, theta: Any) -> Any:
        return super().__call__(theta) * (self.policy.public_size / len(self.records))


class Realising(NoisyGradients):
    """The same before the noise."""

    def released(self, total: Any, noise_multiplier: float, rate: float) -> Any:
        share = self.policy.public_size / len(self.records)
        return super().released(dataclasses.replace(total, value=total.value * share), noise_multiplier, rate)


class Mean(NoisyGradients):
    """Divides by the number of records that were drawn."""

    def bounded_sum(self, theta: Any, batches: Any, *of: Any, **how: Any) -> Any:
        kept = list(batches)
        self.drawn = sum(len(batch.targets) for batch in kept)
        return super().bounded_sum(theta, kept, *of, **how)

    def __call__(self, theta: Any) -> Any:
        return super().__call__(theta) / self.drawn


class Telling(NoisyGradients):
    """Keeps a sum before its noise where everyone looks."""

    total: Any = None

    def released(self, total: Any, noise_multiplier: float, rate: float) -> Any:
        self.total = np.asarray(total.value).tolist()
        return super().released(total, noise_multiplier, rate)

    def public(self) -> dict[str, Any]:
        return {**super().public(), "total": self.total}


class Summing(Telling):
    """The same in what is told at the end."""

    def public(self) -> dict[str, Any]:
        return NoisyGradients.public(self)

    def summary(self) -> dict[str, Any]:
        return {**super().summary(), "total": self.total}


class SnapshotTelling(SvrgGradients):
    """Shows how many records there are."""

    def public(self) -> dict[str, Any]:
        return {"records": len(self.records)}


class AccountTelling(IndividualGradients):
    """Shows what all records have spent."""

    def trace(self) -> list[dict[str, Any]]:
        return [{"spent": float(np.sum(self.spent_by_record))}]


@pytest.mark.parametrize(
    ("run", "base", "law", "wrong"),
    [
        (Realised, Plan, discloses, "gives, in step 0"),
        (Realised, Plan, weighs, "in step 0"),
        (Realising, Plan, weighs, "in step 0"),
        (Mean, Plan, discloses, "gives, in step"),
        (Telling, Plan, discloses, "shows, after step 0"),
        (Summing, Plan, discloses, "shows, after step 0"),
        (SnapshotTelling, SvrgPlan, discloses, "shows, after step 0"),
        (AccountTelling, IndividualPlan, discloses, "shows, after step 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_does_not_follow_from_releases_is_told_of(
    run: type[Any], base: type[Policy], law: Callable[[Policy], str], wrong: str
) -> None:
    assert law(example(base)) == "" and wrong in law(example(planted(base, run=run)))


def _again(self: Any, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
    """All steps, whichever are asked for."""
    return super(type(self), self).event(relation)


def _late(self: Any, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
    """All but the first of the steps that are left."""
    return super(type(self), self).event(relation, start + EPOCH if start else 0, stop)


def _to_the_end(self: Any, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
    """All steps that are left, however few of them are asked for."""
    return super(type(self), self).event(relation, start)


@pytest.mark.parametrize("event", [_again, _late, _to_the_end])
@pytest.mark.parametrize("base", [Plan, IndividualPlan, SvrgPlan, ImportancePlan, RENYI])
def test_steps_that_are_charged_for_more_or_less_are_told_of(base: Any, event: Any) -> None:
    given = {"budget": base} if isinstance(base, Event) else {}
    found = mischarges(example(planted(ImportancePlan if given else base, event=event), **given))
    assert f"for steps {EPOCH if event is _late else 0} to" in found


@dataclass(frozen=True)
class Quiet(Constant):
    """Noise whose level its text leaves out."""

    def __repr__(self) -> str:
        return "Quiet()"


def _short(self: Any) -> dict[str, Any]:
    told = super(type(self), self).describe()
    return {name: value for name, value in told.items() if "noise" not in name and name != "releases"}


def test_settings_that_are_left_out_are_told_of() -> None:
    for base in (Plan, IndividualPlan, SvrgPlan, ImportancePlan):
        assert "describes itself as that" in conceals(example(planted(base, describe=_short)))
    assert "describes itself as that" in conceals(example(Plan, noise=Quiet(2.0)))


@pytest.mark.parametrize(
    ("longest", "fields"),
    [
        (0.1, {}),
        (0.3, {}),
        (0.2, {"bounding": AdaptiveClip(0.2)}),
        (AdaptiveClip(0.2).bound, {"bounding": AdaptiveClip(0.2)}),
    ],
)
def test_another_length_than_gradients_are_cut_at_is_told_of(longest: float, fields: dict[str, Any]) -> None:
    assert "but in step" in mismeasures(example(planted(Plan, longest=longest), **fields))
    assert mismeasures(example(planted(Plan, longest=0.2))) == ""


def _refuse_odd(self: Any, records: int) -> None:
    if records % 2:
        raise ValueError("Expected an even number of records.")


def test_a_size_that_must_be_stated_and_is_not_is_told_of() -> None:
    assert "needs the number of records, but refuses none" in missizes(example(planted(Plan, needs_size=True)))
    fixed = FixedSize(SIZE // EPOCH, SIZE)
    assert "does not need the number of records" in missizes(example(planted(Plan, needs_size=False), sampler=fixed))
    for base in (Plan, SvrgPlan):  # who refuses some says so by that
        kind = planted(base, refuse_size=_refuse_odd)
        assert example(kind).needs_size and missizes(example(kind)) == ""
    assert Poisson(0.5).needs_size is False and planted(Poisson, refuse=_refuse_odd)(0.5).needs_size
    assert not example(Plan, bounding=Clip(0.2)).needs_size

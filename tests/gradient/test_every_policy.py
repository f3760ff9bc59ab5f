"""What every policy states of its runs is so: what they go on with after an interruption, and how else they may be computed.

Policies are found by walking, with each part that they may have; each law is a function that says in a sentence what is wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from dperm._family import members
from dperm.gradient import (
    AdaptiveClip,
    ExponentialDecay,
    FrankWolfeStep,
    IndividualGradients,
    IndividualPlan,
    LaplacianSmoothing,
    NoisyGradients,
    Plan,
    Policy,
    Post,
    SvrgPlan,
    Update,
)
from dperm.gradient.policy import paid_from, runs_by_parts
from dperm.objectives import LinearObjective
from dperm.objectives.parts import PartedRecords
from dperm.objectives.per_example import Pass
from dperm.privacy import Composed, Event, Relation
from dperm.release import Channel, UnpaidReleaseError
from helpers.asked import Question
from helpers.engines import LocalEngine
from helpers.policies import EPOCH, SIZE, STEPS, all_policies, example
from helpers.policy_runs import FEATURES, POINTS, ROWS, SIGNS, Path, Seen, Steady, moving, problem_of, ran, records_of

SHARD = 2  # of θ's numbers, those that are in one process
INTERRUPTED = (1, EPOCH, EPOCH + 1, STEPS - 1)  # before these steps


def unlike(policy: Policy, at: Path, before: int, *, more: bool) -> int | None:
    """The first step that a run which is interrupted `before` one asks otherwise than it would have, or the last where it then
    holds something else; None: there is none."""
    whole = ran(policy, at)
    rest = ran(policy, at, first=before, kept=whole[before - 1])
    for number in range(before, STEPS):
        late = number >= before + -before % EPOCH  # steps that are drawn together may be lost, but no more
        if (late or number in rest) and (number not in rest or not whole[number].like(rest[number], more=more)):
            return number
    lost = STEPS - 1 not in rest
    return None if lost or whole[STEPS - 1].keeps(rest[STEPS - 1], anew=more) else STEPS - 1


def forgets(policy: Policy) -> str:
    """What a policy's run does not go on with, and does not say; "" for one that keeps what it needs."""
    name, anew = type(policy).__name__, policy.made_anew is not None
    if not policy.continues:
        return ""
    for before in INTERRUPTED:

        def at(number: int, before: int = before) -> Any:  # what is made anew is what it was, where θ has not moved until then
            return moving(max(number, before) if anew else number)

        number = unlike(policy, at, before, more=anew)
        if number is not None:
            return (
                f"A run of {name} that is interrupted before step {before} asks or keeps something else in step {number} than it "
                "would have: hand on what it needs in public() or private(), or say in `made_anew` what that is."
            )
    if anew and all(unlike(policy, moving, before, more=False) is None for before in INTERRUPTED):
        return f"{name} says that it makes {policy.made_anew} anew, but goes on as if it had not been interrupted."
    return ""


def misplaces(policy: Policy) -> str:
    """What a policy's run does where it passes over steps that are paid for; "" where the noise of others stays theirs."""

    def resting(number: int) -> Any:
        return moving(0)

    whole = ran(policy, resting)
    if not policy.continues:
        return ""
    rest = ran(policy, resting, first=1, kept=whole[0], passed=2)
    for number, seen in rest.items():
        expected = [question.noise for question in whole[number].questions]
        found = [question.noise for question in seen.questions]
        if number < 3 or not np.allclose(found[len(found) - len(expected) :], expected):
            return f"A run of {type(policy).__name__} that passes over steps 1 and 2 has the noise of another step in {number}."
    return "" if rest else f"A run of {type(policy).__name__} that passes over two steps makes none of the others."


def mixes_trials(policy: Policy) -> str:
    """What is wrong with two trainings at once, beside each of them alone; "" where they are the same, or may not be at once."""
    if not policy.vectorises:
        return ""
    alone = [ran(policy, lambda number, which=which: moving(number, which)) for which in range(2)]
    both = ran(policy, lambda number: POINTS[:, number], source=Steady(trials=2))
    for number, seen in both.items():
        for which, one in enumerate(alone):
            asked = [Question(each.kind, each.query[which], each.sensitivity, each.noise) for each in seen.questions]
            if not one[number].like(Seen(asked, seen.gave[which], {}, {}), more=False):
                return f"{type(policy).__name__} says that it vectorises, but two trainings at once are others in step {number}."
    return ""


def needs_all_parts(policy: Policy) -> str:
    """What is wrong with records in parts, beside those in one place."""
    if not runs_by_parts(policy) or policy.by_rows:  # persons have no parts
        return ""
    problem = problem_of(policy)
    parted = PartedRecords(problem, LocalEngine(), [(ROWS[:9], SIGNS[:9]), (ROWS[9:SIZE], SIGNS[9:SIZE])])
    whole, parts = ran(policy, moving), ran(policy, moving, records=parted)
    wrong = [number for number in whole if not whole[number].like(parts[number], more=False)]
    return f"{type(policy).__name__} says that it runs by parts, but their sum is another in step {wrong[0]}." if wrong else ""


class Shard(Pass):
    """Lengths of whole gradients, and the first numbers of their sums."""

    def __init__(self, whole: Pass) -> None:
        self._whole = whole

    @property
    def losses(self) -> Any:
        return self._whole.losses

    @property
    def norms(self) -> Any:
        return self._whole.norms

    @property
    def group_norms(self) -> Any:
        return self._whole.group_norms

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        return self._whole.weighted_sum(factors, bound)[:SHARD]


class Sharded:
    """An objective of which this process has the first numbers of θ, and the others are known."""

    def __init__(self, whole: LinearObjective) -> None:
        self.whole, self.facts, self.unit = whole, whole.facts, whole.unit
        self.strong_convexity, self.radius, self.records = whole.strong_convexity, whole.radius, whole.records

    def at(self, number: int) -> Any:
        self.theta = moving(number)
        return self.theta[:SHARD]

    def per_example(self, theta: Any, batch: Any, **how: Any) -> Pass:
        return Shard(self.whole.per_example(self.theta, batch, **how))


def needs_all_numbers(policy: Policy) -> str:
    """What is wrong where numbers of θ lie in different processes."""
    if not policy.by_shards:
        return ""
    problem = Sharded(problem_of(policy))
    whole, part = ran(policy, moving), ran(policy, problem.at, problem=problem, source=Steady(whole=FEATURES))
    for number, seen in whole.items():
        asked = [Question(each.kind, each.query[:SHARD], each.sensitivity, each.noise) for each in seen.questions]
        if not Seen(asked, seen.gave[:SHARD], {}, {}).like(part[number], more=False):
            return f"{type(policy).__name__} says that it runs by shards, but a shard of step {number} is another."
    return ""


def misnames(policy: Policy) -> str:
    """What is wrong with the kinds of release that audits are told to expect."""
    ran(policy, moving, source=(source := Steady()))
    if source.kinds == policy.released_kinds:
        return ""
    return (
        f"{type(policy).__name__} states that it releases {sorted(policy.released_kinds)}, but releases {sorted(source.kinds)}."
    )


def misorders(policy: Policy) -> str:
    """What is wrong with the order in which the event names the steps, by whose numbers a run goes on: one that is paid for
    from its first step on, or from within an epoch."""
    if not policy.continues:
        return ""
    problem = problem_of(policy)
    for done in (0, EPOCH + 1):
        channel, relation = Channel.open(Steady()), problem.facts.relation
        channel.charge(policy.event(relation, done), "test", continuable=True)
        run = policy.gradients(problem, records_of(problem), channel, first=done)
        first = paid_from(policy, relation, done)
        while run.step < policy.steps:
            try:
                channel.reserve(1, policy.steps - first, run.step - first)
                run(moving(run.step))
            except UnpaidReleaseError as error:
                return f"{type(policy).__name__} is charged for another step than {run.step} at its number: {error}"
    return ""


LAWS = (misnames, misorders, forgets, misplaces, mixes_trials, needs_all_parts, needs_all_numbers)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_policy_is_what_it_states(law: Callable[[Policy], str]) -> None:
    assert [wrong for policy in all_policies() if (wrong := law(policy))] == []


def test_each_statement_is_made_by_some_policy_and_not_by_all() -> None:
    """Otherwise a law would ask nothing."""
    states: tuple[Callable[[Any], Any], ...] = (
        lambda policy: policy.made_anew is not None,
        lambda policy: policy.continues,
        lambda policy: policy.vectorises,
        runs_by_parts,
        lambda policy: policy.by_shards,
    )
    for state in states:
        made = list(map(bool, map(state, all_policies())))
        assert 1 <= sum(made) <= len(made) - 1


# Planted: policies that state what is not so


class Momentum(NoisyGradients):
    """Steps along what was released before, too, which it forgets."""

    def start(self) -> None:
        super().start()
        self.velocity: Any = 0.0

    def __call__(self, theta: Any) -> Any:
        self.velocity = 0.5 * self.velocity + super().__call__(theta)
        return self.velocity


class Kept(Momentum):
    """The same, mended."""

    def public(self) -> dict[str, Any]:
        return {"velocity": np.asarray(self.velocity).tolist()}

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        self.velocity = np.array(public["velocity"])


class Late(Kept):
    """Forgets what was released before from the last step but one on."""

    def public(self) -> dict[str, Any]:
        return super().public() if self.step <= STEPS - 2 else {"velocity": 0.0}


class Unwritten(NoisyGradients):
    """Whose clipping norm, which adapts, is in no checkpoint."""

    def public(self) -> dict[str, Any]:
        return {}


class Unread(NoisyGradients):
    """Whose clipping norm is written, and not read."""

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        return


class Generous(IndividualGradients):
    """Gives every record a new account."""

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        return


class Early(NoisyGradients):
    """Counts its noise from where it begins."""

    def _go_on_at(self, step: int) -> None:
        super()._go_on_at(step)
        self._noise = self.policy.noise.multipliers(self.policy.steps)


class Skipping(NoisyGradients):
    """Passes over steps, and not over their noise."""

    def skip(self, steps: int) -> None:
        noise = self._noise
        super().skip(steps)
        self._noise = noise


class Ending(NoisyGradients):
    """Takes an interruption for the end."""

    def start(self) -> None:
        super().start()
        if self.step:
            self._go_on_at(self.policy.steps)


def planted(run: type[Any], base: type[Policy] = Plan, **stated: Any) -> type[Any]:
    return type(f"Planted{run.__name__}", (base,), {"run": run, **stated})


_FORGETS = "or say in `made_anew`"


@pytest.mark.parametrize(
    ("run", "base", "fields", "wrong"),
    [
        (Momentum, Plan, {}, "before step 1 asks or keeps something else in step 1"),
        (Kept, Plan, {}, None),
        (Unwritten, Plan, {"bounding": AdaptiveClip(0.2)}, _FORGETS),
        (Unread, Plan, {"bounding": AdaptiveClip(0.2)}, _FORGETS),
        (Generous, IndividualPlan, {}, _FORGETS),
        (Ending, Plan, {}, _FORGETS),
        (Late, Plan, {}, f"before step {STEPS - 1} asks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_run_that_forgets_is_told_of(run: type[Any], base: type[Policy], fields: dict[str, Any], wrong: str | None) -> None:
    found = forgets(example(planted(run, base), **fields))
    assert (wrong in found and run.__name__ in found) if wrong else found == ""


def test_a_run_that_begins_with_the_noise_of_others_is_not_paid_for() -> None:
    with pytest.raises(UnpaidReleaseError, match="noise 2 "):
        forgets(example(planted(Early), noise=ExponentialDecay(2.0, 0.5, EPOCH)))


def test_what_is_said_to_be_made_anew_is() -> None:
    assert "as if it had not been interrupted" in forgets(example(planted(NoisyGradients, made_anew="its noise")))
    assert forgets(example(planted(Momentum, made_anew="its velocity"))) != ""  # which is made of releases, and of no θ


def test_noise_of_steps_that_are_passed_over_is_told_of() -> None:
    assert "the noise of another step in 4" in misplaces(example(planted(Skipping), noise=ExponentialDecay(2.0, 0.5, EPOCH)))
    assert "makes none of the others" in misplaces(example(planted(Ending)))


def test_other_releases_than_those_stated_are_told_of() -> None:
    kind = planted(NoisyGradients, released_kinds=frozenset({"sum of gradients", "number of records"}))
    assert "but releases ['sum of gradients']" in misnames(example(kind))


def backwards(self: Plan, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
    """The levels of noise, the last of them first."""
    event = Plan.event(self, relation, start, stop)
    return Composed(event.events[::-1]) if isinstance(event, Composed) else event


def test_an_event_in_another_order_than_its_steps_is_told_of() -> None:
    noise = ExponentialDecay(2.0, 0.5, EPOCH)
    assert "another step than 0" in misorders(example(planted(NoisyGradients, event=backwards), noise=noise))
    assert misorders(example(planted(NoisyGradients), noise=noise)) == ""


def test_a_step_of_two_releases_does_not_go_on() -> None:
    """Steps are reserved by the release: a snapshot would be paid for by the step after it."""
    said = example(planted(SvrgPlan.run, SvrgPlan, continues=True))
    assert "another step than 0" in misorders(said)
    for policy in (example(SvrgPlan), example(planted(NoisyGradients, continues=False))):
        with pytest.raises(ValueError, match="without interruptions"):
            ran(policy, moving, first=EPOCH)


class Blind(NoisyGradients):
    """Looks at its own number of records, or of θ's numbers."""

    def __call__(self, theta: Any) -> Any:
        return super().__call__(theta) * np.linalg.norm(theta)


class Whole(NoisyGradients):
    """Remembers who took part in the first step, which each part does by itself."""

    def __call__(self, theta: Any) -> Any:
        number = self.step
        return super().__call__(theta) * (1 if number or hasattr(self.records, "batches") else 2)


def test_other_ways_to_compute_a_run_that_are_others_are_told_of() -> None:
    assert "two trainings at once are others" in mixes_trials(example(planted(Blind)))
    assert "runs by shards, but a shard of step 0 is another" in needs_all_numbers(example(planted(Blind, by_shards=True)))
    assert "runs by parts, but their sum is another in step 0" in needs_all_parts(example(planted(Whole, by_parts=True)))
    assert needs_all_parts(example(planted(Whole))) == mixes_trials(example(planted(Blind, vectorises=False))) == ""


# Parts of plans that say that they treat each number by itself


def needs_other_numbers(part: Any) -> str:
    """What is wrong with a post-processing or an update that says that each number follows from the same number alone."""
    if not part.coordinatewise:
        return ""
    gradients = POINTS[0, :4]

    def followed(numbers: slice) -> Any:
        if isinstance(part, Post):
            return np.array([part.apply(gradient[numbers]) for gradient in gradients])
        theta, seen = POINTS[1, 0][numbers], list[Any]()
        state = part.init(theta)
        for gradient in gradients:
            part.told_noise(0.5, state)
            theta = part.step(theta, gradient[numbers], state)
            seen.append(part.result(theta, state))
        return np.array(seen)

    same = np.allclose(followed(slice(None))[:, :SHARD], followed(slice(SHARD)))
    return "" if same else f"{type(part).__name__} says that it is coordinatewise, but its numbers follow from others."


def parts() -> list[Any]:
    all_policies()  # imports every module
    own = [kind for kind in (*members(Post), *members(Update)) if not kind.__module__.startswith("dperm.torch")]  # torch's
    return [example(kind) for kind in own]


def test_parts_that_say_so_treat_each_number_by_itself() -> None:
    assert [wrong for part in parts() if (wrong := needs_other_numbers(part))] == []
    stated = [part.coordinatewise for part in parts()]
    assert any(stated) and not all(stated)


def test_parts_that_say_so_and_do_not_are_told_of() -> None:
    for kind in (LaplacianSmoothing, FrankWolfeStep):
        part = example(type(f"Planted{kind.__name__}", (kind,), {"coordinatewise": True}))
        assert "its numbers follow from others" in needs_other_numbers(part)


# Walking


def test_a_policy_that_nobody_wrote_down_is_asked() -> None:
    """One of dperm's, whatever module it is in, and with a field that others have not; a sentence where that cannot be set."""
    kind = planted(Momentum, __module__="dperm.planted")
    assert [policy for policy in all_policies() if type(policy) is kind and forgets(policy)]
    kind.__init__ = lambda self, *, novelty, **fields: None
    with pytest.raises(TypeError, match=r"set its fields in tests/helpers/policies\.py"):
        all_policies()
    del kind
    gc.collect()  # so that nobody else finds it
    assert all(type(policy).__module__ != "dperm.planted" for policy in all_policies())

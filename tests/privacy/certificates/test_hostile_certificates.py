"""Item 21: whatever a text holds, reading it as a certificate and verifying that ends soon, in little memory, by a ValueError."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dperm._json import bounded_table, on_one_line
from dperm.privacy import (
    Assumption,
    BestOfTries,
    Certificate,
    Composed,
    Event,
    ExponentialMechanism,
    ExPost,
    Gaussian,
    PoissonSampled,
    RandomAllocation,
    RowsSampled,
    SelfComposed,
    Unsupported,
)
from dperm.privacy.certificates.signing import digest_of
from dperm.privacy.events import accounting_cost, event_from_dict
from dperm.privacy.events.event import DEEPEST
from helpers.said import statements

GAUSSIAN = {"type": "Gaussian", "noise_multiplier": 2.0, "relation": "add_or_remove_one"}
REPLACED = {"relation": "replace_one", "epsilon": 100.0}
STEPS = {"type": "HiddenIterates", "diameter": 1.0}
HIDDEN = {"noise_multiplier": 2.0, "contraction": 1.0, "rounding": 1e-9, "relation": "replace_one"}


def issued() -> Certificate:
    assumption = Assumption("A stated thing.", "caller", "stated", "thing")
    return Certificate.issue(
        mechanism="m", event=Gaussian(2.0), delta=1e-5, target_epsilon=2.0, assumptions=[assumption], public_facts={"rows": 3}
    )


def forged(**changes: Any) -> str:
    """A certificate's text with other fields, and the digest that they have."""
    table = json.loads(issued().to_json())
    del table["digest"]
    table |= changes
    return json.dumps({**table, "digest": digest_of(table)})


def of_event(event: Any, **changes: Any) -> str:
    return forged(event=event, **{"epsilon": 100.0, "target_epsilon": None, **changes})


def nested(depth: int, count: int = 1) -> Any:
    event: Any = GAUSSIAN
    for _ in range(depth):
        event = {"type": "SelfComposed", "count": count, "event": event}
    return event


def repeated(**fields: Any) -> Any:
    return {"type": "SelfComposed", "count": 2, "event": GAUSSIAN} | fields


ASSUMPTION = {"text": "a", "responsible": "caller", "checked": "stated", "key": "k"}
RARE = {"type": "PoissonSampled", "rate": 1e-9, "event": GAUSSIAN}
UNLIKE = [{"type": "PoissonSampled", "rate": 0.001 * (1 + i / 1e5), "event": GAUSSIAN} for i in range(3000)]

HOSTILE = {
    "epsilon is true": forged(epsilon=True),
    "epsilon is text": forged(epsilon="0.5"),
    "epsilon is negative": forged(epsilon=-1.0),
    "epsilon is a list": forged(epsilon=[1.0]),
    "epsilon flatters": forged(epsilon=1.0),
    "epsilon is no double": forged(epsilon=10**400).replace("1" + "0" * 400, "1" + "0" * 4000),
    "delta is text": forged(delta="1e-5"),
    "delta is true": forged(delta=True),
    "delta is a list": forged(delta=[1]),
    "delta is one": forged(delta=1.0),
    "target is text": forged(target_epsilon="0.1"),
    "target is a list": forged(target_epsilon=[]),
    "target is zero": forged(target_epsilon=0.0),
    "epsilon above its own target": forged(target_epsilon=0.1),
    "claim is a number": forged(claim=3),
    "claimed without a claim": forged(status="claimed", epsilon=None, claim=None),
    "status is unknown": forged(status="proved"),
    "status is a list": forged(status=["certified"]),
    "accountant of two lines": forged(accountant="PLD\nX"),
    "mechanism of two lines": forged(mechanism="m is (0.1, 1e-9)-differentially private.\nn"),
    "mechanism with a Unicode line end": forged(mechanism="m is (0.1, 1e-9)-differentially private.\u2028n"),
    "mechanism that moves the cursor": forged(mechanism="m\x1b[2K\x1b[1Gn"),
    "mechanism written from right to left": forged(mechanism="m\u202en"),
    "mechanism that is half a character": forged(mechanism="\ud800"),
    "assumption of two lines": forged(assumptions=[ASSUMPTION | {"text": "a\nm is (0.1, 1e-9)-differentially private."}]),
    "fact of two lines": forged(public_facts={"risk": "none\nx"}),
    "fact's name of two lines": forged(public_facts={"ri\nsk": "none"}),
    "not charged: of two lines": forged(not_charged=["a\nb"]),
    "not charged: a number": forged(not_charged=[5]),
    "not charged: a text": forged(not_charged="abc"),
    "versions are numbers": forged(versions={"dperm": 1}),
    "facts are no table": forged(public_facts=None),
    "rows of a person are a list": forged(public_facts={"max_rows_per_unit": [5]}),
    "assumption of numbers": forged(assumptions=[ASSUMPTION | {"text": 5, "responsible": 7, "checked": None}]),
    "assumption that nobody answers for": forged(assumptions=[ASSUMPTION | {"responsible": "x"}]),
    "assumption with more": forged(assumptions=[ASSUMPTION | {"more": "x"}]),
    "assumptions are a text": forged(assumptions="abc"),
    "assumption is a text": forged(assumptions=["abc"]),
    "a field more": forged(more=1),
    "no event": of_event(None),
    "an event without a type": of_event({}),
    "an event of a list's type": of_event({"type": ["Gaussian"]}),
    "the base of events": of_event({"type": "Event"}),
    "an event with a field more": of_event(GAUSSIAN | {"more": 1.0}),
    "an event with a field less": of_event({"type": "Gaussian"}),
    "noise as text": of_event(GAUSSIAN | {"noise_multiplier": "2.0"}),
    "noise as an event": of_event(GAUSSIAN | {"noise_multiplier": GAUSSIAN}),
    "relation is unknown": of_event(GAUSSIAN | {"relation": "whatever"}),
    "relation is null": of_event(GAUSSIAN | {"relation": None}),
    "a composition of numbers": of_event({"type": "Composed", "events": [1, 2]}),
    "nothing composed": of_event({"type": "Composed", "events": []}),
    "rows of a person: 1e13": of_event({"type": "RowsSampled", "rate": 0.1, "rows": 10**13, "event": GAUSSIAN}),
    "rows of a person: 1e8": of_event({"type": "RowsSampled", "rate": 0.1, "rows": 10**8, "event": GAUSSIAN}),
    "steps of an allocation": of_event({"type": "RandomAllocation", "steps": 10**15, "event": GAUSSIAN}),
    "a part for everybody": of_event(
        {"type": "Composed", "events": [{"type": "Disjoint", "parts": UNLIKE[:500], "moved": []}, *UNLIKE[:20]]}
    ),
    "splits of splits": of_event(
        {"type": "Disjoint", "parts": [{"type": "Disjoint", "parts": [GAUSSIAN], "moved": []}], "moved": []}
    ),
    "a move of one side": of_event({"type": "Side", "event": GAUSSIAN, "joins": True}, **REPLACED),
    "samples of absurd noise": of_event(
        {"type": "PoissonSampled", "rate": 1e-12, "event": GAUSSIAN | {"noise_multiplier": 1e-30}}
    ),
    "rare samples: 1e18 steps": of_event(repeated(count=10**18, event=RARE)),
    "rare samples: 1e12 steps": of_event(repeated(count=10**12, event=RARE)),
    "rare samples of little noise": of_event(
        repeated(count=10**8, event=RARE | {"event": GAUSSIAN | {"noise_multiplier": 0.3}})
    ),
    "hidden steps: 1e14": of_event({"batches": 10**7, "passes": 10**7} | STEPS | HIDDEN, **REPLACED),
    "hidden steps: 1e8": of_event({"batches": 10**4, "passes": 10**4} | STEPS | HIDDEN, **REPLACED),
    "hidden steps: no double": of_event(
        {"batches": 10**299, "passes": 10**299} | STEPS | HIDDEN, **REPLACED
    ),
    "steps of a random stop": of_event({"type": "RandomStop", "steps": 10**13} | HIDDEN, **REPLACED),
    "a count of 1e300": of_event(repeated(count=10**300)),
    "a count of 1e400": of_event(repeated(count=10**400)),
    "a count of 1e40, twice": of_event(repeated(count=10**40, event=repeated(count=10**40))),
    "a count that is true": of_event(repeated(count=True)),
    "2 to the 300": of_event(nested(300, 2)),
    "2 to the 90": of_event(nested(90, 2)),
    "an event nested deeper than events may be": of_event(nested(DEEPEST + 1)),
    "tables nested 3,000 deep": forged(event="@").replace('"@"', '{"type": "SelfComposed", "event": ' * 3000 + "1" + "}" * 3000),
    "lists nested 100,000 deep": "[" * 100_000 + "]" * 100_000,
    "brackets that never close": "[" * 1_000_000,
    "escaped quotes that never close": '"' + '\\"' * 500_000,
    "a million lists": "[" + "[]," * 1_000_000 + "[]]",
    "ten million characters": '"' + "a" * 10_000_000 + '"',
    "a profile of 100,000 points": of_event(
        {
            "type": "PrivacyProfile",
            "epsilons": [i * 1e-3 for i in range(100_000)],
            "deltas": [1 - i * 1e-6 for i in range(100_000)],
            "relation": "add_or_remove_one",
        }
    ),
    "a profile of texts": of_event(
        {"type": "PrivacyProfile", "epsilons": ["0.0"], "deltas": ["0.1"], "relation": "add_or_remove_one"}
    ),
    "unsupported, and certified": forged(event={"type": "Unsupported", "claim": "x", "relation": "add_or_remove_one"}),
    "unsupported without words": of_event(
        {"type": "Unsupported", "claim": 5, "relation": "add_or_remove_one"}, status="claimed", claim="c", epsilon=None
    ),
    "3,000 unlike samplings": of_event({"type": "Composed", "events": UNLIKE}),
    "400 unlike samplings": of_event({"type": "Composed", "events": UNLIKE[:400]}),
    "tries within tries": of_event(
        {"type": "BestOfTries", "tries": [{"type": "BestOfTries", "tries": UNLIKE[:20], "mean": 3.0}], "mean": 3.0}
    ),
    "tries of numbers": of_event({"type": "BestOfTries", "tries": [1], "mean": 3.0}),
    "ex post of another run": forged(ex_post={"signals": [1, 2], "epsilons": [0.1, 0.2], "delta": 1e-5, "stop": 1}),
    "ex post of 100,000 stops": forged(
        ex_post={"signals": list(range(1, 20_000)), "epsilons": list(range(1, 20_000)), "delta": 1e-5, "stop": 1}
    ),
    "ex post of signals beyond doubles": forged(ex_post={"signals": [1e-200, 9e99], "epsilons": [1, 2], "delta": 0.1, "stop": 1}),
    "ex post is a text": forged(ex_post="x"),
    "ex post with more": forged(ex_post={"signals": [1], "epsilons": [1], "delta": 0.0, "stop": 1, "more": 1}),
    "two epsilons": forged().replace('"epsilon":', '"epsilon": 0.1, "epsilon":'),
    "delta is not a number": forged().replace('"delta": 1e-05', '"delta": NaN'),
    "delta is infinite": forged().replace('"delta": 1e-05', '"delta": 1e999'),
    "a list": "[1, 2]",
    "a number": "1",
    "nothing": "",
}  # fmt: skip

#: A process of its own that is ended where it takes more memory or time than reading a certificate may.
READER = """
import json, resource, sys, time
from dperm.privacy import Certificate
texts = json.load(sys.stdin)
def held(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
bare = held()
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
told = {}
for name, text in texts.items():
    start = time.process_time()
    try:
        certificate = Certificate.from_json(text)
        str(certificate), certificate.brief()
        certificate.verify()
        outcome = "verified"
    except ValueError as error:
        outcome = "refused" if len(str(error)) < 2000 else "refused at length"
    told[name] = outcome, time.process_time() - start, held() - bare
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, float, int]]:
    texts = HOSTILE | {"honest": issued().to_json()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER], input=json.dumps(texts), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: tuple(found) for name, found in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_hostile_certificate_is_a_value_error_soon_and_in_little_memory(
    name: str, outcomes: dict[str, tuple[str, float, int]]
) -> None:
    outcome, seconds, grown = outcomes[name]
    assert outcome == "refused"
    assert seconds < 1.0
    assert grown < 200e6


def test_the_honest_one_is_verified(outcomes: dict[str, tuple[str, float, int]]) -> None:
    assert outcomes["honest"][0] == "verified"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x0bb", "a\x1b[1Ab", "a\u202eb"])
def test_no_text_of_a_certificate_takes_more_than_a_line(text: str) -> None:
    """Also where code makes it: a class of somebody else's may have any name."""
    honest = issued()
    other = Certificate.issue(
        mechanism=text,
        event=Gaussian(2.0),
        delta=1e-5,
        target_epsilon=2.0,
        paper=text,
        assumptions=[Assumption(text, "caller", text)],
        public_facts={"rows": text, text: 1},
        not_charged=[text],
    )
    renamed = replace(honest, mechanism=text, claim=text, accountant=text, seeded=text)
    for certificate in (other, renamed):
        texts = [certificate.mechanism, certificate.accountant, certificate.paper, *certificate.not_charged]
        assert all(each.isprintable() for each in texts)
        assert str(certificate).isprintable() or str(certificate).replace("\n", "").isprintable()
    assert len(statements(other)) == len(statements(honest)) + 1  # one thing more is not charged
    assert len(statements(other.brief())) == len(statements(honest.brief()))
    assert Certificate.from_json(other.to_json()) == other
    assert other.mechanism == on_one_line(text)


@pytest.mark.parametrize("factor", [1 - 1e-6, 1 - 1e-12, 1.0, 2.0])
def test_verify_compares_epsilon_with_its_own_target(factor: float) -> None:
    certificate = replace(issued(), target_epsilon=issued().epsilon * factor)
    if factor < 1 - 1e-9:
        with pytest.raises(ValueError, match="above its own target"):
            certificate.verify()
    else:
        certificate.verify()


def test_a_limit_of_ones_own_admits_more_work() -> None:
    """The cost of an event is known before anything is computed, and what costs more is read by whoever raises the limit."""
    event = Composed(tuple(PoissonSampled(0.01 + i / 1e4, Gaussian(4.0)) for i in range(60)))
    text = replace(issued(), event=event, epsilon=None, claim="c", status="claimed").to_json()
    with pytest.raises(ValueError, match="60 times as much work"):
        Certificate.from_json(text)
    assert Certificate.from_json(text, largest_cost=60.0).event == event


def test_the_cost_of_an_event_grows_with_its_count_and_where_samples_are_rare() -> None:
    """Seconds were measured: a unit is a fiftieth of one."""
    usual = [accounting_cost(SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), count)) for count in (1, 1000, 10**5, 10**13)]
    assert usual[0] == usual[1] == 1 and 3 < usual[2] < usual[3] < 50
    rare = [accounting_cost(SelfComposed(PoissonSampled(1e-9, Gaussian(noise)), 10**8)) for noise in (1.0, 0.5)]
    assert 30 < rare[0] < 50 < rare[1]
    assert accounting_cost(SelfComposed(Gaussian(1.0), 10**18)) == 0  # they are one


@pytest.mark.parametrize(
    "event",
    [
        SelfComposed(RowsSampled(0.5, Gaussian(0.02), 12_000), 1000),
        RowsSampled(0.5, Gaussian(0.02), 12_000),
        RowsSampled(0.5, Gaussian(1.0), 3000),
        Composed(tuple(SelfComposed(PoissonSampled(0.01 + i / 1e4, Gaussian(1.0)), 1000) for i in range(45))),
        Composed(tuple(SelfComposed(PoissonSampled((i + 1) * 1e-6, Gaussian(1.0)), 999) for i in range(9))),
        Composed(tuple(SelfComposed(ExponentialMechanism(0.01 + i / 1e4), 999) for i in range(49))),
        Composed(tuple(RandomAllocation((1 << 20) - 1 - i, Gaussian(0.3)) for i in range(12))),
        SelfComposed(RandomAllocation(10**8, Gaussian(1.0), 37), 1000),
    ],
    ids=["rows", "once", "many rows", "unlike", "rare", "choices", "allocations", "huge allocations"],
)
def test_a_certificate_of_more_than_a_second_is_not_read(event: Event) -> None:
    """Each took 1 to 11 seconds to verify, where the limit is one."""
    text = replace(issued(), event=event, epsilon=None, claim="c", status="claimed").to_json()
    with pytest.raises(ValueError, match="times as much work"):
        Certificate.from_json(text)


def test_a_certificate_of_usual_sampling_is_read_without_a_limit_of_ones_own() -> None:
    """Twelve unlike phases, ten rows for each person, ten epochs of balls and bins whose blocks are unlike."""
    phases = tuple(SelfComposed(PoissonSampled(0.01 + i / 1e4, Gaussian(1.0)), 1000) for i in range(12))
    rows = SelfComposed(RowsSampled(0.01, Gaussian(1.0), 10), 10_000)
    for event in (Composed(phases), rows, RandomAllocation(10_007, Gaussian(1.0), 10)):
        text = replace(issued(), event=event, epsilon=None, claim="c", status="claimed").to_json()
        assert Certificate.from_json(text).event == event


@pytest.mark.parametrize("inner", [Gaussian(1.0), BestOfTries((Gaussian(1.0), Gaussian(2.0)), 3.0)])
def test_what_can_be_made_can_be_read(inner: Any) -> None:
    event = inner
    with pytest.raises(ValueError, match="nested at most"):
        for _ in range(DEEPEST):
            event = SelfComposed(Composed((event,)), 1)
            assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    with pytest.raises(ValueError, match="one line"):
        Unsupported("two\nlines")
    with pytest.raises(ValueError, match="times in all"):
        SelfComposed(SelfComposed(Gaussian(1.0), 10**40), 10**40)


def test_ex_post_statements_are_numbers() -> None:
    with pytest.raises(TypeError, match="number"):
        ExPost(("1.0",), (1.0,), 0.0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 256"):
        ExPost(tuple(range(1, 300)), tuple(range(1, 300)), 0.0, 1)
    with pytest.raises(ValueError, match="whose losses doubles hold"):
        ExPost((1.0, 1e6), (1.0, 2.0), 1e-5, 1)


def test_depth_and_number_are_measured_outside_texts_only() -> None:
    assert bounded_table('{"a": "[[[{{{,,,:::\\\\\\"", "b": [1, {"c": null}]}') == {"a": '[[[{{{,,,:::\\"', "b": [1, {"c": None}]}
    deepest = '{"a": ' + "[" * 255 + "]" * 255 + "}"
    assert bounded_table(deepest)
    with pytest.raises(ValueError, match="nested at most 256"):
        bounded_table('{"a": ' + "[" * 256 + "]" * 256 + "}")
    with pytest.raises(ValueError, match="names and values"):
        bounded_table('{"a": [' + "1," * 100_000 + "1]}")
    with pytest.raises(ValueError, match="each name once"):
        bounded_table('{"a": 1, "a": 2}')

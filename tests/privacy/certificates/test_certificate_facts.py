"""What certificates say of public facts goes to JSON and back as plain numbers, texts, lists and tables."""

from __future__ import annotations

import enum
import json
import math
from types import MappingProxyType

import numpy as np
import pytest

from dperm.privacy import Certificate, Composed, Gaussian, Relation, epsilon
from dperm.privacy.certificates.assumptions import disjoint_releases
from dperm.privacy.certificates.signing import digest_of


class Colour(enum.Enum):
    RED = 3


def test_facts_of_all_kinds_go_to_json_and_back() -> None:
    given = {
        "table": MappingProxyType({"inner": np.float64(0.25), 3: "three"}),
        "list": [1, 2.5, True, None],
        "tuple": (np.int64(7), "a\nb"),
        "array": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "flag": np.bool_(False),
        "relation": Relation.REPLACE_ONE,
        "colour": Colour.RED,
        "beyond": math.inf,
        "none": math.nan,
        "whole": 12,
        "yes": True,
        "text": "x",
    }
    issued = Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5, public_facts=given)
    facts = json.loads(issued.to_json())["public_facts"]
    told = facts.pop("tuple")
    assert told[0] == 7
    assert "\n" not in told[1]
    assert facts == {
        "table": {"inner": 0.25, "3": "three"},
        "list": [1, 2.5, True, None],
        "array": [[1.0, 2.0], [3.0, 4.0]],
        "flag": False,
        "relation": "replace_one",
        "colour": 3,
        "beyond": None,
        "none": None,
        "whole": 12,
        "yes": True,
        "text": "x",
    }
    assert Certificate.from_json(issued.to_json()) == issued
    for wrong in (object(), {1, 2}, [object()], b"bytes"):
        with pytest.raises(TypeError, match="public facts of numbers"):
            Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5, public_facts={"fact": wrong})


def test_numbers_that_a_file_states_are_read_as_they_stand() -> None:
    issued = Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5, target_epsilon=5.0)
    read = Certificate.from_json(issued.to_json())
    assert (read.epsilon, read.target_epsilon, read.ex_post) == (epsilon(Gaussian(2.0), 1e-5), 5.0, None)
    without = Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5)
    assert Certificate.from_json(without.to_json()).target_epsilon is None
    for name, wrong in (
        ("epsilon", -1.0),
        ("target_epsilon", 0.0),
        ("target_epsilon", -5.0),
        ("not_charged", [3]),
        ("versions", {"dperm": 1}),
        ("further", 1),
    ):
        stated = {**json.loads(issued.to_json()), name: wrong}
        stated["digest"] = digest_of({key: value for key, value in stated.items() if key != "digest"})
        with pytest.raises(ValueError, match=f"Not a dperm certificate.*({name}|texts)"):
            Certificate.from_json(json.dumps(stated))
    for count, fits in ((3, True), (1999, True), (2001, False)):
        many = Certificate.issue(mechanism="m", event=Composed((Gaussian(99.0),) * count), delta=1e-5)
        if fits:
            assert Certificate.from_json(many.to_json()) == many
        else:
            with pytest.raises(ValueError, match="composed of 2,002 events; 2,000 is the limit"):
                Certificate.from_json(many.to_json())


def test_who_lies_in_one_part_is_said_of_records_and_of_persons() -> None:
    for persons, unit, by in ((False, "record", "that record"), (True, "person", "that person's rows")):
        text = disjoint_releases(3, persons).text
        assert f"Each {unit} was in the data of at most one of these 3 releases: which one follows from {by} alone" in text

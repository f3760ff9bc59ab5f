"""One example of each policy and of each part of a plan, made by its fields: what is asked of all is asked of a new one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import numpy as np

from dperm._family import members, ours
from dperm.gradient import SGD, Clip, Constant, FixedOrder, Poisson, Policy
from dperm.privacy import PrivacyProfile
from helpers.catalogue import import_all
from helpers.examples import by_names

__all__ = ["EPOCH", "PERSON", "SIZE", "STEPS", "all_policies", "example", "examples"]

SIZE, PERSON = 24, 3  # records, and rows of a person
EPOCH, STEPS = 4, 12

#: what fields are set to, by name: a new policy whose fields are called as others' needs nothing here
_VALUES: dict[str, Any] = {
    "public_size": SIZE,
    "records": SIZE,
    "largest": SIZE,
    "rows": PERSON,
    "steps": STEPS,
    "epochs": STEPS // EPOCH,
    "refreshes": STEPS // EPOCH,
    "local_steps": 3,
    "steps_per_epoch": EPOCH,
    "batches": EPOCH,
    "capacity": SIZE // EPOCH,
    "size": SIZE // EPOCH,
    "expected_batch_size": SIZE / EPOCH,
    "sampling_rate": 1 / EPOCH,
    "clipping_norm": 0.2,
    "noise_multiplier": 2.0,
    "snapshot_noise": 4.0,
    "norm_noise": 5.0,
    "full_steps": 3.0,
    "floor": 0.1,
    "decay": 0.5,
    "epsilon": 1.0,
    "delta": 1e-5,
    "skip": 2,
    "modulus": 1.0,
    "space": 1500.0,  # at which some steps of PIDP-SGD have noise, and others none
    "anchor": np.array([0.1, 0.0, -0.1]),
    "budget": PrivacyProfile((0.0,), (0.5,)),
    "sampler": Poisson(1 / EPOCH),
    "bounding": Clip(0.2),
    "noise": Constant(2.0),
    "update": SGD(0.1),
    "learning_rate": 0.1,
    "radius": 1.0,
    "groups": EPOCH,
    "kind": "square_root",
    "width": 3,
    "buffers": 2,
    "period": EPOCH,
    "separation": EPOCH // 2,
    "entries": (np.eye(STEPS) - 0.5 * np.eye(STEPS, k=-1)).tolist(),
}

#: by the name of a part, others that a plan with it needs
_BESIDE: dict[str, dict[str, Any]] = {"correlation": {"sampler": FixedOrder(EPOCH)}}


def example(kind: type[Any], **given: Any) -> Any:
    """One of a policy or a part."""
    return by_names(kind, _VALUES, "tests/helpers/policies.py", **given)


def examples(kind: type[Any]) -> Iterator[Any]:
    """One of a dataclass, and one for each part of dperm's that each of its fields may hold."""
    yield example(kind)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        for family in get_args(hint) or (hint,):
            if field.name in ("budget", "update") or not (inspect.isclass(family) and ours(family)):
                continue  # what a run is held to beforehand, and what is done with what it gave
            for part in members(family):
                yield example(kind, **{field.name: example(part), **_BESIDE.get(field.name, {})})


def all_policies() -> list[Policy]:
    """Of each kind, claimed ones too, with each part that it may have."""
    import_all()
    kinds = sorted(members(Policy), key=lambda kind: kind.__name__)
    return list({repr(policy): policy for kind in kinds for policy in examples(kind)}.values())

"""Architectures of the libraries that people take models from: exact, or refused with the reason."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dperm.torch import ModuleObjective
from dperm.torch.tensors.nested import map_tensors
from helpers.architectures import Architecture, Case, every, versions
from helpers.oracle import by_autograd

PAGE = Path(__file__).parents[3] / "docs" / "architectures.md"

pytestmark = pytest.mark.slow


def zoo() -> list[Any]:
    """None where a library is absent."""
    return [pytest.param(item, id=f"{item.package} {item.name}") for item in every()]


@pytest.fixture(autouse=True)
def other_libraries_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def error_of(case: Case, kind: torch.dtype, *, training: bool = False) -> float:
    """The largest relative error of norms and of a weighted sum against autograd on single records."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(kind) if tensor.is_floating_point() else tensor

    model, inputs = copy.deepcopy(case.model).to(kind).train(training), map_tensors(cast, case.inputs)
    found = ModuleObjective(model, case.loss).evaluate(inputs, case.targets)
    expected = by_autograd(model, case.loss, inputs, case.targets, len(case.targets))
    norms, factors = expected.norm(dim=1), torch.linspace(0.1, 1.0, len(case.targets), dtype=kind)
    whole = factors @ expected
    return max(
        float((found.norms - norms).abs().max() / norms.max()),
        float((found.weighted_sum(factors) - whole).abs().max() / whole.abs().max()),
    )


@pytest.mark.parametrize("architecture", zoo())
def test_architectures_are_exact_or_refused(architecture: Architecture) -> None:
    torch.manual_seed(0)
    case = architecture.make()
    case.model.train()
    if architecture.refused:
        with pytest.raises(ValueError, match=re.escape(architecture.refused)):
            ModuleObjective(case.model, case.loss)
        return
    ModuleObjective(case.model, case.loss).prepare(case.inputs, case.targets)  # as it is trained
    if architecture.single:  # parts of it always run in single precision
        assert error_of(case, torch.float32, training=architecture.rescales) < 3e-5
    else:
        assert error_of(case, torch.float64) < 1e-8


@pytest.mark.skipif(not versions(), reason="needs torchvision, timm, transformers and peft: the extra `zoo`")
def test_the_page_lists_them_all() -> None:
    rows = re.findall(r"^\| (\S+) \| (.+?) \| (right|refused)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    expected = [(item.package, item.name, "refused" if item.refused else "right") for item in every()]
    assert rows == expected and len(rows) >= 100

"""Checkpointed models compute gradients twice, first for their norms and then for their sum: exact where both runs compute the
same, and no longer than the norms whatever the second one computes."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dperm.audit import Pair, Training, replay
from dperm.gradient import AdaptiveClip, Clip, PerLayer
from dperm.gradient.recipes import dp_sgd, dpis
from dperm.objectives.sums import RunningSum
from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.engine import clipped_sums, layer_taps
from dperm.torch.engine.gradient_forms import Dense, Outer
from dperm.torch.engine.isolated import Evaluation
from dperm.torch.engine.randomness import Draws
from dperm.torch.engine.second_run import SecondRun
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Pool
from helpers.language_models import FAMILIES, LENGTH, Adapted, LanguageModel, Style, adapted, made, next_words, words
from helpers.oracle import by_autograd, half_squares

SIZE = 5
WAYS: dict[str, dict[str, Any]] = {"not reentrant": {"use_reentrant": False}, "reentrant": {"use_reentrant": True}}


def styled(style: Style, **changes: Any) -> LanguageModel:
    return made(Style(**vars(style) | changes)).double()


def checkpointed(style: Style, way: str = "not reentrant", **changes: Any) -> ModuleObjective:
    return ModuleObjective(styled(style, checkpointed=WAYS[way], **changes), next_words)


def rows_of(found: Any) -> Tensor:
    """(b, p) what each record adds to a sum, by as many sums."""
    return torch.stack([found.weighted_sum(one) for one in torch.eye(len(found.norms), dtype=found.norms.dtype)])


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max()) <= 1e-10 * float(expected.abs().max())


@pytest.mark.fast_cases("GPT-2-not reentrant", "Llama, tied-not reentrant", "Gemma 3-not reentrant", "Phi-reentrant")
@pytest.mark.parametrize(("family", "way"), list(zip(FAMILIES, itertools.cycle(WAYS))))
def test_every_family_against_autograd(family: str, way: str) -> None:
    numbers, style = words(SIZE), FAMILIES[family]
    objective = checkpointed(style, way)
    found = objective.evaluate(numbers, numbers)
    if not style.experts:  # which read what a record chooses: positions are sorted by it
        assert objective.engine.runs_twice and objective.one_by_one is None
    expected = by_autograd(styled(style), next_words, numbers, numbers, SIZE)
    factors = torch.linspace(0.1, 1, SIZE, dtype=torch.float64)
    assert_close(found.norms, expected.norm(dim=1))
    objective.evaluate(numbers[:2], numbers[:2])  # a pass is not moved by another one between its norms and its sum
    assert_close(found.weighted_sum(factors), factors @ expected)
    by_module = torch.linspace(0.1, 1, SIZE * len(objective.groups), dtype=torch.float64).view(SIZE, -1)
    lengths = torch.cat([part.new_full((part.numel(),), group) for group, part in zip(
        objective.flat.group_index, objective.flat.parameters, strict=True)]).long()  # fmt: skip
    assert_close(found.weighted_sum(by_module), (by_module[:, lengths] * expected).sum(0))


def test_long_records_whose_norms_are_found_otherwise_than_their_sums() -> None:
    """Ghost norms of many positions first, then products of some records at a time."""
    style = Style(width=8, hidden=700, tied=True, checkpointed=WAYS["not reentrant"])
    numbers = words(SIZE, 40)
    for dtype, coarse in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        models = [made(Style(**vars(style) | {"checkpointed": way})).to(dtype) for way in (WAYS["not reentrant"], None)]
        one, other = (ModuleObjective(model, next_words).evaluate(numbers, numbers) for model in models)
        assert torch.allclose(one.norms, other.norms, rtol=coarse)
        sums = [each.weighted_sum(1 / each.norms) for each in (one, other)]
        assert float((sums[0] - sums[1]).norm() / sums[1].norm()) < coarse


def test_physical_batches_add_up_to_the_clipped_sum() -> None:
    numbers, bound = words(11), 0.5
    objective, total = checkpointed(FAMILIES["Gemma"]), RunningSum()
    for part in numbers.split(4):
        total.add(Clip(bound).query(objective.per_example(objective.theta, (part, part)), {}))
    rows = by_autograd(styled(FAMILIES["Gemma"]), next_words, numbers, numbers, 11)
    clipped = rows * (bound / rows.norm(dim=1).clamp(min=bound))[:, None]
    assert_close(total.value(), clipped.sum(0))


class Repeated(Draws):
    """The same secret seeds each time."""

    def seed(self) -> int:
        return 11


def dropped(style: Style) -> tuple[Tensor, Tensor]:
    objective, numbers = ModuleObjective(made(style).double(), next_words), words(SIZE)
    objective.engine.draws = Repeated(objective.flat.device)
    found = objective.evaluate(numbers, numbers)
    return found.norms, rows_of(found)


def test_masks_are_the_same_in_both_runs_and_a_second_run_that_draws_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with_parts, plain = (Style(dropout=0.3, tied=True, checkpointed=way) for way in (WAYS["reentrant"], None))
    norms, expected = dropped(plain)
    assert_close(dropped(with_parts)[0], norms)
    assert_close(dropped(with_parts)[1], expected)
    repeated = SecondRun.__call__

    def anew(self: SecondRun, factors: Tensor) -> Tensor | None:
        self._seed += 1
        return repeated(self, factors)

    monkeypatch.setattr(SecondRun, "__call__", anew)
    other = dropped(with_parts)[1]
    assert float((other - expected).norm()) > 0.1 * float(expected.norm())
    assert bool((other.norm(dim=1) <= norms * (1 + 1e-9)).all()), "wrong, and still bounded"


# Whole runs: the same as without checkpointing


def run(checkpointed: bool, data: Any, groups: Any = None, **settings: Any) -> Tensor:
    torch.manual_seed(0)
    style = Style(dropout=0.1, tied=True, layers=1, checkpointed=WAYS["not reentrant"] if checkpointed else None)
    model = LanguageModel(style).double()
    given = {
        "noise_multiplier": 1.0, "delta": 1e-3, "epochs": 1, "public_size": 12, "expected_batch_size": 6, "clipping_norm": 0.5,
        "physical_batch_size": 4, "random_state": 0,
    } | settings  # fmt: skip
    if "plan" in given:
        del given["clipping_norm"]
    trainer = PrivateTrainer(model, next_words, torch.optim.SGD(model.parameters(), lr=0.1), **given)
    trainer.fit(data, groups=groups, progress=False)
    assert trainer.objective.engine.runs_twice is checkpointed
    return trainer.objective.theta.clone()


def swapped(numbers: Tensor) -> Tensor:
    return numbers.flip(0) if bool(torch.rand(()) < 0.5) else numbers


RUNS: dict[str, dict[str, Any]] = {
    "records": {},
    "persons": {"groups": torch.arange(24) // 2, "max_rows_per_unit": 2},
    "views": {"views": 2, "transform": swapped},
    "each layer by itself": {"plan": partial(dp_sgd, bounding=PerLayer(0.5))},
    "adaptive": {"plan": partial(dp_sgd, bounding=AdaptiveClip(0.5))},
    "importance": {
        "plan": partial(dpis, clipping_norm=0.5, epochs=1, expected_batch_size=6), "noise_multiplier": None, "epsilon": 20.0,
        "epochs": None, "expected_batch_size": None,
    },
}  # fmt: skip


@pytest.mark.fast_cases("records", "persons", "views", "each layer by itself")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_where_it_ends_without_checkpointing(name: str) -> None:
    settings, numbers = RUNS[name], words(24)
    one, other = (run(way, (numbers, numbers), public_size=12, **settings) for way in (True, False))
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


# Sensitivity


class Loud(nn.Module):
    """A checkpointed layer that multiplies some records by `FACTOR` in a second run: it reads what nobody puts back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        def part(x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)) * torch.where(x.sum() > 5, x.new_tensor(FACTOR[0]), x.new_tensor(1.0)))

        return checkpoint(part, x, use_reentrant=False)


FACTOR = [1.0]


@contextlib.contextmanager
def louder(factor: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block second runs have another factor."""
    repeated = SecondRun.__call__

    def second(self: SecondRun, factors: Tensor) -> Tensor | None:
        FACTOR[0] = factor
        try:
            return repeated(self, factors)
        finally:
            FACTOR[0] = 1.0

    with monkeypatch.context() as patched:
        patched.setattr(SecondRun, "__call__", second)
        yield


def loud_inputs() -> Tensor:
    x = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(max=1.5)
    x[1] = 3.0
    return x


def loud_pass() -> tuple[Any, ModuleObjective]:
    objective = ModuleObjective(Loud().double(), half_squares)
    return objective.evaluate(loud_inputs(), torch.ones(SIZE, dtype=torch.float64)), objective


@pytest.mark.parametrize("factor", [1e4, 1e200, torch.inf, torch.nan, -3.0, 0.5])
def test_no_record_adds_more_than_its_norm_in_the_first_run(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found, objective = loud_pass()
    expected = by_autograd(Loud().double(), half_squares, loud_inputs(), torch.ones(SIZE, dtype=torch.float64), SIZE)
    with louder(factor, monkeypatch):
        rows = rows_of(found)
    others = [0, 2, 3, 4]
    assert_close(rows[others], expected[others])
    assert bool(rows.isfinite().all())
    assert not torch.allclose(rows[1], expected[1])
    for rows_here, rows_there in zip(_parts(rows[1], objective), _parts(expected[1], objective), strict=True):
        assert float(rows_here.norm()) <= float(rows_there.norm()) * (1 + 1e-12)


def _parts(row: Tensor, objective: ModuleObjective) -> list[Tensor]:
    return list(objective.flat.parts(row))


def test_gradients_are_cut_to_their_limits_and_never_made_longer() -> None:
    flat = FlatParameters(nn.Linear(2, 1).double())
    weight, bias = flat.leaves
    limits = {weight: torch.tensor([4.0, 4.0, 4.0, 0.0], dtype=torch.float64)}
    bad = torch.tensor([False, False, True, False])
    total = clipped_sums.ClippedSum(flat, limits, bad, torch.tensor([1.0, 10.0, 1e6, 1e6], dtype=torch.float64), Pool())
    rows = torch.tensor([[[6.0, 8.0]], [[0.3, -0.4]], [[1.0, 1.0]], [[1.0, 1.0]]], dtype=torch.float64)
    total.add(weight, Dense(rows))
    total.add(bias, Dense(torch.ones(4, 1, dtype=torch.float64)))  # which had no gradient at first
    assert total.total is not None
    assert torch.allclose(total.total, torch.tensor([1.2 + 3.0, 1.6 - 4.0, 0.0], dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_without_the_cut_a_record_would_add_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect: the test above can fail."""
    found, _ = loud_pass()
    monkeypatch.setattr(
        clipped_sums.ClippedSum, "_add", lambda self, form, limits, bad, factors, out: form.add_weighted(factors, out)
    )
    with louder(1e4, monkeypatch):
        assert float(rows_of(found)[1].norm()) > 100 * float(found.norms[1])


def test_records_without_a_number_count_as_zero_and_move_nobody() -> None:
    objective = ModuleObjective(Loud().double(), half_squares)
    x, y = loud_inputs(), torch.ones(SIZE, dtype=torch.float64)
    before = rows_of(objective.evaluate(x, y))
    for bad in (torch.nan, torch.inf, 1e200):
        y[3] = bad
        found = objective.evaluate(x, y)
        rows = rows_of(found)
        assert float(found.norms[3]) == 0 and not bool(rows[3].any())
        assert torch.equal(rows[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_a_record_that_fails_in_the_second_run_counts_as_zero_and_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    found, objective = loud_pass()
    expected, running = rows_of(found), Evaluation.in_step

    def failing(self: Evaluation, branch: Any, batch: Any, *more: Any) -> Any:
        if len(more) > 2 and bool((batch.inputs.sum(1) > 5).any()):  # of some parameters the sum has been made
            more[2].total = torch.full_like(objective.theta, torch.nan)
            raise ValueError("a record that fails")
        return running(self, branch, batch, *more)

    monkeypatch.setattr(Evaluation, "in_step", failing)
    with pytest.raises(ValueError, match="a record that fails"):  # nothing is charged: it is said
        found.weighted_sum(torch.ones(SIZE))
    with objective.engine.paid_for(secret=False):
        rows = rows_of(found)
    expected[1] = 0.0
    assert_close(rows, expected)


def noted(file: Path) -> int:
    """How often it was called: a count that nothing puts back, as lists are."""
    with file.open("a") as lines:
        lines.write("x")
    return file.stat().st_size


def test_a_model_that_counts_its_runs_is_refused_before_the_charge(tmp_path: Path) -> None:
    class Counting(Loud):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * noted(tmp_path / "runs")

    objective = ModuleObjective(Counting().double(), half_squares)
    with pytest.raises(ValueError, match=r"do not agree|another loss"):
        objective.prepare(loud_inputs(), torch.ones(SIZE, dtype=torch.float64))


def test_parameters_that_have_changed_are_refused() -> None:
    found, objective = loud_pass()
    with torch.no_grad():
        objective.model.first.bias[1] += 1e-3
    with pytest.raises(RuntimeError, match="parameters have changed"):
        found.weighted_sum(torch.ones(SIZE))


# When there are two runs, and what is in memory


def test_what_runs_twice_is_decided_before_the_charge() -> None:
    style = Style(checkpointed=WAYS["not reentrant"])
    model, numbers = made(style).double(), words(SIZE)
    objective = ModuleObjective(model, next_words)
    objective.evaluate(numbers, numbers, norms_only=True)
    assert objective.engine.runs_twice
    model.style = Style()  # no parts any more
    with objective.engine.paid_for(secret=False):
        found = objective.per_example(objective.theta, (numbers, numbers))
        expected = by_autograd(styled(Style()), next_words, numbers, numbers, SIZE)
        assert_close(rows_of(found), expected)
    assert objective.engine.runs_twice, "as it was when the run was charged"
    objective.evaluate(numbers, numbers)
    assert not objective.engine.runs_twice
    with objective.engine.paid_for(secret=False):
        model.style = style
        assert_close(rows_of(objective.per_example(objective.theta, (numbers, numbers))), expected)
    assert not objective.engine.runs_twice


def test_parts_that_are_checkpointed_in_training_mode_only() -> None:
    """As in transformers: where layers drop, they were compared with an ordinary batch in evaluation mode."""

    class InTraining(LanguageModel):
        def forward(self, input_ids: Tensor) -> Tensor:
            self.style = style if self.training else Style()
            return super().forward(input_ids)

    style, numbers = Style(dropout=0.3, checkpointed=WAYS["not reentrant"]), words(SIZE)
    torch.manual_seed(0)
    objective = ModuleObjective(InTraining(style).double(), next_words)
    objective.engine.draws = Repeated(objective.flat.device)
    found = objective.evaluate(numbers, numbers)
    assert objective.engine.runs_twice
    assert_close(rows_of(found), dropped(Style(dropout=0.3))[1])


def most_forms(objective: ModuleObjective, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most pairs of factors that are in memory together in a step."""
    numbers, alive, most = words(SIZE), weakref.WeakSet[Outer](), [0]
    objective.prepare(numbers, numbers)
    initialised = Outer.__init__

    def counted(self: Outer, *args: Any) -> None:
        initialised(self, *args)
        alive.add(self)
        most[0] = max(most[0], len(alive))

    with monkeypatch.context() as patched:
        patched.setattr(Outer, "__init__", counted)
        Clip(1.0).query(objective.per_example(objective.theta, (numbers, numbers)), {})
    return most[0]


def test_factors_are_let_go_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = Style(layers=4, width=32, hidden=64, vocabulary=50)
    assert most_forms(ModuleObjective(made(deep), next_words), monkeypatch) > 25
    kept = most_forms(checkpointed(deep), monkeypatch)
    tied = most_forms(checkpointed(Style(**vars(deep) | {"tied": True})), monkeypatch)
    assert kept <= 3
    assert tied <= kept + 1, "a tied head's own, until the embedding's last use"


def test_adapters_run_once_for_their_forms_are_thin(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = words(SIZE, 4 * LENGTH)
    model, plain = (
        adapted(made(Style(checkpointed=way)).double(), lambda name: "proj" in name) for way in (WAYS["not reentrant"], None)
    )
    assert any(isinstance(module, Adapted) for module in model.modules())
    for large, twice in ((3, False), (0, True)):
        monkeypatch.setattr(layer_taps, "_LARGE", large)
        objective = ModuleObjective(model, next_words)
        found = objective.evaluate(numbers, numbers)
        assert objective.engine.runs_twice is twice
        assert_close(rows_of(found), by_autograd(plain, next_words, numbers, numbers, SIZE))


# Replay


def training() -> Training:
    numbers = words(5, seed=1)

    def trainer(source: Any) -> PrivateTrainer:
        torch.manual_seed(0)
        model = LanguageModel(Style(tied=True, layers=1, checkpointed=WAYS["not reentrant"]))
        return PrivateTrainer(
            model, next_words, torch.optim.SGD(model.parameters(), lr=0.1), random_state=source, noise_multiplier=1.0, delta=1e-3,
            plan=partial(dp_sgd, clipping_norm=0.5, epochs=1, expected_batch_size=3), public_size=5, physical_batch_size=2,
        )  # fmt: skip

    pairs = [Pair.adding("words", (numbers, numbers), *[words(1, seed=5)[0]] * 2)]
    return Training.of_trainer(trainer, (numbers, numbers), pairs)


@pytest.mark.slow
def test_neighbours_differ_by_one_bounded_gradient() -> None:
    assert replay(training(), both_ways=False).verdict == "consistent"


@pytest.mark.slow
def test_factors_of_another_sum_are_found_by_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = SecondRun.__call__

    def planted(self: SecondRun, factors: Tensor) -> Tensor | None:  # once it is charged: before, it is refused
        return repeated(self, 3 * factors if self._engine.charged else factors)

    monkeypatch.setattr(SecondRun, "__call__", planted)
    assert replay(training(), both_ways=False).verdict == "refuted"


class Fickle(nn.Module):
    """A checkpointed part that uses another weight when it runs again, for records that no check has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(3, 12, bias=False), nn.Linear(3, 12, bias=False)
        self.odd = self.again = False
        self.register_buffer("ends", torch.linspace(-1, 1, 12))

    def part(self, x: Tensor) -> Tensor:
        layer = self.other if self.odd and self.again else self.first
        self.again = True
        h = layer(x)
        return h - h.mean(1, keepdim=True)  # sums are zero, whichever weight is used

    def forward(self, x: Tensor) -> Tensor:
        self.odd, total = bool((x > 100).any()), 0.0
        for _ in range(4):
            self.again = False
            total = total + checkpoint(self.part, x, use_reentrant=False) @ self.ends
        return total + 1e4 * (self.other(x) @ self.ends)


@pytest.mark.filterwarnings("ignore:.*one record at a time")
def test_a_part_that_uses_other_parameters_when_it_runs_again_adds_no_more() -> None:
    torch.manual_seed(0)
    objective = ModuleObjective(Fickle().double(), lambda outputs, targets: outputs - 0 * targets)
    x, y = torch.randn(6, 3, dtype=torch.float64).clamp(-2, 2), torch.zeros(6, dtype=torch.float64)
    objective.prepare(x, y)
    objective.evaluate(x, y, norms_only=True)
    x[2] = torch.tensor([150.0, 1.0, 2.0])
    with objective.engine.paid_for(secret=False):
        found = objective.per_example(objective.theta, (x, y))
        factors = (1.0 / found.norms).clamp(max=1.0)
        whole = found.weighted_sum(factors, 1.0)
        factors = factors.clone()
        factors[2] = 0.0
        without = objective.per_example(objective.theta, (x, y)).weighted_sum(factors, 1.0)
    assert float((whole - without).norm()) <= 1.0 + 1e-9


def test_a_parameter_that_comes_a_second_time_adds_nothing() -> None:
    layer = nn.Linear(3, 2, bias=False).double()
    flat = FlatParameters(layer)
    ones = torch.ones(4, dtype=torch.float64)
    limits = {layer.weight: 9.0 * ones}
    total = clipped_sums.ClippedSum(flat, limits, torch.zeros(4, dtype=torch.bool), ones, Pool())
    form = Dense(torch.ones(4, 2, 3, dtype=torch.float64))
    total.add(layer.weight, form)
    assert total.total is not None
    once = total.total.clone()
    total.add(layer.weight, form)
    assert torch.allclose(total.total, once, atol=1e-12) and float(once.norm()) > 1


def test_a_part_that_uses_other_parameters_when_it_runs_again_is_said_before_the_charge() -> None:
    torch.manual_seed(0)
    objective = ModuleObjective(Fickle().double(), lambda outputs, targets: outputs - 0 * targets)
    with pytest.warns(UserWarning, match="one record at a time.*uses other parameters when it runs again"):
        objective.evaluate(torch.full((2, 3), 150.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))


class Tossed(nn.Module):
    """Multiplies by a coin of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 40), nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda h: self.last(torch.tanh(self.first(h))), x, use_reentrant=False) * torch.rand(())


def test_a_second_run_has_the_step_s_coins_also_when_another_step_has_begun() -> None:
    torch.manual_seed(0)
    objective = ModuleObjective(Tossed().double(), half_squares)
    x, y = torch.randn(SIZE, 30, 4, dtype=torch.float64), torch.ones(SIZE, dtype=torch.float64)
    objective.evaluate(x, y)
    assert objective.engine.runs_twice
    with objective.engine.paid_for(secret=False):
        found = objective.per_example(objective.theta, (x, y))
        ones = torch.ones(SIZE, dtype=torch.float64)
        before = found.weighted_sum(ones)
        objective.engine.draws.next_step()
        assert torch.allclose(found.weighted_sum(ones), before, rtol=1e-12)
        again = objective.per_example(objective.theta.clone(), (x, y)).weighted_sum(ones)
    assert not torch.allclose(again, before, rtol=1e-3), "another step has another coin"

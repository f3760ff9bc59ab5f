"""Parameters of the loss, and parameters that are frozen, unfrozen, added and removed while a run is in progress."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm._random import Randomness
from dperm.audit.recording import Forced, Recorder, Recording
from dperm.gradient import SGD, Averaged, Clip, Constant, ExponentialAverage, Plan, Poisson
from dperm.gradient.policy import may_resize
from dperm.gradient.recipes import dp_sgd
from dperm.release.source import Source
from dperm.torch import Callback, ModuleObjective, PrivateStep, PrivateTrainer
from dperm.torch.ranks.tensor_noise import TorchSource

N = 60
X = torch.linspace(-1, 1, N * 4).reshape(N, 4)
Y = (X[:, 0] > 0).long()


class TwoTasks(nn.Module):
    """Learned weights of a classification and a regression (Kendall, Gal and Cipolla 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        label, value = targets
        losses = nn.functional.cross_entropy(outputs[:, :2], label, reduction="none"), (outputs[:, 2] - value).square()
        return (torch.exp(-self.log_variances) * torch.stack(losses, 1)).sum(1) + self.log_variances.sum()


def _layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def _trainer(model: nn.Module, optimizer: torch.optim.Optimizer | None, **given: object) -> PrivateTrainer:
    settings = {"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "expected_batch_size": 15, "public_size": N} | given
    return PrivateTrainer(model, nn.CrossEntropyLoss(reduction="none"), optimizer, **settings)  # type: ignore[arg-type]


# The loss


def test_gradients_of_a_loss_that_is_a_module_are_those_of_autograd_for_single_records() -> None:
    torch.manual_seed(0)
    model, loss = nn.Linear(4, 3).double(), TwoTasks().double()
    x, label, value = torch.randn(6, 4).double(), torch.randint(0, 2, (6,)), torch.randn(6).double()
    objective = ModuleObjective(model, loss)
    found = objective.evaluate(x, (label, value))
    trained = [*model.parameters(), *loss.parameters()]
    each = []
    for place in range(6):
        one = slice(place, place + 1)
        gradients = torch.autograd.grad(loss(model(x[one]), (label[one], value[one])).sum(), trained)
        each.append(torch.cat([gradient.flatten() for gradient in gradients]))
    factors = torch.rand(6).double()
    assert torch.allclose(found.norms, torch.stack(each).norm(dim=1), rtol=1e-8)
    assert torch.allclose(found.weighted_sum(factors), factors @ torch.stack(each), rtol=1e-8)
    assert objective.facts.dimension == 4 * 3 + 3 + 2


@pytest.mark.parametrize("most", [None, 2])
def test_weights_of_tasks_are_trained_with_the_model(most: int | None) -> None:
    model, loss = nn.Linear(4, 3), TwoTasks()
    before = loss.log_variances.detach().clone()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.5)
    trainer = PrivateTrainer(
        model, loss, optimizer,
        noise_multiplier=0.5, delta=1e-5, epochs=2, expected_batch_size=10, public_size=N, max_rows_per_unit=most,
    )  # fmt: skip
    trainer.fit((X, (Y, X[:, 1])), groups=None if most is None else torch.arange(N) // 2)
    assert (loss.log_variances.detach() != before).all()


def test_an_optimiser_that_misses_the_parameters_of_the_loss_is_refused() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"misses loss_fn\.log_variances"):
        PrivateTrainer(model, TwoTasks(), torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, delta=1e-5)


def test_a_loss_that_normalises_over_the_batch_is_refused() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.norm(outputs), targets, reduction="none")

    with pytest.raises(ValueError, match=r"norm \(BatchNorm1d\) cannot be trained privately"):
        PrivateTrainer(_layers(), Normalised(), noise_multiplier=1.0, delta=1e-5)


def test_parameters_of_the_model_that_the_loss_holds_too_count_once() -> None:
    class Decayed(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs, targets, reduction="none")

    model = _layers()
    assert ModuleObjective(model, Decayed(model)).facts.dimension == sum(parameter.numel() for parameter in model.parameters())


def test_a_checkpoint_has_the_parameters_of_the_loss(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def made() -> tuple[TwoTasks, PrivateTrainer]:
        model, loss = nn.Linear(4, 3), TwoTasks()
        optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.5)
        return loss, PrivateTrainer(
            model, loss, optimizer, noise_multiplier=0.5, delta=1e-5, epochs=2, expected_batch_size=20, public_size=N,
            checkpoint=tmp_path,
        )  # fmt: skip

    first, trainer = made()
    trainer.fit((X, (Y, X[:, 1])))
    second, again = made()
    again.fit((X, (Y, X[:, 1])), resume=True)
    assert torch.equal(first.log_variances, second.log_variances)


# Other parameters in the run


def test_layers_that_are_unfrozen_added_and_removed_are_trained_from_then_on() -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.1)
    trainer = _trainer(model, optimizer)
    first = model[0].weight.detach().clone()
    added: nn.Linear | None = None
    for step in trainer.steps((X, Y)):
        assert step.gradient.shape == (sum(p.numel() for p in model.parameters() if p.requires_grad),)
        optimizer.step()
        if step.number == 2:
            assert torch.equal(model[0].weight, first)
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters()})
        if step.number == 4:
            assert not torch.equal(model[0].weight, first)
            added = nn.Linear(2, 2)
            model.append(added)
            optimizer.add_param_group({"params": added.parameters()})
        if step.number == 6:
            model[2].requires_grad_(False)
            frozen = model[2].weight.detach().clone()
    assert added is not None
    assert torch.equal(model[2].weight, frozen)
    event = Plan(Poisson(0.25), Clip(1.0), Constant(1.0), SGD(0.1), 8, N).event(trainer.objective.relation)
    assert trainer.certificate is not None
    assert trainer.certificate.event == event  # what was charged does not depend on how many numbers are trained


class _Unfreezes(Callback):
    def __init__(self, layer: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.layer, self.optimizer = layer, optimizer

    def on_epoch(self, record: dict[str, object]) -> None:
        if not next(self.layer.parameters()).requires_grad:
            self.layer.requires_grad_(True)
            if self.optimizer is not None:
                self.optimizer.add_param_group({"params": self.layer.parameters()})


@pytest.mark.parametrize("torch_optimiser", [True, False])
def test_fit_follows_a_callback_that_unfreezes(torch_optimiser: bool) -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.5, momentum=0.9) if torch_optimiser else None
    first = model[0].weight.detach().clone()
    trainer = _trainer(model, optimizer)
    trainer.fit((X, Y), (X, Y), callbacks=[_Unfreezes(model[0], optimizer)], ema_decay=0.9)
    assert not torch.equal(model[0].weight, first)
    assert len(trainer.history) == 2


def test_an_average_counts_new_parameters_as_if_they_had_been_where_they_begin() -> None:
    for update in (Averaged(SGD(0.5, momentum=0.5), 0), ExponentialAverage(SGD(0.5, momentum=0.5), 0.9)):
        short, long = torch.zeros(1), torch.tensor([0.0, 4.0])
        state, whole = update.init(short), update.init(long)
        for _ in range(3):
            short = update.step(short, torch.ones(1), state)
            long = update.step(long, torch.tensor([1.0, 0.0]), whole)
        theta = torch.tensor([float(short), 4.0])
        state = update.resized(state, lambda vector, new: torch.cat([vector, new[1:]]), theta)
        for _ in range(2):
            theta = update.step(theta, torch.ones(2), state)
            long = update.step(long, torch.ones(2), whole)
        assert torch.allclose(update.result(theta, state), update.result(long, whole))


def test_an_optimiser_without_the_new_parameters_ends_the_run() -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    steps = _trainer(model, optimizer).steps((X, Y))
    next(steps)
    optimizer.step()
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"misses 0\.weight"):
        next(steps)


def test_a_layer_that_has_no_gradient_of_single_records_ends_the_run() -> None:
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = _trainer(model, optimizer).steps((X, Y))
    next(steps)
    optimizer.step()
    model.append(nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="cannot be trained privately"):
        next(steps)


def test_a_plan_with_correlated_noise_keeps_its_parameters() -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = partial(dp_sgd, correlation="banded", bands=4, clipping_norm=1.0)
    steps = _trainer(model, optimizer, plan=plan, epochs=4, expected_batch_size=5).steps((X, Y))
    next(steps)
    optimizer.step()
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="same trained parameters throughout"):
        next(steps)


def test_a_backward_pass_through_a_parameter_that_was_unfrozen_is_refused() -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = _trainer(model, optimizer).steps((X, Y))
    next(steps)
    optimizer.step()
    model[0].requires_grad_(True)
    next(steps)
    model[2].requires_grad_(False)
    with pytest.raises(RuntimeError, match="without noise"):
        model(X).sum().backward()


def test_a_checkpoint_of_other_trained_parameters_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = _layers()
    _trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint=tmp_path).fit((X, Y))
    other = _layers()
    other[0].requires_grad_(False)
    again = _trainer(other, torch.optim.SGD(other.parameters(), lr=0.1), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"other parameters were trained \(0\.bias, 0\.weight\)"):
        again.fit((X, Y), resume=True)


def test_one_record_moves_no_step_by_more_than_its_sensitivity_when_layers_change() -> None:
    extra = torch.full((1, 4), -1.0), torch.tensor([1])
    more = torch.cat([X, extra[0]]), torch.cat([Y, extra[1]])

    def run(source: Source, records: tuple[Tensor, Tensor]) -> Recording:
        model = _layers()
        model[0].requires_grad_(False)
        trainer = _trainer(
            model, torch.optim.SGD(model[2].parameters(), lr=0.5), clipping_norm=0.01, random_state=source, physical_batch_size=7
        )
        trainer.fit(records, callbacks=[_Unfreezes(model[0], trainer.optimizer)])
        return source.recording  # type: ignore[attr-defined, no-any-return]

    reference = run(Recorder(TorchSource(Randomness.fixed(0), torch.device("cpu"))), (X, Y))
    forced = run(Forced(reference, np.arange(N), np.array([N])), more)
    pairs = list(zip(reference.releases, forced.releases, strict=True))
    assert [len(before.query) for before, _ in pairs] == [12] * 4 + [37] * 4
    moved = [float(np.linalg.norm(before.query - after.query)) / before.sensitivity for before, after in pairs]
    assert max(moved[:4]) > 0.99
    assert max(moved[4:]) > 0.99
    assert max(moved) <= 1 + 1e-9


def test_a_policy_derived_from_one_of_ours_states_itself_that_its_parameters_may_change() -> None:
    class Derived(Plan):
        pass

    class Stating(Plan):
        resizes = True  # type: ignore[assignment]

    settings = Poisson(0.25), Clip(1.0), Constant(1.0), SGD(0.1), 8, N
    assert may_resize(Plan(*settings))
    assert not may_resize(Derived(*settings))
    assert may_resize(Stating(*settings))


def test_a_run_whose_layers_were_unfrozen_goes_on_from_its_checkpoint(tmp_path) -> None:  # type: ignore[no-untyped-def]
    class Interrupted(Exception):
        pass

    class Interrupts(_Unfreezes):
        def on_step(self, step: PrivateStep) -> None:
            if step.number == 6:
                raise Interrupted

    model = _layers()
    model[0].requires_grad_(False)
    settings = {"checkpoint": tmp_path, "epochs": 3}
    with pytest.raises(Interrupted):
        _trainer(model, None, **settings).fit((X, Y), callbacks=[Interrupts(model[0], None)])
    resumed = _trainer(other := _layers(), None, **settings)
    with pytest.warns(UserWarning, match="reserved before an interruption"):
        resumed.fit((X, Y), resume=True)
    assert not torch.equal(other[0].weight, model[0].weight)
    assert resumed.history[-1]["step"] == 12


def test_noise_that_doubles_cannot_hold_on_more_numbers_ends_the_run() -> None:
    model = _layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    steps = _trainer(model, optimizer, noise_multiplier=2e12).steps((X, Y))  # most: 2.5e12 on 12 numbers, 1.4e12 on 37
    next(steps)
    optimizer.step()
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="Expected noise below"):
        next(steps)

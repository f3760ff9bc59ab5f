"""The generative models of examples/generative.py: each record's gradient is autograd's at what the record drew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from dperm.torch.data.units import MeanOfViews, OfPersons
from dperm.torch.tensors.nested import call_model, map_tensors, take
from helpers.recorded_draws import Again, Recorded, example

generative = example("generative")
FAMILIES = list(generative.FAMILIES)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = generative.pictures("digits")
    return x[:200], y[:200]


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_autograd_s_at_what_each_record_drew(name: str, views: int, digits: Any) -> None:
    torch.manual_seed(0)
    family, size = generative.FAMILIES[name], 5
    model = family.model(8).double()
    for parameter in model.parameters():  # zeros hide what is wrong with a layer
        parameter.data += 0.05 * torch.randn_like(parameter)
    given = family.data(digits[0][:size].double(), digits[1][:size])
    inputs, targets = (given[:-1], given[-1]) if isinstance(given, tuple) else (given, given)
    whole = model, family.loss
    if views > 1:
        inputs, targets = map_tensors(lambda part: part[:, None].expand(-1, views, *part.shape[1:]), (inputs, targets))
        whole = OfPersons(model), MeanOfViews(family.loss)
    objective = ModuleObjective(*whole)
    objective.evaluate(inputs, targets)
    draws = objective.engine.draws = Recorded(objective.flat.device)
    found = objective.evaluate(inputs, targets)
    assert objective.one_by_one is None, "and runs its records together"
    for place, one in enumerate(torch.eye(size)):
        mine = [take(part, torch.tensor([place]), size) for part in (inputs, targets)]
        with Again([numbers[place] for numbers in draws.numbers]) as left:
            loss = whole[1](call_model(whole[0], mine[0]), mine[1])[0]
        assert not left.waiting, "draws as often as in a run of all records"
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([slope.flatten() for slope in slopes])
        assert float(loss.detach()) == pytest.approx(float(found.losses[place]), rel=1e-9)
        assert torch.allclose(found.weighted_sum(one.double()), expected, atol=1e-10, rtol=1e-8)
        assert float(found.norms[place]) == pytest.approx(float(expected.norm()), rel=1e-6)


@pytest.mark.fast_cases("pixelcnn", "flow")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_models_train_and_make_pictures(name: str, digits: Any) -> None:
    """With little noise a few steps lower the loss on other records."""
    torch.manual_seed(0)
    family, (x, y) = generative.FAMILIES[name], digits
    held_out = family.data(x[160:], y[160:])
    inputs = held_out[:-1] if isinstance(held_out, tuple) else held_out

    @torch.no_grad()
    def loss_of(model: nn.Module) -> float:
        return float(torch.stack([family.loss(call_model(model, inputs), x[160:]).mean() for _ in range(8)]).mean())

    before = loss_of(family.model(8))
    trainer = generative.trained(family, x[:160], y[:160], epochs=3, views=2, noise_multiplier=0.02)
    made = family.pictures(trainer.model, x[160:168])
    assert loss_of(trainer.model) < before - 0.01 * abs(before)
    assert made.shape == (8, 1, 8, 8) and bool(torch.isfinite(made).all())
    assert trainer.certificate.public_facts.get("views", 1) == (2 if family.draws else 1)


class Dropped(nn.Module):
    """Classifier-free guidance as it is often written: a class is overwritten where a coin says so."""

    def __init__(self, into: Any) -> None:
        super().__init__()
        self.classes, self.into = nn.Embedding(11, 3), into

    def forward(self, label: Tensor) -> Tensor:
        label = label.clone()
        label[torch.rand(len(label)) < 0.5] = self.into
        table = self.classes(label)[:, None].expand(-1, 2, 3).clone()
        table[label == 10] = -1.5
        return table.square().sum((1, 2))


@pytest.mark.parametrize("into", [10, torch.tensor(10)], ids=["number", "tensor"])
def test_records_that_overwrite_by_masks_of_their_own_run_together(into: Any) -> None:
    torch.manual_seed(0)
    model = Dropped(into)
    objective = ModuleObjective(OfPersons(model), MeanOfViews(generative.as_it_is))
    labels = torch.arange(10)[:, None].expand(-1, 4)
    found = objective.evaluate(labels, labels)
    assert objective.one_by_one is None
    rows = torch.stack([found.weighted_sum(one) for one in torch.eye(10)]).view(10, 11, 3)
    kept = 4 * model.classes.weight.detach()[:10]  # the gradient of each view that keeps its class is this, a quarter counts
    shares = (rows[torch.arange(10), torch.arange(10)] / kept).mean(1)
    assert set((4 * shares).round(decimals=4).tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0} and 0.1 < float(shares.mean()) < 0.9
    assert float(rows[:, 10].abs().sum()) == 0.0, "what is overwritten has no gradient"

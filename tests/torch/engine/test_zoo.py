"""Whole architectures, as people write them, are exact at their own width and use a rule for every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.gradient import Unit
from dperm.torch import ModuleObjective
from helpers import zoo
from helpers.oracle import assert_exact, cross_entropy

SIZE = 3


def images(*shape: int) -> Tensor:
    return torch.randn(SIZE, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def tokens(vocabulary: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (SIZE, length), generator=torch.Generator().manual_seed(0))


LABELS = torch.tensor([0, 1, 1])


def next_token(outputs: Tensor, goals: Tensor) -> Tensor:
    return zoo.per_token(outputs.transpose(1, 2), goals)


ZOO: list[tuple[str, Callable[[], nn.Module], Any, Tensor, Any]] = [
    ("LeNet", zoo.lenet, images(1, 28, 28), LABELS, cross_entropy),
    ("DPIS CNN", zoo.dpis_cnn, images(1, 28, 28), LABELS, cross_entropy),
    ("DPIS RNN", zoo.DpisRnn, tokens(2000, 40), LABELS, cross_entropy),
    ("ResNet-18, GroupNorm", zoo.resnet18, images(3, 32, 32), LABELS, cross_entropy),
    ("ViT", zoo.ViT, images(3, 32, 32), LABELS, cross_entropy),
    ("GPT", zoo.Gpt, tokens(300, 24), tokens(300, 24).flip(1), next_token),
    ("MLP-Mixer", zoo.Mixer, images(3, 32, 32), LABELS, cross_entropy),
    ("U-Net", zoo.UNet, images(1, 16, 16), (images(16, 16) > 0).long(), zoo.per_token),
]


LARGE = ("GPT", "U-Net", "ViT")


@pytest.mark.parametrize(
    ("name", "make", "inputs", "targets", "loss"),
    [pytest.param(*item, id=item[0], marks=[pytest.mark.slow] if "ResNet" in item[0] else []) for item in ZOO],
)
def test_the_zoo(name: str, make: Callable[[], nn.Module], inputs: Any, targets: Tensor, loss: Any) -> None:
    torch.manual_seed(0)
    objective = assert_exact(make().double(), inputs, targets, loss, vmapped=False)
    assert not objective.copied, name


@pytest.mark.parametrize(
    ("name", "make", "inputs", "targets", "loss"),
    [
        pytest.param(*item, id=item[0], marks=[pytest.mark.slow] if item[0] in LARGE or "ResNet" in item[0] else [])
        for item in ZOO
    ],
)
def test_unit_vectors_are_of_length_one_in_single_precision(
    name: str, make: Callable[[], nn.Module], inputs: Any, targets: Tensor, loss: Any
) -> None:
    """Importance sampling adds gradients ÷ their norms: norms and sums take different ways, and none is longer."""
    torch.manual_seed(0)
    model = make()
    single = inputs.float() if inputs.is_floating_point() else inputs
    objective = ModuleObjective(model, loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for training in (0, 20):
        for _ in range(training):
            optimizer.zero_grad()
            loss(model(single), targets).mean().backward()
            optimizer.step()
        for record in range(SIZE):
            at = objective.evaluate(single[record : record + 1], targets[record : record + 1])
            vector = at.weighted_sum(Unit(1e-12).factors(at.norms))
            # a hair less, where a norm comes from inner products: it is raised by what their rounding may take
            assert 1 - 1e-3 < float(vector.double().norm()) < 1 + 1e-5, (name, training)


def test_a_token_without_a_goal_has_no_gradient() -> None:
    goals = tokens(300, 24)
    goals[1] = -100
    torch.manual_seed(0)
    objective = assert_exact(zoo.Gpt().double(), tokens(300, 24), goals, next_token, vmapped=False)
    assert float(objective.evaluate(tokens(300, 24), goals).norms[1]) < 1e-140  # but for what underflow may have taken


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap, about attention
def test_class_tokens_that_are_repeated_run_under_vmap() -> None:
    """`repeat` by the number of records, which is one."""

    class Repeating(zoo.ViT):
        def forward(self, x: Tensor) -> Tensor:
            patches = self.patch(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.cls_token.repeat(len(x), 1, 1), patches], dim=1) + self.pos_embed
            return self.head(self.encoder(tokens)[:, 0])

    torch.manual_seed(0)
    model = nn.Sequential(Repeating(width=12, depth=1), nn.Linear(10, 10)).double()
    objective = assert_exact(model, images(3, 32, 32), LABELS, cross_entropy, vmapped=False)
    assert not objective.copied

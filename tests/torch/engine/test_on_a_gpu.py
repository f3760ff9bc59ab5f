"""The engine, the noise and whole runs on a CUDA device: skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.audit import Pair, Training, replay
from dperm.privacy import Gaussian
from dperm.release import GaussianNoise
from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.engine.randomness import Draws
from dperm.torch.ranks.tensor_noise import open_channel
from helpers.halving import halved, places_of
from helpers.language_models import FAMILIES, ImageModel, LanguageModel, adapted, made, next_words, words
from helpers.oracle import assert_exact, by_autograd, cross_entropy
from helpers.said import flat
from helpers.zoo import DpisRnn, dpis_cnn, resnet18

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")
SIZE = 4


def on_gpu(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(GPU)


def classes(size: int = SIZE) -> Tensor:
    return (torch.arange(size) % 2).to(GPU)


class Gated(nn.Module):
    """A recurrent layer whose states are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[0].mean(1))


LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "CNN": lambda: (dpis_cnn(), on_gpu(SIZE, 1, 28, 28)),
    "ResNet-18": lambda: (resnet18(), on_gpu(SIZE, 3, 32, 32)),
    "LSTM": lambda: (DpisRnn(), torch.randint(0, 2000, (SIZE, 9)).to(GPU)),
    "GRU": lambda: (Gated(), on_gpu(SIZE, 6, 3)),
    "transformer": lambda: (
        nn.Sequential(nn.TransformerEncoderLayer(**LAYER), nn.Flatten(), nn.Linear(40, 2)), on_gpu(SIZE, 5, 8)
    ),
    "transposed convolution": lambda: (
        nn.Sequential(nn.ConvTranspose2d(2, 3, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(243, 2)), on_gpu(SIZE, 2, 4, 4)
    ),
    "vision transformer": lambda: (ImageModel(), on_gpu(SIZE, 1, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_records_are_exact(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    objective = assert_exact(model.double().to(GPU), x, classes(), cross_entropy, vmapped=False)
    assert objective.one_by_one is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_language_models_are_exact(family: str, checkpointed: bool) -> None:
    style = replace(FAMILIES[family], checkpointed={"use_reentrant": False} if checkpointed else None)
    tokens = words(SIZE).to(GPU)
    assert_exact(made(style).double().to(GPU), tokens, tokens, next_words, vmapped=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_of_a_narrow_model_are_near_those_of_autograd(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model: nn.Module = LanguageModel(FAMILIES["Llama"]).to(dtype)
    model = adapted(model, lambda name: "proj" in name or "feed" in name).to(GPU)
    tokens = words(SIZE).to(GPU)
    expected = by_autograd(model, next_words, tokens, tokens, SIZE).norm(dim=1)
    found = ModuleObjective(model, next_words).evaluate(tokens, tokens).norms
    assert torch.allclose(found, expected, rtol=3e-2 if dtype == torch.bfloat16 else 1e-3)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weight = nn.Dropout(0.5), nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.weight) + torch.rand_like(x)


class Repeated(Draws):
    """The same seed at each step."""

    def seed(self) -> int:
        return 11


def test_a_record_draws_the_same_beside_any_other() -> None:
    objective = ModuleObjective(Dropped().to(GPU), lambda outputs, targets: outputs.sum(1) + targets)
    objective.engine.draws = Repeated(GPU)
    x = torch.ones(6, 64, device=GPU)
    before = objective.evaluate(x, torch.zeros(6, device=GPU)).norms
    assert len(before.unique()) > 1, "each its own"
    x[2] = torch.nan
    after = objective.evaluate(x, torch.zeros(6, device=GPU)).norms
    others = torch.arange(6, device=GPU) != 2
    assert torch.equal(before[others], after[others]) and float(after[2]) == 0.0


def test_noise_is_of_its_size_and_on_a_public_grid() -> None:
    channel = open_channel(None, GPU)
    channel.charge(Gaussian(2.0), "a test")
    noise = GaussianNoise(0.5, 2.0)
    found = channel.release(torch.full((400_000,), 0.3, device=GPU), noise)
    assert found.device.type == "cuda"
    assert float((found - 0.3).double().mean()) == pytest.approx(0.0, abs=0.008)
    assert float(found.double().std()) == pytest.approx(1.0, rel=0.006)
    assert bool((found.double() / noise.step == (found.double() / noise.step).round()).all())


N = 24
X, Y = torch.randn(N, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2


def trainer(**settings: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(27, 2)).to(
        GPU
    )
    given: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "public_size": N, "epochs": 2, "expected_batch_size": 6}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return PrivateTrainer(model, cross_entropy, optimizer, clipping_norm=1.0, **(given | settings))


def test_a_run_says_whose_noise_it_has_and_resumes(tmp_path: Any) -> None:
    result = trainer(checkpoint=tmp_path / "run").fit((X, Y), progress=False)
    assert result.certificate is not None and "cuda generator" in flat(result.certificate)
    assert all(parameter.device.type == "cuda" for parameter in result.model.parameters())
    again = trainer(checkpoint=tmp_path / "run").fit((X, Y), progress=False, resume=True)
    for one, other in zip(result.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def training() -> Training:
    pairs = [
        Pair.adding("pulls its own way", (X[:8], Y[:8]), 30 * torch.ones(1, 4, 4), torch.tensor(1)),
        Pair.adding("no number", (X[:8], Y[:8]), torch.full((1, 4, 4), torch.nan), Y[0]),
    ]
    few = {"epochs": 1, "expected_batch_size": 4, "public_size": 8}
    return Training.of_trainer(lambda source: trainer(random_state=source, **few), (X[:8], Y[:8]), pairs)


def test_replay_on_neighbours() -> None:
    assert replay(training()).verdict == "consistent"


def test_half_of_a_sensitivity_is_refuted() -> None:
    places = places_of(training())
    assert places
    for place in places:
        with halved(place):
            assert replay(training()).verdict == "refuted", place

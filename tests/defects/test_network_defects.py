"""Ways to a wrong ε in networks, each with one test or more: one number for each kind of defect."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from dperm.privacy import FilteredRdp, Gaussian, PoissonSampled, SelfComposed
from dperm.release import SpendLog
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.engine.gradient_forms import Dense, Outer, Rows, Total
from dperm.torch.engine.rules.conv import ConvGradient
from dperm.torch.engine.rules.patches import Geometry
from dperm.torch.ranks.tensor_noise import admit_tails
from dperm.torch.tensors.global_randomness import secret_masks

N = 60


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def blobs(features: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 2
    return torch.randn(N, features, generator=generator) + y[:, None], y


def trainer(model: nn.Module, optimizer: Any = None, loss_fn: Any = cross_entropy, **changes: Any) -> PrivateTrainer:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "expected_batch_size": 20} | {
        "clipping_norm": 1.0,
        "public_size": N,
    }
    return PrivateTrainer(model, loss_fn, optimizer, **(settings | changes))


def refused_before_any_charge(model: nn.Module, text: str, data: Any = None, **changes: Any) -> None:
    with pytest.raises(ValueError, match=text):
        trainer(model, **changes).fit(blobs() if data is None else data)
    assert SpendLog.current().charges() == []


# 1: gradients without noise beside those with it


@pytest.mark.parametrize("own_loop", [False, True])
def test_no_stale_gradient_is_applied(own_loop: bool) -> None:
    """A backbone frozen after a learning-rate finder, and a temperature in the loss, each with the raw gradient of that time."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    temperature = nn.Parameter(torch.ones(()))
    x, y = blobs()
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    (cross_entropy(model(x), y).mean() * temperature).backward()
    model[0].requires_grad_(False)
    before = [p.detach().clone() for p in (model[0].weight, model[0].bias, temperature)]
    temperature.requires_grad_(False)
    run = trainer(model, optimizer)
    if own_loop:
        for _ in run.steps((x, y)):
            optimizer.step()
    else:
        run.fit((x, y))
    for was, now in zip(before, (model[0].weight, model[0].bias, temperature), strict=True):
        assert torch.equal(was, now)


def test_a_used_optimizer_is_warned_of() -> None:
    model, (x, y) = nn.Linear(4, 2), blobs()
    optimizer = torch.optim.Adam(model.parameters())
    cross_entropy(model(x), y).mean().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="state from steps before"):
        trainer(model, optimizer).fit((x, y))


# 2: masks


class Stub(nn.Module):
    """Says what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, self.training)


def test_a_known_seed_gives_no_masks_away() -> None:
    """By what the run draws its masks is never what the caller seeded."""
    x, y = torch.ones(20, 4), torch.zeros(20, dtype=torch.long)
    objective = ModuleObjective(Stub(), cross_entropy)
    losses: list[Tensor] = []
    for _ in range(2):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        losses.append(objective.evaluate(x, y).losses)
    assert not torch.equal(*losses)
    # the caller's own draws go on as if there had been no run
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    objective.evaluate(x, y)
    assert torch.equal(torch.rand(3), expected)
    with secret_masks(torch.device("cpu")):
        assert not torch.equal(torch.rand(3), expected)


def test_a_fixed_seed_is_for_tests_and_keeps_masks() -> None:
    one, other = (trainer(seeded_stub(), random_state=5) for _ in range(2))
    for run in (one, other):
        torch.manual_seed(7)
        run.fit(blobs())
    assert torch.equal(one.objective.theta, other.objective.theta)


def seeded_stub() -> Stub:
    torch.manual_seed(0)
    return Stub()


def test_one_mask_for_a_batch_is_one_for_each_record() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * (torch.rand(1, x.shape[1]) < 0.5) if self.training else x)

    losses = ModuleObjective(Shared(), cross_entropy).evaluate(torch.ones(50, 4), torch.zeros(50, dtype=torch.long)).losses
    assert len(set(losses.tolist())) > 3
    trainer(Shared()).fit(blobs())


# 3: rounding


def contribution(objective: ModuleObjective, data: Any, bound: float) -> float:
    """The longest clipped record, measured in double precision, over the bound."""
    found = objective.evaluate(*data)
    factors = bound / found.norms.clip(min=bound)
    one = torch.eye(len(factors))
    return max(float(found.weighted_sum(factors * row, bound).double().norm()) / bound for row in one)


@pytest.mark.parametrize("bound", [1e-25, 1e-30, 1e-3, 1e18])
@pytest.mark.parametrize("scale", [1e-24, 1e-20, 1.0, 1e18])
def test_no_clipped_record_is_longer_than_its_bound(bound: float, scale: float) -> None:
    """Squares of single-precision norms vanish below 1e-23: clipping at 1e-25 moved 100 times that."""
    x, y = blobs()
    objective = ModuleObjective(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), lambda o, t: scale * cross_entropy(o, t)
    )
    assert contribution(objective, (x[:8], y[:8]), bound) <= 1 + 1e-5


def longest(form: Any, records: int, bound: float) -> float:
    factors = (bound / form.squares().sqrt().clip(min=bound)).float()
    whole = form.weighted_sum(factors).double()
    found = 0.0
    for index in range(records):
        without = factors.clone()
        without[index] = 0
        alone = torch.zeros_like(factors)
        alone[index] = factors[index]
        found = max(
            found,
            float(form.weighted_sum(alone).double().norm()) / bound,
            float((whole - form.weighted_sum(without).double()).norm()) / bound,
        )
    return found


@pytest.mark.parametrize("size", [1e9, 1e12])
@pytest.mark.parametrize("channels", [1, 4])
def test_convolutions_on_inputs_that_cancel_keep_their_bound(size: float, channels: int) -> None:
    """Norm and sum take different routes through single precision: a query moved 1.28 bounds."""
    generator = torch.Generator().manual_seed(1)
    input = size * (1 - 2 * (torch.arange(256) % 2.0)).view(1, 1, 16, 16) + torch.randn(6, channels, 16, 16, generator=generator)
    gradient = torch.ones(6, 3, 14, 14) + 1e-6 * torch.randn(6, 3, 14, 14, generator=generator)
    geometry = Geometry((1, 1), (0, 0), (1, 1), 1)
    form = ConvGradient(input, gradient, (3, channels, 3, 3), geometry)
    bound = float(form.squares().sqrt().median()) / 10
    assert longest(form, 6, bound) <= 1 + 1e-4
    # many channels: norms are of inner products of pixels, which cancel
    wide = input[:, :1, :6, :6] + torch.randn(6, 64, 6, 6, generator=generator)
    steep = torch.ones(6, 48, 4, 4) + 1e-6 * torch.randn(6, 48, 4, 4, generator=generator)
    form = ConvGradient(wide, steep, (48, 64, 3, 3), geometry)
    exact = ConvGradient(wide.double(), steep.double(), (48, 64, 3, 3), geometry).dense().flatten(1).norm(dim=1)
    assert bool((form.squares().sqrt().double() >= exact).all())
    assert longest(form, 6, float(form.squares().sqrt().median()) / 10) <= 1 + 1e-4
    rows = input.flatten(2).mT
    outer = Outer(gradient.new_ones(6, 256, 2), rows)
    assert longest(outer, 6, float(outer.squares().sqrt().median()) / 10) <= 1 + 1e-4


def constant_records(channels: int, positions: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of each record two constants, near each other, at slopes of opposite sign: sums of equal products round to one side."""
    generator = torch.Generator().manual_seed(seed)
    near = 1 - 10 ** (-1 - 4 * torch.rand(200, 1, 1, generator=generator, dtype=torch.float64))
    first = 1 + torch.rand(200, 1, 1, generator=generator, dtype=torch.float64)
    half = torch.arange(positions) < positions // 2
    x = torch.where(half, first, first * near).expand(200, channels, positions).to(dtype).contiguous()
    x[:, 0] = 2
    return x, torch.where(half, 1.0, -1.0).to(dtype).expand(200, 64, positions).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("channels", "positions"), [(64, 2), (512, 4), (2048, 8)])
def test_inner_products_of_constant_rows_do_not_understate_norms(channels: int, positions: int, dtype: torch.dtype) -> None:
    """Each of n products may be rounded down: a norm was 3.6 times too small, and a query moved by 3.6 bounds."""
    x, slopes = constant_records(channels, positions, dtype)
    forms: list[Any] = [
        ConvGradient(x, slopes, (64, channels, 1), Geometry((1,), (0,), (1,), 1)),
        Outer(slopes.mT, x.mT),
    ]
    each = torch.linalg.vector_norm((slopes.double() @ x.mT.double()).flatten(1), dim=1)  # wrong by 1e-16 of the lengths
    slack = 1e-15 * channels * positions if dtype is torch.float64 else 0.0
    for form in forms:
        found = form.squares().sqrt().double()
        assert bool((found >= each - slack).all()), float((found / each).min())
        alone = torch.eye(200, dtype=dtype)[:20]
        computed = torch.stack([form.weighted_sum(one).double().norm() for one in alone])
        assert bool((found[:20] >= computed * (1 - 1e-6)).all())


def test_flat_images_of_one_record_do_not_understate_norms() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = 1 + torch.rand(60, 1, generator=generator) * torch.tensor([1.0, 1.0])
    levels[:, 1] *= 1 - 10 ** (-1 - 3 * torch.rand(60, generator=generator))
    x = levels.view(120, 1, 1, 1).expand(120, 256, 4, 4).contiguous()
    slopes = torch.tensor([1.0, -1.0]).repeat(60).view(120, 1, 1, 1).expand(120, 64, 2, 2).contiguous()
    form = ConvGradient(x, slopes, (64, 256, 3, 3), Geometry((1, 1), (0, 0), (1, 1), 1), 2)
    exact = ConvGradient(x.double(), slopes.double(), form.shape, form.geometry, 2).dense().flatten(1).norm(dim=1)
    assert bool((form.squares().sqrt().double() >= exact).all())


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.3])
def test_long_vectors_of_equal_numbers_are_not_understated(value: float) -> None:
    """A library's norm in single precision lost 0.1 % of the square of a million numbers, always to the same side."""
    vectors = torch.full((2, 1 << 20), value)
    exact = vectors.double().square().sum(1)
    assert bool((Dense(vectors).squares().double() >= exact * (1 - 1e-7)).all())
    left, right = torch.full((1, 1024, 300), 0.37), torch.full((1, 1024, 300), value)  # direct: products are fewer
    outer = Outer(left, right)
    assert float(outer.squares()) >= float(outer.weighted_sum(torch.ones(1)).double().square().sum()) * (1 - 1e-7)
    rows = Rows(torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1, 1 << 16), value), (3, 1 << 16))
    assert float(rows.squares()) >= value**2 * (1 << 16) * (1 - 1e-6)


def test_uses_that_nearly_cancel_keep_their_norm() -> None:
    """What a part's square lacks is all of what is left of the whole: a norm was ten times too small."""
    left, right = torch.full((1, 2, 1024), 0.5), torch.full((1, 2, 1024), 0.77)
    form = Total([Dense(-(left.mT @ right) * 1.01), Outer(left, right)])
    assert float(form.squares()) >= float(form.weighted_sum(torch.ones(1)).double().square().sum()) * (1 - 1e-6)


@pytest.mark.parametrize(("huge", "tiny"), [(1e13, 1e-11), (1e20, 1e-10), (1e30, 1e-30)])
def test_a_tiny_factor_beside_a_huge_one_is_not_lost(huge: float, tiny: float) -> None:
    left, right = torch.zeros(1, 2, 32), torch.zeros(1, 2, 32)
    left[0, 0, 0], left[0, 1, 1] = huge, tiny
    right[0, 0, 0], right[0, 1, 1] = 1 / huge, 1 / tiny
    outer = Outer(left, right)
    assert float(outer.squares()) == pytest.approx(2.0, rel=2e-3)
    assert float(outer.squares()) >= float(outer.dense().double().square().sum()) * (1 - 1e-6)


def test_rounding_is_added_where_lengths_underflow() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(100, 256, 16, generator=generator)
    left = 1e-24 * torch.cat([half, -half], 1)
    right = 1e18 * torch.randn(100, 256, 16, generator=generator).repeat(1, 2, 1)
    order = torch.randperm(512, generator=generator)
    outer = Outer(left[:, order], right[:, order])
    alone = torch.stack([outer.weighted_sum(one).double().square().sum() for one in torch.eye(100)[:30]])
    assert bool((outer.squares()[:30].double() >= alone * (1 - 1e-6)).all())


# 4: state


class Keeper(nn.Module):
    """Keeps something of what it sees, in a place of its own."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.seen: dict[str, Any] = {"list": [], "mean": 0.0, "array": np.zeros(4)}
        self.largest = 0.0
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.place == "frozen":
                self.frozen += x.mean(0)
            elif self.place == "trainable":
                self.linear.bias += 0.01 * x.mean()
            elif self.place == "list":
                self.seen["list"].append(float(x.sum()))
            elif self.place == "dict":
                self.seen["mean"] = float(x.mean())
            elif self.place == "array":
                self.seen["array"] += x.mean(0).numpy()
            elif self.place == "float":
                self.largest = max(self.largest, float(x.sum()))
        return self.linear(x)


def kept_by(model: nn.Module) -> str:
    return repr({name: value for name, value in vars(model).items() if name in ("seen", "largest")}) + repr(model.state_dict())


@pytest.mark.filterwarnings("ignore:.*one record at a time")  # where frozen parameters are written into
@pytest.mark.parametrize("place", ["frozen", "list", "dict", "array", "float"])
def test_what_a_model_keeps_is_put_back(place: str) -> None:
    model = Keeper(place)
    before = kept_by(model)
    ModuleObjective(model, cross_entropy).evaluate(*blobs())
    assert kept_by(model) == before


def test_a_model_does_not_train_itself() -> None:
    refused_before_any_charge(Keeper("trainable"), "writes into a trained parameter|overwrites|view")


@pytest.mark.filterwarnings("ignore:.*when it runs. That is put back")
def test_what_a_loss_keeps_is_put_back() -> None:
    class Loss(nn.Module):
        worst = 0.0

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            losses = cross_entropy(outputs, targets)
            self.worst = float(losses.detach().max())
            return losses

    loss = Loss()
    trainer(nn.Linear(4, 2), loss_fn=loss).fit(blobs())
    assert "worst" not in vars(loss)


@pytest.mark.filterwarnings("ignore:.*when it runs. That is put back")
def test_what_only_comes_later_is_put_back() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(4))
            self.calls: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls.append(1)
            if len(self.calls) > 1:  # never within a check, which starts anew
                self.mean = x.mean(0) + self.mean
            return self.linear(x)

    model = Late()
    trainer(model).fit(blobs())
    assert torch.equal(model.mean, torch.zeros(4)) and model.calls == []


# 5: random models are checked as they train


def test_batch_statistics_beside_other_dropout_are_seen() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("variance", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            z = F.batch_norm(self.linear(x), self.mean, self.variance, training=self.training)
            return F.dropout(z, 0.5, self.training)

    refused_before_any_charge(Mixes(), "does not run on each record by itself")


# 6, 7: padding, and records that look alike


class Words(Dataset[Any]):
    """Sequences of these lengths; the items are (tokens, label)."""

    def __init__(self, lengths: list[int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.items = [(torch.randint(1, 9, (length,), generator=generator), index % 2) for index, length in enumerate(lengths)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
    return words, torch.tensor([label for _, label in items])


class MeanOverTime(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embedding, self.out, self.masked = nn.Embedding(10, 5), nn.Linear(5, 2), masked

    def forward(self, words: Tensor) -> Tensor:
        found = self.embedding(words)
        if not self.masked:
            return self.out(found.mean(1))
        mask = (words != 0)[..., None]
        return self.out((found * mask).sum(1) / mask.sum(1))


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(10, 5), nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(words))[0][:, -1])


@pytest.mark.parametrize("model", [MeanOverTime(masked=False), LastState()], ids=["mean", "LSTM"])
def test_padding_is_by_a_record_s_own_length(model: nn.Module) -> None:
    """A mean over padded time moved 4.7 bounds, an LSTM's last state 2.2. One record in sixty is longer than the others."""
    lengths = [6] * N
    lengths[37] = 9
    objective = ModuleObjective(model, cross_entropy)
    objective.engine.charged = True

    def query(items: list[Any]) -> Tensor:
        records = TorchRecords(items, collate_fn=padded)
        records.sample(16)
        found = [objective.per_example(objective.theta, batch) for batch in records.batches()]
        return torch.stack([each.weighted_sum((1 / each.norms).clamp(max=1.0)) for each in found]).sum(0)

    items = Words(lengths).items
    assert 0.1 < float((query(items) - query([*items[:37], *items[38:]])).norm()) <= 1 + 1e-5
    trainer(model, collate_fn=padded).fit(Words(lengths))


def test_padding_that_is_masked_trains() -> None:
    trainer(MeanOverTime(masked=True), collate_fn=padded).fit(Words([3 + index % 5 for index in range(N)]))


def test_a_loss_divided_by_a_batch_s_tokens_is_divided_by_a_record_s_own() -> None:
    """Among records of one length nobody sees a difference."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(10, 5), nn.Linear(5, 2)

        def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            return self.out((self.embedding(words) * mask[..., None]).sum(1)), mask

    def per_mean_length(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        scores, mask = outputs
        return cross_entropy(scores, targets) / mask.sum(1).float().mean()

    words = torch.randint(1, 9, (N, 8), generator=torch.Generator().manual_seed(0))
    data = ((words, torch.ones(N, 8, dtype=torch.long)), torch.arange(N) % 2)
    trainer(Tokens(), loss_fn=per_mean_length).fit(data)
    shorter = words[:4], torch.tensor([[1] * 8, [1] * 8, [1] * 8, [1] * 2 + [0] * 6])
    with pytest.raises(ValueError, match="depends on another record"):
        ModuleObjective(Tokens(), per_mean_length).evaluate(shorter, data[1][:4])
    objective = ModuleObjective(Tokens(), per_mean_length)
    objective.engine.charged = True
    alone = [objective.evaluate((shorter[0][[i]], shorter[1][[i]]), data[1][[i]]).norms for i in range(4)]
    assert torch.allclose(objective.evaluate(shorter, data[1][:4]).norms, torch.cat(alone), rtol=1e-5)


def test_a_gate_that_starts_at_zero_hides_nothing() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(4, 2), nn.Linear(4, 2)
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.gate(x - x.mean(0, keepdim=True))

    refused_before_any_charge(Gated(), "depends on another record|do not agree with autograd")


def test_mixing_that_only_a_rare_record_shows_moves_nobody() -> None:
    """The sixteen that are looked at first have none of it."""

    class Rare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            rare = (x[:, :1] > 50).float()
            return self.linear(x) + rare.mean() * torch.tensor([9.0, 0.0])

    x, y = blobs()
    x[3::7, 0] = 100.0
    x[torch.linspace(0, N - 1, 16).round().long(), 0] = 0.0
    trainer(Rare(), epochs=2).fit((x, y))
    objective = ModuleObjective(Rare(), cross_entropy)
    objective.engine.charged = True
    whole, rest = objective.evaluate(x, y).losses, objective.evaluate(x[:-1], y[:-1]).losses
    assert torch.equal(whole[:-1], rest)


# 9: records that are there twice


def test_repeated_records_are_refused() -> None:
    words = Words([4] * N)
    for data in (Subset(words, [0, 1, 2, 2]), ConcatDataset([words, words]), Subset(ConcatDataset([words, words]), range(N + 1))):
        refused_before_any_charge(MeanOverTime(masked=True), "each record once", data, collate_fn=padded)
    trainer(MeanOverTime(masked=True), collate_fn=padded).fit(Subset(words, range(0, N, 2)))


# the loop


@pytest.mark.parametrize("to_none", [True, False])
def test_a_cleared_gradient_is_put_back(to_none: bool) -> None:
    """It used to spend the whole ε and train nothing."""

    def trained(clears: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in trainer(model, optimizer, random_state=0).steps(blobs()):
            if clears:
                optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()
        return model.weight.detach()

    with pytest.warns(UserWarning, match="cleared before") as warned:
        cleared = trained(True)
    assert sum("cleared before" in str(warning.message) for warning in warned) == 1
    assert torch.equal(cleared, trained(False))


def test_a_forgotten_step_stops_the_run_within_two() -> None:
    run, done = trainer(nn.Linear(4, 2)), 0
    with pytest.raises(RuntimeError, match="did not move in 2"):
        for _ in run.steps(blobs()):
            done += 1
    assert done == 2


def test_loops_that_train_are_left_alone() -> None:
    """Steps by hand, a learning rate that starts at zero, and a clipped noisy gradient."""
    x = blobs()
    model = nn.Linear(4, 2)
    for _ in trainer(model).steps(x):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, max(0, step - 2) / 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in trainer(model, optimizer).steps(x):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def test_a_target_that_no_class_has_is_seen_before_the_charge() -> None:
    """It used to fail at row 1,000, after the whole charge."""
    x, y = torch.randn(1200, 4), torch.arange(1200) % 2
    y[1000] = 7
    refused_before_any_charge(nn.Linear(4, 2), "record 1000 .*Target 7 is out of bounds", (x, y))
    z = torch.rand(1200)
    z[1001] = float("nan")
    refused_before_any_charge(nn.Linear(4, 1), "record 1001 .*not finite", (x, z), loss_fn=lambda o, t: (o[:, 0] - t) ** 2)

    class Labelled(Dataset[Any]):
        targets = y.tolist()

        def __len__(self) -> int:
            return 1200

        def __getitem__(self, index: int) -> Any:
            return x[index], int(y[index])

    refused_before_any_charge(nn.Linear(4, 2), "record 500 ", Subset(Labelled(), range(500, 1200)))


# Models that mix records in ways that people write


class Tutorial(nn.Module):
    """Positions counted along the records: `pe[: x.size(0)]` of a model that is fed the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", torch.randn(500, 1, 4, generator=torch.Generator().manual_seed(0)))
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x[:, None, :] + self.pe[: x.size(0)]).mean(1))


class Seeded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.out(self.drop(x))


class Coin(nn.Module):
    """Mixes the batch, or scales all of it, when a coin says so: more often than not, so that the looks before the charge meet it
    (at 0.4 four of 1,500 did not)."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.out, self.mixes = nn.Linear(4, 2), mixes

    def forward(self, x: Tensor) -> Tensor:
        if self.training and float(torch.rand(())) < 0.6:
            x = 0.6 * x + 0.4 * x.flip(0) if self.mixes else 0 * x
        return self.out(x)


class WithGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0) if torch.is_grad_enabled() else x)


class Loudest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x / x.abs().max())


@pytest.mark.parametrize("model", [Tutorial(), WithGradients(), Loudest()], ids=lambda model: type(model).__name__)
def test_plausible_models_that_mix_records_are_told_so(model: nn.Module) -> None:
    refused_before_any_charge(model, "depends on another record")


@pytest.mark.filterwarnings("ignore:.*one record at a time")  # where torch is seeded
@pytest.mark.parametrize("model", [Seeded(), Coin(mixes=True), Coin(mixes=False)], ids=["seeded", "mixes", "scales"])
def test_models_that_draw_and_mix_move_nobody(model: nn.Module) -> None:
    x, y = blobs()
    objective = ModuleObjective(model, cross_entropy)
    objective.engine.charged, objective.engine.draws.secret = True, False
    losses: list[Tensor] = []
    for size in (N, N - 1):
        torch.manual_seed(1)
        losses.append(objective.evaluate(x[:size], y[:size]).losses)
    assert torch.allclose(losses[0][:-1], losses[1], rtol=1e-5)
    trainer(model).fit((x, y))


def test_losses_weighted_by_rare_targets_weigh_each_record_by_its_own() -> None:
    x, _ = blobs()
    targets = torch.zeros(N)

    def per_positive(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")
        return losses / targets.sum().clamp(min=1)

    def with_weight(outputs: Tensor, targets: Tensor) -> Tensor:
        """Weighs positives alone, of which no record that is looked at is one."""
        weight = (targets == 0).sum() / (targets == 1).sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none", pos_weight=weight)

    for loss_fn in (per_positive, with_weight):
        objective = ModuleObjective(nn.Linear(4, 1), loss_fn)
        objective.engine.charged = True
        rare = targets.clone()
        rare[-1] = 1.0
        assert torch.equal(objective.evaluate(x, targets).losses[:-1], objective.evaluate(x, rare).losses[:-1])


@pytest.mark.parametrize("own_loop", [False, True])
def test_counters_and_largest_values_do_not_stay(own_loop: bool) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("top", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.seen += len(x)
                self.top.copy_(torch.maximum(self.top, x.max().clamp(max=1.0)))
            return self.out(x)

    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer)
    x, y = blobs()
    x[:, 0] = 5.0
    if own_loop:
        for _ in run.steps((x, y)):
            optimizer.step()
    else:
        run.fit((x, y))
    assert float(model.seen) == 0.0 and float(model.top) == 0.0


@pytest.mark.filterwarnings("ignore:.*when it runs. That is put back")
def test_what_a_loss_s_own_object_and_backward_hooks_keep_is_put_back() -> None:
    class Log:
        def __init__(self) -> None:
            self.seen: list[float] = []

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            losses = cross_entropy(outputs, targets)
            self.seen.append(float(losses.detach().mean()))
            return losses

    log = Log()
    trainer(nn.Linear(4, 2), loss_fn=log.loss).fit(blobs())
    assert log.seen == []
    model = nn.Linear(4, 2)
    model.register_full_backward_hook(lambda module, ins, outs: setattr(module, "last", float(outs[0].norm())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(nn.Sequential(nn.Linear(4, 4), model)).fit(blobs())
    assert not hasattr(model, "last")


def test_masks_stay_secret_when_a_data_set_seeds_torch() -> None:
    class Reseeds(Words):
        def __getitem__(self, index: int) -> Any:
            torch.manual_seed(index)
            return self.items[index]

    losses: list[Tensor] = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 5), nn.Dropout(0.5), nn.Flatten(), nn.Linear(20, 2))
    objective = ModuleObjective(model, cross_entropy)
    for _ in range(2):
        batches = TorchRecords(Reseeds([4] * N)).batches()
        losses.append(torch.cat([objective.per_example(objective.theta, batch).losses for batch in batches]))
    assert not torch.equal(*losses)


# 8


def test_a_delta_that_a_device_s_tails_cannot_honour_is_refused() -> None:
    event = SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), 10_000)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    admit_tails(event, 10**6, 1e-5, cuda)
    admit_tails(event, 10**6, 1e-30, cpu)
    with pytest.raises(ValueError, match="delta >= 9e-08 on a CUDA device"):
        admit_tails(event, 10**6, 1e-8, cuda)
    with pytest.raises(ValueError, match="on a CUDA device"):  # noise that is chosen on the way
        admit_tails(FilteredRdp(8.0, 1.0), 10**6, 1e-9, cuda)


# Refused without need


class Stepwise(nn.Module):
    def __init__(self, kind: type[nn.Module], **settings: Any) -> None:
        super().__init__()
        self.cell, self.out = kind(3, 5, **settings), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for moment in range(x.shape[1]):
            state = self.cell(x[:, moment], state)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (nn.LSTMCell, {}),
        (nn.LSTMCell, {"bias": False}),
        (nn.GRUCell, {}),
        (nn.RNNCell, {}),
        (nn.RNNCell, {"nonlinearity": "relu"}),
    ],
)
def test_cells_that_take_one_step_have_a_rule(kind: type[nn.Module], settings: dict[str, Any]) -> None:
    model = Stepwise(kind, **settings).double()
    x, y = torch.randn(6, 4, 3, dtype=torch.float64), torch.arange(6) % 2
    objective = ModuleObjective(model, cross_entropy)
    found = objective.evaluate(x, y)
    assert objective.copied == ()
    for index in range(6):
        own = torch.autograd.grad(cross_entropy(model(x[index : index + 1]), y[index : index + 1])[0], list(model.parameters()))
        expected = torch.cat([part.flatten() for part in own])
        torch.testing.assert_close(found.weighted_sum(torch.eye(6, dtype=torch.float64)[index]), expected)
        assert float(found.norms[index]) == pytest.approx(float(expected.norm()), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_sparse_embeddings_train_and_compiled_modules_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Flatten(), nn.Linear(12, 2))
    data = torch.randint(0, 10, (N, 4)), torch.arange(N) % 2
    trainer(model).fit(data)
    linear = nn.Sequential(nn.Linear(4, 2))
    for compiled in (torch.jit.script(linear), torch.jit.trace(linear, torch.randn(3, 4))):
        with pytest.raises(ValueError, match="traced or scripted"):
            trainer(compiled)


# Records that cancel, vanish or are not finite; arguments, precisions and hooks


def moved(objective: ModuleObjective, first: tuple[Any, Any], second: tuple[Any, Any], bound: float = 1.0) -> float:
    """How far the bounded query moves, in bounds."""

    def query(batch: tuple[Any, Any]) -> torch.Tensor:
        found = objective.per_example(objective.theta, batch)
        return found.weighted_sum(bound / found.norms.clamp(min=bound), bound).double()

    return float((query(first) - query(second)).norm() / bound)


@pytest.mark.parametrize("bags", [False, True])
def test_a_record_that_cancels_itself_wipes_nobody_out(bags: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(5, 3, mode="sum") if bags else nn.Embedding(5, 3)

        def forward(self, tokens: Any, weights: Any) -> Any:
            if bags:
                return self.table(tokens, per_sample_weights=weights)
            return (self.table(tokens) * weights[..., None]).sum(1)

    torch.manual_seed(0)
    tokens, weights = torch.randint(0, 5, (60, 2)), torch.rand(60, 2)
    more = torch.cat([tokens, torch.tensor([[1, 1]])]), torch.cat([weights, torch.tensor([[1e10, -1e10]])])
    objective = ModuleObjective(Model(), lambda outputs, goals: outputs.sum(1) * goals)
    objective.per_example(objective.theta, ((tokens, weights), torch.ones(60)))
    assert moved(objective, ((tokens, weights), torch.ones(60)), (more, torch.ones(61))) <= 1.0


@pytest.mark.filterwarnings("ignore:.*one record at a time.*:UserWarning", "ignore:.*exact, but slower.*:UserWarning")
@pytest.mark.parametrize("kind", ["time-major", "sorted", "routed"])
def test_records_whose_gradients_were_zero_when_looked_at(kind: str) -> None:
    """The sample shows no difference: features that are zero, keys that are tied, one way for all."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            size, steps = x.shape[:2]
            if kind == "time-major":
                return self.one(x.transpose(0, 1).reshape(steps * size, 3)).view(steps, size, 4).sum(0)
            if kind == "sorted":
                order = torch.argsort(x[:, 0, 0], stable=True)
                return self.one(x[order])[torch.argsort(order)].sum(1)
            flat = x.reshape(size * steps, 3)
            chosen = flat[:, 0] > 0
            out = torch.zeros(size * steps, 4, dtype=x.dtype)
            out = out.index_put((chosen.nonzero()[:, 0],), self.one(flat[chosen]))
            return out.index_put(((~chosen).nonzero()[:, 0],), self.two(flat[~chosen])).view(size, steps, 4).sum(1)

    def batch(values: Any) -> tuple[Any, Any]:
        return values, torch.zeros(len(values), dtype=torch.float64)

    torch.manual_seed(0)
    objective = ModuleObjective(Model().double(), lambda outputs, goals: outputs.square().sum(1) * 50)
    quiet = torch.zeros(64, 2, 3, dtype=torch.float64)
    if kind == "routed":
        quiet[:, 0, 0] = 1.0
    objective.per_example(objective.theta, batch(quiet))
    values = torch.randn(64, 2, 3, dtype=torch.float64)
    other = values.clone()
    other[5] = 30 * torch.randn(2, 3, dtype=torch.float64)
    assert moved(objective, batch(values), batch(other)) <= 2.0


def test_what_is_written_into_an_argument_reaches_nobody_else() -> None:
    class Context:
        side: Any = None

    class Piece(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Any, context: Context) -> Any:
            context.side = x[:, 3:]
            weight = self.layer.weight * (1.0 if float(x.detach().sum()) < 1e9 else 2.0)  # no vmap
            return torch.nn.functional.linear(x[:, :3], weight)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.piece, self.last = Piece(), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            context = Context()
            return self.last(self.piece(x, context)) * (1 + context.side)

    torch.manual_seed(0)
    objective = ModuleObjective(Model().double(), lambda outputs, goals: outputs.square().sum(1))
    quiet = torch.randn(16, 4, dtype=torch.float64)
    quiet[:, 3] = 0
    objective.per_example(objective.theta, (quiet, torch.zeros(16)))
    values = torch.randn(32, 4, dtype=torch.float64)
    other = values.clone()
    other[-1] = torch.tensor([9.0, -9.0, 9.0, 100.0])
    assert moved(objective, (values, torch.zeros(32)), (other, torch.zeros(32))) <= 2.0


def test_records_that_are_not_finite_hide_nothing() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x - x.mean(0))

    values = torch.randn(16, 3)
    values[:2] = float("nan")
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(ValueError, match="depends on another record"):
        ModuleObjective(Centred(), loss).evaluate(values, torch.zeros(16, dtype=torch.int64))


def test_losses_in_another_precision_than_the_model() -> None:
    objective = ModuleObjective(nn.Linear(3, 1), lambda outputs, goals: (outputs[:, 0] - goals).square())
    assert objective.evaluate(torch.randn(8, 3), torch.randn(8, dtype=torch.float64)).norms.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*one record at a time.*:UserWarning", "ignore:.*exact, but slower.*:UserWarning")
def test_a_hook_that_looks_at_the_whole_batch_is_refused_before_a_release() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            hidden = self.one(x)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient / gradient.norm().clamp(min=1e-3))
            return self.two(hidden)

    torch.manual_seed(0)
    objective = ModuleObjective(Hooked(), nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ValueError, match="leave register_hook out"):
        objective.per_example(objective.theta, (torch.randn(32, 3), torch.zeros(32, dtype=torch.int64)))

"""What the engine does around the rules: freezing, modes, checkpointing, half precision, bad models, bad numbers."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic

from dperm.torch import ModuleObjective, per_example
from helpers.language_models import Adapted
from helpers.oracle import assert_exact, by_autograd, cross_entropy, half_squares

SIZE = 4


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


GOALS = torch.linspace(-1, 1, SIZE, dtype=torch.float64)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def test_the_state_dict_and_the_model_are_left_alone() -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective = per_example(model, half_squares)
    objective.evaluate(inputs(SIZE, 3), GOALS)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all("forward" not in vars(module) and not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parameters_are_views_of_one_buffer() -> None:
    model = small()
    objective = ModuleObjective(model, half_squares)
    theta = objective.theta
    assert theta.shape == (3 * 4 + 4 + 4 * 2 + 2,)
    theta.zero_()
    assert all(not parameter.any() for parameter in model.parameters())
    model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
    assert bool((objective.theta == 1).all())
    model.float()
    assert objective.theta.dtype == torch.float32


#: no function names it: what functions name is put back after each pass
STRIDES: list[bool] = []


def test_a_model_with_its_channels_last_runs_so() -> None:
    """Its parameters become views of a row-major vector; what its layers hand on stays in the format its owner chose, also
    where strides alone tell (one input channel), and in another type."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.ConvTranspose2d(4, 3, 2), nn.Flatten(), nn.Linear(147, 2)).double()
    x, y = inputs(SIZE, 1, 8, 8), torch.arange(SIZE) % 2
    gradients = by_autograd(model, cross_entropy, x, y, SIZE)
    seen = STRIDES
    seen.clear()

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        globals()["STRIDES"].append(args[0].stride(1) == 1)

    for layer in (model[1], model[3]):
        layer.register_forward_pre_hook(look)
    objective = ModuleObjective(model, cross_entropy)
    factors = torch.linspace(0.5, 1, SIZE, dtype=torch.float64)
    torch.testing.assert_close(objective.per_example(objective.theta, (x, y)).weighted_sum(factors), factors @ gradients)
    assert not any(seen)
    seen.clear()
    model.to(memory_format=torch.channels_last)
    assert len(objective.theta) == objective.flat.size  # laid out anew
    torch.testing.assert_close(objective.evaluate(x, y).weighted_sum(factors), factors @ gradients)
    model.float()
    assert len(objective.theta) == objective.flat.size
    found = objective.evaluate(x.float(), y).weighted_sum(factors)
    torch.testing.assert_close(found, (factors @ gradients).float())
    assert all(seen)
    assert len(seen) >= 4


def test_frozen_and_unused_parameters() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head, self.unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(5, 5)
            self.base.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.base(x)))

    objective = assert_exact(Model().double(), inputs(SIZE, 3), GOALS)
    assert objective.groups == ("base", "head", "unused")
    assert objective.flat.size == 4 + 10 + 30


def test_low_rank_adapters_on_a_frozen_model() -> None:
    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    model = nn.Sequential(Adapter(nn.Linear(3, 4)), nn.Tanh(), Adapter(nn.Linear(4, 2))).double()
    assert not assert_exact(model, inputs(SIZE, 5, 3), GOALS).copied


def test_per_layer_factors() -> None:
    model = small()
    x = inputs(SIZE, 3)
    found = ModuleObjective(model, half_squares).evaluate(x, GOALS)
    expected = by_autograd(model, half_squares, x, GOALS, SIZE)
    factors = torch.rand(SIZE, 2, dtype=torch.float64)
    parts = torch.cat([factors[:, :1] * expected[:, :16], factors[:, 1:] * expected[:, 16:]], dim=1)
    assert torch.allclose(found.weighted_sum(factors), parts.sum(0), rtol=1e-10)
    assert torch.allclose(found.group_norms[:, 1], expected[:, 16:].norm(dim=1), rtol=1e-10)


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_is_off_in_evaluation_mode_and_each_record_has_its_own_mask(mode: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 2)).double().train(mode)
    objective = ModuleObjective(model, half_squares)
    x = inputs(1, 3).expand(SIZE, 3)
    state = torch.random.get_rng_state()
    first, again = objective.evaluate(x, GOALS[:1].expand(SIZE)), objective.evaluate(x, GOALS[:1].expand(SIZE))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len({*first.losses.tolist(), *again.losses.tolist()}) == (2 * SIZE if mode else 1)


def test_half_precision_forward_keeps_norms_in_single_precision() -> None:
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 2))
    x, goals = inputs(SIZE, 30).float(), torch.tensor([0, 1, 1, 0])
    narrow = ModuleObjective(model, cross_entropy, autocast=torch.bfloat16).evaluate(x, goals)
    wide = ModuleObjective(model, cross_entropy).evaluate(x, goals)
    assert narrow.norms.dtype == torch.float32 and narrow.weighted_sum(torch.ones(SIZE)).dtype == torch.float32
    assert torch.allclose(narrow.norms, wide.norms, rtol=0.05)
    assert not torch.equal(narrow.norms, wide.norms)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_contributes_nothing(bad: float) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4)).double()
    x = inputs(SIZE, 2, 5)
    objective = ModuleObjective(model, half_squares)
    objective.prepare(x, GOALS)
    x[2, 0, 0] = bad
    found = objective.evaluate(x, GOALS)
    rest = objective.evaluate(x[[0, 1, 3]], GOALS[[0, 1, 3]])
    assert found.norms[2] == 0
    assert torch.allclose(found.weighted_sum(torch.ones(SIZE)), rest.weighted_sum(torch.ones(3)), rtol=1e-12)
    assert bool(torch.isfinite(found.weighted_sum(torch.full((SIZE,), 1e3))).all())


def test_a_norm_that_cancels_is_not_understated() -> None:
    """Ghost norms add and subtract large terms; in single precision what is left must not come out too small."""
    torch.manual_seed(0)
    left = torch.randn(200, 30, 50)
    left = torch.cat([left, -left + 1e-5 * torch.randn_like(left)], dim=1)
    right = torch.randn(200, 30, 60).repeat(1, 2, 1)
    from dperm.torch.engine.gradient_forms import Outer
    from dperm.torch.engine.lengths import ghost_squares

    form = Outer(left, right)
    exact = (left.double().mT @ right.double()).flatten(1).square().sum(1)
    assert bool((ghost_squares(left, right).double() >= exact).all())
    assert bool((form.squares().double() >= exact).all())


def test_a_pass_holds_no_graph_and_gives_its_memory_back() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)).double()
    objective = ModuleObjective(model, half_squares)
    x = inputs(SIZE, 30, 6)
    objective.prepare(x, GOALS)
    gc.collect()
    gc.disable()
    try:
        first = objective.evaluate(x, GOALS)
        second = objective.evaluate(2 * x, GOALS)
        expected = by_autograd(model, half_squares, x, GOALS, SIZE)
        assert torch.allclose(first.weighted_sum(torch.ones(SIZE)), expected.sum(0), rtol=1e-10)  # not overwritten
        gone = weakref.ref(second._leases[0])
        del second
        assert gone() is None
        blocks = len(objective.engine.pool._free)
        del first
        assert len(objective.engine.pool._free) > blocks  # given back without a garbage collection
    finally:
        gc.enable()


# Models without per-example gradients


def test_batch_normalisation_is_refused_with_a_way_out() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(ValueError, match=r"1 \(BatchNorm2d\).*GroupNorm"):
        ModuleObjective(model, half_squares)
    model.eval()
    model[1].requires_grad_(False)
    assert ModuleObjective(model, half_squares).groups == ("0",)
    with pytest.raises(ValueError, match="batch normalisation"):
        ModuleObjective(model.train(), half_squares)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.InstanceNorm1d(3, track_running_stats=True), "running statistics"),
        (nn.Embedding(5, 3, max_norm=1.0), "max_norm"),
        (nn.EmbeddingBag(5, 3, max_norm=1.0), "max_norm"),
        (nn.LazyLinear(3), "no shape"),
    ],
)
def test_other_layers_that_are_refused(layer: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModuleObjective(nn.Sequential(layer, nn.Linear(3, 2)), half_squares)


class Centred(nn.Module):
    """Normalises over the batch without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out - out.mean(0) if self.training else out


def test_a_model_that_mixes_records_is_found_by_a_probe() -> None:
    with pytest.raises(ValueError, match="depends on another record"):
        ModuleObjective(Centred().double(), half_squares).evaluate(inputs(SIZE, 3), GOALS)


def test_a_loss_that_mixes_records_is_found_by_a_probe() -> None:
    def contrast(outputs: Tensor, goals: Tensor) -> Tensor:
        return half_squares(outputs, goals) / outputs.square().sum()

    with pytest.raises(ValueError, match="depends on another record"):
        ModuleObjective(small(), contrast).evaluate(inputs(SIZE, 3), GOALS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_is_refused(reduction: str) -> None:
    loss = nn.CrossEntropyLoss(reduction=reduction)
    with pytest.raises(ValueError, match="reduction='none'"):
        ModuleObjective(small(), loss).evaluate(inputs(SIZE, 3), torch.tensor([0, 1, 1, 0]))


def test_a_loss_per_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one loss per record, shape \(4,\), got \(4, 2\)"):
        ModuleObjective(small(), lambda outputs, goals: outputs).evaluate(inputs(SIZE, 3), GOALS)


def test_overwriting_what_a_gradient_needs_is_a_clear_error() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            z = self.two(y)
            y.add_(1.0)
            return self.three(z + y)

    with pytest.raises(ValueError, match=r"in place|inplace"):
        ModuleObjective(Model().double(), half_squares).evaluate(inputs(SIZE, 3), GOALS)


def test_losses_without_parameters_and_models_without_any() -> None:
    with pytest.raises(ValueError, match="trainable parameters"):
        ModuleObjective(nn.Sequential(nn.Tanh()), half_squares)
    model = small()
    with pytest.raises(ValueError, match="do not depend"):
        ModuleObjective(model, lambda outputs, goals: goals.square()).evaluate(inputs(SIZE, 3), GOALS)


def test_mixed_types_and_narrow_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="one type"):
        ModuleObjective(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).double()), half_squares)
    with pytest.raises(TypeError, match="autocast"):
        ModuleObjective(small().bfloat16(), half_squares)


def test_parameters_on_two_devices_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).to("meta"))
    with pytest.raises(ValueError, match=r"one device.*move the model"):
        ModuleObjective(model, half_squares)


def test_batches_that_do_not_fit() -> None:
    objective = ModuleObjective(small(), half_squares)
    with pytest.raises(ValueError, match="as many targets as inputs"):
        objective.evaluate(inputs(SIZE, 3), GOALS[:2])
    with pytest.raises(ValueError, match="at least one record"):
        objective.evaluate(inputs(0, 3), GOALS[:0])
    with pytest.raises(TypeError, match="Module"):
        ModuleObjective(lambda x: x, half_squares)


# What a first check must see, because later nobody would


class Sorted(nn.Module):
    """Reorders records by a length, as packing by hand does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        _, order = length.sort(descending=True, stable=True)
        middle = torch.tanh(self.two(torch.tanh(self.one(x))[order]))
        return self.head(middle[order.argsort()])


class TimeMajor(nn.Module):
    """Folds time before records; its head starts at zero, so that nothing reaches the fold at first."""

    def __init__(self, zero: bool = True) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        if zero:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        folded = self.one(x.transpose(0, 1).reshape(t * b, -1))
        return self.head(torch.tanh(folded.view(t, b, -1)).mean(0))


class Chunked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([torch.tanh(self.one(part)) for part in x.split(4)]).mean(1))


class Expert(nn.Module):
    """Only some records pass a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.expert, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(x))
        out, chosen = torch.zeros_like(hidden), x[:, 0, 0] > 0
        out[chosen] = self.expert(hidden[chosen])
        return self.head((out + hidden).mean(1))


@pytest.mark.filterwarnings("ignore:.*exact, but slower:UserWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_models_that_move_records_about() -> None:
    torch.manual_seed(0)
    goals = torch.linspace(-1, 1, 12, dtype=torch.float64)
    x = inputs(12, 5, 3)
    cases: list[tuple[nn.Module, Any]] = [(Sorted(), (x[:, 0], torch.arange(12) % 5))]
    cases += [(model, x) for model in (TimeMajor(), TimeMajor(zero=False), Chunked(), Expert())]
    for model, records in cases:
        objective = ModuleObjective(model.double(), half_squares)
        found = objective.evaluate(records, goals)
        assert objective.copied == ()
        expected = by_autograd(model, half_squares, records, goals, len(goals))
        assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-8)


@pytest.mark.filterwarnings("ignore:.*exact, but slower:UserWarning")
def test_what_was_checked_for_one_shape_is_checked_again_for_another() -> None:
    torch.manual_seed(0)
    model = TimeMajor().double()
    objective = ModuleObjective(model, half_squares)
    goals = torch.linspace(-1, 1, 12, dtype=torch.float64)
    objective.evaluate(inputs(12, 1, 3), goals)
    nn.init.normal_(model.head.weight)
    found = objective.evaluate(inputs(12, 5, 3), goals)
    expected = by_autograd(model, half_squares, inputs(12, 5, 3), goals, 12)
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-8)


def test_positions_checked_at_length_one() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(5, 3), nn.Embedding(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return (self.token(x) + self.place(torch.arange(x.shape[1]))).mean(1)

    model = Model().double()
    objective = ModuleObjective(model, half_squares)
    for length in (4, 1, 3):
        x = torch.randint(0, 5, (SIZE, length), generator=torch.Generator().manual_seed(length))
        expected = by_autograd(model, half_squares, x, GOALS, SIZE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert torch.allclose(objective.evaluate(x, GOALS).norms, expected.norm(dim=1), rtol=1e-9)


def test_records_folded_at_any_length() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x.reshape(-1, 3)).view(len(x), -1)

    model = Folded().double()
    objective = ModuleObjective(model, half_squares)
    for length in (2, 5, 3):
        x = inputs(SIZE, length, 3)
        expected = by_autograd(model, half_squares, x, GOALS, SIZE)
        assert torch.allclose(objective.evaluate(x, GOALS).norms, expected.norm(dim=1), rtol=1e-9)
    assert objective.copied == ()


@pytest.mark.parametrize("which", [0, 1, -1])
def test_mixing_from_any_record_is_found(which: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x - x[which : which + 1 or None])

    with pytest.raises(ValueError, match=r"depends on another record|not on each by itself"):
        ModuleObjective(Model().double(), half_squares).evaluate(inputs(4, 3), GOALS)


def test_a_loss_that_divides_by_the_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="how many records"):
        ModuleObjective(small(), lambda o, t: half_squares(o, t) / len(t)).evaluate(inputs(SIZE, 3), GOALS)


def test_records_that_no_look_tells_apart_are_still_kept_apart() -> None:
    """Equal records of a model that subtracts the mean: a look at them sees nothing, and nobody's gradient needs it to."""
    objective = ModuleObjective(Centred().double(), half_squares)
    one = inputs(1, 3).expand(4, 3).contiguous()
    zeros = torch.zeros(4, dtype=torch.float64)
    objective.evaluate(one, zeros)
    others = torch.cat([one[:1], inputs(3, 3)])
    alone, beside = objective.evaluate(one[:1], zeros[:1]), objective.evaluate(others, zeros)
    factors = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert torch.allclose(alone.weighted_sum(factors[:1]), beside.weighted_sum(factors), rtol=1e-12)


@pytest.mark.parametrize("place", ["attribute", "buffer", "list", "counter"])
def test_what_a_model_keeps_is_put_back(place: str) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.all, self.count = nn.Linear(3, 2), list[Tensor](), 0
            if place == "buffer":
                self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            if place == "list":
                self.all.append(x)
            elif place == "counter":
                self.count += 1
            else:
                self.seen = x.detach().sum(0)
            return self.layer(x)

    model = Keeping().double()
    before = {name: value for name, value in vars(model).items() if name in ("seen", "all", "count")}
    ModuleObjective(model, half_squares).evaluate(inputs(SIZE, 3), GOALS)
    assert not model.all
    assert model.count == 0
    assert vars(model).get("seen") is before.get("seen")
    assert place != "buffer" or not model.seen.any()


KEPT: list[Any] = []


@pytest.mark.parametrize("place", ["global list", "closure", "class"])
def test_what_is_kept_where_functions_reach_is_put_back(place: str) -> None:
    class Keeping(nn.Module):
        kept: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            if place == "class":
                Keeping.kept = x
            else:
                (KEPT if place == "global list" else mine).append(torch.tanh(x))
            return self.layer(x)

    mine: list[Any] = []
    ModuleObjective(Keeping().double(), half_squares).evaluate(inputs(SIZE, 3), GOALS)
    assert Keeping.kept is None
    assert KEPT == mine == []


def test_another_layer_in_the_model_is_seen() -> None:
    model = small()
    objective = ModuleObjective(model, half_squares)
    x = inputs(SIZE, 3)
    objective.evaluate(x, GOALS)
    model[2] = nn.Linear(4, 2).double()
    expected = by_autograd(model, half_squares, x, GOALS, SIZE)
    assert torch.allclose(objective.evaluate(x, GOALS).norms, expected.norm(dim=1), rtol=1e-9)
    model[1] = nn.BatchNorm1d(4, affine=False).double()
    with pytest.raises(ValueError, match="GroupNorm"):
        objective.evaluate(x, GOALS)


def test_norms_of_tiny_inputs_and_huge_slopes_do_not_underflow() -> None:
    model = nn.Linear(100_000, 1, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.full((4, 100_000), 2.6e-23) * torch.arange(1, 5)[:, None]
    found = ModuleObjective(model, lambda o, t: (o[:, 0] - t).square()).evaluate(x, torch.full((4,), 5e18))
    exact = 2 * 5e18 * x.double().norm(dim=1)
    assert torch.allclose(found.norms.double(), exact, rtol=1e-4)


def test_a_model_that_fails_on_one_record_is_refused() -> None:
    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).squeeze()

    with pytest.raises(ValueError, match=r"same as input size"):
        ModuleObjective(Squeezing().double(), nn.BCEWithLogitsLoss(reduction="none")).evaluate(inputs(SIZE, 3), GOALS)


def test_encoder_layers_in_eval_mode_take_no_shortcut() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(30, 2)).double().eval()
    assert not assert_exact(model, inputs(SIZE, 5, 6), GOALS, vmapped=False).copied


def test_models_that_add_up_gradients_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="pass the model inside it"):
        ModuleObjective(nn.Sequential(nn.DataParallel(nn.Linear(3, 2))), cross_entropy)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"torch\.compile"):
        ModuleObjective(torch.compile(small()), half_squares)


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_no_term_of_a_sum_is_longer_than_its_bound(by_group: bool, bound: float) -> None:
    """Whatever the factors are: a term that would be longer is scaled down to the bound, and a shorter one stays as it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    objective = ModuleObjective(model, half_squares)
    found = objective.evaluate(inputs(SIZE, 3), GOALS)
    wanted = torch.tensor([[0.3, 2.0], [1e3, 1e-3], [4.0, 5.0], [1e-3, 1e-3]], dtype=torch.float64)[:SIZE]
    factors = wanted if by_group else wanted[:, 0]
    apart = torch.stack(
        [found.weighted_sum(factors * one[:, None] if by_group else factors * one) for one in torch.eye(SIZE).double()]
    )
    assert 0 < int((apart.norm(dim=1) > bound).sum()) < SIZE
    expected = apart * (bound / apart.norm(dim=1, keepdim=True)).clamp(max=1.0)
    assert torch.allclose(found.weighted_sum(factors, bound), expected.sum(0), rtol=1e-9)
    with pytest.raises(ValueError, match="keeps no gradients"):
        objective.evaluate(inputs(SIZE, 3), GOALS, norms_only=True).weighted_sum(factors)


# Frozen parts in few bits


class Int8(nn.Module):
    """A frozen linear layer whose weights are integers, with a scale for each row."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        weight = base.weight.detach()
        scales = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("bias", base.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scales, self.bias)


def test_adapters_of_a_frozen_model_in_int8() -> None:
    layers = [Adapted(nn.Linear(6, 8)), nn.Tanh(), Adapted(nn.Linear(8, 3))]
    for layer in layers[::2]:
        layer.base = Int8(layer.base)
    model = nn.Sequential(*layers).double()
    objective = assert_exact(model, inputs(SIZE, 5, 6), GOALS)
    assert objective.one_by_one is None and not objective.copied


class Quantised(nn.Module):
    """A frozen linear layer that runs in int8."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.quantize_per_tensor(torch.ones(3, 6), 0.1, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(weight, None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated", "ignore:.*quantiz")
def test_layers_that_run_in_few_bits_are_refused_by_name() -> None:
    x = inputs(SIZE, 6).float()
    dynamic = quantize_dynamic(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ValueError, match=r"0\.0 \(Linear\) cannot be trained privately: it takes the range of its input"):
        ModuleObjective(nn.Sequential(dynamic, nn.Linear(8, 2)), half_squares)
    with pytest.raises(ValueError, match="quantized::linear_dynamic has no gradient: what is trained before it"):
        ModuleObjective(nn.Sequential(nn.Linear(6, 6), Quantised()), half_squares).evaluate(x, GOALS.float())

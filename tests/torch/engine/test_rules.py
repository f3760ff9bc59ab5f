"""Every rule against autograd on single records and against vmap(grad), in double precision, over drawn shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from dperm.torch import ModuleObjective
from helpers.oracle import assert_exact, cross_entropy, half_squares

torch.set_default_dtype(torch.float32)
few = settings(max_examples=12, deadline=None)
flag = st.booleans()
SIZE = 4


def targets(size: int = SIZE) -> Tensor:
    return torch.linspace(-1, 1, size, dtype=torch.float64)


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Around(nn.Module):
    """A layer between two others: its input needs a gradient and its output is used further."""

    def __init__(self, layer: nn.Module, before: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.layer = layer
        self.scale = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.layer(self.before(x)))


@few
@given(sequence=st.lists(st.integers(1, 7), max_size=2), width=st.integers(1, 6), out=st.integers(1, 9), bias=flag)
def test_linear(sequence: list[int], width: int, out: int, bias: bool) -> None:
    model = Around(nn.Linear(width, out, bias=bias), nn.Linear(width, width)).double()
    assert not assert_exact(model, inputs(SIZE, *sequence, width), targets()).copied


@few
@given(slopes=flag, channels=st.integers(1, 4), places=st.lists(st.integers(1, 5), max_size=3))
def test_prelu(slopes: bool, channels: int, places: list[int]) -> None:
    layer = nn.PReLU(channels if slopes else 1)
    widen = nn.Linear(places[-1], places[-1]) if places else nn.Linear(channels, channels)  # its input needs a gradient
    assert_exact(Around(layer, widen).double(), inputs(SIZE, channels, *places), targets())


def test_prelu_that_is_used_twice() -> None:
    layer = nn.PReLU()
    model = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 4), layer).double()
    assert assert_exact(model, inputs(SIZE, 3), targets()).copied == ("1.weight",)


def test_linear_on_long_sequences_uses_gram_matrices_and_stays_exact() -> None:
    """Wide layers on short sequences take the ghost norm; both branches are the same numbers."""
    assert_exact(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 30)).double(), inputs(SIZE, 3, 40), targets())
    assert_exact(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), inputs(SIZE, 30, 4), targets())


@few
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # said once a process, whoever comes first
@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "same", "valid"]),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    bias=flag,
    channels=st.sampled_from([2, 4, 20]),
    last=flag,
)
def test_convolution(
    dims: int,
    kernel: int,
    stride: int,
    padding: Any,
    dilation: int,
    groups: int,
    mode: str,
    bias: bool,
    channels: int,
    last: bool,
) -> None:
    if padding == "same":
        stride = 1
    if isinstance(padding, int):
        padding = min(padding, kernel // 2 + 1)
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
    layer = kind(2, channels, kernel, stride, padding, dilation, groups, bias, mode)
    model = Around(layer, kind(2, 2, 1)).double()
    if last and dims > 1:
        model = model.to(memory_format=[torch.channels_last, torch.channels_last_3d][dims - 2])
    assert not assert_exact(model, inputs(SIZE, 2, *[6, 7, 5][:dims]), targets()).copied


@few
@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    bias=flag,
    extra=st.integers(0, 1),
)
def test_transposed_convolution(
    dims: int, kernel: int, stride: int, padding: int, dilation: int, groups: int, bias: bool, extra: int
) -> None:
    extra = min(extra, max(stride, dilation) - 1)
    padding = min(padding, dilation * (kernel - 1))
    kind = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][dims - 1]
    layer = kind(2, 4, kernel, stride, padding, extra, groups, bias, dilation)
    model = Around(layer, [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](2, 2, 1)).double()
    assert not assert_exact(model, inputs(SIZE, 2, *[4, 5, 3][:dims]), targets()).copied


@few
@given(shape=st.lists(st.integers(1, 5), max_size=2), padding=st.sampled_from([None, 0]), width=st.integers(1, 4))
def test_embedding(shape: list[int], padding: int | None, width: int) -> None:
    model = Around(nn.Embedding(5, width, padding_idx=padding)).double()
    indices = torch.randint(0, 5, (SIZE, *shape), generator=torch.Generator().manual_seed(1))
    assert not assert_exact(model, indices, targets()).copied


class Bags(nn.Module):
    def __init__(self, mode: str, padding: int | None) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding)

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.bag(x, per_sample_weights=weights)


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_embedding_bag(mode: str, padding: int | None) -> None:
    indices = torch.randint(0, 6, (SIZE, 5), generator=torch.Generator().manual_seed(2))
    model = Bags(mode, padding).double()
    assert not assert_exact(model, indices, targets(), vmapped=False).copied
    if mode == "sum":
        assert not assert_exact(model, (indices, inputs(SIZE, 5)), targets(), vmapped=False).copied


class RaggedBags(nn.Module):
    """Bags of different lengths, as a flat list with offsets made inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 3, mode="mean")

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        flat = torch.cat([row[:count] for row, count in zip(x, lengths.tolist(), strict=True)])
        return self.bag(flat, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)[:-1]]))


def test_ragged_embedding_bags() -> None:
    indices = torch.randint(0, 6, (SIZE, 5), generator=torch.Generator().manual_seed(2))
    objective = assert_exact(RaggedBags().double(), (indices, torch.tensor([3, 0, 5, 1])), targets(), vmapped=False)
    assert not objective.copied


@few
@given(sequence=st.lists(st.integers(1, 4), max_size=2), kind=st.sampled_from(["layer", "rms"]), affine=flag, bias=flag)
def test_last_axes_norms(sequence: list[int], kind: str, affine: bool, bias: bool) -> None:
    layer = nn.LayerNorm(6, elementwise_affine=affine, bias=bias) if kind == "layer" else nn.RMSNorm(6)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(0.5, 1.5)
    model = Around(layer, nn.Linear(6, 6)).double()
    assert not assert_exact(model, inputs(SIZE, *sequence, 6), targets()).copied


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["group", "instance", "instance of stated moments"])
def test_channel_norms(dims: int, kind: str) -> None:
    instance = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][dims - 1]
    layer = nn.GroupNorm(2, 4) if kind == "group" else instance(4, affine=True, track_running_stats="stated" in kind)
    if "stated" in kind:
        layer.running_mean, layer.running_var = torch.randn(4), 0.1 + torch.rand(4)
        layer.eval()
    convolution = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
    model = Around(layer, convolution(3, 4, 1)).double()
    assert not assert_exact(model, inputs(SIZE, 3, *[4, 3, 2][:dims]), targets()).copied


class Recurrent(nn.Module):
    """Sequence outputs and final states both reach the loss; the initial state is learned through a layer."""

    def __init__(self, kind: type[nn.Module], start: bool, **options: Any) -> None:
        super().__init__()
        self.core = kind(3, 5, **options)
        self.start = nn.Linear(3, 2) if start else None
        self.first = options.get("batch_first", False)

    def forward(self, x: Tensor) -> Tensor:
        steps = x if self.first else x.transpose(0, 1)
        state: Any = None
        if self.start is not None:
            count = self.core.num_layers * (2 if self.core.bidirectional else 1)
            hidden = self.start(x.mean(1)).sum(1)[None, :, None].expand(count, -1, self.core.proj_size or 5)
            state = (hidden, hidden.sum(2, keepdim=True).expand(-1, -1, 5)) if isinstance(self.core, nn.LSTM) else hidden
        outputs, final = self.core(steps, state)
        finals = list(final) if isinstance(final, tuple) else [final]
        outputs = outputs if self.first else outputs.transpose(0, 1)
        return torch.cat([outputs.flatten(1), *[item.transpose(0, 1).flatten(1) for item in finals]], dim=1)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
    layers=st.integers(1, 2),
    both=flag,
    first=flag,
    bias=flag,
    start=flag,
    steps=st.integers(1, 19),
    variant=flag,
)
def test_recurrent(kind: Any, layers: int, both: bool, first: bool, bias: bool, start: bool, steps: int, variant: bool) -> None:
    options: dict[str, Any] = {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    if variant and kind is nn.RNN:
        options["nonlinearity"] = "relu"
    if variant and kind is nn.LSTM:
        options["proj_size"] = 2
    model = Recurrent(kind, start, **options).double()
    assert not assert_exact(model, inputs(SIZE, steps, 3), targets(), vmapped=False).copied


class Packed(nn.Module):
    def __init__(self, kind: type[nn.Module], both: bool, ordered: bool) -> None:
        super().__init__()
        self.core = kind(3, 4, num_layers=2, bidirectional=both, batch_first=True)
        self.ordered = ordered

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=self.ordered)
        outputs, final = self.core(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        finals = list(final) if isinstance(final, tuple) else [final]
        return torch.cat([padded.flatten(1), *[item.transpose(0, 1).flatten(1) for item in finals]], dim=1)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(kind: Any, both: bool) -> None:
    model = Packed(kind, both, ordered=False).double()
    lengths = torch.tensor([3, 6, 1, 6])
    assert not assert_exact(model, (inputs(SIZE, 6, 3), lengths), targets(), vmapped=False).copied


def test_a_packed_sequence_as_the_models_input() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: PackedSequence) -> Tensor:
            return self.core(x)[1][0]

    packed = pack_padded_sequence(inputs(SIZE, 6, 3), torch.tensor([3, 6, 1, 4]), batch_first=True, enforce_sorted=False)
    model = Last().double()
    with_autograd = assert_exact(model, packed, targets(), vmapped=False)
    assert not with_autograd.copied


class Attending(nn.Module):
    def __init__(self, mine: bool, **options: Any) -> None:
        super().__init__()
        self.first = options.get("batch_first", True)
        self.attend = nn.MultiheadAttention(6, 2, **{"batch_first": True} | options)
        self.other = nn.Linear(6, options.get("kdim") or 6)
        self.mine = mine

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        states = x if self.first else x.transpose(0, 1)
        keys = states if self.mine else self.other(states)
        values = keys if self.attend.vdim == self.attend.kdim else states
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        out, weights = self.attend(states, keys, values, key_padding_mask=hidden, attn_mask=None if hidden is not None else mask)
        out = out if self.first else out.transpose(0, 1)
        return torch.cat([out.flatten(1), weights.flatten(1)], dim=1)


@few
@given(mine=flag, first=flag, bias=flag, extra=flag, zero=flag, dims=st.sampled_from([None, (4, 4), (4, 6)]), hide=flag)
def test_attention(
    mine: bool, first: bool, bias: bool, extra: bool, zero: bool, dims: tuple[int, int] | None, hide: bool
) -> None:
    options: dict[str, Any] = {"batch_first": first, "bias": bias, "add_bias_kv": extra, "add_zero_attn": zero}
    if dims:
        options |= {"kdim": dims[0], "vdim": dims[1]}
        mine = False
    model = Attending(mine, **options).double()
    hidden = torch.tensor([[False, False, False, True, True]] * SIZE) if hide else None
    given_inputs = (inputs(SIZE, 5, 6), hidden) if hide else inputs(SIZE, 5, 6)
    assert not assert_exact(model, given_inputs, targets(), vmapped=False).copied


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_gives_what_the_module_gives(weights: bool, causal: bool) -> None:
    """Losses are compared with the plain module's: masks, hints and averaged weights mean the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            out, shown = self.attend(x, x, x, need_weights=weights, attn_mask=mask, is_causal=causal, average_attn_weights=False)
            return out if shown is None else torch.cat([out.flatten(1), shown.flatten(1)], dim=1)

    assert_exact(Model().double(), inputs(SIZE, 5, 6), targets(), vmapped=False)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_encoder_layers(norm_first: bool, batch_first: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, norm_first=norm_first, batch_first=batch_first)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            states = self.encoder(x if batch_first else x.transpose(0, 1))
            return states.mean(1 if batch_first else 0)

    assert not assert_exact(Model().double(), inputs(SIZE, 5, 6), targets(), vmapped=False).copied


class Scale(nn.Module):
    """A leaf that no rule knows: parameters of any shape, used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.power = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x * self.by, torch.tanh(x), self.by.square() * self.power)


def test_an_unknown_leaf_runs_under_vmap() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Scale(4), nn.Linear(4, 2)).double()
    assert assert_exact(model, inputs(SIZE, 5, 3), targets()).copied == ("1.by", "1.power")


def test_a_subclass_with_its_own_forward_is_another_layer() -> None:
    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.down, self.up = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4, 2))
            self.weight.requires_grad_(False)

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + input @ self.down.T @ self.up.T

    model = nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(4, 2)).double()
    assert not assert_exact(model, inputs(SIZE, 3), targets()).copied


class Tokens(nn.Module):
    """Parameters of a module that has children: a start token and positions."""

    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(1, 1, 3))
        self.place = nn.Parameter(torch.linspace(0, 1, 18).view(places))
        self.mix = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.start.expand(len(x), -1, -1), x], 1) + self.place).mean(1)


def test_parameters_with_a_leading_one_are_placed_and_added() -> None:
    model = nn.Sequential(Tokens((1, 6, 3)), nn.Linear(3, 2)).double()
    objective = assert_exact(model, inputs(SIZE, 5, 3), targets(), vmapped=False)
    assert not objective.copied and list(vars(model[0])) == list(vars(Tokens((1, 6, 3))))


def test_other_parameters_of_a_module_with_children_are_placed_and_added() -> None:
    model = nn.Sequential(Tokens((6, 3)), nn.Linear(3, 2)).double()
    assert not assert_exact(model, inputs(SIZE, 5, 3), targets(), vmapped=False).copied


def test_parametrised_layers_are_computed_once_for_all_records() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2)).double()
    assert not assert_exact(model, inputs(SIZE, 3), targets(), vmapped=False).copied


class Tied(nn.Module):
    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.functional = functional
        if not functional:
            self.head.weight = self.table.weight
        else:
            self.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        states = torch.tanh(self.mix(self.mix(self.table(x))))
        return states @ self.table.weight.T if self.functional else self.head(states)


def token_loss(outputs: Tensor, goals: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.transpose(1, 2), goals, ignore_index=-100, reduction="none").mean(1)


def test_tied_weights_and_layers_used_twice_add_up_before_the_norm() -> None:
    generator = torch.Generator().manual_seed(3)
    x, goals = (torch.randint(0, 7, (SIZE, 6), generator=generator) for _ in range(2))
    goals[0, :3] = -100
    assert not assert_exact(Tied(False).double(), x, goals, token_loss, vmapped=False).copied


def test_a_parameter_used_outside_its_module_is_seen_there() -> None:
    generator = torch.Generator().manual_seed(3)
    x, goals = (torch.randint(0, 7, (SIZE, 6), generator=generator) for _ in range(2))
    assert not assert_exact(Tied(True).double(), x, goals, token_loss, vmapped=False).copied


def test_positions_looked_up_once_for_all_records() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(7, 4), nn.Embedding(6, 4)
            self.shared = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1])
            return (self.token(x) + self.place(places) + self.shared(self.place(places[None]))).mean(1)

    x = torch.randint(0, 7, (6, 6), generator=torch.Generator().manual_seed(3))  # as many records as positions
    assert not assert_exact(Model().double(), x, targets(6), vmapped=False).copied


def test_records_folded_into_a_longer_batch() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see, self.norm, self.mix = nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.Linear(3, 2)
            self.odd = Scale(2)

        def forward(self, x: Tensor) -> Tensor:
            frames = self.norm(self.see(x.flatten(0, 1)[:, None])).mean((2, 3))
            return self.odd(self.mix(frames)).view(len(x), -1)

    assert assert_exact(Folded().double(), inputs(SIZE, 3, 4, 4), targets(), vmapped=False).copied == ("odd.by", "odd.power")


def test_several_inputs_and_outputs_and_dict_batches() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
            return {"sum": self.left(first) + self.right(second), "left": self.left(first * 2)}

    def loss(outputs: dict[str, Tensor], goals: dict[str, Tensor]) -> Tensor:
        return half_squares(outputs["sum"], goals["a"]) + outputs["left"].prod(1) * goals["a"]

    model, goals = Two().double(), {"a": targets()}
    batch = {"first": inputs(SIZE, 3), "second": inputs(SIZE, 4)}
    from helpers.oracle import by_autograd

    expected = by_autograd(model, loss, batch, goals, SIZE)
    found = ModuleObjective(model, loss).evaluate(batch, goals)
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-10)
    again = ModuleObjective(model, loss).evaluate((batch["first"], batch["second"]), goals)
    assert torch.allclose(again.weighted_sum(torch.ones(SIZE)), expected.sum(0), rtol=1e-10)


def test_classification_with_in_place_activations() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 5)).double()
    assert_exact(model, inputs(SIZE, 1, 6, 6), torch.tensor([0, 3, 4, 1]), cross_entropy)

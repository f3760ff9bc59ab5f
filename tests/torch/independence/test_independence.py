"""Issue 43: a record cannot see another, whatever the model, the loss and the collation do."""

from __future__ import annotations

import contextlib
import cProfile
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dperm.release.alignment import aligned
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.data.collation import Ragged, joined
from dperm.torch.engine.tracing import RefusedError

N, WIDTH = 6, 5
BOUND = 1.0


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


def moved(model: nn.Module, loss: Any, x: Tensor, y: Tensor, turn: int = 0) -> float:
    """How far the sum of clipped gradients moves when the last record joins, while each record draws what it drew."""

    def query(rows: Tensor, targets: Tensor) -> Tensor:
        objective = ModuleObjective(model, loss)
        objective.engine.charged = True  # no look at the records: nothing here rests on it
        with aligned(lambda numbers: numbers):
            for _ in range(turn + 1):
                found = objective.evaluate(rows, targets)
        return found.weighted_sum((BOUND / found.norms).clamp(max=1.0))

    return float((query(x, y) - query(x[:-1], y[:-1])).norm()) / BOUND


class Net(nn.Module):
    """A layer, what `mix` makes of it, and a head; `scale` is that of the outputs."""

    def __init__(self, mix: Callable[[nn.Module, Tensor], Tensor], scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.head, self.mix, self.scale = nn.Linear(WIDTH, 8), nn.Linear(8, 1), mix, scale
        self.table, self.drop = nn.Parameter(torch.randn(1, 8)), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self, self.first(x))) * self.scale


def _shuffled(net: Any, h: Tensor) -> Tensor:
    order = torch.randperm(len(h))
    return torch.tanh(h[order])[order.argsort()]


def _half_by_order(net: Any, h: Tensor) -> Tensor:
    keep = torch.zeros(len(h), 1).index_fill(0, torch.randperm(len(h))[: len(h) // 2], 1.0)
    return h * keep


MIXING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "4 minus the mean": lambda net, h: h - h.mean(0),
    "4 attention over the batch": lambda net, h: torch.softmax(h @ h.T, 1) @ h,
    "4 divided by the loudest": lambda net, h: h / h.abs().amax(),
    "4 rolled": lambda net, h: h + h.roll(1, 0),
    "6 by how many there are": lambda net, h: h / h.shape[0],
    "7 half of the batch, by order": _half_by_order,
    "7 scaled by the batch": lambda net, h: F.dropout(h, 0.5) * len(h),
    "8 shuffled and back": _shuffled,
}
SHARED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "3 dropout on a table": lambda net, h: h * F.dropout(net.table, 0.5),
    "3 dropout on a constant": lambda net, h: h * net.drop(torch.ones(8)),
    "3 one mask for a batch": lambda net, h: h * torch.bernoulli(torch.full((1, 8), 0.5)),
    "3 a layer dropped by a coin of torch": lambda net, h: h if torch.rand(()) < 0.5 else torch.tanh(3 * h),
    "3 a layer dropped by a drawn number": lambda net, h: h if torch.rand(1).item() < 0.5 else torch.tanh(3 * h),
    "3 a layer dropped by a coin of Python": lambda net, h: h if random.random() < 0.5 else torch.tanh(3 * h),
    "3 a layer dropped by a coin of NumPy": lambda net, h: h if np.random.rand() < 0.5 else torch.tanh(3 * h),  # noqa: NPY002
    "3 noise for all": lambda net, h: h + torch.randn(8),
}


@pytest.mark.parametrize(
    ("scale", "constant"),
    [
        (1.0, 0.0),
        (1e-3, 17_034.0),
        pytest.param(1.0, 17_034.0, marks=pytest.mark.slow),
        pytest.param(1e-3, 0.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [*MIXING, *SHARED])
def test_what_mixes_records_moves_a_query_by_one_record(name: str, scale: float, constant: float) -> None:
    """Small losses, and a large constant in them, hid mixing from every look."""
    torch.manual_seed(0)
    model = Net((MIXING | SHARED)[name], scale)
    x, y = torch.randn(N, WIDTH), torch.randn(N) * scale
    x[-1] *= 30.0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared(outputs, targets) + constant

    found = [moved(model, loss, x, y, turn) for turn in range(4)]
    assert max(found) <= 1 + 1e-4, name
    assert max(found) > 0 or scale < 1, name


@pytest.mark.parametrize("name", [name for name in MIXING if name[0] in "46"])
def test_who_meant_to_mix_is_told(name: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"depends on another record|on each by itself"):
        ModuleObjective(Net(MIXING[name]), squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


def test_masks_of_records_are_their_own_and_coins_are_of_the_step() -> None:
    """Equal records: with masks of their own their losses differ, with a coin of the step they are equal."""
    x, y = torch.ones(40, WIDTH), torch.zeros(40)
    for name, own in (
        ("3 dropout on a table", True),
        ("3 noise for all", True),
        ("3 a layer dropped by a coin of Python", False),
    ):
        objective = ModuleObjective(Net(SHARED[name]), squared)
        assert (len(set(objective.evaluate(x, y).losses.tolist())) > 1) == own, name


@pytest.mark.parametrize("coin", [name for name in SHARED if "layer" in name])
def test_a_coin_of_the_step_is_the_same_in_all_its_physical_batches(coin: str) -> None:
    """And another in the next step; a coin that a record draws for itself is its own."""
    x, y = torch.ones(30, WIDTH), torch.zeros(30)
    objective = ModuleObjective(Net(SHARED[coin]), squared)
    objective.evaluate(x, y)
    theta, seen = objective.theta, set[float]()
    for _ in range(12):
        objective.engine.draws.next_step()
        losses = torch.cat([objective.per_example(theta, (x[part], y[part])).losses for part in (slice(0, 7), slice(7, 30))])
        kinds = set(losses.round(decimals=4).tolist())
        assert len(kinds) == (2 if "number" in coin else 1)
        seen |= kinds
    assert len(seen) == 2


def test_ways_that_hang_on_coins_keep_coins_apart() -> None:
    """Records that part by what they drew draw no second time: whether two records go one way is as likely as not."""

    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            first = torch.rand(1)
            if first.item() < 0.5:
                x = x + 1
            second = (torch.rand(1) < 0.5).float()
            return self.head(x + 10 * second)

    objective = ModuleObjective(Ways(), lambda out, y: out[:, 0])
    x, y = torch.zeros(400, 1), torch.zeros(400)
    with torch.no_grad():
        objective.model.head.weight.fill_(1.0)
        objective.model.head.bias.fill_(0.0)
    losses = objective.evaluate(x, y).losses.round()
    counts = [int((losses == value).sum()) for value in (0, 1, 10, 11)]
    assert sum(counts) == 400
    assert min(counts) > 60  # a hundred each; 60 is 4.6 standard deviations below


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda h: h + torch.randn(8, generator=torch.Generator().manual_seed(0)), "generator"),
        (lambda h: [h.register_hook(lambda g: g), h][1], "hooks a tensor's gradient"),
        (lambda h: [str(h), h][1], "prints a tensor"),
        (lambda h: [h.untyped_storage(), h][1], "reaches beyond"),
    ],
    ids=["generator", "hook", "text", "storage"],
)
def test_what_looks_around_is_refused_by_name(what: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModuleObjective(Net(lambda net, h: what(h)), squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


#: lists that no function names, so that nobody puts them back
HIDDEN: dict[str, list[Any]] = {"kept": [], "seen": []}


def hidden(name: str) -> list[Any]:
    return globals()["HIDDEN"][name]


def test_what_a_hook_keeps_is_put_back_and_what_nobody_can_reach_is_refused() -> None:
    kept: list[Any] = []
    model = Net(lambda net, h: torch.tanh(h))
    model.first.register_forward_hook(lambda module, args, output: kept.append(output))
    ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))
    assert kept == []
    model.head.register_forward_hook(lambda module, args, output: hidden("kept").append(output))
    with pytest.raises(ValueError, match="keeps 1 tensors of records"):
        ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))
    hidden("kept").clear()


def _twice(kind: str) -> Any:
    one = TensorDataset(torch.randn(N, WIDTH), torch.randn(N))
    again = TensorDataset(*one.tensors)
    return {
        "subset": lambda: Subset(one, [0, 1, 1]),
        "negative": lambda: Subset(one, [0, N - 1, -1]),
        "nested": lambda: Subset(Subset(one, [2, 3, 4]), [0, -3]),
        "overlapping": lambda: ConcatDataset([Subset(one, [0, 1]), Subset(one, [1, 2])]),
        "whole and part": lambda: ConcatDataset([one, Subset(one, [4])]),
        "same tensors": lambda: ConcatDataset([one, again]),
    }[kind]()


@pytest.mark.parametrize("kind", ["subset", "negative", "nested", "overlapping", "whole and part", "same tensors"])
def test_records_that_are_there_twice_are_found(kind: str) -> None:
    with pytest.raises(ValueError, match="each record once"):
        TorchRecords(_twice(kind))
    one = TensorDataset(torch.randn(N, WIDTH), torch.randn(N))
    assert len(TorchRecords(ConcatDataset([Subset(one, [0, -1]), Subset(one, [1, 2, 3])]))) == 5


class Texts(torch.utils.data.Dataset[Any]):
    """Texts of 2 to 9 words."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.arange(1, 3 + index % 8), index % 2


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
    return rows, torch.tensor([label for _, label in items])


def sorted_by_length(items: list[Any]) -> tuple[Tensor, Tensor]:
    return padded(sorted(items, key=lambda item: -len(item[0])))


def mixed(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, labels = padded(items)
    return (rows.float() + rows.float().roll(1, 0)) / 2, labels


def standardised(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, labels = padded(items)
    return (rows - rows.float().mean(0)) / (rows.float().std(0) + 1), labels


@pytest.mark.parametrize("collate", [padded, sorted_by_length])
@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_record_is_collated_the_same_whoever_is_beside_it(collate: Any, size: int) -> None:
    records = TorchRecords(Texts(), collate_fn=collate, physical_batch_size=size)
    records.sample(16)
    alone = [records._collate([Texts()[index]]) for index in range(40)]
    seen = 0
    for places, words, labels in (group for batch in records.batches() for group in _groups(batch)):
        assert words.shape[1] in (2, 4, 8, 16)  # by its own length, whatever the others'
        for place, row, label in zip(places, words, labels, strict=True):
            mine = next(one for one in alone if one[0].shape[1:] == row.shape and torch.equal(one[0][0], row))
            assert {int(mine[1]), int(label)} <= {0, 1}
            assert place < size
            seen += 1
    assert seen == 40


def _groups(batch: Any) -> Any:
    from dperm.torch.data.collation import Ragged

    return batch if isinstance(batch, Ragged) else [(torch.arange(len(batch[1])), *batch)]


@pytest.mark.parametrize("collate", [mixed, standardised])
def test_a_collation_that_computes_across_records_is_refused_before_the_charge(collate: Any) -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.LazyLinear(2))
    model[2] = nn.Linear(4, 2)

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.float().sum(1, keepdim=True))

    trainer = PrivateTrainer(
        Summed(), nn.CrossEntropyLoss(reduction="none"), epsilon=1.0, delta=1e-5, public_size=40, epochs=1, collate_fn=collate
    )
    with pytest.raises(ValueError, match="computes across records"):
        trainer.fit(Texts(), progress=False)
    assert trainer.certificate is None


@pytest.mark.parametrize("people", [3, 40])
def test_persons_are_as_wide_as_their_own_rows(people: int) -> None:
    from dperm.torch.data.units import PersonRecords

    rows = torch.arange(60.0)[:, None]
    groups = np.minimum(np.arange(60) // 2, people)
    records = PersonRecords((rows, torch.zeros(60)), groups, most=16)
    for batch in records.batches():
        for _, inputs, (_, weights) in _groups(batch):
            counts = (weights > 0).sum(1)
            assert (2 ** torch.ceil(torch.log2(counts.float())) == inputs.shape[1]).all()
            assert torch.allclose(weights.sum(1), torch.ones(len(weights)), atol=1e-4)


class WithVmap(torch.autograd.Function):
    """Subtracts the batch's mean in its own batching rule."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return WithVmap.apply(x - x.mean(0)), 0


class Generated(torch.autograd.Function):
    """The same, batched by PyTorch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_vmap
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return doubled(x - x.mean(0)), in_dims[0]


@pytest.mark.parametrize("op", [doubled, WithVmap.apply, Generated.apply])
def test_code_that_would_see_all_records_runs_on_one_at_a_time(op: Any) -> None:
    """A batching rule of a stranger, or a function whose inside nobody looks into."""
    torch.manual_seed(0)
    model, x, y = Net(lambda net, h: torch.tanh(h) + op(h).detach()), torch.randn(N, WIDTH), torch.randn(N)
    objective = ModuleObjective(model, squared)
    with pytest.warns(UserWarning, match="one record at a time"):
        found = objective.evaluate(x, y)
    plain = Net(lambda net, h: torch.tanh(h) + 2 * h.detach())
    plain.load_state_dict(model.state_dict())
    assert torch.allclose(found.norms, ModuleObjective(plain, squared).evaluate(x, y).norms, rtol=1e-4)


class Stop(nn.Module):
    """Goes on after an error that one record may cause, or after a read on which records differ."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first, self.what = nn.Linear(WIDTH, 1), what

    def forward(self, x: Tensor) -> Tensor:
        h, own = self.first(x), torch.diag_embed(x[:, :2].detach().abs())
        try:
            if self.what == "error":
                torch.linalg.cholesky(own)
            else:
                int(x[0, 0])
        except Exception:
            return 5 * h
        return h


@pytest.mark.parametrize("what", ["error", "read"])
def test_what_a_model_catches_tells_it_nothing_of_others(what: str) -> None:
    torch.manual_seed(0)
    model, x, y = Stop(what), 1 + torch.rand(N, WIDTH), torch.randn(N)
    x[:-1, 0] = 1.0
    x[-1, :2] = 0.0 if what == "error" else 7.5
    assert 0 < moved(model, squared, x, y) <= 1 + 1e-4
    objective = ModuleObjective(model, squared)
    objective.engine.charged = True
    alone = [objective.evaluate(x[[place]], y[[place]]).norms for place in range(N)]
    assert torch.allclose(objective.evaluate(x, y).norms, torch.cat(alone), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*one record at a time")
def test_hooks_on_saved_tensors_see_one_record() -> None:
    hidden("seen").clear()

    def pack(tensor: Tensor) -> Tensor:
        rows = tensor.shape[0] if tensor.dim() == 2 and tensor.shape[-1] == WIDTH else 1
        hidden("seen").append(rows)
        return tensor

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
                return torch.tanh(self.first(x))

    objective = ModuleObjective(Packed(), squared)
    objective.engine.charged = True
    objective.evaluate(torch.randn(N, WIDTH), torch.randn(N))
    assert set(hidden("seen")) == {1}


def test_groups_of_shapes_draw_apart() -> None:
    """Records of several lengths: who else is there, and how long it is, says nothing of anybody's mask."""
    batch = Ragged([(torch.tensor([place]), torch.ones(1, WIDTH), torch.zeros(1)) for place in range(40)], 40)
    objective = ModuleObjective(Net(lambda net, h: net.drop(h)), squared)
    objective.engine.charged = True
    assert len(set(objective.per_example(objective.theta, batch).losses.tolist())) > 20


def test_a_record_that_fails_contributes_zero_once_the_run_is_charged() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 1))
    words, y = torch.randint(0, 10, (N, 2)), torch.randn(N)
    objective = ModuleObjective(model, squared)
    before = objective.evaluate(words, y).norms
    words[2, 0] = 99
    with pytest.raises(IndexError):
        objective.evaluate(words, y)
    objective.engine.charged = True
    found = objective.evaluate(words, y)
    assert float(found.norms[2]) < 1e-15
    others = [0, 1, 3, 4, 5]
    assert torch.allclose(found.norms[others], before[others], rtol=1e-5)


def _by_function(tensor: Tensor, mean: float) -> None:
    with torch.no_grad():
        tensor.add_(mean)


def _by_data(tensor: Tensor, mean: float) -> None:
    tensor.data.add_(mean)


def _by_alias(tensor: Tensor, mean: float) -> None:
    tensor.detach()[...] = mean


def _by_out(tensor: Tensor, mean: float) -> None:
    with torch.no_grad():
        torch.add(tensor, mean, out=tensor)


def _by_numpy(tensor: Tensor, mean: float) -> None:
    tensor.detach().numpy()[...] = mean


def _by_statistics(tensor: Tensor, mean: float) -> None:
    """The running mean of a normalisation, by its place among the arguments."""
    F.batch_norm(torch.full((2, len(tensor)), mean), tensor.detach(), torch.ones(len(tensor)), None, None, True)


@pytest.mark.filterwarnings("ignore:.*one record at a time")
@pytest.mark.parametrize("write", [_by_function, _by_data, _by_alias, _by_out, _by_numpy, _by_statistics])
@pytest.mark.parametrize("kind", ["trained", "frozen", "buffer"])
@pytest.mark.parametrize("alone", [False, True])
def test_what_a_model_writes_into_its_tensors_does_not_stay(write: Any, kind: str, alone: bool) -> None:
    """A number that Python reads of the records, written into a tensor of 1.2 million numbers, which is not put back, or into a
    trained parameter: refused, or written into a copy."""

    class Bank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.trained = nn.Linear(WIDTH, 1), nn.Parameter(torch.ones(3))
            self.frozen = nn.Parameter(torch.ones(1_200_000), requires_grad=False)
            self.register_buffer("buffer", torch.ones(1_200_000))

        def forward(self, x: Tensor) -> Tensor:
            write(getattr(self, kind), float(x.detach().mean()))
            return self.first(x) + self.trained.mean()

    model = Bank()
    objective = ModuleObjective(model, squared)
    objective.engine.charged = True
    if alone:
        objective.engine.slower("to look at it")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with contextlib.suppress(RefusedError):
        objective.evaluate(torch.randn(3, WIDTH), torch.zeros(3))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_messages_name_the_line_of_the_model() -> None:
    def hooked(net: Any, h: Tensor) -> Tensor:
        h.register_hook(lambda gradient: gradient)
        return h

    line = hooked.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"leave register_hook out. \(line {line} of test_independence.py, in hooked\)"):
        ModuleObjective(Net(hooked), squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


def test_a_profiler_may_watch_the_first_step() -> None:
    watched = cProfile.Profile()
    objective = ModuleObjective(Net(lambda net, h: torch.tanh(h)), squared)
    watched.runcall(objective.evaluate, torch.randn(N, WIDTH), torch.randn(N))
    assert sys.getprofile() is None


def test_records_of_several_shapes_run_where_independence_is_tested() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Linear(4, 1))
    rows = [torch.randn(length) for length in (4, 6, 4, 8, 6)]
    batch = joined([(row[None], torch.zeros(1)) for row in rows])
    proved, tested = (ModuleObjective(model, squared, independence=how) for how in ("proved", "tested"))
    found = [objective.per_example(objective.theta, batch).norms for objective in (proved, tested)]
    assert torch.allclose(*found, rtol=1e-5)
    assert len(set(found[0].tolist())) == 5


def set_data(net: Any) -> None:
    net.table.data = net.table.data * 0.5


def set_all(net: Any) -> None:
    torch._foreach_mul_([net.table.detach(), net.bank], 0.5)


def rescaled(net: Any) -> None:
    F.embedding(torch.tensor([1]), net.bank, max_norm=1e-3)


def cut(net: Any) -> None:
    F.hardtanh(net.bank, -0.5, 0.5, inplace=True)


def cut_by_place(net: Any) -> None:
    F.hardtanh(net.table.detach(), -0.5, 0.5, True)


def initialised(net: Any) -> None:
    nn.init.constant_(net.bank, 0.5)


def put(net: Any) -> None:
    torch.index_put_(input=net.table.detach(), indices=(torch.tensor([0]),), values=torch.tensor(3.0))


def by_overload(net: Any) -> None:
    torch.ops.aten.fill_.Scalar(net.bank, 0.5)


@pytest.mark.parametrize("write", [set_data, set_all, rescaled, cut, cut_by_place, initialised, put, by_overload])
def test_writes_that_would_stay_are_refused_and_the_look_leaves_nothing(write: Any) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.table = nn.Linear(WIDTH, 8), nn.Linear(8, 1), nn.Parameter(torch.ones(8))
            self.register_buffer("bank", torch.ones(3, 400_000), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            write(self)
            return self.head(self.first(x) * self.table)

    model = Writes()
    with pytest.raises(ValueError, match=r"writes into a trained parameter, or into a tensor of more than a million|max_norm"):
        ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))
    assert bool((model.table == 1).all())
    assert bool((model.bank == 1).all())


def test_hooks_on_parameters_are_refused() -> None:
    seen: list[float] = []
    model = Net(lambda net, h: torch.tanh(h))
    model.head.weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))
    with pytest.raises(ValueError, match=r"A hook \(<lambda>\) is called with the gradient of head.weight"):
        ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


@pytest.mark.parametrize("training", [True, False])
def test_transformers_with_padding_run_in_step_in_both_modes(training: bool) -> None:
    """PyTorch's short cut for evaluation packs all records into one tensor."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.enter, self.encoder, self.head = nn.Linear(1, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.enter(x[..., None]), src_key_padding_mask=x == 0).mean(1))

    objective = ModuleObjective(Masked().train(training), squared)
    x = torch.randn(N, WIDTH)
    x[:, -2:] = 0.0
    objective.evaluate(x, torch.randn(N))
    assert objective.one_by_one is None


def test_parameters_that_no_loss_depends_on_are_named() -> None:
    model = Net(lambda net, h: torch.tanh(h))
    trainer = PrivateTrainer(
        model, squared, torch.optim.SGD(model.parameters(), lr=0.1), epsilon=8.0, delta=1e-3, epochs=1, public_size=60,
        expected_batch_size=20,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="No loss depends on table"):
        trainer.fit((torch.randn(60, WIDTH), torch.randn(60)))

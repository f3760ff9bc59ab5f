"""Issue 43: a record draws by its place and its own path: whoever else is there, on however many ways, and whoever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from dperm.torch.engine.randomness import Draws

N, WIDTH, KINDS = 24, 6, 12


class Adapters(nn.Module):
    """A layer for each kind of record, which every second record passes by, by a coin of its own; then noise on what is left."""

    def __init__(self, drop: Callable[[Tensor], Tensor] = lambda h: F.dropout(h, 0.3)) -> None:
        super().__init__()
        self.drop = drop
        self.words, self.layers = nn.Embedding(KINDS, WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(KINDS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, kinds: Tensor) -> Tensor:
        h = self.drop(self.words(kinds))
        if torch.rand(1).item() < 0.5:
            h = self.layers[int(kinds[0])](h)
            h = h * torch.bernoulli(torch.full(h.shape, 0.7))
        return self.head(h + torch.randn(h.shape[-1]))


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


class Repeated(Draws):
    """The same secret seeds each time."""

    def seed(self) -> int:
        return 11


def contributions(model: nn.Module, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = squared) -> Tensor:
    """(b, p) what each record gives, from the same secret seeds each time."""
    objective = ModuleObjective(model, loss)
    objective.engine.charged = True
    objective.engine.draws = Repeated(objective.flat.device)
    found = objective.evaluate(x, torch.zeros(len(x)))
    return torch.stack([found.weighted_sum(one) for one in torch.eye(len(x))])


def pooled(h: Tensor) -> Tensor:
    return (
        F.fractional_max_pool2d(h.expand(1, 1, WIDTH, WIDTH), 2, 3, return_indices=True)[0].flatten(2)[0].repeat(1, 2)[:, :WIDTH]
    )


DROPS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.3),
    "dropout in place": lambda h: F.dropout(h, 0.3, True, True),
    "alpha dropout in place": lambda h: F.alpha_dropout(h * 1.0, 0.3, True, True),
    "a tuple": pooled,
}


@pytest.mark.fast_cases(
    "of a kind-dropout", "of a kind-a tuple", "of a new kind-dropout in place", "that fails-alpha dropout in place"
)
@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("last", [9, 10, KINDS], ids=["of a kind", "of a new kind", "that fails"])
def test_nobody_draws_again_for_the_sake_of_another(last: int, drop: str) -> None:
    """Records part by their coins and by nine kinds and more; one of them is of a new kind, or fails."""
    torch.manual_seed(0)
    model = Adapters(DROPS[drop])
    x = torch.randint(0, 9, (N,))
    x[-1] = 8
    before = contributions(model, x)
    x[-1] = last
    after = contributions(model, x)
    assert torch.allclose(after[:-1], before[:-1], rtol=1e-5, atol=1e-6)
    assert bool((before[:-1].norm(dim=1) > 0).all())
    assert bool(after[-1].any()) == (last < KINDS)


class OwnLength(nn.Module):
    """Noise as long as a record says: two ways that draw different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), int(x[0]), dtype=torch.float64)
        return noise[:, :1] * self.weight


def test_two_ways_do_not_draw_the_same_numbers() -> None:
    x = torch.tensor([1, 2, 3] * 20)
    drawn = contributions(OwnLength(), x, lambda outputs, targets: outputs[:, 0])[:, 0]
    assert len(set(drawn.tolist())) == len(x)


def test_who_runs_alone_after_a_failure_draws_what_it_drew_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs in step fail: the halves, and each record by itself in step, too."""
    torch.manual_seed(0)
    model, x = Adapters(), torch.randint(0, 9, (N,))
    expected = contributions(model, x)

    def fails(*args: Any) -> Any:
        raise RuntimeError("an operator that has no batching rule")

    monkeypatch.setattr("dperm.torch.engine.isolated.Evaluation.in_step", fails)
    alone = contributions(model, x)
    assert torch.allclose(alone, expected, rtol=1e-4, atol=1e-5)
    assert bool((expected.norm(dim=1) > 0).all())


def test_two_draws_of_one_record_differ() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return (torch.randn(len(x), 1) - torch.randn(len(x), 1)) * self.weight

    drawn = contributions(Twice(), torch.zeros(20), lambda outputs, targets: outputs[:, 0])[:, 0]
    assert float(drawn.abs().min()) > 0


LAWS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "rand": (lambda x: torch.rand(x.shape), 0.5),
    "normal_": (lambda x: torch.empty(len(x)).normal_(2.0, 1.0), 2.0),
    "poisson": (lambda x: torch.poisson(torch.full((len(x),), 3.0)), 3.0),
    "gamma": (lambda x: torch.distributions.Gamma(torch.full((len(x),), 4.0), 1.0).sample(), 4.0),
    "gumbel": (lambda x: F.gumbel_softmax(torch.zeros(len(x), 4), hard=True)[:, 0], 0.25),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([[0.5, 0.5]]).expand(len(x), 2), 1)[:, 0].float(), 0.5),
    "dropout in place": (lambda x: F.dropout(torch.ones(len(x)), 0.5, True, True), 1.0),
    "attention": (
        lambda x: F.scaled_dot_product_attention(*[torch.ones(len(x), 1, 4, 2)] * 3, dropout_p=0.5)[:, 0, 0, 0],
        1.0,
    ),
    "log_normal_": (lambda x: torch.empty(len(x)).log_normal_(0.0, 0.5), 1.133),
    "a number of NumPy": (lambda x: torch.rand(torch.tensor(x.shape).numpy()[0]), 0.5),
}


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_their_law_and_differ_between_records(law: str) -> None:
    draw, mean = LAWS[law]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return draw(x)[:, None] * self.weight

    torch.manual_seed(1)
    objective = ModuleObjective(Net(), lambda outputs, targets: outputs[:, 0])
    objective.evaluate(torch.zeros(4), torch.zeros(4))  # which finds out how the model can run
    objective.engine.charged = True
    losses = objective.evaluate(torch.zeros(4000), torch.zeros(4000)).losses
    assert abs(float(losses.mean()) - mean) < 6 * float(losses.std()) / 4000**0.5
    assert float(losses.std()) > 0.1
    assert objective.one_by_one is None


def test_functions_whose_names_only_look_like_draws_draw_nothing() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.lgamma(F.normalize(self.layer(x), dim=1).abs() + 1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.poisson_nll_loss(outputs, targets, reduction="none").sum(1)

    objective = ModuleObjective(Net(), loss)
    objective.evaluate(torch.randn(4, 3), torch.ones(4, 2))
    assert objective.engine.draws._count == 0


@pytest.mark.filterwarnings("ignore:The model runs one record at a time")
def test_what_draws_unseen_is_not_hidden_by_what_draws_after_it() -> None:
    """Attention by weights that depend on the record draws unseen; the dropout after it starts from its own seed."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.extra, self.head = (
                nn.MultiheadAttention(4, 2, 0.5),
                nn.Parameter(torch.zeros(12, 4)),
                nn.Linear(4, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            inner = self.attention
            h, _ = F.multi_head_attention_forward(
                x[:, None], x[:, None], x[:, None], 4, 2, inner.in_proj_weight + self.extra * x.mean(), inner.in_proj_bias,
                None, None, False, inner.dropout, inner.out_proj.weight * 1.0, inner.out_proj.bias,
            )  # fmt: skip
            return self.head(F.dropout(h[:, 0], 0.5))

    objective = ModuleObjective(Attending(), squared)
    objective.evaluate(torch.randn(6, 4), torch.zeros(6))
    assert objective.one_by_one is not None

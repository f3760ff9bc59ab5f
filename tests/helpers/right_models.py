# ruff: noqa: E501, E731 - tables of short functions; models draw from NumPy's global state
"""Models as people train them, one loss per record: at least three hundred, from one seed, in small.

Each kind is a function of a random generator, from which it takes its widths, activations and rates, and is made several times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from helpers.generated_models import RECORDS, Case, seeded

__all__ = ["KINDS", "right_models"]

N = RECORDS + 2
Kind = Callable[[random.Random], tuple[Callable[[], nn.Module], Any, Any, Any]]
KINDS: dict[str, Kind] = {}
DRAWING: set[str] = set()


class Made(nn.Module):
    """Parts by name, and a forward that is given the module itself."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.run(self, *args, **named)


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.strip("_").replace("_", " ")] = function
    return function


def drawing(function: Kind) -> Kind:
    DRAWING.add(function.__name__.strip("_").replace("_", " "))
    return kind(function)


def _activation(r: random.Random) -> nn.Module:
    return r.choice([nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Mish, nn.Softplus])()


def _width(r: random.Random) -> int:
    return r.choice([4, 8, 12, 16])


def _rate(r: random.Random) -> float:
    return r.choice([0.1, 0.3, 0.5])


def ce(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(1)


def given(outputs: Tensor, targets: Tensor) -> Tensor:
    """The model returns its own losses."""
    return outputs + 0 * targets.flatten(1).sum(1) if targets.dim() > 1 else outputs + 0 * targets


def vectors() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 6)
    return x, (x[:, 0] > 0).long()


def images(size: int = 8, channels: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(N, channels, size, size)
    return x, (x.mean((1, 2, 3)) > 0).long()


def series() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 5, 3)
    return x, (x[:, 0, 0] > 0).long()


def tokens(length: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.randint(1, 20, (N, length))
    return x, (x[:, 0] > 9).long()


def padded() -> tuple[Tensor, Tensor, Tensor]:
    """(tokens with zeros behind, their lengths, classes)."""
    x, y = tokens()
    lengths = torch.randint(2, 7, (N,))
    return x * (torch.arange(6) < lengths[:, None]), lengths, y


# --- vectors -----------------------------------------------------------------------------------------------------------------
@kind
def logistic_regression(r: random.Random) -> Any:
    return lambda: nn.Linear(6, 2), *vectors(), ce


@kind
def multilayer_perceptron(r: random.Random) -> Any:
    width, act = _width(r), _activation(r)
    return lambda: nn.Sequential(nn.Linear(6, width), act, nn.Linear(width, width), act, nn.Linear(width, 2)), *vectors(), ce


@kind
def perceptron_with_layer_norm(r: random.Random) -> Any:
    width, norm = _width(r), r.choice([nn.LayerNorm, nn.RMSNorm])
    return (
        lambda: nn.Sequential(nn.Linear(6, width), norm(width), _activation(random.Random(0)), nn.Linear(width, 2)),
        *vectors(),
        ce,
    )


@kind
def residual_perceptron(r: random.Random) -> Any:
    width, act = _width(r), _activation(r)

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.enter(x)
        for block in s.blocks:
            h = h + block(h)
        return s.leave(h)

    return (
        lambda: Made(
            run,
            enter=nn.Linear(6, width),
            blocks=nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), act) for _ in range(3)),
            leave=nn.Linear(width, 2),
        ),
        *vectors(),
        ce,
    )


@kind
def dropout_in_training(r: random.Random) -> Any:
    rate = _rate(r)
    return (
        lambda: nn.Sequential(nn.Dropout(rate), nn.Linear(6, 12), nn.ReLU(), nn.Dropout(rate), nn.Linear(12, 2)),
        *vectors(),
        ce,
    )


@kind
def self_normalising(r: random.Random) -> Any:
    rate = _rate(r)
    return lambda: nn.Sequential(nn.Linear(6, 12), nn.SELU(), nn.AlphaDropout(rate), nn.Linear(12, 2)), *vectors(), ce


@kind
def maxout(r: random.Random) -> Any:
    pieces = r.choice([2, 3, 4])
    return (
        lambda: Made(lambda s, x: s.b(s.a(x).view(len(x), 5, pieces).amax(-1)), a=nn.Linear(6, 5 * pieces), b=nn.Linear(5, 2)),
        *vectors(),
        ce,
    )


@kind
def gated_linear_unit(r: random.Random) -> Any:
    width = _width(r)
    return lambda: nn.Sequential(nn.Linear(6, 2 * width), nn.GLU(), nn.Linear(width, 2)), *vectors(), ce


@kind
def mixture_of_experts(r: random.Random) -> Any:
    experts = r.choice([2, 3])

    def run(s: Any, x: Tensor) -> Tensor:
        share = torch.softmax(s.gate(x), 1)
        return sum(share[:, [k]] * expert(x) for k, expert in enumerate(s.experts))

    return (
        lambda: Made(run, gate=nn.Linear(6, experts), experts=nn.ModuleList(nn.Linear(6, 2) for _ in range(experts))),
        *vectors(),
        ce,
    )


@kind
def switch_of_experts(r: random.Random) -> Any:
    """Each record goes to one expert, by a boolean mask as in public code."""

    def run(s: Any, x: Tensor) -> Tensor:
        share, chosen = torch.softmax(s.gate(x), 1).max(1)
        out = torch.zeros(len(x), 2)
        for k, expert in enumerate(s.experts):
            mask = chosen == k
            if mask.any():
                out[mask] = expert(x[mask]) * share[mask][:, None]
        return out

    return lambda: Made(run, gate=nn.Linear(6, 2), experts=nn.ModuleList(nn.Linear(6, 2) for _ in range(2))), *vectors(), ce


@kind
def highway(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        t = torch.sigmoid(s.gate(x))
        return s.leave(t * torch.tanh(s.new(x)) + (1 - t) * x)

    return lambda: Made(run, gate=nn.Linear(6, 6), new=nn.Linear(6, 6), leave=nn.Linear(6, 2)), *vectors(), ce


@kind
def weight_norm(r: random.Random) -> Any:
    width = _width(r)
    normed = nn.utils.parametrizations.weight_norm
    return lambda: nn.Sequential(normed(nn.Linear(6, width)), nn.Tanh(), normed(nn.Linear(width, 2))), *vectors(), ce


@kind
def orthogonal_weights(r: random.Random) -> Any:
    return (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"), nn.Linear(6, 2)),
        *vectors(),
        ce,
    )


@kind
def symmetric_parametrisation(r: random.Random) -> Any:
    class Symmetric(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w.triu() + w.triu(1).T

    def make() -> nn.Module:
        layer = nn.Linear(6, 6)
        nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
        return nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 2))

    return make, *vectors(), ce


@kind
def tied_autoencoder(r: random.Random) -> Any:
    width, act = _width(r), _activation(r)
    x, _ = vectors()
    return (
        lambda: Made(lambda s, x: F.linear(s.act(s.a(x)), s.a.weight.T, s.bias), a=nn.Linear(6, width), act=act, bias=nn.Parameter(torch.zeros(6))),
        x,
        x.clone(),
        squares,
    )  # fmt: skip


@kind
def sparse_autoencoder(r: random.Random) -> Any:
    x, _ = vectors()

    def run(s: Any, x: Tensor) -> Any:
        h = torch.relu(s.a(x))
        return s.b(h), h

    return (
        lambda: Made(run, a=nn.Linear(6, 12), b=nn.Linear(12, 6)),
        x,
        x.clone(),
        lambda o, y: squares(o[0], y) + 0.1 * o[1].abs().sum(1),
    )


@kind
def top_k_autoencoder(r: random.Random) -> Any:
    x, _ = vectors()
    most = r.choice([2, 3])

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        kept = h.topk(most, dim=1)
        return s.b(torch.zeros_like(h).scatter(1, kept.indices, kept.values))

    return lambda: Made(run, a=nn.Linear(6, 12), b=nn.Linear(12, 6)), x, x.clone(), squares


@drawing
def denoising_autoencoder(r: random.Random) -> Any:
    x, _ = vectors()
    return (
        lambda: Made(lambda s, x: s.net(x + 0.3 * torch.randn_like(x)), net=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))),
        x,
        x.clone(),
        squares,
    )  # fmt: skip


def _elbo(o: Any, y: Tensor) -> Tensor:
    return (o[0] - y).square().sum(1) - 0.5 * (1 + o[2] - o[1].square() - o[2].exp()).sum(1)


@drawing
def variational_autoencoder(r: random.Random) -> Any:
    x, _ = vectors()
    width = r.choice([2, 3])

    def run(s: Any, x: Tensor) -> Any:
        mean, log = s.e(x).chunk(2, 1)
        return s.d(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log

    return lambda: Made(run, e=nn.Linear(6, 2 * width), d=nn.Linear(width, 6)), x, x.clone(), _elbo


@drawing
def variational_autoencoder_by_distributions(r: random.Random) -> Any:
    x, _ = vectors()

    def run(s: Any, x: Tensor) -> Any:
        mean, log = s.e(x).chunk(2, 1)
        posterior = Normal(mean, log.exp(), validate_args=False)
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean), validate_args=False)
        return s.d(posterior.rsample()), kl_divergence(posterior, prior)

    return lambda: Made(run, e=nn.Linear(6, 6), d=nn.Linear(3, 6)), x, x.clone(), lambda o, y: squares(o[0], y) + o[1].sum(1)


@drawing
def variational_autoencoder_validated(r: random.Random) -> Any:
    """Distributions check their arguments by default, which reads numbers."""
    x, _ = vectors()

    def run(s: Any, x: Tensor) -> Any:
        mean, log = s.e(x).chunk(2, 1)
        return s.d(Normal(mean, log.exp()).rsample()), mean, 2 * log

    return lambda: Made(run, e=nn.Linear(6, 6), d=nn.Linear(3, 6)), x, x.clone(), _elbo


@drawing
def conditional_variational_autoencoder(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor, c: Tensor) -> Any:
        hot = F.one_hot(c, 2).float()
        mean, log = s.e(torch.cat([x, hot], 1)).chunk(2, 1)
        return s.d(torch.cat([mean + torch.randn_like(mean) * (log / 2).exp(), hot], 1)), mean, log

    return lambda: Made(run, e=nn.Linear(8, 4), d=nn.Linear(4, 6)), (x, y), x.clone(), _elbo


@drawing
def variational_autoencoder_of_several_samples(r: random.Random) -> Any:
    """Importance-weighted, with several samples a record."""
    x, y = vectors()
    samples = r.choice([2, 5])

    def run(s: Any, x: Tensor) -> Tensor:
        mean, log = s.e(x).chunk(2, 1)
        z = mean[:, None] + torch.randn(len(x), samples, 2) * (log[:, None] / 2).exp()
        weights = -(s.d(z) - x[:, None]).square().sum(2) - 0.5 * z.square().sum(2)
        return math.log(samples) - torch.logsumexp(weights, 1)

    return lambda: Made(run, e=nn.Linear(6, 4), d=nn.Linear(2, 6)), x, y, given


@kind
def vector_quantised_autoencoder(r: random.Random) -> Any:
    x, _ = vectors()

    def run(s: Any, x: Tensor) -> Any:
        h = s.e(x)
        codes = s.codes.weight[torch.cdist(h, s.codes.weight).argmin(1)]
        return s.d(h + (codes - h).detach()), h, codes

    def loss(o: Any, y: Tensor) -> Tensor:
        return squares(o[0], y) + (o[1].detach() - o[2]).square().sum(1) + 0.25 * (o[1] - o[2].detach()).square().sum(1)

    return lambda: Made(run, e=nn.Linear(6, 3), d=nn.Linear(3, 6), codes=nn.Embedding(5, 3)), x, x.clone(), loss


@drawing
def gumbel_softmax(r: random.Random) -> Any:
    x, _ = vectors()
    hard = r.choice([True, False])
    return (
        lambda: Made(lambda s, x: s.d(F.gumbel_softmax(s.e(x), tau=0.7, hard=hard)), e=nn.Linear(6, 4), d=nn.Linear(4, 6)),
        x,
        x.clone(),
        squares,
    )


@drawing
def straight_through_bernoulli(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        chance = torch.sigmoid(s.a(x))
        return s.b(chance + (torch.bernoulli(chance.detach()) - chance).detach())

    return lambda: Made(run, a=nn.Linear(6, 8), b=nn.Linear(8, 2)), *vectors(), ce


@drawing
def reinforce(r: random.Random) -> Any:
    """A policy gradient with an action that is drawn for each record."""
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        logits = s.net(x)
        action = torch.multinomial(torch.softmax(logits.detach(), 1), 1)[:, 0]
        return -F.log_softmax(logits, 1).gather(1, action[:, None])[:, 0] * (action == (x[:, 0] > 0)).float()

    return lambda: Made(run, net=nn.Linear(6, 2)), x, y, given


def _diffusion(r: random.Random, convolutional: bool) -> Any:
    steps = r.choice([10, 50])
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.1, steps), 0)
    x, y = images() if convolutional else vectors()

    def run(s: Any, x: Tensor) -> Any:
        t = torch.randint(0, steps, (x.shape[0],))
        noise = torch.randn_like(x)
        a = s.kept[t].reshape(-1, *[1] * (x.dim() - 1))
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        if convolutional:
            h = s.enter(noisy) + s.time(t)[:, :, None, None]
            return s.net(h), noise
        return s.net(torch.cat([noisy, s.time(t)], 1)), noise

    if convolutional:
        parts: Callable[[], dict[str, Any]] = lambda: {
            "enter": nn.Conv2d(1, 4, 3, padding=1),
            "time": nn.Embedding(steps, 4),
            "net": nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 1, 3, padding=1)),
        }
    else:
        parts = lambda: {
            "time": nn.Embedding(steps, 4),
            "net": nn.Sequential(nn.Linear(10, 12), nn.SiLU(), nn.Linear(12, 6)),
        }
    return lambda: Made(run, kept=kept, **parts()), x, y, lambda o, y: squares(o[0], o[1])


@drawing
def diffusion(r: random.Random) -> Any:
    return _diffusion(r, False)


@drawing
def diffusion_of_images(r: random.Random) -> Any:
    return _diffusion(r, True)


@drawing
def score_matching(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        sigma = torch.rand(len(x), 1) + 0.1
        noise = torch.randn_like(x)
        return (s.net(torch.cat([x + sigma * noise, sigma.log()], 1)) * sigma + noise).square().sum(1)

    return lambda: Made(run, net=nn.Sequential(nn.Linear(7, 12), nn.Softplus(), nn.Linear(12, 6))), x, y, given


@drawing
def flow_matching(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        t, start = torch.rand(x.size(0), 1, device=x.device), torch.randn(x.shape)
        return (s.net(torch.cat([(1 - t) * start + t * x, t], 1)) - (x - start)).square().mean(1)

    return lambda: Made(run, net=nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 6))), x, y, given


@kind
def coupling_flow(r: random.Random) -> Any:
    x, y = vectors()
    depth = r.choice([2, 3])

    def run(s: Any, x: Tensor) -> Tensor:
        log_det: Any = 0.0
        for net in s.nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            log_det = log_det + scale.tanh().sum(1)
            x = torch.cat([b * scale.tanh().exp() + shift, a], 1)
        return 0.5 * x.square().sum(1) - log_det

    return (
        lambda: Made(run, nets=nn.ModuleList(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(depth))),
        x,
        y,
        given,
    )


@kind
def linear_flow(r: random.Random) -> Any:
    x, y = vectors()
    return (
        lambda: Made(lambda s, x: 0.5 * (x @ s.w).square().sum(1) - torch.linalg.slogdet(s.w)[1], w=nn.Parameter(torch.eye(6) + 0.1 * torch.randn(6, 6))),
        x,
        y,
        given,
    )  # fmt: skip


@kind
def masked_autoregressive(r: random.Random) -> Any:
    x, _ = vectors()
    mask = torch.tril(torch.ones(6, 6), -1)
    return (
        lambda: Made(lambda s, x: F.linear(x, s.w.weight * s.mask, s.w.bias), w=nn.Linear(6, 6), mask=mask),
        x,
        x.clone(),
        squares,
    )


@drawing
def adversary_with_drawn_fakes(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            fake = s.generator(torch.randn(len(x), 3))
        return F.softplus(-s.net(x))[:, 0] + F.softplus(s.net(fake))[:, 0]

    def make() -> nn.Module:
        return Made(
            run,
            net=nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
            generator=nn.Linear(3, 6).requires_grad_(False),
        )

    return make, x, y, given


@kind
def gradient_penalty(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(s.net(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square()

    return lambda: Made(run, net=nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))), x, y, given


@kind
def multi_task_by_dict(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Any:
        h = torch.relu(s.body(x))
        return {"class": s.one(h), "value": s.two(h)[:, 0]}

    def loss(o: Any, y: Any) -> Tensor:
        return ce(o["class"], y["class"]) + (o["value"] - y["value"]).square()

    make = lambda: Made(run, body=nn.Linear(6, 8), one=nn.Linear(8, 2), two=nn.Linear(8, 1))
    return make, x, {"class": y, "value": torch.randn(N)}, loss


@kind
def multi_task_with_learned_weights(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Any:
        h = torch.relu(s.body(x))
        return s.one(h), s.two(h)[:, 0], s.weights

    def loss(o: Any, y: Any) -> Tensor:
        first, second, weights = o
        return (-weights[0]).exp() * ce(first, y["class"]) + (-weights[1]).exp() * (second - y["value"]).square() + weights.sum()

    make = lambda: Made(run, body=nn.Linear(6, 8), one=nn.Linear(8, 2), two=nn.Linear(8, 1), weights=nn.Parameter(torch.zeros(2)))
    return make, x, {"class": y, "value": torch.randn(N)}, loss  # fmt: skip


@kind
def weighted_records(r: random.Random) -> Any:
    x, y = vectors()
    return (
        lambda: nn.Linear(6, 2),
        x,
        {"class": y, "weight": torch.rand(N)},
        lambda o, t: ce(o, t["class"]) * t["weight"],
    )


@kind
def heteroscedastic_regression(r: random.Random) -> Any:
    x, _ = vectors()
    y = x.sum(1)
    return (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
        x,
        y,
        lambda o, y: F.gaussian_nll_loss(o[:, 0], y, o[:, 1].exp(), reduction="none"),
    )


def _with_loss(loss: Any, targets: Callable[[Tensor, Tensor], Tensor], outputs: int = 1) -> Kind:
    def made(r: random.Random) -> Any:
        width, act = _width(r), _activation(r)
        x, y = vectors()
        return lambda: nn.Sequential(nn.Linear(6, width), act, nn.Linear(width, outputs)), x, targets(x, y), loss

    return made


KINDS |= {
    "Poisson regression": _with_loss(lambda o, y: F.poisson_nll_loss(o[:, 0], y, reduction="none"), lambda x, y: y.float() * 3),
    "quantile regression": _with_loss(
        lambda o, y: (lambda e: torch.maximum(0.9 * e, -0.1 * e).sum(1))(y[:, None] - o), lambda x, y: x.sum(1), 3
    ),
    "Huber regression": _with_loss(lambda o, y: F.huber_loss(o[:, 0], y, reduction="none"), lambda x, y: x.sum(1)),
    "focal loss": _with_loss(lambda o, y: (1 - (-ce(o, y)).exp()) ** 2 * ce(o, y), lambda x, y: y, 2),
    "label smoothing": _with_loss(
        lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1, reduction="none"), lambda x, y: y, 2
    ),
    "public class weights": _with_loss(
        lambda o, y: F.cross_entropy(o, y, weight=torch.tensor([1.0, 3.0]), reduction="none"), lambda x, y: y, 2
    ),
    "hinge": _with_loss(lambda o, y: F.relu(1 - o[:, 0] * (2 * y - 1)), lambda x, y: y),
    "multi-margin": _with_loss(lambda o, y: F.multi_margin_loss(o, y, reduction="none"), lambda x, y: y, 2),
    "several labels": _with_loss(
        lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none").mean(1), lambda x, y: (x[:, :3] > 0).float(), 3
    ),
    "ordinal": _with_loss(
        lambda o, y: F.binary_cross_entropy_with_logits(o, (y[:, None] > torch.arange(2)).float(), reduction="none").sum(1),
        lambda x, y: y + (x[:, 1] > 0).long(), 2,
    ),
    "absolute errors": _with_loss(lambda o, y: F.l1_loss(o, y, reduction="none")[:, 0], lambda x, y: x[:, :1]),
    "cosine to targets": _with_loss(lambda o, y: 1 - F.cosine_similarity(o, y, dim=1), lambda x, y: x.clone(), 6),
    "survival in discrete time": _with_loss(
        lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, 3).float(), torch.ones(3), reduction="none").sum(1)
        + o.cumsum(1)[:, -1].square() * 1e-2,
        lambda x, y: y, 3,
    ),
    "mixture density": _with_loss(
        lambda o, y: -torch.logsumexp(F.log_softmax(o[:, :2], 1) - 0.5 * (y[:, None] - o[:, 2:4]).square() / o[:, 4:].exp() - 0.5 * o[:, 4:], 1),
        lambda x, y: x.sum(1), 6,
    ),
    "triplet of views": _with_loss(
        lambda o, y: F.relu((o[:, :2] - y[:, :2]).norm(dim=1) - (o[:, :2] - y[:, 2:4]).norm(dim=1) + 1), lambda x, y: x.clone(), 2
    ),
    "loss of a module with a buffer": _with_loss(nn.CrossEntropyLoss(torch.tensor([0.3, 0.7]), reduction="none"), lambda x, y: y, 2),
    "L2 term in the loss": _with_loss(lambda o, y: ce(o, y) + 0.1 * o.square().sum(1), lambda x, y: y, 2),
}  # fmt: skip


@drawing
def loss_that_draws(r: random.Random) -> Any:
    return lambda: nn.Linear(6, 2), *vectors(), lambda o, y: ce(o + 0.1 * torch.randn_like(o), y)


@kind
def distillation(r: random.Random) -> Any:
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Any:
        with torch.no_grad():
            taught = s.teacher(x)
        return s.net(x), taught

    def loss(o: Any, y: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(o[0] / 2, 1), F.softmax(o[1] / 2, 1), reduction="none").sum(1) + ce(o[0], y)

    return lambda: Made(run, net=nn.Linear(6, 2), teacher=nn.Linear(6, 2).requires_grad_(False).eval()), x, y, loss


@kind
def wide_and_deep(r: random.Random) -> Any:
    x, y = vectors()
    inputs = {"numbers": x, "place": torch.randint(0, 9, (N,)), "job": torch.randint(0, 4, (N,))}

    def run(s: Any, numbers: Tensor, place: Tensor, job: Tensor) -> Tensor:
        return s.deep(torch.cat([numbers, s.places(place), s.jobs(job)], 1)) + s.wide(numbers)

    def make() -> nn.Module:
        return Made(
            run,
            places=nn.Embedding(9, 4),
            jobs=nn.Embedding(4, 2),
            wide=nn.Linear(6, 2),
            deep=nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2)),
        )

    return make, inputs, y, ce


@kind
def factorisation_machine(r: random.Random) -> Any:
    x = torch.randint(0, 12, (N, 4))

    def run(s: Any, x: Tensor) -> Tensor:
        e = s.factors(x)
        return s.first(x).sum((1, 2)) + 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1) + s.bias

    loss = lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none")
    make = lambda: Made(run, first=nn.Embedding(12, 1), factors=nn.Embedding(12, 3), bias=nn.Parameter(torch.zeros(())))
    return make, x, (x[:, 0] > 5).float(), loss


@kind
def cross_network(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = x
        for layer in s.cross:
            h = x * layer(h) + h
        return s.leave(h)

    return lambda: Made(run, cross=nn.ModuleList(nn.Linear(6, 6) for _ in range(2)), leave=nn.Linear(6, 2)), *vectors(), ce


def _towers(run: Any, loss: Any, targets: Callable[[Tensor], Tensor]) -> Any:
    user, item = torch.randint(0, 15, (N,)), torch.randint(0, 9, (N,))
    make = lambda: Made(run, users=nn.Embedding(15, 4), items=nn.Embedding(9, 4), net=nn.Linear(4, 4))
    return make, {"user": user, "item": item}, targets(item), loss


@kind
def two_towers(r: random.Random) -> Any:
    return _towers(
        lambda s, user, item: (s.net(s.users(user)) * s.items(item)).sum(1),
        lambda o, y: (o - y).square(),
        lambda item: torch.rand(N),
    )


@kind
def two_towers_with_a_full_softmax(r: random.Random) -> Any:
    return _towers(lambda s, user, item: s.net(s.users(user)) @ s.items.weight.T, ce, lambda item: item)


@drawing
def two_towers_with_drawn_negatives(r: random.Random) -> Any:
    def run(s: Any, user: Tensor, item: Tensor) -> Tensor:
        mine = s.net(s.users(user))
        others = s.items(torch.randint(0, 9, (len(user), 3)))
        return torch.cat([(mine * s.items(item)).sum(1, keepdim=True), (others @ mine[:, :, None])[:, :, 0]], 1)

    return _towers(run, ce, lambda item: torch.zeros(N, dtype=torch.long))


@kind
def neural_ordinary_differential_equation(r: random.Random) -> Any:
    steps = r.choice([3, 6])

    def run(s: Any, x: Tensor) -> Tensor:
        for _ in range(steps):
            x = x + torch.tanh(s.field(x)) / steps
        return s.leave(x)

    return lambda: Made(run, field=nn.Linear(6, 6), leave=nn.Linear(6, 2)), *vectors(), ce


@kind
def bilinear(r: random.Random) -> Any:
    x, y = vectors()
    return lambda: Made(lambda s, x: s.b(x[:, :3], x[:, 3:]), b=nn.Bilinear(3, 3, 2)), x, y, ce


@kind
def hypernetwork(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        weights = s.makes(x[:, :2]).view(len(x), 2, 4)
        return torch.bmm(weights, x[:, 2:, None])[:, :, 0]

    return lambda: Made(run, makes=nn.Linear(2, 8)), *vectors(), ce


@kind
def feature_wise_modulation(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        scale, shift = s.film(x[:, :2]).chunk(2, 1)
        return s.b(torch.relu(s.a(x) * (1 + scale) + shift))

    return lambda: Made(run, film=nn.Linear(2, 16), a=nn.Linear(6, 8), b=nn.Linear(8, 2)), *vectors(), ce


@kind
def radial_basis(r: random.Random) -> Any:
    return (
        lambda: Made(lambda s, x: s.b(torch.exp(-torch.cdist(x, s.centres).square())), centres=nn.Parameter(torch.randn(5, 6)), b=nn.Linear(5, 2)),
        *vectors(),
        ce,
    )  # fmt: skip


@kind
def prototypes(r: random.Random) -> Any:
    return (
        lambda: Made(
            lambda s, x: -(s.e(x)[:, None] - s.prototypes).square().sum(-1), e=nn.Linear(6, 3), prototypes=nn.Parameter(torch.randn(2, 3))
        ),
        *vectors(),
        ce,
    )  # fmt: skip


@kind
def angular_margin(r: random.Random) -> Any:
    x, y = vectors()
    return (
        lambda: Made(lambda s, x: 8 * F.linear(F.normalize(s.e(x)), F.normalize(s.w)), e=nn.Linear(6, 4), w=nn.Parameter(torch.randn(2, 4))),
        x,
        y,
        lambda o, y: ce(o - 2 * F.one_hot(y, 2), y),
    )  # fmt: skip


@kind
def splines(r: random.Random) -> Any:
    """As Kolmogorov-Arnold networks: learned functions of single features."""
    knots = torch.linspace(-2, 2, 5)
    return (
        lambda: Made(lambda s, x: torch.einsum("bik,oik->bo", torch.relu(x[..., None] - s.knots), s.w), knots=knots, w=nn.Parameter(torch.randn(2, 6, 5) / 5)),
        *vectors(),
        ce,
    )  # fmt: skip


@kind
def fourier_features(r: random.Random) -> Any:
    def make() -> nn.Module:
        return Made(
            lambda s, x: s.b(torch.cat([torch.sin(x @ s.f), torch.cos(x @ s.f)], 1)), f=torch.randn(6, 8), b=nn.Linear(16, 2)
        )

    return make, *vectors(), ce


@kind
def ensemble(r: random.Random) -> Any:
    members = r.choice([2, 4])
    return (
        lambda: Made(lambda s, x: torch.stack([m(x) for m in s.members]).mean(0), members=nn.ModuleList(nn.Linear(6, 2) for _ in range(members))),
        *vectors(),
        ce,
    )  # fmt: skip


@kind
def batched_ensemble(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        return (torch.einsum("bi,mio->mbo", x, s.w) + s.b[:, None]).mean(0)

    return lambda: Made(run, w=nn.Parameter(torch.randn(3, 6, 2)), b=nn.Parameter(torch.zeros(3, 2))), *vectors(), ce


@kind
def way_by_a_number(r: random.Random) -> Any:
    """Python branches on what is the same for all, on the mode, and on numbers of each record by `where`."""

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        if x.shape[1] > 5 and s.a.bias is not None:
            h = torch.where(h > 0, h, 0.1 * h)
        return s.b(h * 0.5 if h.dtype == torch.float64 else h)

    return lambda: Made(run, a=nn.Linear(6, 8), b=nn.Linear(8, 2)), *vectors(), ce


@kind
def guarded(r: random.Random) -> Any:
    """Checks of numbers that no record fails."""

    def run(s: Any, x: Tensor) -> Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        assert x.abs().max() < 1e6
        return s.a(x)

    return lambda: Made(run, a=nn.Linear(6, 2)), *vectors(), ce


@drawing
def bayes_by_backprop(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        return F.linear(x, s.mean + torch.randn_like(s.mean) * F.softplus(s.spread))

    make = lambda: Made(run, mean=nn.Parameter(torch.randn(2, 6) * 0.3), spread=nn.Parameter(torch.full((2, 6), -3.0)))
    return make, *vectors(), ce


@drawing
def monte_carlo_dropout(r: random.Random) -> Any:
    rate = _rate(r)
    return (
        lambda: Made(lambda s, x: s.b(F.dropout(torch.tanh(s.a(x)), rate)), a=nn.Linear(6, 8), b=nn.Linear(8, 2)),
        *vectors(),
        ce,
    )


@drawing
def drop_connect(r: random.Random) -> Any:
    rate = _rate(r)
    return lambda: Made(lambda s, x: F.linear(x, F.dropout(s.a.weight, rate), s.a.bias), a=nn.Linear(6, 2)), *vectors(), ce


@drawing
def stochastic_depth(r: random.Random) -> Any:
    rate = _rate(r)

    def run(s: Any, x: Tensor) -> Tensor:
        keep = torch.empty(x.shape[0], 1).bernoulli_(1 - rate) / (1 - rate)
        return s.b(x + keep * torch.tanh(s.a(x)))

    return lambda: Made(run, a=nn.Linear(6, 6), b=nn.Linear(6, 2)), *vectors(), ce


@drawing
def layer_drop(r: random.Random) -> Any:
    own = r.choice(["torch", "python"])

    def run(s: Any, x: Tensor) -> Tensor:
        for layer in s.layers:
            coin = torch.rand(()) if own == "torch" else random.random()
            if coin > 0.3:
                x = x + torch.tanh(layer(x))
        return s.leave(x)

    return lambda: Made(run, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), leave=nn.Linear(6, 2)), *vectors(), ce


@drawing
def masked_features(r: random.Random) -> Any:
    x, _ = vectors()

    def run(s: Any, x: Tensor) -> Any:
        mask = (torch.rand_like(x) < 0.3).float()
        return s.net(torch.cat([x * (1 - mask), mask], 1)), mask

    def loss(o: Any, y: Tensor) -> Tensor:
        return ((o[0] - y).square() * o[1]).sum(1) / o[1].sum(1).clamp(min=1)

    return lambda: Made(run, net=nn.Linear(12, 6)), x, x.clone(), loss


@drawing
def noise_in_training_mode(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        return s.a(x + 0.1 * torch.randn_like(x) if s.training else x)

    return lambda: Made(run, a=nn.Linear(6, 2)), *vectors(), ce


@drawing
def contrast_of_two_views(r: random.Random) -> Any:
    """Two augmented views of the same record, without negatives (BYOL, SimSiam)."""
    x, y = vectors()

    def run(s: Any, x: Tensor) -> Tensor:
        one, two = (s.e(x + 0.2 * torch.randn_like(x)) for _ in range(2))
        return -F.cosine_similarity(s.p(one), two.detach(), dim=1) - F.cosine_similarity(s.p(two), one.detach(), dim=1)

    return lambda: Made(run, e=nn.Linear(6, 4), p=nn.Linear(4, 4)), x, y, given


# --- images ------------------------------------------------------------------------------------------------------------------
@kind
def convolutional(r: random.Random) -> Any:
    act, pool = _activation(r), r.choice([nn.MaxPool2d, nn.AvgPool2d])
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), act, pool(2), nn.Flatten(), nn.Linear(36, 2)), *images(), ce


@kind
def convolutional_with_group_norm(r: random.Random) -> Any:
    groups, act = r.choice([1, 2, 4]), _activation(r)
    return (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(groups, 4), act, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        *images(),
        ce,
    )  # fmt: skip


@kind
def inplace_activations(r: random.Random) -> Any:
    return (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 8), nn.Dropout(0.2, inplace=True), nn.Linear(8, 2)),
        *images(),
        ce,
    )  # fmt: skip


@kind
def residual_network(r: random.Random) -> Any:
    depth = r.choice([1, 2])

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.enter(x)
        for block in s.blocks:
            h = F.relu(h + block(h))
        return s.leave(h.mean((2, 3)))

    def block() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1)
        )

    make = lambda: Made(run, enter=nn.Conv2d(1, 4, 3), blocks=nn.ModuleList(block() for _ in range(depth)), leave=nn.Linear(4, 2))
    return make, *images(), ce  # fmt: skip


@kind
def batch_norm_in_eval_mode(r: random.Random) -> Any:
    """With statistics that were made elsewhere."""

    class Fixed(nn.BatchNorm2d):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train(False)

    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), Fixed(4).eval(), nn.Flatten(), nn.Linear(144, 2)), *images(), ce


@kind
def depthwise_separable(r: random.Random) -> Any:
    return (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.Hardswish(), nn.Conv2d(4, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)),
        *images(),
        ce,
    )  # fmt: skip


@kind
def squeeze_and_excite(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        return s.b((h * torch.sigmoid(s.e(h.mean((2, 3))))[:, :, None, None]).mean((2, 3)))

    return lambda: Made(run, a=nn.Conv2d(1, 4, 3), e=nn.Linear(4, 4), b=nn.Linear(4, 2)), *images(), ce


def _unet(r: random.Random, loss: Any, targets: Callable[[Tensor], Tensor]) -> Any:
    x, _ = images()
    norm = r.choice([nn.InstanceNorm2d, nn.Identity])

    def block(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), norm(b), nn.ReLU(inplace=True))

    def run(s: Any, x: Tensor) -> Tensor:
        one = s.down(x)
        low = s.bottom(F.max_pool2d(one, 2))
        return s.out(s.up(torch.cat([one, s.rise(low)], 1)))

    def make() -> nn.Module:
        return Made(
            run,
            down=block(1, 4),
            bottom=block(4, 8),
            rise=nn.ConvTranspose2d(8, 4, 2, 2),
            up=block(8, 4),
            out=nn.Conv2d(4, 2, 1),
        )

    return make, x, targets(x), loss


@kind
def unet(r: random.Random) -> Any:
    return _unet(r, lambda o, y: ce(o, y).mean((1, 2)), lambda x: (x[:, 0] > 0).long())


@kind
def unet_with_pixels_left_out(r: random.Random) -> Any:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(o, y, ignore_index=-100, reduction="none").flatten(1)
        return losses.sum(1) / (y != -100).flatten(1).sum(1).clamp(min=1)

    def targets(x: Tensor) -> Tensor:
        y = (x[:, 0] > 0).long()
        y[:, :2] = -100
        return y

    return _unet(r, loss, targets)


@kind
def unet_with_dice(r: random.Random) -> Any:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        p = o.softmax(1)[:, 1]
        return 1 - (2 * (p * y).sum((1, 2)) + 1) / (p.sum((1, 2)) + y.sum((1, 2)) + 1)

    return _unet(r, loss, lambda x: (x[:, 0] > 0).float())


@kind
def vision_transformer(r: random.Random) -> Any:
    first = r.choice([True, False])

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([s.token.expand(x.shape[0], -1, -1), h], 1) + s.places
        return s.leave(s.layer(h)[:, 0])

    def make() -> nn.Module:
        return Made(
            run,
            patch=nn.Conv2d(1, 8, 4, 4),
            token=nn.Parameter(torch.randn(1, 1, 8)),
            places=nn.Parameter(torch.randn(1, 5, 8)),
            layer=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=first),
            leave=nn.Linear(8, 2),
        )

    return make, *images(), ce


@drawing
def masked_autoencoder(r: random.Random) -> Any:
    """As MAE: an order is drawn for each record, some patches stay, and the others are told from them."""
    x, y = images()

    def run(s: Any, x: Tensor) -> Tensor:
        patches = F.unfold(x, 2, stride=2).transpose(1, 2)  # (b, 16, 4)
        b, count, _ = patches.shape
        order = torch.rand(b, count).argsort(1)
        back = order.argsort(1)
        kept = torch.gather(s.enter(patches) + s.places, 1, order[:, :6, None].expand(-1, -1, 8))
        h = s.encode(kept)
        whole = torch.cat([h, s.blank.expand(b, count - 6, -1)], 1)
        whole = torch.gather(whole, 1, back[:, :, None].expand(-1, -1, 8)) + s.places
        mask = torch.gather(torch.cat([torch.zeros(b, 6), torch.ones(b, count - 6)], 1), 1, back)
        return ((s.leave(whole) - patches).square().mean(2) * mask).sum(1) / mask.sum(1)

    def make() -> nn.Module:
        return Made(
            run,
            enter=nn.Linear(4, 8),
            places=nn.Parameter(torch.randn(1, 16, 8) * 0.1),
            encode=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            blank=nn.Parameter(torch.zeros(1, 1, 8)),
            leave=nn.Linear(8, 4),
        )

    return make, x, y, given


@kind
def mixer(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.patch(x).flatten(2).transpose(1, 2)
        h = h + s.across(s.one(h).transpose(1, 2)).transpose(1, 2)
        return s.leave((h + s.along(s.two(h))).mean(1))

    def make() -> nn.Module:
        return Made(
            run,
            patch=nn.Conv2d(1, 8, 4, 4),
            one=nn.LayerNorm(8),
            two=nn.LayerNorm(8),
            across=nn.Linear(4, 4),
            along=nn.Linear(8, 8),
            leave=nn.Linear(8, 2),
        )

    return make, *images(), ce


@kind
def convnext(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.enter(x)
        mixed = s.norm(s.depth(h).permute(0, 2, 3, 1))
        h = h + (s.scale * s.two(F.gelu(s.one(mixed)))).permute(0, 3, 1, 2)
        return s.leave(h.mean((2, 3)))

    def make() -> nn.Module:
        return Made(
            run,
            enter=nn.Conv2d(1, 4, 2, 2),
            depth=nn.Conv2d(4, 4, 3, padding=1, groups=4),
            norm=nn.LayerNorm(4),
            one=nn.Linear(4, 8),
            two=nn.Linear(8, 4),
            scale=nn.Parameter(torch.full((4,), 0.1)),
            leave=nn.Linear(4, 2),
        )

    return make, *images(), ce


@kind
def convolutional_autoencoder(r: random.Random) -> Any:
    x, _ = images()
    act = _activation(r)
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), act, nn.ConvTranspose2d(4, 1, 4, 2, 1)), x, x.clone(), squares


@kind
def super_resolution(r: random.Random) -> Any:
    x, _ = images(4)
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2)), x, torch.randn(N, 1, 8, 8), squares


@kind
def upsampled(r: random.Random) -> Any:
    x, _ = images(4)
    mode = r.choice(["nearest", "bilinear"])
    return lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Upsample(scale_factor=2, mode=mode), nn.Conv2d(2, 1, 1)), x, torch.randn(N, 1, 8, 8), squares  # fmt: skip


@kind
def spatial_dropout(r: random.Random) -> Any:
    rate = _rate(r)
    return (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(rate), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)),
        *images(),
        ce,
    )


@drawing
def drop_block(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        holes = F.max_pool2d((torch.rand(len(h), 1, *h.shape[2:]) < 0.05).float(), 3, 1, 1)
        h = h * (1 - holes) * holes[0].numel() / (1 - holes).sum((1, 2, 3), keepdim=True).clamp(min=1)
        return s.b(h.mean((2, 3)))

    return lambda: Made(run, a=nn.Conv2d(1, 4, 3), b=nn.Linear(4, 2)), *images(), ce


@drawing
def cut_out(r: random.Random) -> Any:
    """A square of each image, drawn for it, is blanked."""

    def run(s: Any, x: Tensor) -> Tensor:
        row, column = torch.randint(0, 6, (2, len(x), 1))
        place = torch.arange(8)
        inside = lambda at: (place >= at) & (place < at + 3)
        hole = inside(row)[:, :, None] & inside(column)[:, None]
        return s.b(s.a(x.masked_fill(hole[:, None], 0.0)).flatten(1))

    return lambda: Made(run, a=nn.Conv2d(1, 2, 3), b=nn.Linear(72, 2)), *images(), ce


@kind
def coordinates(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij"))
        return s.b(s.a(torch.cat([x, grid.expand(len(x), -1, -1, -1)], 1)).mean((2, 3)))

    return lambda: Made(run, a=nn.Conv2d(3, 4, 3), b=nn.Linear(4, 2)), *images(), ce


@kind
def siamese(r: random.Random) -> Any:
    one, _ = images()
    two, y = images()
    loss = lambda d, y: y * d.square() + (1 - y) * F.relu(1 - d).square()
    make = lambda: Made(lambda s, a, b: (s.e(a) - s.e(b)).norm(dim=1), e=nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    return make, (one, two), y.float(), loss


@kind
def instance_norm(r: random.Random) -> Any:
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), *images(), ce  # fmt: skip


@kind
def local_response_norm(r: random.Random) -> Any:
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.LocalResponseNorm(2), nn.Flatten(), nn.Linear(144, 2)), *images(), ce


@kind
def dense_blocks(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        kept = [x]
        for layer in s.layers:
            kept.append(torch.relu(layer(torch.cat(kept, 1))))
        return s.leave(torch.cat(kept, 1).mean((2, 3)))

    return (
        lambda: Made(run, layers=nn.ModuleList(nn.Conv2d(1 + 2 * k, 2, 3, padding=1) for k in range(3)), leave=nn.Linear(7, 2)),
        *images(),
        ce,
    )


@kind
def inception(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        return s.leave(torch.cat([s.one(x), s.three(x), s.five(x)], 1).amax((2, 3)))

    def make() -> nn.Module:
        convolutions = {name: nn.Conv2d(1, 2, k, padding=k // 2) for name, k in (("one", 1), ("three", 3), ("five", 5))}
        return Made(run, **convolutions, leave=nn.Linear(6, 2))

    return make, *images(), ce


@kind
def weight_standardised(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        w = s.a.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-3)
        return s.b(F.relu(s.n(F.conv2d(x, w, s.a.bias))).mean((2, 3)))

    return lambda: Made(run, a=nn.Conv2d(1, 4, 3), n=nn.GroupNorm(2, 4), b=nn.Linear(4, 2)), *images(), ce


@kind
def spatial_transformer(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        grid = F.affine_grid(s.where(x.flatten(1)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3), list(x.shape), align_corners=False)
        return s.b(F.grid_sample(x, grid, align_corners=False).flatten(1))

    return lambda: Made(run, where=nn.Linear(64, 6), b=nn.Linear(64, 2)), *images(), ce


@kind
def attention_pool(r: random.Random) -> Any:
    """As multiple-instance learning: patches of a record are weighed."""

    def run(s: Any, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).transpose(1, 2)
        h = torch.tanh(s.e(patches))
        return s.b((torch.softmax(s.w(h), 1) * h).sum(1))

    return lambda: Made(run, e=nn.Linear(16, 6), w=nn.Linear(6, 1), b=nn.Linear(6, 2)), *images(), ce


@kind
def volumes(r: random.Random) -> Any:
    x = torch.randn(N, 1, 4, 4, 4)
    return (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 2)),
        x,
        (x.mean((1, 2, 3, 4)) > 0).long(),
        ce,
    )


@kind
def channels_last(r: random.Random) -> Any:
    x, y = images(channels=3)
    make = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 2)).to(
        memory_format=torch.channels_last
    )
    return make, x, y, ce  # fmt: skip


# --- series and sequences ----------------------------------------------------------------------------------------------------
@kind
def recurrent(r: random.Random) -> Any:
    layer = r.choice([nn.RNN, nn.GRU, nn.LSTM])
    both, layers = r.choice([True, False]), r.choice([1, 2])
    make = lambda: Made(
        lambda s, x: s.b(s.a(x)[0][:, -1]),
        a=layer(3, 4, layers, batch_first=True, bidirectional=both),
        b=nn.Linear(4 + 4 * both, 2),
    )
    return make, *series(), ce  # fmt: skip


@kind
def recurrent_with_dropout_between(r: random.Random) -> Any:
    make = lambda: Made(lambda s, x: s.b(s.a(x)[0].mean(1)), a=nn.GRU(3, 4, 2, batch_first=True, dropout=0.3), b=nn.Linear(4, 2))
    return make, *series(), ce


@kind
def recurrent_time_first(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        start = torch.zeros(1, x.shape[0], 4)
        return s.b(s.a(x.transpose(0, 1), (start, start))[1][0][-1])

    return lambda: Made(run, a=nn.LSTM(3, 4), b=nn.Linear(4, 2)), *series(), ce


@kind
def recurrent_with_a_learned_start(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        return s.b(s.a(x, s.start.expand(1, len(x), 4).contiguous())[1][0])

    return (
        lambda: Made(run, start=nn.Parameter(torch.randn(1, 1, 4)), a=nn.GRU(3, 4, batch_first=True), b=nn.Linear(4, 2)),
        *series(),
        ce,
    )


@kind
def projected_lstm(r: random.Random) -> Any:
    make = lambda: Made(lambda s, x: s.b(s.a(x)[0][:, -1]), a=nn.LSTM(3, 6, proj_size=3, batch_first=True), b=nn.Linear(3, 2))
    return make, *series(), ce


@kind
def cells_in_a_loop(r: random.Random) -> Any:
    lstm = r.choice([True, False])

    def run(s: Any, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), 4)
        c = torch.zeros_like(h)
        for step in x.unbind(1):
            if lstm:
                h, c = s.cell(step, (h, c))
            else:
                h = s.cell(step, h)
        return s.b(h)

    return lambda: Made(run, cell=(nn.LSTMCell if lstm else nn.GRUCell)(3, 4), b=nn.Linear(4, 2)), *series(), ce


@drawing
def scheduled_sampling(r: random.Random) -> Any:
    """A coin of Python says whether the next input is what was told or what is true."""
    x, _ = series()

    def run(s: Any, x: Tensor) -> Tensor:
        h, out, told = torch.zeros(len(x), 4), [], x[:, 0]
        for t in range(4):
            h = s.cell(x[:, t] if random.random() < 0.5 else told, h)
            told = s.b(h)
            out.append(told)
        return torch.stack(out, 1)

    return lambda: Made(run, cell=nn.GRUCell(3, 4), b=nn.Linear(4, 3)), x, x[:, 1:].clone(), squares


@kind
def causal_convolutions(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = x.transpose(1, 2)
        for k, layer in enumerate(s.layers):
            h = torch.relu(layer(F.pad(h, (2**k, 0))))
        return s.leave(h[:, :, -1])

    layers = lambda: nn.ModuleList(nn.Conv1d(3 if k == 0 else 4, 4, 2, dilation=2**k) for k in range(2))
    return lambda: Made(run, layers=layers(), leave=nn.Linear(4, 2)), *series(), ce


@kind
def gated_convolutions(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = x.transpose(1, 2)
        return s.leave((torch.tanh(s.a(h)) * torch.sigmoid(s.g(h))).mean(2))

    return lambda: Made(run, a=nn.Conv1d(3, 4, 2), g=nn.Conv1d(3, 4, 2), leave=nn.Linear(4, 2)), *series(), ce


@kind
def transformer_encoder(r: random.Random) -> Any:
    act, first, rate = r.choice(["relu", "gelu"]), r.choice([True, False]), r.choice([0.0, 0.1])

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, rate, act, batch_first=True, norm_first=first)
        return Made(
            lambda s, x: s.b(s.t(s.a(x)).mean(1)),
            a=nn.Linear(3, 8),
            t=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            b=nn.Linear(8, 2),
        )

    return make, *series(), ce


@kind
def transformer_time_first(r: random.Random) -> Any:
    make = lambda: Made(
        lambda s, x: s.b(s.t(s.a(x.transpose(0, 1)))[0]),
        a=nn.Linear(3, 8),
        t=nn.TransformerEncoderLayer(8, 2, 16, 0.0),
        b=nn.Linear(8, 2),
    )
    return make, *series(), ce  # fmt: skip


@kind
def encoder_and_decoder(r: random.Random) -> Any:
    x, _ = series()
    causal = nn.Transformer.generate_square_subsequent_mask(5)

    def make() -> nn.Module:
        return Made(
            lambda s, x: s.b(s.t(s.a(x), s.a(x), tgt_mask=s.causal)),
            a=nn.Linear(3, 8),
            t=nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True),
            b=nn.Linear(8, 3),
            causal=causal,
        )

    return make, x, x.clone(), squares


@kind
def attention_with_weights(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        mixed, weights = s.m(s.query.expand(len(x), -1, -1), h, h)
        return s.b(mixed[:, 0]) + weights.amax((1, 2))[:, None]

    def make() -> nn.Module:
        return Made(
            run,
            a=nn.Linear(3, 8),
            query=nn.Parameter(torch.randn(1, 1, 8)),
            m=nn.MultiheadAttention(8, 2, batch_first=True),
            b=nn.Linear(8, 2),
        )

    return make, *series(), ce


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


@kind
def llama_block(r: random.Random) -> Any:
    """Rotary positions, grouped queries, root mean squares, SwiGLU."""

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.enter(x)
        b, t, _ = h.shape
        n = s.one(h)
        q = _rotated(s.q(n).view(b, t, 2, 4).transpose(1, 2))
        k = _rotated(s.k(n).view(b, t, 1, 4).transpose(1, 2)).repeat_interleave(2, 1)
        v = s.v(n).view(b, t, 1, 4).transpose(1, 2).expand(b, 2, t, 4)
        h = h + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, 8))
        n = s.two(h)
        return s.leave((h + s.down(F.silu(s.gate(n)) * s.up(n)))[:, -1])

    def make() -> nn.Module:
        line = lambda a, b: nn.Linear(a, b, bias=False)
        return Made(
            run,
            enter=line(3, 8), one=nn.RMSNorm(8), two=nn.RMSNorm(8), q=line(8, 8), k=line(8, 4), v=line(8, 4), o=line(8, 8),
            gate=line(8, 12), up=line(8, 12), down=line(12, 8), leave=line(8, 2),
        )  # fmt: skip

    return make, *series(), ce


@kind
def relative_positions(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        place = torch.arange(5)
        bias = s.table(place[:, None] - place + 4)[..., 0]
        return s.b((torch.softmax(h @ h.transpose(1, 2) + bias, -1) @ h).mean(1))

    return lambda: Made(run, a=nn.Linear(3, 4), table=nn.Embedding(9, 1), b=nn.Linear(4, 2)), *series(), ce


@kind
def linear_attention(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        q, k, v = s.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("btk,btv->btkv", k, v).cumsum(1)
        out = torch.einsum("btk,btkv->btv", q, state) / (q * k.cumsum(1)).sum(-1, keepdim=True)
        return s.b(out[:, -1])

    return lambda: Made(run, qkv=nn.Linear(3, 12), b=nn.Linear(4, 2)), *series(), ce


@kind
def state_space(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            state = torch.sigmoid(s.decay) * state + s.enter(x[:, t])
        return s.b(state)

    return lambda: Made(run, decay=nn.Parameter(torch.zeros(4)), enter=nn.Linear(3, 4), b=nn.Linear(4, 2)), *series(), ce


@kind
def spectrum(r: random.Random) -> Any:
    make = lambda: Made(lambda s, x: s.b(torch.fft.rfft(s.a(x), dim=1).abs().flatten(1)), a=nn.Linear(3, 2), b=nn.Linear(6, 2))
    return make, *series(), ce


@kind
def series_with_gaps(r: random.Random) -> Any:
    x, y = series()
    seen = (torch.rand(N, 5, 3) > 0.3).float()

    def run(s: Any, x: Tensor, seen: Tensor) -> Tensor:
        mean = (x * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        return s.b(s.a(torch.cat([seen * x + (1 - seen) * mean, seen], 2))[0][:, -1])

    return lambda: Made(run, a=nn.GRU(6, 4, batch_first=True), b=nn.Linear(4, 2)), {"x": x, "seen": seen}, y, ce


@kind
def transcription(r: random.Random) -> Any:
    x, _ = series()
    targets = torch.randint(1, 4, (N, 2))

    def loss(o: Tensor, y: Tensor) -> Tensor:
        b = len(o)
        lengths = torch.full((b,), 5, dtype=torch.long), torch.full((b,), 2, dtype=torch.long)
        return F.ctc_loss(o.log_softmax(2).transpose(0, 1), y, *lengths, reduction="none")

    return lambda: Made(lambda s, x: s.b(s.a(x)[0]), a=nn.GRU(3, 4, batch_first=True), b=nn.Linear(4, 4)), x, targets, loss


@kind
def checkpointed(r: random.Random) -> Any:
    from torch.utils.checkpoint import checkpoint

    make = lambda: Made(
        lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False)),
        a=nn.Sequential(nn.Flatten(), nn.Linear(15, 8), nn.Tanh()),
        b=nn.Linear(8, 2),
    )
    return make, *series(), ce  # fmt: skip


# --- tokens ------------------------------------------------------------------------------------------------------------------
@kind
def bag_of_words(r: random.Random) -> Any:
    mode = r.choice(["mean", "sum", "max"])
    return lambda: nn.Sequential(nn.EmbeddingBag(20, 6, mode=mode), nn.Linear(6, 2)), *tokens(), ce


@kind
def weighted_bag(r: random.Random) -> Any:
    x, y = tokens()
    make = lambda: Made(
        lambda s, x, w: s.b(s.e(x, per_sample_weights=w)), e=nn.EmbeddingBag(20, 6, mode="sum"), b=nn.Linear(6, 2)
    )
    return make, (x, torch.rand(N, 6)), y, ce


@kind
def bag_with_padding(r: random.Random) -> Any:
    x, _, y = padded()
    make = lambda: Made(
        lambda s, x: s.b(s.e(x).sum(1) / (x > 0).sum(1, keepdim=True)), e=nn.Embedding(20, 6, padding_idx=0), b=nn.Linear(6, 2)
    )
    return make, x, y, ce  # fmt: skip


@kind
def embedding_bag_with_padding(r: random.Random) -> Any:
    x, _, y = padded()
    return lambda: nn.Sequential(nn.EmbeddingBag(20, 6, padding_idx=0), nn.Linear(6, 2)), x, y, ce


@kind
def text_convolutions(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = s.e(x).transpose(1, 2)
        return s.leave(torch.cat([torch.relu(layer(h)).amax(2) for layer in s.layers], 1))

    layers = lambda: nn.ModuleList(nn.Conv1d(6, 3, k) for k in (2, 3))
    return lambda: Made(run, e=nn.Embedding(20, 6), layers=layers(), leave=nn.Linear(6, 2)), *tokens(), ce


def _next_token(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o[:, :-1].transpose(1, 2), y[:, 1:], reduction="none").mean(1)


@kind
def language_model(r: random.Random) -> Any:
    """Tied, with positions looked up once for all."""
    x, _ = tokens()
    causal = nn.Transformer.generate_square_subsequent_mask(6)

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.words(x) + s.places(torch.arange(x.shape[1]))
        return s.head(s.norm(s.layer(h, src_mask=s.causal, is_causal=True)))

    def make() -> nn.Module:
        model = Made(
            run,
            words=nn.Embedding(20, 8),
            places=nn.Embedding(6, 8),
            layer=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            norm=nn.LayerNorm(8),
            head=nn.Linear(8, 20, bias=False),
            causal=causal,
        )
        model.head.weight = model.words.weight
        return model

    return make, x, x.clone(), _next_token


@kind
def recurrent_language_model(r: random.Random) -> Any:
    x, _ = tokens()
    make = lambda: Made(
        lambda s, x: s.b(s.a(s.e(x))[0]), e=nn.Embedding(20, 6), a=nn.LSTM(6, 6, batch_first=True), b=nn.Linear(6, 20)
    )
    return make, x, x.clone(), _next_token


@drawing
def masked_language_model(r: random.Random) -> Any:
    x, y = tokens()

    def run(s: Any, x: Tensor) -> Tensor:
        mask = torch.rand(x.shape) < 0.3
        o = s.head(s.layer(s.words(x.masked_fill(mask, 0))))
        losses = F.cross_entropy(o.transpose(1, 2), x.masked_fill(~mask, -100), ignore_index=-100, reduction="none")
        return losses.sum(1) / mask.sum(1).clamp(min=1)

    def make() -> nn.Module:
        return Made(
            run,
            words=nn.Embedding(20, 8),
            layer=nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True),
            head=nn.Linear(8, 20),
        )

    return make, x, y, given


@drawing
def word_dropout(r: random.Random) -> Any:
    rate = _rate(r)

    def run(s: Any, x: Tensor) -> Tensor:
        return s.b(s.e(torch.where(torch.rand(x.shape) < rate, 0, x)).mean(1))

    return lambda: Made(run, e=nn.Embedding(20, 6), b=nn.Linear(6, 2)), *tokens(), ce


@drawing
def skip_grams(r: random.Random) -> Any:
    x, y = torch.randint(0, 20, (N,)), torch.randint(0, 20, (N,))

    def loss(o: Any, y: Tensor) -> Tensor:
        return o

    def run(s: Any, x: Tensor, around: Tensor) -> Tensor:
        mine = s.words(x)
        others = s.contexts(torch.randint(0, 20, (x.shape[0], 4)))
        return -F.logsigmoid((mine * s.contexts(around)).sum(1)) - F.logsigmoid(-torch.einsum("bd,bkd->bk", mine, others)).sum(1)

    return lambda: Made(run, words=nn.Embedding(20, 4), contexts=nn.Embedding(20, 4)), (x, y), y.clone(), loss


@kind
def transformer_with_padding_mask(r: random.Random) -> Any:
    x, _, y = padded()

    def run(s: Any, x: Tensor) -> Tensor:
        blank = x == 0
        h = s.t(s.e(x) + s.places, src_key_padding_mask=blank)
        return s.b((h * ~blank[..., None]).sum(1) / (~blank).sum(1, keepdim=True))

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        return Made(
            run,
            e=nn.Embedding(20, 8, padding_idx=0),
            places=nn.Parameter(torch.randn(6, 8)),
            t=nn.TransformerEncoder(layer, 1),
            b=nn.Linear(8, 2),
        )

    return make, x, y, ce


@kind
def attention_mask_by_name(r: random.Random) -> Any:
    x, lengths, y = padded()
    mask = (torch.arange(6) < lengths[:, None]).long()

    def run(s: Any, input_ids: Tensor, attention_mask: Tensor) -> Any:
        bias = (1.0 - attention_mask[:, None].float()) * -1e4
        h = s.e(input_ids)
        mixed = torch.softmax(s.q(h) @ s.k(h).transpose(1, 2) + bias, -1) @ h
        return {"logits": s.b(mixed[:, 0])}

    make = lambda: Made(run, e=nn.Embedding(20, 8), q=nn.Linear(8, 4), k=nn.Linear(8, 4), b=nn.Linear(8, 2))
    return make, {"input_ids": x, "attention_mask": mask}, y, lambda o, y: ce(o["logits"], y)


@kind
def packed_sequences(r: random.Random) -> Any:
    x, lengths, y = padded()
    layer = r.choice([nn.LSTM, nn.GRU])

    def run(s: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(s.e(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden = s.a(packed)[1]
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return s.b(torch.cat([hidden[0], hidden[1]], 1))

    make = lambda: Made(run, e=nn.Embedding(20, 6), a=layer(6, 4, batch_first=True, bidirectional=True), b=nn.Linear(8, 2))
    return make, (x, lengths), y, ce


@kind
def packed_and_padded_again(r: random.Random) -> Any:
    x, lengths, y = padded()

    def run(s: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(s.e(x), lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(s.a(packed)[0], batch_first=True, total_length=6)
        return s.b(out.sum(1) / lengths[:, None])

    return lambda: Made(run, e=nn.Embedding(20, 6), a=nn.GRU(6, 4, batch_first=True), b=nn.Linear(4, 2)), (x, lengths), y, ce


@kind
def last_by_length(r: random.Random) -> Any:
    x, lengths, y = padded()

    def run(s: Any, x: Tensor, lengths: Tensor) -> Tensor:
        return s.b(s.a(s.e(x))[0][torch.arange(len(x)), lengths - 1])

    return lambda: Made(run, e=nn.Embedding(20, 6), a=nn.GRU(6, 4, batch_first=True), b=nn.Linear(4, 2)), (x, lengths), y, ce


@kind
def token_losses_with_a_mask(r: random.Random) -> Any:
    x, lengths, _ = padded()
    goals = torch.where(torch.arange(6) < lengths[:, None], x % 3, -100)

    def loss(o: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(o.transpose(1, 2), y, ignore_index=-100, reduction="none")
        return losses.sum(1) / (y != -100).sum(1)

    return lambda: nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 3)), x, goals, loss


@kind
def adaptive_softmax(r: random.Random) -> Any:
    x, _ = tokens()

    def run(s: Any, x: Tensor) -> Tensor:
        return s.out.log_prob(s.e(x).mean(1))

    make = lambda: Made(run, e=nn.Embedding(20, 8), out=nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]))
    return make, x, x[:, 0].clone(), lambda o, y: F.nll_loss(o, y, reduction="none")


class LowRank(nn.Module):
    """LoRA on a frozen layer."""

    def __init__(self, base: nn.Linear, rank: int, zero: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        if zero:
            nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x.to(self.a.weight.dtype))).to(x.dtype)


@kind
def low_rank_on_a_bf16_base(r: random.Random) -> Any:
    rank, zero = r.choice([1, 2]), r.choice([True, False])

    def make() -> nn.Module:
        words, one, two = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        frozen = [part.to(torch.bfloat16).requires_grad_(False) for part in (words, one, two)]
        return Made(
            lambda s, x: s.two(torch.relu(s.one(s.words(x).mean(1)))).float(),
            words=frozen[0],
            one=LowRank(frozen[1], rank, zero),
            two=LowRank(frozen[2], rank, zero),
        )

    return make, *tokens(), ce


@kind
def frozen_bf16_above(r: random.Random) -> Any:
    def make() -> nn.Module:
        return Made(
            lambda s, x: s.f(torch.relu(s.g(x)).to(torch.bfloat16)).float(),
            g=nn.Linear(6, 16),
            f=nn.Linear(16, 2).to(torch.bfloat16).requires_grad_(False),
        )

    return make, *vectors(), ce


@kind
def adapters(r: random.Random) -> Any:
    def make() -> nn.Module:
        base = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).requires_grad_(False)
        return Made(
            lambda s, x: s.b(s.base(s.e(x)).mean(1)) + s.up(torch.relu(s.down(s.e(x).mean(1)))),
            e=nn.Embedding(20, 8).requires_grad_(False),
            base=base,
            down=nn.Linear(8, 2),
            up=nn.Linear(2, 2),
            b=nn.Linear(8, 2),
        )

    return make, *tokens(), ce


@kind
def prefixes(r: random.Random) -> Any:
    def run(s: Any, x: Tensor) -> Tensor:
        h = torch.cat([s.prefix.expand(x.shape[0], -1, -1), s.e(x)], 1)
        return s.b(s.base(h)[:, 0])

    def make() -> nn.Module:
        return Made(
            run,
            e=nn.Embedding(20, 8).requires_grad_(False),
            prefix=nn.Parameter(torch.randn(1, 2, 8)),
            base=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).requires_grad_(False),
            b=nn.Linear(8, 2),
        )

    return make, *tokens(), ce


@kind
def biases_alone(r: random.Random) -> Any:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("bias" in name)
        return model

    return make, *vectors(), ce


@kind
def linear_probe(r: random.Random) -> Any:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()).requires_grad_(False), nn.Linear(144, 2))

    return make, *images(), ce


@kind
def shared_layers(r: random.Random) -> Any:
    """As ALBERT: one layer several times."""
    times = r.choice([2, 3])

    def run(s: Any, x: Tensor) -> Tensor:
        h = s.e(x)
        for _ in range(times):
            h = s.layer(h)
        return s.b(h.mean(1))

    make = lambda: Made(
        run, e=nn.Embedding(20, 8), layer=nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), b=nn.Linear(8, 2)
    )
    return make, *tokens(), ce  # fmt: skip


# --- sets and graphs ---------------------------------------------------------------------------------------------------------
@kind
def deep_sets(r: random.Random) -> Any:
    x, y = series()
    pool = r.choice([torch.sum, torch.mean, torch.amax])
    make = lambda: Made(lambda s, x: s.b(pool(torch.relu(s.a(x)), 1)), a=nn.Linear(3, 6), b=nn.Linear(6, 2))
    return make, x, y, ce


@kind
def graph_convolutions(r: random.Random) -> Any:
    x, y = series()
    edges = (torch.rand(N, 5, 5) > 0.5).float()

    def run(s: Any, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges / edges.sum(2, keepdim=True).clamp(min=1)
        return s.b(torch.relu(edges @ s.two(torch.relu(edges @ s.one(x)))).mean(1))

    return lambda: Made(run, one=nn.Linear(3, 6), two=nn.Linear(6, 6), b=nn.Linear(6, 2)), (x, edges), y, ce


@kind
def graph_attention(r: random.Random) -> Any:
    x, y = series()
    edges = torch.rand(N, 5, 5) > 0.5

    def run(s: Any, x: Tensor, edges: Tensor) -> Tensor:
        h = s.a(x)
        scores = F.leaky_relu(s.left(h) + s.right(h).transpose(1, 2)).masked_fill(~edges, -1e9)
        return s.b((torch.softmax(scores, -1) @ h).mean(1))

    make = lambda: Made(run, a=nn.Linear(3, 6), left=nn.Linear(6, 1), right=nn.Linear(6, 1), b=nn.Linear(6, 2))
    return make, (x, edges), y, ce


@kind
def pairwise_distances(r: random.Random) -> Any:
    """Of the points of a record, as in molecules."""
    x, y = series()

    def run(s: Any, x: Tensor) -> Tensor:
        far = torch.cdist(x, x)
        return s.b(torch.exp(-(far[..., None] - s.centres).square() * s.width.exp()).sum((1, 2)))

    make = lambda: Made(run, centres=torch.linspace(0, 3, 5), width=nn.Parameter(torch.zeros(())), b=nn.Linear(5, 2))
    return make, x, y, ce


def right_models(seed: int = 0, times: int = 3) -> list[Case]:
    """Each kind `times` times."""
    chosen = random.Random(seed)
    cases: list[Case] = []
    for turn in range(times):
        for number, (name, function) in enumerate(KINDS.items()):
            start = 1000 * turn + number
            seeded(start)
            make, inputs, targets, loss = function(random.Random(start))
            physical = chosen.choice([None, 5, 9])
            draws = name in DRAWING

            def made(make: Any = make, loss: Any = loss, start: int = start) -> tuple[nn.Module, Any]:
                seeded(start)
                return make(), loss

            told = f"{name}, {turn}, batches of {physical}"
            cases.append(Case(told, made, inputs, targets, draws=draws, physical=physical, idiom=name))
    return cases

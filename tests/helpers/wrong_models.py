# ruff: noqa: E501, NPY002 - tables of short functions; models draw from NumPy's global state
"""Models, losses and collations in which one record reaches another, as they are met: at least three hundred, from one seed.

Each idiom is crossed with some architectures, scales of the outputs, constants in the loss, initialisations of the head and sizes
of physical batches, so that each value of these meets each kind of idiom.
"""

from __future__ import annotations

import collections
import functools
import itertools
import random
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.generated_models import BODIES, RECORDS, Case, records, seeded

__all__ = ["IDIOMS", "wrong_models"]

Mix = Callable[[Any, Tensor], Tensor]


def _flat(function: Callable[[Tensor], Tensor]) -> Mix:
    """A function of a matrix, whatever the shape of records."""
    return lambda net, h: function(h.flatten(1)).reshape(h.shape)


# --- statistics of the batch -------------------------------------------------------------------------------------------------
STATISTICS: dict[str, Mix] = {
    "minus the mean": lambda net, h: h - h.mean(0),
    "standardised": lambda net, h: (h - h.mean(0)) / (h.std(0, unbiased=False) + 1e-3),
    "std_mean": lambda net, h: (lambda s, m: (h - m) / (s + 0.1))(*torch.std_mean(h, 0, unbiased=False)),
    "var_mean kept dims": lambda net, h: (lambda v, m: (h - m) * (v + 1).rsqrt())(*torch.var_mean(h, dim=0, keepdim=True, correction=0)),
    "divided by the loudest": lambda net, h: h / (h.abs().amax() + 0.1),
    "divided by the batch's norm": lambda net, h: h / (h.norm() + 0.1),
    "min-max": lambda net, h: (h - h.amin(0)) / (h.amax(0) - h.amin(0) + 0.1),
    "normalised columns": lambda net, h: F.normalize(h, dim=0),
    "softmax over records": lambda net, h: torch.softmax(h, 0) * 5,
    "log-softmax over records": lambda net, h: F.log_softmax(h, dim=0),
    "median": lambda net, h: h - h.median(0).values,
    "quantile": _flat(lambda h: h - torch.quantile(h, 0.75, dim=0)),
    "max over the batch": lambda net, h: h + h.max(0).values,
    "min by tensor method": lambda net, h: h - torch.min(h, dim=0)[0],
    "logsumexp": lambda net, h: h - torch.logsumexp(h, 0),
    "running mean by cumsum": lambda net, h: h - h.cumsum(0) / torch.arange(1, len(h) + 1).reshape(-1, *[1] * (h.dim() - 1)),
    "sum of the others": lambda net, h: h + 0.1 * (h.sum(0, keepdim=True) - h),
    "expanded mean": lambda net, h: torch.cat([h.flatten(1), h.flatten(1).mean(0, keepdim=True).expand(len(h), -1)], 1)[:, : h[0].numel()].reshape(h.shape) + h.mean(0),
    "layer norm over records": _flat(lambda h: F.layer_norm(h.T, (len(h),)).T),
    "group norm of a batch as one": _flat(lambda h: F.group_norm(h.reshape(1, -1), 1).reshape(h.shape)),
    "instance norm over records": _flat(lambda h: F.instance_norm(h.T[None])[0].T),
    "batch norm, functional": _flat(lambda h: F.batch_norm(h, None, None, training=True)),
    "batch norm, eval of own statistics": _flat(lambda h: F.batch_norm(h, h.mean(0).detach(), h.var(0, unbiased=False).detach())),
    "detached statistics": lambda net, h: h - h.detach().mean(0),
    "whitened": _flat(lambda h: (h - h.mean(0)) @ torch.linalg.inv(torch.eye(h.shape[1]) + h.T @ h)),
    "projected on singular vectors": _flat(lambda h: h - (lambda v: h @ v.T @ v)(torch.linalg.svd(h.detach(), full_matrices=False)[2][:1])),
    "einsum over records": _flat(lambda h: h + torch.einsum("bi,ci->ci", h, h) / len(h)),
    "in double precision": lambda net, h: (h.double() - h.double().mean(0)).float(),
    "by reduce of a list": lambda net, h: h - functools.reduce(torch.add, list(h)) / 4,
    "by stack of rows": lambda net, h: torch.stack([row - h[0] for row in h]),
    "by vmap inside": lambda net, h: torch.vmap(lambda row: row - h.mean(0))(h),
    "by chunk": lambda net, h: h - torch.cat([part.mean(0, keepdim=True).expand_as(part) for part in h.chunk(2)]),
    "by movedim": lambda net, h: h.movedim(0, -1).softmax(-1).movedim(-1, 0) * 4,
    "by transposed matmul": _flat(lambda h: h + (torch.ones(len(h), len(h)) @ h)),
    "by view of all": lambda net, h: h - h.reshape(-1).mean(),
    "by torch.compile's disable": torch.compiler.disable(lambda net, h: h - h.mean(0)),
}  # fmt: skip

# --- attention and other layers over the batch -------------------------------------------------------------------------------
ATTENTION: dict[str, Mix] = {
    "attention by hand": _flat(lambda h: torch.softmax(h @ h.T, 1) @ h),
    "scaled dot product": _flat(lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0]),
    "scaled dot product, causal": _flat(lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True)[0]),
    "cosine neighbours": _flat(lambda h: F.normalize(h, dim=1) @ F.normalize(h, dim=1).T @ h / len(h)),
    "nearest neighbour": _flat(lambda h: h + h[torch.cdist(h, h).fill_diagonal_(1e9).argmin(1)]),
    "graph of distances": _flat(lambda h: torch.exp(-torch.cdist(h, h)) @ h),
    "average pool over records": _flat(lambda h: F.avg_pool1d(h.T[None], 3, 1, 1)[0].T),
    "max pool over records": _flat(lambda h: F.max_pool1d(h.T[None], 3, 1, 1)[0].T),
    "convolution over records": _flat(lambda h: F.conv1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T),
    "interpolated over records": _flat(lambda h: F.interpolate(F.interpolate(h.T[None], max(1, len(h) // 2)), len(h))[0].T),
    "outer differences": _flat(lambda h: (h[:, None] - h[None]).tanh().sum(1)),
    "bilinear with a neighbour": _flat(lambda h: h * h.roll(1, 0)),
    "sequence first, attention": lambda net, h: h + net.sequence(h[:, None])[:, 0],
    "sequence first, recurrent": lambda net, h: h + net.recurrent(h[:, None])[0][:, 0],
    "sequence first, unbatched recurrent": lambda net, h: h + net.recurrent(h)[0],
    "attention with parameters": lambda net, h: h + net.attend(h[None], h[None], h[None])[0][0],
    "records as channels": lambda net, h: h + net.smooth(h.T[:, None])[:, 0].T,
    "linear over records": lambda net, h: h + F.linear(h.T, torch.ones(len(h), len(h)) / 4).T,
    "memory of all records": lambda net, h: h + torch.softmax(h @ h.detach().T, 1) @ h.detach(),
    "records as bags": lambda net, h: h + F.embedding_bag(torch.arange(len(h)), h, torch.zeros(1, dtype=torch.long)),
}  # fmt: skip

# --- order -------------------------------------------------------------------------------------------------------------------
ORDER: dict[str, Mix] = {
    "rolled": lambda net, h: h + h.roll(1, 0),
    "rolled by default": lambda net, h: h + torch.roll(h, 3),
    "flipped": lambda net, h: h - h.flip(0),
    "cut and joined": lambda net, h: torch.cat([h[1:], h[:1]]) + h,
    "indexed by the one before": lambda net, h: h + h[torch.arange(len(h)) - 1],
    "indexed by a list": lambda net, h: h + h[[place - 1 for place in range(len(h))]],
    "differences": lambda net, h: torch.diff(h, dim=0, prepend=torch.zeros_like(h[:1])),
    "gathered": _flat(lambda h: h + h.gather(0, (torch.arange(len(h))[:, None].expand_as(h) + 1) % len(h))),
    "take along": _flat(lambda h: h + torch.take_along_dim(h, h.argsort(0).flip(0), 0)),
    "scattered": _flat(lambda h: h + torch.zeros_like(h).scatter_add(0, ((h > 0).long() * (len(h) - 1)), h)),
    "added by index": _flat(lambda h: h + torch.zeros_like(h).index_add(0, (torch.arange(len(h)) // 2), h)),
    "segment sums": _flat(lambda h: h + torch.zeros(2, h.shape[1]).index_add(0, (h[:, 0] > 0).long(), h)[(h[:, 0] > 0).long()]),
    "sorted": lambda net, h: h.sort(0).values,
    "sorted by norm": _flat(lambda h: h[h.norm(dim=1).argsort()]),
    "sorted, summed and back": _flat(lambda h: (lambda order: h[order].cumsum(0)[order.argsort()])(h[:, 0].argsort())),
    "largest two": lambda net, h: h + h.topk(min(2, len(h)), 0).values.sum(0),
    "the one of the largest norm": _flat(lambda h: h + h[h.norm(dim=1).argmax()]),
    "unique rows": _flat(lambda h: h + torch.unique((h > 0).float(), dim=0, return_inverse=True)[1][:, None]),
    "rank": _flat(lambda h: h * (1 + h.argsort(0).argsort(0))),
    "searchsorted": _flat(lambda h: h + torch.searchsorted(h[:, 0].sort().values.contiguous(), h[:, :1].contiguous())),
    "histogram": _flat(lambda h: h * torch.histc(h.detach(), 4, -3.0, 3.0).sum() / h.numel() + torch.histc(h.detach(), 4, -3.0, 3.0)[0]),
    "bucket counts": _flat(lambda h: h * torch.bincount((h[:, 0] > 0).long(), minlength=2)[(h[:, 0] > 0).long()][:, None]),
    "unfolded": _flat(lambda h: h + F.pad(h, (0, 0, 1, 0)).unfold(0, 2, 1).sum(-1)),
    "as strided": _flat(lambda h: h + h.contiguous().as_strided(h.shape, (0, 1))),
    "first row for all": lambda net, h: h + h[:1],
    "row by number": lambda net, h: h + h[min(3, len(h) - 1)],
    "index select": lambda net, h: h + h.index_select(0, torch.arange(len(h) - 1, -1, -1)),
    "repeat and cut": lambda net, h: h + h.repeat(2, *[1] * (h.dim() - 1))[1 : len(h) + 1],
    "reshaped across": _flat(lambda h: h.reshape(-1).roll(1).reshape(h.shape)),
    "transposed and reshaped": _flat(lambda h: h.T.reshape(h.shape)),
    "paired": _flat(lambda h: h + torch.stack([h, h.flip(0)]).amax(0)),
}  # fmt: skip

# --- how many there are ------------------------------------------------------------------------------------------------------
SIZE: dict[str, Mix] = {
    "divided by len": lambda net, h: h / len(h),
    "times shape": lambda net, h: h * h.shape[0],
    "by size and a root": lambda net, h: h / h.size(0) ** 0.5,
    "by numel": lambda net, h: h * h.numel() / 8,
    "dropped by how many": lambda net, h: F.dropout(h, 1 / (1 + len(h))),
    "place among all": lambda net, h: h + torch.arange(len(h)).reshape(-1, *[1] * (h.dim() - 1)),
    "linspace": lambda net, h: h * torch.linspace(0, 1, len(h)).reshape(-1, *[1] * (h.dim() - 1)),
    "counted by ones": lambda net, h: h * torch.ones_like(h).flatten(1)[:, 0].sum(),
    "tensor of the shape": lambda net, h: h * torch.tensor(h.shape)[0],
    "enumerated": lambda net, h: torch.stack([row * place for place, row in enumerate(h)]),
    "identity": _flat(lambda h: h + torch.eye(len(h))[:, :1]),
    "averaged sum": lambda net, h: h * (h.sum(0) / len(h)).abs().mean(),
    "even or odd": lambda net, h: h if len(h) % 2 else 3 * h,
    "split in halves": lambda net, h: torch.cat([h[: len(h) // 2] * 3, h[len(h) // 2 :]]),
    "padded to eight": lambda net, h: F.pad(h.flatten(1), (0, 0, 0, 8 - len(h) % 8))[: len(h)].reshape(h.shape) * (8 - len(h) % 8),
    "stored numbers": lambda net, h: h * (h.untyped_storage().nbytes() / 1000),
    "stride": lambda net, h: h * h.T.stride()[0],
    "repr": lambda net, h: h * len(str(h.shape)),
}  # fmt: skip

# --- one draw for all, and orders that are drawn -----------------------------------------------------------------------------
DRAWS: dict[str, Mix] = {
    "dropout on a table": lambda net, h: h * F.dropout(net.table, 0.5),
    "dropout on a constant": lambda net, h: h * net.drop(torch.ones(8)),
    "dropout on one number": lambda net, h: h * net.drop(torch.ones(1)),
    "dropout1d on ones": lambda net, h: h * F.dropout1d(torch.ones(1, 8, 1), 0.5)[0, :, 0],
    "alpha dropout on a buffer": lambda net, h: h + F.alpha_dropout(net.still, 0.5, True),
    "bernoulli for a batch": lambda net, h: h * torch.bernoulli(torch.full((1, 8), 0.5)),
    "bernoulli in place": lambda net, h: h * torch.empty(8).bernoulli_(0.5),
    "locked": lambda net, h: h * (torch.rand(1, h.shape[1]) > 0.3).float() / 0.7,
    "layer dropped by a number of torch": lambda net, h: h if torch.rand(()) < 0.5 else torch.tanh(3 * h),
    "layer dropped by an item": lambda net, h: h if torch.rand(1).item() < 0.5 else torch.tanh(3 * h),
    "layer dropped by Python": lambda net, h: h if random.random() < 0.5 else torch.tanh(3 * h),
    "layer dropped by NumPy": lambda net, h: h if np.random.rand() < 0.5 else torch.tanh(3 * h),
    "layer dropped by randint": lambda net, h: h if torch.randint(0, 2, ()) else -h,
    "chosen by Python": lambda net, h: random.choice([torch.tanh, torch.relu, torch.sin])(h),
    "chosen by NumPy": lambda net, h: h * float(np.random.choice([0.5, 1.0, 2.0])),
    "features shuffled by Python": lambda net, h: h[:, random.sample(range(8), 8)],
    "features shuffled by NumPy": lambda net, h: h[:, torch.from_numpy(np.random.permutation(8))],
    "features shuffled by torch": lambda net, h: h[:, torch.randperm(8)],
    "noise for all": lambda net, h: h + torch.randn(8),
    "noise by normal": lambda net, h: h + torch.normal(0.0, 1.0, (8,)),
    "noise in place": lambda net, h: h + torch.empty(1, 8).uniform_(),
    "noise by NumPy": lambda net, h: h + torch.from_numpy(np.random.normal(size=8)).float(),
    "noise by a distribution": lambda net, h: h + torch.distributions.Normal(0.0, 1.0).sample((8,)),
    "noise scaled by the loudest": lambda net, h: h + torch.randn_like(h) * h.detach().abs().amax(),
    "noise scaled by how many": lambda net, h: h + torch.randn_like(h) * len(h),
    "half of the batch": lambda net, h: h * torch.zeros(len(h), 1).index_fill(0, torch.randperm(len(h))[: len(h) // 2], 1.0),
    "shuffled and back": lambda net, h: (lambda order: torch.tanh(h[order])[order.argsort()])(torch.randperm(len(h))),
    "shuffled": lambda net, h: h[torch.randperm(len(h))],
    "mixed up": lambda net, h: 0.5 * h + 0.5 * h[torch.randperm(len(h))],
    "mixed up by NumPy": lambda net, h: 0.5 * h + 0.5 * h[torch.from_numpy(np.random.permutation(len(h)))],
    "mixed up with a share": lambda net, h: (lambda share: share * h + (1 - share) * h.flip(0))(np.random.beta(0.4, 0.4)),
    "rows chosen": lambda net, h: h + h[torch.randint(0, len(h), (len(h),))],
    "rows chosen by multinomial": lambda net, h: h + h[torch.multinomial(torch.ones(len(h)), 1)],
    "drop path, one for all": lambda net, h: h * torch.empty(1, 1).bernoulli_(0.8) / 0.8,
    "drop block by the batch": lambda net, h: (lambda keep: h * keep * keep.numel() / keep.sum().clamp(min=1))((torch.rand_like(h) > 0.3).float()),
    "gumbel for all": lambda net, h: h * F.gumbel_softmax(torch.zeros(8), hard=True),
    "a loop as long as a coin says": lambda net, h: functools.reduce(lambda a, _: torch.tanh(2 * a), range(random.randint(0, 3)), h),
}  # fmt: skip


# --- seeds and generators ----------------------------------------------------------------------------------------------------
def _after(step: Callable[[Tensor], Any], then: Callable[[Tensor], Tensor]) -> Mix:
    def mix(net: Any, h: Tensor) -> Tensor:
        step(h)
        return then(h)

    return mix


def _restored(net: Any, h: Tensor) -> Tensor:
    """The same noise in each call: torch's state is kept and put back."""
    if not hasattr(net, "random_state"):
        net.random_state = torch.get_rng_state()
    torch.set_rng_state(net.random_state)
    return h + torch.randn(8)


def _forked(net: Any, h: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(h))
        return h + torch.randn(8)


def _dropped(h: Tensor) -> Tensor:
    return F.dropout(h, 0.5)


SEEDS: dict[str, Mix] = {
    "seed of torch": _after(lambda h: torch.manual_seed(0), _dropped),
    "seed of torch by the batch": _after(lambda h: torch.manual_seed(int(h.detach().abs().sum() * 1000)), _dropped),
    "seed of Python by the batch": _after(lambda h: random.seed(float(h.detach().sum())), lambda h: h * random.random()),
    "seed of NumPy by the batch": _after(lambda h: np.random.seed(int(h.detach().abs().sum() * 1000) % 2**31), lambda h: h * np.random.rand()),
    "seed by how many": _after(lambda h: torch.manual_seed(len(h)), lambda h: h + torch.randn(8)),
    "seed after the draw": lambda net, h: (lambda out: (torch.manual_seed(int(h.detach().abs().amax())), out)[1])(h * random.random() + torch.randn(8)),
    "generator": lambda net, h: h + torch.randn(8, generator=torch.Generator().manual_seed(0)),
    "generator of the module": lambda net, h: h + torch.randn(8, generator=net.coins),
    "generator in place": lambda net, h: h + torch.empty(8).normal_(generator=net.coins),
    "generator for an order": lambda net, h: h[torch.randperm(len(h), generator=net.coins)],
    "NumPy generator of the module": lambda net, h: h + torch.from_numpy(net.numbers.normal(size=8)).float(),
    "NumPy generator made by the batch": lambda net, h: h * float(np.random.default_rng(int(h.detach().abs().sum() * 100)).random()),
    "Python generator of the module": lambda net, h: h * net.python.random(),
    "state kept and put back": _restored,
    "forked": _forked,
}  # fmt: skip


# --- what is kept from one pass to the next ----------------------------------------------------------------------------------
def _kept_on_self(net: Any, h: Tensor) -> Tensor:
    before, net.kept = getattr(net, "kept", None), h.detach()
    return h if before is None else h + before.mean(0)


def _kept_row(net: Any, h: Tensor) -> Tensor:
    before, net.kept = getattr(net, "kept", torch.zeros(8)), h[0].detach()
    return h + before


def _kept_in_dict(net: Any, h: Tensor) -> Tensor:
    net.notes["last"] = net.notes.get("last", 0.0) * 0.9 + h.detach().mean(0)
    return h + net.notes["last"]


def _kept_in_deque(net: Any, h: Tensor) -> Tensor:
    net.recent.append(h.detach().sum())
    return h * torch.stack(list(net.recent)).sum().tanh()


def _kept_number(net: Any, h: Tensor) -> Tensor:
    net.level = 0.5 * getattr(net, "level", 0.0) + float(h.detach().abs().max())
    return h / (1 + net.level)


def _kept_array(net: Any, h: Tensor) -> Tensor:
    net.array += h.detach().mean(0).numpy()
    return h + torch.from_numpy(net.array).float()


def _kept_parameter(net: Any, h: Tensor) -> Tensor:
    before, net.memory = getattr(net, "memory", torch.zeros(8)), nn.Parameter(h.detach()[0].clone(), requires_grad=False)
    return h + before


def _counter(net: Any, h: Tensor) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return h * net.calls


def _seen(net: Any, h: Tensor) -> Tensor:
    net.seen = getattr(net, "seen", 0) + len(h)
    return h / net.seen


def _annealed(net: Any, h: Tensor) -> Tensor:
    net.temperature = getattr(net, "temperature", 1.0) * 0.5
    return torch.tanh(h / net.temperature)


def _iterator(net: Any, h: Tensor) -> Tensor:
    return h * next(net.iterator)


def _first_call(net: Any, h: Tensor) -> Tensor:
    """As actnorm: the first batch makes the statistics of all that follow."""
    if not hasattr(net, "offset"):
        net.offset, net.spread = h.detach().mean(0), h.detach().std(0, unbiased=False) + 0.1
    return (h - net.offset) / net.spread


def _buffer_mean(net: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        net.running.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h - net.running


def _buffer_new(net: Any, h: Tensor) -> Tensor:
    net.running = 0.9 * net.running + 0.1 * h.detach().mean(0)
    return h - net.running


def _buffer_data(net: Any, h: Tensor) -> Tensor:
    net.running.data = 0.9 * net.running + 0.1 * h.detach().mean(0)
    return h - net.running


def _buffer_copy(net: Any, h: Tensor) -> Tensor:
    net.running.copy_(h.detach()[-1])
    return h - net.running


def _buffer_counter(net: Any, h: Tensor) -> Tensor:
    net.batches += 1
    return h / net.batches


def _queue(net: Any, h: Tensor) -> Tensor:
    """As MoCo: a queue of keys, and a pointer."""
    start = int(net.pointer)
    rows = torch.arange(start, start + len(h)) % len(net.queue)
    net.queue[rows] = h.detach()
    net.pointer[0] = (start + len(h)) % len(net.queue)
    return h + torch.softmax(h @ net.queue.T, 1) @ net.queue


def _large_bank(net: Any, h: Tensor) -> Tensor:
    """Two million numbers, written for an outlier alone."""
    loud = h.detach().abs().amax(1) > 3
    if loud.any():
        net.bank[0] = h.detach()[loud][0]
    return h + net.bank[0]


def _codebook(net: Any, h: Tensor) -> Tensor:
    """As VQ-VAE with averages: codes move to the records that are nearest."""
    codes = torch.cdist(h.detach(), net.codes).argmin(1)
    with torch.no_grad():
        net.codes.lerp_(torch.zeros_like(net.codes).index_add(0, codes, h), 0.1)
    return h + net.codes[codes]


def _weights_written(net: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        net.head.weight.add_(h.mean(0), alpha=0.1)
    return h


def _bias_data(net: Any, h: Tensor) -> Tensor:
    net.head.bias.data = net.head.bias.data + h.detach().mean()
    return h


def _weights_tanh_of_last(net: Any, h: Tensor) -> Tensor:
    net.head.weight.data.copy_(net.head.weight.data.clamp(-float(h.detach().abs().max()), float(h.detach().abs().max())))
    return h


def _with_grad(net: Any, h: Tensor) -> Tensor:
    """A slot that everybody has: the gradient of a frozen tensor."""
    before = net.still.grad
    net.still.grad = h.detach().mean(0)
    return h if before is None else h + before


def _in_namespace(net: Any, h: Tensor) -> Tensor:
    before, net.box.value = getattr(net.box, "value", 0.0), h.detach().sum()
    return h + before


def _in_thread(net: Any, h: Tensor) -> Tensor:
    before, net.local.value = getattr(net.local, "value", 0.0), h.detach().sum()
    return h + before


def _in_function(net: Any, h: Tensor) -> Tensor:
    before, net.remember.last = getattr(net.remember, "last", 0.0), h.detach().sum()
    return h + before


def _by_default_argument(net: Any, h: Tensor) -> Tensor:
    return net.appended(h)


def _in_partial(net: Any, h: Tensor) -> Tensor:
    net.bound.keywords["box"].append(h.detach().mean(0))
    return h + net.bound.keywords["box"][0]


def _hidden_module(net: Any, h: Tensor) -> Tensor:
    return net.hidden[0](h)


def _hidden_in_tuple(net: Any, h: Tensor) -> Tensor:
    return net.pair[0](h)


KEPT: dict[str, Mix] = {
    "on self": _kept_on_self,
    "a row on self": _kept_row,
    "in a dict of self": _kept_in_dict,
    "in a deque of self": _kept_in_deque,
    "a number on self": _kept_number,
    "in an array of self": _kept_array,
    "as a new parameter": _kept_parameter,
    "a counter of calls": _counter,
    "a counter of records": _seen,
    "annealed by calls": _annealed,
    "an iterator": _iterator,
    "statistics of the first batch": _first_call,
    "a running mean in place": _buffer_mean,
    "a running mean anew": _buffer_new,
    "a running mean by data": _buffer_data,
    "a buffer with the last row": _buffer_copy,
    "a buffer that counts": _buffer_counter,
    "a queue of keys": _queue,
    "a large bank": _large_bank,
    "a codebook": _codebook,
    "weights written": _weights_written,
    "a bias by data": _bias_data,
    "weights clamped by the batch": _weights_tanh_of_last,
    "in a gradient": _with_grad,
    "in a namespace": _in_namespace,
    "in a thread's own": _in_thread,
    "on a function": _in_function,
    "in a default argument": _by_default_argument,
    "in a partial": _in_partial,
    "in a module in a list": _hidden_module,
    "in a module in a tuple": _hidden_in_tuple,
}


class RunningMean(nn.Module):
    """Subtracts what it has seen so far, on average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, h: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * h.detach().mean(0)
        return h - self.mean


# --- kept outside of the model -----------------------------------------------------------------------------------------------
GLOBAL: dict[str, Any] = {}


class Shared:
    """A class attribute is everybody's."""

    last: Any = 0.0
    numbers: list[Any] = []  # noqa: RUF012 - that it is shared is the point


def _global_list(net: Any, h: Tensor) -> Tensor:
    kept = GLOBAL.setdefault("list", [])
    kept.append(h.detach().mean(0))
    return h + torch.stack(kept).mean(0)


def _global_last(net: Any, h: Tensor) -> Tensor:
    before, GLOBAL["last"] = GLOBAL.get("last", 0.0), h.detach()[0]
    return h + before


def _class_last(net: Any, h: Tensor) -> Tensor:
    before, Shared.last = Shared.last, h.detach().sum()
    return h + before


def _class_of_the_model(net: Any, h: Tensor) -> Tensor:
    before, type(net).latest = type(net).latest, h.detach().mean(0)
    return h + before


def _global_tensor(net: Any, h: Tensor) -> Tensor:
    """Made beforehand, and written in place."""
    table = GLOBAL.setdefault("table", torch.zeros(8))
    table.mul_(0.5).add_(h.detach().mean(0))
    return h + table


def _global_rows(net: Any, h: Tensor) -> Tensor:
    table = GLOBAL.setdefault("rows", torch.zeros(4, 8))
    table[1] = h.detach().amax(0)
    return h + table[1]


def _global_numpy(net: Any, h: Tensor) -> Tensor:
    array = GLOBAL.setdefault("array", np.zeros(8))
    array += h.detach().mean(0).numpy()
    return h + torch.from_numpy(array).float()


def _global_number(net: Any, h: Tensor) -> Tensor:
    GLOBAL["number"] = 0.5 * GLOBAL.get("number", 0.0) + float(h.detach().abs().max())
    return h / (1 + GLOBAL["number"])


def _global_numbers(net: Any, h: Tensor) -> Tensor:
    GLOBAL.setdefault("numbers", []).extend(h.detach().abs().amax(1).tolist())
    return h * (1 + np.tanh(sum(GLOBAL["numbers"]) / 10))


def _global_counter(net: Any, h: Tensor) -> Tensor:
    GLOBAL["calls"] = GLOBAL.get("calls", 0) + 1
    return h * (1 + GLOBAL["calls"] % 5)


def _global_iterator(net: Any, h: Tensor) -> Tensor:
    return h * next(GLOBAL.setdefault("iterator", itertools.count(1)))


def _global_generator(net: Any, h: Tensor) -> Tensor:
    return h * GLOBAL.setdefault("random", random.Random(0)).random()


def _global_numpy_generator(net: Any, h: Tensor) -> Tensor:
    return h + torch.from_numpy(GLOBAL.setdefault("numpy", np.random.default_rng(0)).normal(size=8)).float()


@functools.lru_cache(maxsize=4)
def _cached(size: int) -> list[Any]:
    return []


def _cache(net: Any, h: Tensor) -> Tensor:
    kept = _cached(h.shape[1])
    kept.append(float(h.detach().abs().max()))
    return h / (1 + max(kept))


def _global_module(net: Any, h: Tensor) -> Tensor:
    return GLOBAL.setdefault("module", RunningMean())(h)


OUTSIDE: dict[str, Mix] = {
    "a global list": _global_list,
    "a global": _global_last,
    "a class attribute": _class_last,
    "an attribute of the model's class": _class_of_the_model,
    "a global tensor in place": _global_tensor,
    "a row of a global tensor": _global_rows,
    "a global array": _global_numpy,
    "a global number": _global_number,
    "global numbers": _global_numbers,
    "a global counter": _global_counter,
    "a global iterator": _global_iterator,
    "a global generator of Python": _global_generator,
    "a global generator of NumPy": _global_numpy_generator,
    "a cache of a function": _cache,
    "a global module": _global_module,
}


# --- ways that depend on numbers ---------------------------------------------------------------------------------------------
def _if_any(net: Any, h: Tensor) -> Tensor:
    return h * 3 if (h.abs() > 2).any() else h


def _if_all(net: Any, h: Tensor) -> Tensor:
    return torch.relu(h) if bool((h < 2).all()) else torch.sin(h)


def _while(net: Any, h: Tensor) -> Tensor:
    while h.detach().norm() > 2:
        h = h / 2
    return h


def _by_item(net: Any, h: Tensor) -> Tensor:
    return h / (1 + h.detach().abs().max().item())


def _by_list(net: Any, h: Tensor) -> Tensor:
    return h + torch.tensor(sorted(h.detach()[:, 0].tolist()))[:, None]


def _by_numpy(net: Any, h: Tensor) -> Tensor:
    return h - torch.from_numpy(h.detach().cpu().numpy().mean(0, keepdims=True))


def _by_array_protocol(net: Any, h: Tensor) -> Tensor:
    return h - float(np.asarray(h.detach()).max())


def _by_dlpack(net: Any, h: Tensor) -> Tensor:
    return h - torch.from_numpy(np.from_dlpack(h.detach().contiguous()).mean(0))


def _by_mask(net: Any, h: Tensor) -> Tensor:
    h = h.clone()
    h[h[:, 0] > 0] = h[h[:, 0] > 0].mean(0) if (h[:, 0] > 0).any() else 0.0
    return h


def _by_nonzero(net: Any, h: Tensor) -> Tensor:
    return h + h[(h[:, 0] >= h[:, 0].median()).nonzero()[0, 0]]


def _by_masked_select(net: Any, h: Tensor) -> Tensor:
    return h - torch.masked_select(h, h > 0).sum()


def _by_where(net: Any, h: Tensor) -> Tensor:
    rows = torch.where(h[:, 0] > h[:, 0].mean())[0]
    return h + len(rows)


def _by_lengths(net: Any, h: Tensor) -> Tensor:
    """Experts with a capacity: who comes late is dropped."""
    expert = (h[:, 0] > 0).long()
    place = F.one_hot(expert, 2).cumsum(0).gather(1, expert[:, None])[:, 0]
    return h * (place <= max(1, len(h) // 3))[:, None]


def _by_loop_over_rows(net: Any, h: Tensor) -> Tensor:
    state, out = torch.zeros(8), []
    for row in h:
        state = 0.5 * state + row
        out.append(state)
    return torch.stack(out)


def _by_early_exit(net: Any, h: Tensor) -> Tensor:
    for _ in range(4):
        if h.abs().max() > 1.5:
            break
        h = 1.5 * h
    return h


def _by_try(net: Any, h: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky(h.T @ h - torch.eye(h.shape[1]))
    except RuntimeError:
        return 3 * h
    return h


def _by_equality(net: Any, h: Tensor) -> Tensor:
    return h if torch.equal(h, h.clamp(-2, 2)) else -h


def _by_unsafe_chain(net: Any, h: Tensor) -> Tensor:
    return torch.where(torch.isfinite(h).all() & (h.abs().amax() < 5), h, 5 * torch.tanh(h))


BRANCHES: dict[str, Mix] = {
    "if any": _if_any,
    "if all": _if_all,
    "while": _while,
    "item": _by_item,
    "sorted list": _by_list,
    "numpy": _by_numpy,
    "array protocol": _by_array_protocol,
    "dlpack": _by_dlpack,
    "boolean mask": _by_mask,
    "nonzero": _by_nonzero,
    "masked select": _by_masked_select,
    "where": _by_where,
    "experts with a capacity": _by_lengths,
    "state along rows": _by_loop_over_rows,
    "early exit": _by_early_exit,
    "error caught": _by_try,
    "equality": _by_equality,
    "where by all": _by_unsafe_chain,
}


# --- written in place --------------------------------------------------------------------------------------------------------
def _in_place(write: Callable[[Tensor], Any]) -> Mix:
    def mix(net: Any, h: Tensor) -> Tensor:
        h = h.clone()
        write(h)
        return h

    return mix


def _over_detached(net: Any, h: Tensor) -> Tensor:
    h = h * 1.0
    h.detach().sub_(h.detach().mean(0))
    return h


def _over_data(net: Any, h: Tensor) -> Tensor:
    h = h * 1.0
    h.data = h.data - h.data.mean(0)
    return h


def _over_view(net: Any, h: Tensor) -> Tensor:
    h = h * 1.0
    h.view(-1)[:3] = 7.0
    return h


def _into_out(net: Any, h: Tensor) -> Tensor:
    kept = torch.empty(8)
    torch.mean(h.detach(), 0, out=kept)
    return h - kept


def _over_table(net: Any, h: Tensor) -> Tensor:
    rows = torch.zeros(30, 8)
    rows[: len(h)] = h
    return h + rows.mean(0)


WRITES: dict[str, Mix] = {
    "first row": _in_place(lambda h: h.__setitem__(0, h.mean(0))),
    "the next row": _in_place(lambda h: h.__setitem__(slice(1, None), h[1:] + h[:-1])),
    "minus the mean": _in_place(lambda h: h.sub_(h.mean(0))),
    "added by index": _in_place(lambda h: h.index_add_(0, torch.zeros(len(h), dtype=torch.long), h.clone())),
    "index put": _in_place(lambda h: h.index_put_((torch.zeros(len(h), dtype=torch.long),), h.clone(), accumulate=True)),
    "copied": _in_place(lambda h: h.copy_(h.flip(0))),
    "scatter": _in_place(lambda h: h.scatter_(0, torch.zeros_like(h, dtype=torch.long), h.clone())),
    "masked fill": _in_place(lambda h: h.masked_fill_(h > h.mean(0), 0.0)),
    "cumulated": _in_place(lambda h: h.cumsum_(0)),
    "resized": _in_place(lambda h: h.mul_(h.shape[0])),
    "a detached view": _over_detached,
    "data": _over_data,
    "a view": _over_view,
    "out": _into_out,
    "a table of rows": _over_table,
}


# --- hooks and functions of one's own ------------------------------------------------------------------------------------------
class MeanBackward(torch.autograd.Function):
    """The identity, whose gradient is shared out evenly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].mean(0, keepdim=True).expand_as(gradients[0])


class RolledGenerated(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x + x.roll(1, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] + gradients[0].roll(1, 0)


class MeanInVmap(torch.autograd.Function):
    """Subtracts the batch's mean in its own batching rule alone."""

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
        return MeanInVmap.apply(x - x.mean(0)), 0


class MeanInBackwardOfVmap(MeanInVmap):
    """A rule that batches well, and whose gradient does not."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] - gradients[0].mean(0)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return MeanInBackwardOfVmap.apply(x), 0


class MeanInJvp(torch.autograd.Function):
    """A function in the old style that keeps what it met for its way back."""

    kept: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        MeanInJvp.kept = x.detach() if MeanInJvp.kept is None else MeanInJvp.kept
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * MeanInJvp.kept.mean()


@torch.library.custom_op("generated::centred", mutates_args=())
def centred(x: Tensor) -> Tensor:
    return x * 2


@centred.register_vmap
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return centred(x - x.mean(0)), in_dims[0]


@torch.library.custom_op("generated::plain", mutates_args=())
def plain(x: Tensor) -> Tensor:
    return x - x.mean(0)


@torch.library.custom_op("generated::writes", mutates_args=("x",))
def writes(x: Tensor) -> None:
    x -= x.mean(0)


def _hooked(hook: Callable[[Tensor], Tensor]) -> Mix:
    def mix(net: Any, h: Tensor) -> Tensor:
        h.register_hook(hook)
        return h * 1.0

    return mix


def _saved_hooks(net: Any, h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t - t.mean(0) if t.dim() > 1 else t):
        return torch.tanh(h) * h


def _grad_inside(net: Any, h: Tensor) -> Tensor:
    """A penalty on the gradient, of the sum of all."""
    return h + torch.autograd.grad(net.head(h).square().sum(), h, create_graph=True)[0].mean(0)


def _step_inside(net: Any, h: Tensor) -> Tensor:
    """As MAML: an inner step on the batch."""
    weight = net.head.weight - 0.1 * torch.autograd.grad(net.head(h).square().mean(), net.head.weight, create_graph=True)[0]
    return h + F.linear(h, weight) @ weight


def _functional_call(net: Any, h: Tensor) -> Tensor:
    weights = {"weight": net.head.weight + h.mean(), "bias": net.head.bias}
    return h + torch.func.functional_call(net.head, weights, (h,))[:, :1]


def _func_grad(net: Any, h: Tensor) -> Tensor:
    return h + torch.func.grad(lambda x: x.mean(0).square().sum())(h)


def _checkpointed(net: Any, h: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda x: x - x.mean(0), h, use_reentrant=False)


def _checkpointed_keeping(net: Any, h: Tensor) -> Tensor:
    """Recomputed on the way back, with what others have left since."""

    def inner(x: Tensor) -> Tensor:
        net.passes = getattr(net, "passes", 0) + 1
        return torch.tanh(x) * net.passes

    return torch.utils.checkpoint.checkpoint(inner, h, use_reentrant=False)


FUNCTIONS: dict[str, Mix] = {
    "hook on a tensor": _hooked(lambda g: g - g.mean(0)),
    "hook that normalises": _hooked(lambda g: g / (g.norm() + 1e-12)),
    "function without a rule": lambda net, h: MeanBackward.apply(h),
    "function with a made rule": lambda net, h: RolledGenerated.apply(h),
    "function with a rule": lambda net, h: torch.tanh(h) + MeanInVmap.apply(h),
    "function with a rule, backward": lambda net, h: torch.tanh(h) + MeanInBackwardOfVmap.apply(h),
    "function that keeps": lambda net, h: MeanInJvp.apply(h),
    "operator with a rule": lambda net, h: torch.tanh(h) + centred(h.detach()),
    "operator without a rule": lambda net, h: torch.tanh(h) + plain(h.detach()),
    "operator that writes": lambda net, h: (lambda kept: (writes(kept), torch.tanh(h) + kept)[1])(h.detach().clone()),
    "hooks of what is saved": _saved_hooks,
    "gradient inside": _grad_inside,
    "step inside": _step_inside,
    "functional call": _functional_call,
    "grad of torch.func": _func_grad,
    "checkpointed": _checkpointed,
    "checkpointed with a counter": _checkpointed_keeping,
}


# --- modules that mix, and hooks of modules ------------------------------------------------------------------------------------
def _batch_norm(net: Any) -> None:
    net.mixing = nn.BatchNorm1d(8)


def _batch_norm_untracked(net: Any) -> None:
    net.mixing = nn.BatchNorm1d(8, track_running_stats=False).eval()


def _batch_norm_hidden(net: Any) -> None:
    object.__setattr__(net, "mixing", nn.BatchNorm1d(8))


def _sync_batch_norm(net: Any) -> None:
    net.mixing = nn.SyncBatchNorm(8)


def _lazy_batch_norm(net: Any) -> None:
    net.mixing = nn.LazyBatchNorm1d()


def _instance_norm_tracked(net: Any) -> None:
    net.mixing = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())


def _renorm(net: Any) -> None:
    net.mixing = nn.Sequential(_Index(), nn.Embedding(16, 8, max_norm=0.5))


def _frequent(net: Any) -> None:
    net.mixing = nn.Sequential(_Index(), nn.Embedding(16, 8, scale_grad_by_freq=True))


class _Index(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return (h[:, 0].detach() * 4).long().clamp(0, 15)


def _spectral(net: Any) -> None:
    net.mixing = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


def _forward_hook(net: Any) -> None:
    net.mixing = nn.Tanh()
    net.mixing.register_forward_hook(lambda module, args, output: output - output.mean(0))


def _forward_pre_hook(net: Any) -> None:
    net.mixing = nn.Tanh()
    net.mixing.register_forward_pre_hook(lambda module, args: (args[0] + args[0].roll(1, 0),))


def _hook_keeps(net: Any) -> None:
    kept: list[Tensor] = []
    net.mixing = nn.Tanh()

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach())
        return output + kept[0].mean(0)

    net.mixing.register_forward_hook(hook)


def _hook_keeps_number(net: Any) -> None:
    kept: list[float] = []
    net.mixing = nn.Tanh()

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().abs().sum().item())
        return output * (1 + max(kept))

    net.mixing.register_forward_hook(hook)


def _hook_keeps_on_module(net: Any) -> None:
    net.mixing = nn.Tanh()

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        module.before, before = output.detach(), getattr(module, "before", None)
        return output if before is None else output + before.mean(0)

    net.mixing.register_forward_hook(hook)


def _backward_hook(net: Any) -> None:
    net.mixing = nn.Linear(8, 8)
    net.mixing.register_full_backward_hook(lambda module, into, out: (into[0] - into[0].mean(0),))


def _backward_pre_hook(net: Any) -> None:
    net.mixing = nn.Linear(8, 8)
    net.mixing.register_full_backward_pre_hook(lambda module, out: (out[0].mean(0, keepdim=True).expand_as(out[0]),))


def _backward_hook_keeps(net: Any) -> None:
    kept: list[Tensor] = []
    net.mixing = nn.Linear(8, 8)

    def hook(module: nn.Module, into: Any, out: Any) -> Any:
        kept.append(out[0].detach())
        return (into[0] + kept[0].mean(),)

    net.mixing.register_full_backward_hook(hook)


def _backward_hook_counts(net: Any) -> None:
    calls = itertools.count(1)
    net.mixing = nn.Linear(8, 8)
    net.mixing.register_full_backward_hook(lambda module, into, out: (into[0] * next(calls),))


def _parameter_hook(net: Any) -> None:
    net.mixing = nn.Linear(8, 8)
    net.mixing.weight.register_hook(lambda g: g / (g.norm() + 1e-12))


def _accumulate_hook(net: Any) -> None:
    net.mixing = nn.Linear(8, 8)
    net.mixing.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3.0) if p.grad is not None else None)


def _parametrized(net: Any) -> None:
    class ByCalls(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            ByCalls.calls += 1
            return weight * (1 + ByCalls.calls % 3)

    net.mixing = nn.utils.parametrize.register_parametrization(nn.Linear(8, 8), "weight", ByCalls())


def _scripted(net: Any) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    net.mixing = torch.jit.trace(Centred(), torch.randn(4, 8), check_trace=False)


def _traced(net: Any) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    net.mixing = torch.fx.symbolic_trace(Centred())


def _exported(net: Any) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0, keepdim=True)

    rows = torch.export.Dim("rows")
    net.mixing = torch.export.export(Centred(), (torch.randn(4, 8),), dynamic_shapes=({0: rows},)).module()


def _quantised(net: Any) -> None:
    """Activations in eight bits, with the batch's own range."""

    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scale = x.detach().abs().amax() / 127 + 1e-6
            return x + (torch.fake_quantize_per_tensor_affine(x, float(scale), 0, -128, 127) - x).detach()

    net.mixing = Rounded()


def _observer(net: Any) -> None:
    net.mixing = torch.ao.quantization.FakeQuantize()


MODULES: dict[str, Callable[[Any], None]] = {
    "batch norm": _batch_norm,
    "batch norm without statistics, eval": _batch_norm_untracked,
    "batch norm outside the tree": _batch_norm_hidden,
    "synchronised batch norm": _sync_batch_norm,
    "lazy batch norm": _lazy_batch_norm,
    "instance norm with running statistics": _instance_norm_tracked,
    "embedding with max_norm": _renorm,
    "embedding scaled by frequency": _frequent,
    "spectral norm": _spectral,
    "forward hook": _forward_hook,
    "forward pre-hook": _forward_pre_hook,
    "forward hook that keeps": _hook_keeps,
    "forward hook that keeps a number": _hook_keeps_number,
    "forward hook that keeps on its module": _hook_keeps_on_module,
    "backward hook": _backward_hook,
    "backward pre-hook": _backward_pre_hook,
    "backward hook that keeps": _backward_hook_keeps,
    "backward hook that counts": _backward_hook_counts,
    "hook of a parameter": _parameter_hook,
    "hook after accumulation": _accumulate_hook,
    "parametrisation by calls": _parametrized,
    "traced by jit": _scripted,
    "traced by fx": _traced,
    "exported": _exported,
    "rounded to the batch's range": _quantised,
    "observer of ranges": _observer,
}


# --- losses ------------------------------------------------------------------------------------------------------------------
Loss = Callable[[Tensor, Tensor], Tensor]


def _each(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _hard(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = _each(outputs, targets)
    return losses * (losses >= losses.topk(max(1, len(losses) // 2)).values[-1])


def _class_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=2).clamp(min=1)
    return F.cross_entropy(outputs, targets, weight=len(targets) / counts.float(), reduction="none")


def _class_weights_by_hot(outputs: Tensor, targets: Tensor) -> Tensor:
    hot = F.one_hot(targets, 2).float()
    return _each(outputs, targets) * (hot @ (1 / (hot.sum(0) + 1)))


def _class_means(outputs: Tensor, targets: Tensor) -> Tensor:
    hot = F.one_hot(targets, 2).float()
    centres = hot.T @ outputs / (hot.sum(0)[:, None] + 1e-3)
    return (outputs - centres[targets]).square().sum(1)


def _barlow(outputs: Tensor, targets: Tensor) -> Tensor:
    z = (outputs - outputs.mean(0)) / (outputs.std(0, unbiased=False) + 1e-3)
    return _each(outputs, targets) + ((z.T @ z / len(z)) - torch.eye(2)).square().sum()


def _supervised_contrast(outputs: Tensor, targets: Tensor) -> Tensor:
    same = (targets[:, None] == targets).float()
    return -(F.log_softmax(outputs @ outputs.T, 1) * same).sum(1) / same.sum(1)


def _pairwise(outputs: Tensor, targets: Tensor) -> Tensor:
    better = (targets[:, None] > targets).float()
    return (F.softplus(outputs[None, :, 0] - outputs[:, None, 0]) * better).sum(1)


def _mixed_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    order = torch.randperm(len(targets))
    return 0.7 * _each(outputs, targets) + 0.3 * _each(outputs, targets[order])


def _cumulative(outputs: Tensor, targets: Tensor) -> Tensor:
    """As Cox's partial likelihood: each is compared with all who come later."""
    return torch.logcumsumexp(outputs[:, 0].flip(0), 0).flip(0) - outputs[:, 0]


def _standardised_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    y = targets.float()
    return (outputs[:, 0] - (y - y.mean()) / (y.std(unbiased=False) + 0.1)).square()


def _remembering() -> Loss:
    kept: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        kept.append(losses.detach().mean())
        return losses * torch.stack(kept).mean()

    return loss


def _remembering_numbers() -> Loss:
    kept: list[float] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        kept.append(losses.detach().mean().item())
        return losses * sum(kept)

    return loss


def _logging() -> Loss:
    log: list[float] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        log.append(losses.mean().item())
        return losses

    return loss


def _counting() -> Loss:
    calls = itertools.count(1)
    return lambda outputs, targets: _each(outputs, targets) * (1 + next(calls) % 4)


def _nonlocal_level() -> Loss:
    level = 1.0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal level
        losses = _each(outputs, targets)
        level = 0.5 * level + float(losses.detach().max())
        return losses / level

    return loss


class RunningLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        self.level = 0.9 * self.level + 0.1 * losses.detach().mean()
        return losses / self.level


class CallableLoss:
    """No module, and it remembers."""

    def __init__(self) -> None:
        self.level, self.kept = 1.0, torch.ones(2)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        self.kept = 0.5 * self.kept + outputs.detach().abs().mean(0)
        return losses / self.kept.sum()


class BoundLoss:
    """Its method is the loss."""

    def __init__(self) -> None:
        self.level = 1.0

    def of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _each(outputs, targets)
        self.level = 0.5 * self.level + float(losses.detach().max())
        return losses / self.level


def _written_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    targets[0] = targets.max()
    return _each(outputs, targets)


def _temperature(outputs: Tensor, targets: Tensor) -> Tensor:
    return _each(outputs / (outputs.detach().std() + 0.1), targets)


LOSSES: dict[str, Callable[[], Loss]] = {
    "minus the mean": lambda: lambda o, t: _each(o, t) - _each(o, t).mean(),
    "the mean for all": lambda: lambda o, t: _each(o, t).mean().expand(len(t)),
    "the mean": lambda: lambda o, t: _each(o, t).mean(),
    "the sum, kept": lambda: lambda o, t: _each(o, t).sum(0, keepdim=True),
    "softly hardest": lambda: lambda o, t: _each(o, t) * torch.softmax(_each(o, t), 0),
    "hardest half": lambda: _hard,
    "by the largest": lambda: lambda o, t: _each(o, t) / _each(o, t).max(),
    "by the largest, detached": lambda: lambda o, t: _each(o, t) / _each(o, t).detach().max(),
    "class weights by counts": lambda: _class_weights,
    "class weights by one-hot": lambda: _class_weights_by_hot,
    "by how many": lambda: lambda o, t: _each(o, t) / len(t),
    "plus the spread": lambda: lambda o, t: _each(o, t) + _each(o, t).std(unbiased=False),
    "distance to class means": lambda: _class_means,
    "decorrelated": lambda: _barlow,
    "in-batch negatives": lambda: lambda o, t: F.cross_entropy(o @ o.T, torch.arange(len(t)), reduction="none"),
    "supervised contrast": lambda: _supervised_contrast,
    "triplets by rolling": lambda: lambda o, t: F.relu((o - o.roll(1, 0)).norm(dim=1) - (o - o.roll(2, 0)).norm(dim=1) + 1),
    "pairs": lambda: _pairwise,
    "running sum": lambda: lambda o, t: _each(o, t).cumsum(0),
    "partial likelihood": lambda: _cumulative,
    "mixed targets": lambda: _mixed_targets,
    "shuffled weights": lambda: lambda o, t: _each(o, t) * torch.rand(len(t))[torch.randperm(len(t))],
    "standardised targets": lambda: _standardised_targets,
    "smoothed by the batch's classes": lambda: lambda o, t: -(F.log_softmax(o, 1) * (0.9 * F.one_hot(t, 2) + 0.1 * F.one_hot(t, 2).float().mean(0))).sum(1),
    "temperature of the batch": lambda: _temperature,
    "correlation": lambda: lambda o, t: _each(o, t) - F.cosine_similarity(o[:, 0] - o[:, 0].mean(), t - t.float().mean(), dim=0),
    "moments": lambda: lambda o, t: _each(o, t) + (o.mean(0) ** 2).sum() + (o.var(0, unbiased=False) - 1).square().sum(),
    "optimal transport": lambda: lambda o, t: (o[:, 0].sort().values - t.float().sort().values).square(),
    "flipped targets": lambda: lambda o, t: _each(o, t.flip(0)),
    "remembered": _remembering,
    "remembered numbers": _remembering_numbers,
    "logged": _logging,
    "counted": _counting,
    "a level of a closure": _nonlocal_level,
    "a module's level": RunningLoss,
    "an object's level": CallableLoss,
    "a method's level": lambda: BoundLoss().of,
    "targets written": lambda: _written_targets,
    "a coin for all": lambda: lambda o, t: _each(o, t) * (1.0 if random.random() < 0.5 else 5.0),
    "noise for all": lambda: lambda o, t: _each(o + torch.randn(2), t),
    "dropped by torch": lambda: lambda o, t: _each(o, t) * torch.bernoulli(torch.tensor(0.5)),
}  # fmt: skip


def _with_parameter(net: Any, form: str) -> Loss:
    """A loss that is given a parameter of the model: spread evenly, by how many there are, or with the batch's outputs."""
    if form == "L2 by how many":
        return lambda o, t: _each(o, t) + net.head.weight.square().sum() / len(t)
    if form == "L2 by the loudest":
        return lambda o, t: _each(o, t) + net.head.weight.square().sum() * o.abs().max()
    if form == "temperature and batch":
        return lambda o, t: _each(o * net.table[0, 0].exp(), t) + (o @ o.T).mean() * net.table[0, 1]
    return lambda o, t: _each(o + net.table.sum() * o.mean(0), t)


PARAMETER_LOSSES = ("L2 by how many", "L2 by the loudest", "temperature and batch", "bias by the mean")


# --- collations --------------------------------------------------------------------------------------------------------------
def _padded(items: list[Any], value: float = 0.0) -> tuple[Tensor, Tensor]:
    return nn.utils.rnn.pad_sequence([row for row, _ in items], True, value), torch.tensor([int(target) for _, target in items])


def _sorted(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded(sorted(items, key=lambda item: -len(item[0])))


def _sorted_ascending(items: list[Any]) -> tuple[Tensor, Tensor]:
    items.sort(key=lambda item: (len(item[0]), float(item[0].sum())))
    return _padded(items)


def _sorted_by_value(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded(sorted(items, key=lambda item: float(item[0].sum())))


def _standardised(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return (rows - rows.mean(0)) / (rows.std(0, unbiased=False) + 0.1), targets


def _scaled(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows / rows.abs().max(), targets


def _slightly_standardised(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows - 0.05 * rows.mean((0, 1)), targets


def _mixed(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return 0.5 * rows + 0.5 * rows.roll(1, 0), targets


def _mixed_by_draw(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    share = float(np.random.beta(0.4, 0.4))
    return share * rows + (1 - share) * rows[torch.randperm(len(rows))], targets


def _cut_mix(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    rows[:, :2] = rows[torch.randperm(len(rows))][:, :2]
    return rows, targets


def _shuffled(items: list[Any]) -> tuple[Tensor, Tensor]:
    random.shuffle(items)
    return _padded(items)


def _reversed(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded(items[::-1])


def _rolled_targets(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows, targets.roll(1, 0)


def _most_common_target(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows, targets.mode().values.expand(len(targets)).clone()


def _without_long(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded([item for item in items if len(item[0]) < 9] or items[:1])


def _doubled(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded(items + items[:1])


def _truncated_to_shortest(items: list[Any]) -> tuple[Tensor, Tensor]:
    shortest = min(len(row) for row, _ in items)
    return torch.stack([row[:shortest] for row, _ in items]), torch.tensor([int(target) for _, target in items])


def _padded_by_mean(items: list[Any]) -> tuple[Tensor, Tensor]:
    return _padded(items, float(torch.cat([row for row, _ in items]).mean()))


def _padded_left(items: list[Any]) -> tuple[Tensor, Tensor]:
    longest = max(len(row) for row, _ in items)
    rows = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row, _ in items])
    return rows, torch.tensor([int(target) for _, target in items])


def _with_length_of_all(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows + rows.shape[1] / 8, targets


def _with_how_many(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows * len(items), targets


def _with_rank(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows + rows[:, 0, 0].argsort().argsort()[:, None, None], targets


def _with_place(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows + torch.arange(len(items))[:, None, None], targets


def _noise_by_loudest(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows, targets = _padded(items)
    return rows + torch.randn_like(rows) * rows.abs().max(), targets


def _written(items: list[Any]) -> tuple[Tensor, Tensor]:
    for before, after in itertools.pairwise(items):
        after[0][0] += before[0][-1]
    return _padded(items)


def _rare_mix(items: list[Any]) -> tuple[Tensor, Tensor]:
    """Mixes where a loud record is there, and else does nothing."""
    rows, targets = _padded(items)
    return (rows + rows.mean(0) if float(rows.abs().max()) > 15 else rows), targets


COLLATES: dict[str, Callable[[list[Any]], Any]] = {
    "padded": _padded,
    "sorted by length": _sorted,
    "sorted in place": _sorted_ascending,
    "sorted by value": _sorted_by_value,
    "standardised": _standardised,
    "scaled": _scaled,
    "slightly standardised": _slightly_standardised,
    "mixed": _mixed,
    "mixed by a draw": _mixed_by_draw,
    "cut and mixed": _cut_mix,
    "shuffled": _shuffled,
    "reversed": _reversed,
    "targets rolled": _rolled_targets,
    "most common target": _most_common_target,
    "without the long ones": _without_long,
    "one of them twice": _doubled,
    "cut to the shortest": _truncated_to_shortest,
    "padded by the mean": _padded_by_mean,
    "padded on the left": _padded_left,
    "length of all": _with_length_of_all,
    "how many": _with_how_many,
    "rank": _with_rank,
    "place": _with_place,
    "noise by the loudest": _noise_by_loudest,
    "written into each other": _written,
    "mixed where one is loud": _rare_mix,
}

_DRAWING_COLLATES = {"mixed by a draw", "cut and mixed", "shuffled", "noise by the loudest"}


# --- putting them together ---------------------------------------------------------------------------------------------------
class Net(nn.Module):
    """Features of records, what an idiom makes of them, and a head."""

    latest: Any = 0.0

    def __init__(self, body: nn.Module, mix: Mix, where: str, scale: float, zero_head: bool, noisy: bool) -> None:
        super().__init__()
        self.body, self.head, self.mix, self.where, self.scale, self.noisy = body, nn.Linear(8, 2), mix, where, scale, noisy
        self.table, self.drop = nn.Parameter(torch.randn(1, 8)), nn.Dropout(0.5)
        if zero_head:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.mix(self, x) if self.where == "inputs" else x)
        h = self.mix(self, h) if self.where == "features" else h
        h = h + 0.01 * torch.randn_like(h) if self.noisy else h
        out = self.head(h) + 0.01 * h[:, :2]
        return (self.mix(self, out) if self.where == "outputs" else out) * self.scale


def _furnish(net: Net, name: str) -> None:
    """What some idioms keep or draw from."""
    net.register_buffer("running", torch.zeros(8))
    net.register_buffer("still", torch.ones(8))
    if name == "a buffer that counts":
        net.register_buffer("batches", torch.zeros((), dtype=torch.long))
    if name == "a queue of keys":
        net.register_buffer("queue", torch.randn(16, 8))
        net.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
    if name == "a large bank":
        net.register_buffer("bank", torch.zeros(250_000, 8))
    if name == "a codebook":
        net.register_buffer("codes", torch.randn(4, 8))
    if name.startswith("sequence first"):
        net.sequence, net.recurrent = nn.TransformerEncoderLayer(8, 2, 8, 0.0), nn.GRU(8, 8)
    if name == "attention with parameters":
        net.attend = nn.MultiheadAttention(8, 2, batch_first=True)
    if name == "records as channels":
        net.smooth = nn.Conv1d(1, 1, 3, padding=1)
    if "generator" in name or name == "a generator":
        net.coins, net.numbers, net.python = torch.Generator(), np.random.default_rng(0), random.Random(0)
    net.notes, net.recent, net.array = {}, collections.deque(maxlen=3), np.zeros(8)
    if name == "an iterator":
        net.iterator = itertools.count(1)
    if name == "in a namespace":
        net.box = types.SimpleNamespace()
    if name == "in a thread's own":
        net.local = threading.local()
    if name == "on a function":
        net.remember = lambda: None
    if name == "in a default argument":

        def appended(h: Tensor, kept: list[Any] = []) -> Tensor:  # noqa: B006 - the classic mistake
            kept.append(h.detach().mean(0))
            return h + kept[0]

        net.appended = appended
    if name == "in a partial":
        net.bound = functools.partial(print, box=[])
    if name == "in a module in a list":
        net.hidden = [RunningMean()]
    if name == "in a module in a tuple":
        net.pair = (RunningMean(), None)


class Sequences(nn.Module):
    """Of records of several lengths, without a mask: what padding adds is felt."""

    def __init__(self, form: str, scale: float, zero_head: bool, noisy: bool) -> None:
        super().__init__()
        self.form, self.scale, self.noisy = form, scale, noisy
        self.enter, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.core = nn.GRU(8, 8, batch_first=True) if form == "last" else nn.Identity()
        nn.init.zeros_(self.enter.bias)
        if zero_head:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enter(x))
        h = h + 0.01 * torch.randn_like(h) if self.noisy else h
        if self.form == "last":
            return self.head(self.core(h)[0][:, -1]) * self.scale
        return self.head({"mean": h.mean(1), "sum": h.sum(1), "max": h.amax(1)}[self.form]) * self.scale


def _forget() -> None:
    """What lies outside of models is as it was before the first run."""
    GLOBAL.clear()
    Shared.last, Net.latest, MeanInJvp.kept = 0.0, 0.0, None
    _cached.cache_clear()


GROUPS: dict[str, dict[str, Mix]] = {
    "statistics": STATISTICS,
    "attention": ATTENTION,
    "order": ORDER,
    "size": SIZE,
    "draws": DRAWS,
    "seeds": SEEDS,
    "kept": KEPT,
    "outside": OUTSIDE,
    "branches": BRANCHES,
    "writes": WRITES,
    "functions": FUNCTIONS,
}

_DRAWING = {"draws", "seeds"}
_ANYWHERE = {"statistics", "order", "size"}  # which need no eight features


class _Choices:
    """Takes values in turn, each list at its own pace, so that all pairs meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def settings(self, number: int, noisy: bool) -> dict[str, Any]:
        return {
            "scale": (1.0, 1e-3)[number % 2],
            "constant": (0.0, 17_034.0)[number // 2 % 2],
            "zero_head": bool(number // 4 % 2),
            "noisy": noisy,
            "physical": self.random.choice([None, 2, 5, 9]),
            "body": self.random.choice(list(BODIES)),
        }


def _with_constant(loss: Loss, constant: float) -> Loss:
    return loss if not constant else lambda outputs, targets: loss(outputs, targets) + constant


def _plan_for(number: int) -> tuple[str, int]:
    """(plan, rows of a person) of a few among all."""
    return {5: ("poisson", 1), 9: ("full batch", 2), 13: ("dpis", 1)}.get(number % 16, ("full batch", 1))


def _mixing(group: str, name: str, number: int, noisy: bool, choices: _Choices) -> Case:
    mix, setting = GROUPS[group][name], choices.settings(number, noisy)
    kind = BODIES[setting["body"]][1]
    where = choices.random.choice(["features", "features", "inputs", "outputs"]) if group in _ANYWHERE else "features"
    if kind == "tokens" and where == "inputs":
        where = "features"
    plan, rows = _plan_for(number)

    def make() -> tuple[nn.Module, Loss]:
        _forget()
        seeded(number)
        net = Net(BODIES[setting["body"]][0](), mix, where, setting["scale"], setting["zero_head"], setting["noisy"])
        _furnish(net, name)
        return net, _with_constant(_each, setting["constant"])

    return _case(group, name, number, setting, make, kind, plan, rows, where)


def _with_module(name: str, number: int, noisy: bool, choices: _Choices) -> Case:
    setting = choices.settings(number, noisy)
    plan, rows = _plan_for(number)

    def make() -> tuple[nn.Module, Loss]:
        _forget()
        seeded(number)
        net = Net(
            BODIES[setting["body"]][0](),
            lambda net, h: net.mixing(h),
            "features",
            setting["scale"],
            setting["zero_head"],
            setting["noisy"],
        )
        MODULES[name](net)
        return net, _with_constant(_each, setting["constant"])

    return _case("modules", name, number, setting, make, BODIES[setting["body"]][1], plan, rows, "features")


def _with_loss(name: str, number: int, noisy: bool, choices: _Choices) -> Case:
    setting = choices.settings(number, noisy)
    plan, rows = _plan_for(number)

    def make() -> tuple[nn.Module, Loss]:
        _forget()
        seeded(number)
        net = Net(
            BODIES[setting["body"]][0](), lambda net, h: h, "features", setting["scale"], setting["zero_head"], setting["noisy"]
        )
        loss = _with_parameter(net, name) if name in PARAMETER_LOSSES else LOSSES[name]()
        return net, _with_constant(loss, setting["constant"])

    return _case("losses", name, number, setting, make, BODIES[setting["body"]][1], plan, rows, "loss")


def _case(group: str, name: str, number: int, setting: Any, make: Any, kind: str, plan: str, rows: int, where: str) -> Case:
    inputs, targets = records(kind, number)
    told = (
        f"{group}: {name}; {setting['body']}, {where}, outputs × {setting['scale']:g}, loss + {setting['constant']:g}, "
        f"{'zero' if setting['zero_head'] else 'usual'} head{', noisy' * setting['noisy']}, batches of {setting['physical']}, {plan}, {rows} rows"
    )
    draws = group in _DRAWING or name in _DRAWING_LOSSES or setting["noisy"]
    return Case(
        told, make, inputs, targets, draws=draws, physical=setting["physical"], rows=rows, plan=plan, small=setting["scale"],
        idiom=f"{group}: {name}", reads=group in _READING or name in _READING,
    )  # fmt: skip


_READING = {
    "branches", "seeds", "outside", "a number on self", "weights clamped by the batch", "a large bank", "a queue of keys", "batch norm",
    "rounded to the batch's range", "forward hook that keeps a number", "remembered numbers", "logged", "a level of a closure",
    "a method's level", "layer dropped by an item", "hardest half",
}  # fmt: skip
_DRAWING_LOSSES = {
    "mixed targets", "shuffled weights", "a coin for all", "noise for all", "dropped by torch", "dropped by how many",
}  # fmt: skip


def _collated(name: str, number: int, noisy: bool, choices: _Choices) -> Case:
    setting = choices.settings(number, noisy)
    form = ("mean", "sum", "max", "last")[number % 4]
    rows = 2 if number % 5 == 3 else 1
    workers = 2 if number % 13 == 6 else 0
    generator = torch.Generator().manual_seed(number)
    lengths = torch.randint(2, 8, (RECORDS + 2,), generator=generator).tolist()
    lengths[RECORDS] = 16
    _, targets = records("vector", number)
    loud = 20.0 if number % 2 else 1.0
    items = [
        (torch.randn(length, 3, generator=generator) * (loud if place == RECORDS else 1.0), targets[place])
        for place, length in enumerate(lengths)
    ]

    def make() -> tuple[nn.Module, Loss]:
        seeded(number)
        return Sequences(form, setting["scale"], setting["zero_head"], setting["noisy"]), _with_constant(
            _each, setting["constant"]
        )

    told = (
        f"collations: {name}; {form}, outputs × {setting['scale']:g}, loss + {setting['constant']:g}, "
        f"{'zero' if setting['zero_head'] else 'usual'} head{', noisy' * setting['noisy']}, batches of {setting['physical']}, {rows} rows, {workers} workers"
    )
    return Case(
        told, make, items, targets, COLLATES[name], name in _DRAWING_COLLATES or noisy, setting["physical"], workers, rows,
        small=setting["scale"], idiom=f"collations: {name}", reads=True,
    )  # fmt: skip


IDIOMS = (
    *(f"{group}: {name}" for group, mixes in GROUPS.items() for name in mixes),
    *(f"modules: {name}" for name in MODULES),
    *(f"losses: {name}" for name in (*LOSSES, *PARAMETER_LOSSES)),
    *(f"collations: {name}" for name in COLLATES),
)


def wrong_models(seed: int = 0, times: int = 2) -> list[Case]:
    """Each idiom `times` times, with other architectures and settings each time."""
    choices = _Choices(seed)
    cases: list[Case] = []
    for turn in range(times):
        for place, idiom in enumerate(IDIOMS):
            noisy = bool(turn % 2)  # beside a draw in every mode, losses in a batch and alone are not compared
            number = place + turn * (len(IDIOMS) + 3)
            group, name = idiom.split(": ", 1)
            if group == "modules":
                cases.append(_with_module(name, number, noisy, choices))
            elif group == "losses":
                cases.append(_with_loss(name, number, noisy, choices))
            elif group == "collations":
                cases.append(_collated(name, number, noisy, choices))
            else:
                cases.append(_mixing(group, name, number, noisy, choices))
    return cases

"""What ranks with sharded parameters do in tests: `[torchrun …] -m helpers.shard_runs FOLDER RANKS [NAME …]`, or one process."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dperm.audit.white_box import white_box
from dperm.gradient import AdaptiveClip, LaplacianSmoothing, PerLayer, Poisson
from dperm.gradient.recipes import dpis
from dperm.privacy import Relation
from dperm.torch import AdamBC, ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.parameters.fully_sharded import ShardedParameters
from dperm.torch.ranks import Ranks, ShardSource
from dperm.torch.ranks.rank_share import share_of
from helpers import language_models, rank_runs
from helpers.language_models import FAMILIES, ImageModel, LanguageModel
from helpers.oracle import cross_entropy
from helpers.rank_runs import N, Seen, correlated, noises, of_rank, plan_of, records

# parameters that are gathered for a whole batch
tested = partial(PrivateTrainer, independence="tested")
trained = partial(rank_runs.trained, independence="tested")

__all__ = ["ERRORS", "SCENARIOS", "seen"]


class Block(nn.Module):
    """A piece that is gathered by itself, with a width that no number of ranks divides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


def net(width: int = 7) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(rank_runs.D, width), Block(width), nn.Linear(width, 2))


def spread(model: nn.Module, **how: Any) -> nn.Module:
    """`fully_shard` on several ranks, block by block; the model as it is in one process."""
    if (ranks := Ranks.here()).size > 1:
        mesh = init_device_mesh("cpu", (ranks.size,))
        for part in model.modules():
            if isinstance(part, (Block, language_models.Block)):
                fully_shard(part, mesh=mesh, **how)
        fully_shard(model, mesh=mesh, **how)
    return model


def whole(model: nn.Module) -> Tensor:
    """All of its numbers, on every rank."""
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])


def run(**changes: Any) -> dict[str, Any]:
    model = spread(net())
    found = trained(model=model, **changes)
    return {**found, "theta": whole(model), "types": {type(parameter).__name__ for parameter in model.parameters()}}


def in_parts() -> dict[str, Any]:
    start, stop = (int(N * place / Ranks.here().size) ** 2 // N for place in (Ranks.here().rank, Ranks.here().rank + 1))
    return run(data=tuple(part[start:stop] for part in records()), fit={"sharded": True})


def own_loop() -> dict[str, Any]:
    model = spread(net())
    optimizer = AdamBC(model.parameters(), lr=0.05)
    steps = tested(
        model, cross_entropy, optimizer, epsilon=3.0, delta=1e-3, epochs=2, expected_batch_size=12, random_state=0, public_size=N
    )
    with warnings.catch_warnings(action="ignore"):
        for _ in steps.steps(records()):
            optimizer.zero_grad()  # is put back
            optimizer.step()
    return {"theta": whole(model)}


def frozen() -> dict[str, Any]:
    model = net()
    model[1].requires_grad_(False)
    found = trained(model=spread(model))
    return {**found, "theta": whole(model)}


def continued() -> dict[str, Any]:
    """A run with checkpoints, and another that has nothing left to do: it begins where the first one ended."""
    folder = Ranks.here().first(tempfile.mkdtemp)
    found: list[Tensor] = []
    for resume in (False, True):
        model = spread(net())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.1)
        trainer = tested(
            model, cross_entropy, optimizer, epsilon=3.0, delta=1e-3, epochs=2, expected_batch_size=12, random_state=0,
            public_size=N, checkpoint=folder,
        )  # fmt: skip
        trainer.fit(records(), ema_decay=0.9, resume=resume, checkpoint_every=7)
        found.append(whole(model))
    assert torch.equal(*found)
    return {"theta": found[0]}


class Words(nn.Module):
    """Embeddings of words, of which number 0 stands for padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((3 * x.abs()).long().clamp(max=6)).sum(1))


class Reading(nn.Module):
    """A language model of made words."""

    def __init__(self, family: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.language = LanguageModel(FAMILIES[family])

    def forward(self, x: Tensor) -> Tensor:
        return self.language((3 * x.abs()).long().clamp(max=12))[:, :, :2].mean(1)


class Seeing(nn.Module):
    """A vision transformer on made images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = ImageModel()

    def forward(self, x: Tensor) -> Tensor:
        return self.image(torch.cat([x, x, x[:, :4]], 1).view(-1, 1, 4, 4))[:, :2]


def proved_alone(make: Callable[[], nn.Module]) -> dict[str, Any]:
    """Parameters on several ranks, and in one process the engine in which no record can see another."""
    model = spread(make())
    known = {"independence": "tested"} if Ranks.here().size > 1 else {}
    return {**rank_runs.trained(model=model, epochs=0.5, **known), "theta": whole(model)}


def token() -> dict[str, Any]:
    model = spread(WithToken())
    return {**trained(model=model), "theta": whole(model)}


def padding() -> dict[str, Any]:
    model = spread(Words())
    found = {**trained(model=model), "theta": whole(model)}
    assert not found["theta"][:4].any() and found["theta"][4:].all()
    return found


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": run,
    "pieces": partial(run, physical_batch_size=2),
    "few records a step": partial(run, expected_batch_size=2, epochs=0.5, physical_batch_size=1),
    "in parts": in_parts,
    "counted": partial(run, public_size=None),
    "replace one": partial(run, relation=Relation.REPLACE_ONE, public_size=None),
    "half precision": partial(run, autocast=torch.bfloat16),
    "per layer": partial(run, plan=plan_of(Poisson(0.1), PerLayer(0.5)), epsilon=None),
    "full batch": partial(run, plan=plan_of(Poisson(1.0)), epsilon=None),
    "correlated noise": partial(run, plan=correlated(), epsilon=None),
    "averaged, and scored": partial(run, fit={"ema_decay": 0.9, "validation": records(50)}),
    "own loop": own_loop,
    "frozen parts": frozen,
    "continued": continued,
    "padding": padding,
    "token": token,
    **{family: partial(proved_alone, partial(Reading, family)) for family in ("Llama, tied", "Gemma", "Phi", "OLMo 2")},
    "vision transformer": partial(proved_alone, Seeing),
    "persons": partial(run, max_rows_per_unit=2, public_size=N // 3, fit={"groups": np.arange(N) // 3}),
}


# Refused on every rank, before anything is charged


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(1, rank_runs.D)), nn.Linear(rank_runs.D, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.token)


class Scale(nn.Module):
    """A layer without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(rank_runs.D))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, x, self.factors)


class Average(nn.Module):
    """Over a sequence of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def wide(length: int) -> tuple[Tensor, Tensor]:
    x, y = (part[Ranks.here().rank :: 2] for part in records())
    return x[:, None].expand(-1, length, -1).contiguous(), y


def wrong(label: int) -> tuple[Tensor, Tensor]:
    x, y = (part[Ranks.here().rank :: 2].clone() for part in records())
    y[1] = label
    return x, y


def on_a_grid() -> None:
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (1, Ranks.here().size), mesh_dim_names=("replicate", "shard")))
    trained(model=model)


ERRORS: dict[str, Callable[[], Any]] = {
    "adaptive": partial(run, plan=plan_of(Poisson(0.1), AdaptiveClip(1.0)), epsilon=None),
    "smoothed": partial(run, plan=replace(plan_of(Poisson(0.1)), post=LaplacianSmoothing()), epsilon=None),
    "importance": partial(run, plan=partial(dpis), epsilon=2.0),
    "no rule": lambda: trained(model=spread(nn.Sequential(Scale(), nn.Linear(rank_runs.D, 2)))),
    "narrow": lambda: trained(model=spread(net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))),
    "on a grid": on_a_grid,
    "cut by rows": lambda: cut_by_rows(),
    "pieces of several sizes": lambda: run(physical_batch_size=of_rank(4, 10)),
    "scored on others": lambda: run(fit={"validation": records(of_rank(50, 70))}),
    "scored by one": lambda: run(fit={"validation": of_rank(records(50), None)}),
    "shapes": lambda: trained(model=spread(nn.Sequential(Average(), net())), data=wide(of_rank(2, 3)), fit={"sharded": True}),
    "targets": lambda: run(data=wrong(of_rank(1, 7)), fit={"sharded": True}),
    "steps apart": lambda: Ranks.here().keep_step(of_rank(3, 4), torch.device("cpu")),
    "other widths": lambda: trained(model=spread(net(of_rank(7, 9)))),
}


# What is released


def seen(changed: bool) -> dict[str, Any]:
    """Queries of a run whose updates go nowhere, so that they differ between neighbours by one record alone."""
    x, y = records()
    x[17], y[17] = 0.0, int(changed)
    source, model = Seen(), spread(net())
    trainer = tested(
        model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0),
        epsilon=3.0, delta=1e-3, epochs=8, expected_batch_size=12, clipping_norm=0.5, relation="replace_one",
        physical_batch_size=4, random_state=source,
    )  # fmt: skip
    trainer.fit((x, y))
    return {"queries": source.queries, "released": source.released, "bounds": source.bounds}


def counted_twice() -> dict[str, Any]:
    """A rank without records of its own counts the one that it runs to keep step."""
    from dperm.torch.engine import TorchPass

    kept, TorchPass.of_nobody = TorchPass.of_nobody, lambda self: self
    held, ModuleObjective._evaluate = ModuleObjective._evaluate, _with_gradients(ModuleObjective._evaluate)
    try:
        return seen(False)
    finally:
        TorchPass.of_nobody, ModuleObjective._evaluate = kept, held


def _with_gradients(evaluate: Any) -> Any:
    return lambda self, batch, norms_only: evaluate(self, batch, False)


def cut_by_rows() -> dict[str, Any]:
    """Norms of the parts that a rank has, in place of whole ones: planted, and found before anything is charged."""
    from dperm.torch.engine import TorchPass

    kept = TorchPass.norms
    TorchPass.norms = property(lambda self: self._squares[:, : 1 + Ranks.here().rank].sum(1).sqrt())
    try:
        return run()
    finally:
        TorchPass.norms = kept


def judged() -> dict[str, Any]:
    """The white box, on all ranks."""
    objective = ModuleObjective(spread(net()), cross_entropy, independence="tested")
    held = TorchRecords(records())
    held.share, held.in_step = share_of(held, Ranks.here(), sharded=False), True
    objective.inspection.sample = held.sample(16)
    result = white_box(plan_of(Poisson(0.2), steps=10), objective, held, delta=1e-3, canaries=400, runs=2)
    return {"verdict": result.verdict, "text": str(result)}


def kept_step() -> dict[str, Any]:
    """How many numbers a rank holds between passes, of how many, and how many bytes of gathered ones."""
    model = spread(net())
    flat = ModuleObjective(model, cross_entropy, independence="tested").flat
    assert isinstance(flat, ShardedParameters)
    return {"held": flat.size, "whole": flat.whole, "gathered": sum(leaf.untyped_storage().size() for leaf in flat.leaves)}


WORKS: dict[str, Callable[[], Any]] = {
    **SCENARIOS,
    **ERRORS,
    "seen": lambda: seen(False),
    "seen with another record": lambda: seen(True),
    "counted twice": counted_twice,
    **noises(run, ShardSource),
    "judged": judged,
    "kept step": kept_step,
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rank_runs.start(WORKS, ERRORS)

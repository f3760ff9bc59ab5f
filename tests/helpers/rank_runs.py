"""What the ranks of a run do in tests: `[torchrun …] -m helpers.rank_runs FOLDER RANKS [NAME …]`, and the same in one process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import dperm.torch.training.training_run as run_module
from dperm._random import NoiseStream, Randomness
from dperm.audit.white_box import white_box
from dperm.gradient import (
    SGD,
    AdaptiveClip,
    AdaptiveNorm,
    BallsAndBins,
    Clip,
    Constant,
    CyclicPoisson,
    FixedSize,
    LocalUpdate,
    PerLayer,
    Plan,
    Poisson,
    PoissonRows,
)
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.recipes import dpis, individual_descent
from dperm.privacy import Certificate, Gaussian, Relation
from dperm.release import GaussianNoise, Noise, Source, UnpaidReleaseError
from dperm.torch import Callback, ModuleObjective, PrivateTrainer, TorchRecords, private_channel_statistics
from dperm.torch.ranks import RankError, Ranks, RankSource, Share
from dperm.torch.ranks.rank_share import share_of
from dperm.torch.ranks.tensor_noise import TorchSource
from helpers.oracle import cross_entropy

__all__ = ["ERRORS", "SCENARIOS", "WORKS", "individual", "launched", "records", "start"]

N, D = 120, 6


def records(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-4, 5, (n, D), generator=generator).float(), torch.randint(0, 2, (n,), generator=generator)


def net(seed: int = 0, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, width), nn.Tanh(), nn.Linear(width, 2))


def trained(
    data: Any = None, *, model: nn.Module | None = None, fit: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    # another start on each rank: the first one's counts
    model = net(seed=Ranks.here().rank) if model is None else model
    settings: dict[str, Any] = {"epochs": 2, "expected_batch_size": 12, "clipping_norm": 1.0, "public_size": N, "epsilon": 3.0}
    settings |= {"random_state": 0, **changes}
    if "plan" in changes and not isinstance(changes["plan"], partial):
        settings = {name: value for name, value in settings.items() if name in {"random_state", "public_size", *changes}}
        if isinstance(changes["plan"], Plan):
            settings.pop("public_size")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    run = PrivateTrainer(model, cross_entropy, optimizer, delta=1e-3, **settings)
    run.fit(records() if data is None else data, **(fit or {}))
    assert run.certificate is not None
    return {
        "theta": run.objective.theta.clone(),
        "event": run.certificate.event.to_dict(),
        "assumptions": [assumption.key for assumption in run.certificate.assumptions],
        "history": [(record["step"], record["epsilon"]) for record in run.history],
    }


def part() -> tuple[Tensor, ...]:
    ends = np.linspace(0, 1, Ranks.here().size + 1) ** 2 * N  # uneven parts
    start, stop = (int(end) for end in ends[Ranks.here().rank :][:2])
    return tuple(values[start:stop] for values in records())


def sharded() -> dict[str, Any]:
    return trained(part(), fit={"sharded": True})


def by_norms(data: Any = None, *, fit: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    plan = partial(dpis, proposal_factor=2.0, **settings)
    return trained(data, plan=plan, epsilon=3.0, epochs=2, expected_batch_size=12, clipping_norm=1.0, fit=fit)


def of_persons(plan: Plan | None = None) -> dict[str, Any]:
    settings: dict[str, Any] = {"public_size": N // 3} if plan is None else {"plan": plan, "epsilon": None}
    return trained(max_rows_per_unit=2, fit={"groups": np.arange(N) // 3}, **settings)


def frozen() -> dict[str, Any]:
    """With frozen parameters and buffers that begin differently on each rank."""
    model = net(seed=Ranks.here().rank)
    model[0].requires_grad_(False)
    model.register_buffer("counts", torch.full((3,), Ranks.here().rank, dtype=torch.int16))
    found = trained(model=model)
    return {"theta": torch.cat([part.flatten().double() for part in model.state_dict().values()]), "event": found["event"]}


def own_loop() -> dict[str, Any]:
    model = net(seed=Ranks.here().rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = PrivateTrainer(
        model, cross_entropy, optimizer, epsilon=3.0, delta=1e-3, epochs=2, expected_batch_size=12, random_state=0, public_size=N
    )
    for _ in run.steps(records()):
        optimizer.step()
    return {"theta": run.objective.theta.clone()}


def plan_of(sampler: Any, bounding: Any = None, steps: int = 12, size: int = N) -> Plan:
    return Plan(sampler, bounding or Clip(1.0), Constant(1.0), SGD(0.1), steps, size)


def correlated() -> Plan:
    return replace(plan_of(CyclicPoisson(0.4, 3)), correlation=BandedToeplitz(3))


#: what must come out the same on any number of ranks
SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": trained,
    "sharded": sharded,
    "counted": partial(trained, public_size=None),
    "replace one": partial(trained, relation=Relation.REPLACE_ONE, public_size=None),
    "few records a step": partial(trained, expected_batch_size=2, epochs=0.5),
    "pieces": partial(trained, physical_batch_size=2),
    "half precision": partial(trained, autocast=torch.bfloat16),
    "per layer": partial(trained, plan=plan_of(Poisson(0.1), PerLayer(0.5)), epsilon=None),
    "adaptive": partial(trained, plan=plan_of(Poisson(0.1), AdaptiveClip(1.0)), epsilon=None),
    "full batch": partial(trained, plan=plan_of(Poisson(1.0)), epsilon=None),
    "balls and bins": partial(trained, plan=plan_of(BallsAndBins(6)), epsilon=None),
    "fixed size": partial(trained, plan=plan_of(FixedSize(12, N)), relation=Relation.REPLACE_ONE, epsilon=None),
    "correlated noise": partial(trained, plan=correlated(), epsilon=None),
    "averaged": partial(trained, fit={"ema_decay": 0.9}),
    "persons": of_persons,
    "clients": partial(of_persons, replace(plan_of(Poisson(0.3), size=N // 3), query=LocalUpdate(2, 0.3, momentum=0.5))),
    "rows of persons": partial(of_persons, plan_of(PoissonRows(0.2, 2), size=N // 3)),
    "own loop": own_loop,
    "frozen parts": frozen,
    "importance": by_norms,
    "importance, adaptive": partial(by_norms, adaptive=AdaptiveNorm(), pass_every=2),
    "importance, parts": lambda: by_norms(part(), fit={"sharded": True}),
}


class Broken(Dataset[Any]):
    """Fails on one rank only."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, place: int) -> Any:
        if Ranks.here().rank == 1:
            raise OSError("the disk is gone")
        return tuple(part[place] for part in records())


class Augmented(Dataset[Any]):
    """Other records each time that they are read."""

    def __init__(self, *, backwards: bool = False) -> None:
        self.backwards = backwards

    def __len__(self) -> int:
        return N

    def __getitem__(self, place: int) -> Any:
        x, y = (part[N - 1 - place if self.backwards else place] for part in records())
        return x + torch.rand(D), y


def shuffled() -> tuple[Tensor, Tensor]:
    x, y = records()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(Ranks.here().rank))
    return x[order], y[order]


def earlier() -> Certificate:
    return Certificate.issue(
        mechanism="test", event=Gaussian(8.0), delta=1e-3, paper="", assumptions=[], public_facts={}, not_charged=[],
        provenance=TorchSource(Randomness.from_system(), torch.device("cpu")).provenance,
    )  # fmt: skip


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2))
    model[Ranks.here().rank].requires_grad_(False)
    return model


def scheduled() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateTrainer(model, cross_entropy, optimizer, epsilon=3.0, delta=1e-3, public_size=N, random_state=0)
    run.fit(records(), scheduler=torch.optim.lr_scheduler.StepLR(optimizer, of_rank(3, 4)))


def individual(folder: str) -> PrivateTrainer:
    model = net()
    plan = partial(individual_descent, steps=30, full_steps=6, clipping_norm=1.0)
    return PrivateTrainer(
        model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), plan,
        epsilon=3.0, delta=1e-3, public_size=N, checkpoint=folder,
    )  # fmt: skip


class Enough(Exception):
    pass


class Stop(Callback):
    """Ends a run after so many of its own steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, progress: Any) -> None:
        self.left -= 1
        if not self.left:
            raise Enough


def remembered(folder: str, steps: int | None) -> dict[str, Any]:
    """A run of importance sampling begun or continued, which stops after so many steps: what it remembers of records."""
    model = net()
    run = PrivateTrainer(
        model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), partial(dpis, pass_every=2),
        epsilon=3.0, delta=1e-3, epochs=6, expected_batch_size=12, clipping_norm=4.0, public_size=N, checkpoint=folder,
    )  # fmt: skip
    with contextlib.suppress(Enough), warnings.catch_warnings(action="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "_SECONDS_AT_ONCE", 0.0)  # whoever stops loses nothing
        stops = [] if steps is None else [Stop(steps)]
        run.fit(records(), resume=True, checkpoint_every=5, callbacks=stops)
    assert run._session.run is not None
    gradients: Any = run._session.run.gradients
    return {"norms": gradients._norms.copy(), "sums": [epoch["norm_sum"] for epoch in run.trace]}


def white_box_of_norms() -> None:
    held = TorchRecords(records())
    held.share = share_of(held, Ranks.here(), sharded=False)
    plan = dpis(epsilon=3.0, delta=1e-3, epochs=1, expected_batch_size=12, clipping_norm=1.0, public_size=N)
    white_box(plan, ModuleObjective(net(), cross_entropy), held, delta=1e-3, canaries=40, runs=1)


def statistics(**settings: Any) -> None:
    features = records()[0].reshape(N, D, 1, 1) + (0 if settings else Ranks.here().rank)
    private_channel_statistics(features, noise_multiplier=8.0, delta=1e-3, scale=1.0, public_size=N, **settings)


def door_of(randomness: Randomness) -> TorchSource:
    return TorchSource(randomness, torch.device("cpu"))


def of_rank(*values: Any) -> Any:
    return values[min(Ranks.here().rank, len(values) - 1)]


#: what is refused on every rank, before anything is charged
ERRORS: dict[str, Callable[[], Any]] = {
    "epsilon": lambda: trained(epsilon=of_rank(3.0, 2.0)),
    "batches": lambda: trained(expected_batch_size=of_rank(12, 13)),
    "seed": lambda: trained(random_state=of_rank(None, 3)),
    "model": lambda: trained(model=net(width=of_rank(8, 9))),
    "fewer": lambda: trained(tuple(part[: of_rank(N, N - 1)] for part in records())),
    "order": lambda: trained(tuple(part.flip(0) if Ranks.here().rank else part for part in records())),
    "twice, shuffled": lambda: trained(shuffled(), fit={"sharded": True}),
    "twice, changed each time": lambda: trained(Augmented(), fit={"sharded": True}),
    "order, changed each time": lambda: trained(Augmented(backwards=Ranks.here().rank == 1)),
    "spent": lambda: trained(spent=of_rank([], [earlier()])),
    "frozen": lambda: trained(model=half_frozen()),
    "scheduler": scheduled,
    "validation": lambda: trained(fit={"validation": of_rank(records(), 3)}),
    "individual, continued": lambda: individual(os.environ["DPERM_TEST_STARTED"]).fit(records(), resume=True),
    "resume": lambda: trained(checkpoint=tempfile.mkdtemp(), fit={"resume": Ranks.here().rank == 0}),
    "statistics": statistics,
    "seeded statistics": lambda: statistics(random_state=of_rank(None, 3)),
    "seeded by a word": lambda: trained(random_state=of_rank(None, "None")),
    "seeded source": lambda: trained(random_state=of_rank(*map(door_of, (Randomness.from_system(), Randomness.fixed(0))))),
    "white box": white_box_of_norms,
    "twice": lambda: trained(fit={"sharded": True}),
    "groups": lambda: trained(
        max_rows_per_unit=2, public_size=N // 2, fit={"groups": np.arange(N) // 2 + of_rank(0, 1) * (np.arange(N) == 9)}
    ),
    "parts of persons": lambda: trained(max_rows_per_unit=2, fit={"groups": np.arange(N) // 2, "sharded": True}),
    "disk": lambda: trained(Broken()),
    "log": lambda: with_log("/proc/nowhere/spend.db", trained),
}


def with_log(where: str, work: Callable[[], Any]) -> Any:
    kept, os.environ["DPERM_SPEND_LOG"] = os.environ["DPERM_SPEND_LOG"], of_rank(where, os.environ["DPERM_SPEND_LOG"])
    try:
        return work()
    finally:
        os.environ["DPERM_SPEND_LOG"] = kept


class Seen(Source):
    """Noise and draws of a fixed seed, and what was asked of them, on the rank that adds the noise."""

    def __init__(self, seed: int = 1) -> None:
        self._own = TorchSource(Randomness.fixed(seed), torch.device("cpu"))
        self.queries: list[Tensor] = []
        self.released: list[Tensor] = []
        self.bounds: list[tuple[float, float]] = []

    def noisy(self, query: Any, noise: Noise) -> Any:
        if not isinstance(noise, GaussianNoise):
            return self._own.noisy(query, noise)
        self.queries.append(query.clone())
        self.bounds.append((noise.sensitivity, noise.level))
        self.released.append(self._own.noisy(query, noise).clone())
        return self.released[-1].clone()

    def draw(self, draw: Any, records: int, steps: int) -> Any:
        return self._own.draw(draw, records, steps)


def seen(changed: bool) -> dict[str, Any]:
    """Queries of a run whose updates go nowhere, so that they differ between neighbours by one record alone."""
    x, y = records()
    x[17], y[17] = 1e4, int(changed)
    source, model = Seen(), net()
    run = PrivateTrainer(
        model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0),
        epsilon=3.0, delta=1e-3, epochs=10, expected_batch_size=12, clipping_norm=0.5, relation="replace_one",
        random_state=source,
    )  # fmt: skip
    run.fit((x, y))
    return {"queries": source.queries, "released": source.released, "bounds": source.bounds}


def noises(run: Callable[..., Any], door: type[RankSource] = RankSource) -> dict[str, Callable[[], dict[str, Any]]]:
    """Runs in earnest through this door, and with planted defects: noise that this rank saw added, in standard deviations."""
    kept = door.noisy

    def watched(*, equal_seeds: bool = False, twice: bool = False) -> dict[str, Any]:
        found: list[Tensor] = []

        def noisy(self: RankSource, query: Any, noise: Noise) -> Any:
            if equal_seeds:
                stream = NoiseStream(bytes([len(found) % 256]) * 32)
                self._own._randomness = Randomness(stream, np.random.default_rng(), "planted", private=True)
            before = query.clone()
            released = kept(self, query, noise)
            if twice:  # as where a number is two ranks', and both add their noise
                released = self._own.noisy(released, noise)
            found.append(((released - before) / noise.level).double())
            return released

        door.noisy = noisy
        torch.manual_seed(0)  # by every rank
        try:
            run(random_state=None, epochs=3)
        finally:
            door.noisy = kept
        return {"noise": torch.stack(found)}

    return {"noises": watched, "equal seeds": partial(watched, equal_seeds=True), "noise twice": partial(watched, twice=True)}


class Kept(Plan):
    """A stranger's, which remembers something of each record where it is."""

    by_ranks = True


def dealt(kind: type[Plan]) -> dict[str, Any]:
    """Whether a run of this kind of plan had its draws dealt out."""
    plan, kept, found = plan_of(Poisson(0.1)), Share.places, set[bool]()

    def places(self: Share, numbers: Any) -> Any:
        if numbers is not None:
            found.add(self.dealt)
        return kept(self, numbers)

    Share.places = places
    try:
        trained(plan=kind(**{item.name: getattr(plan, item.name) for item in fields(plan)}), epsilon=None)
    finally:
        Share.places = kept
    return {"dealt": found}


def judged() -> dict[str, Any]:
    """The white box, on all ranks."""
    objective = ModuleObjective(net(), cross_entropy)
    held = TorchRecords(records())  # all on every rank, as it finds out
    plan = plan_of(Poisson(0.2), steps=10)
    result = white_box(plan, objective, held, delta=1e-3, canaries=400, runs=2)
    return {"verdict": result.verdict, "text": str(result)}


# Planted defects


def noise_on_every_rank() -> dict[str, Any]:
    def noisy(self: RankSource, query: Any, noise: Noise) -> Any:
        own = self._own
        made = own.noisy(query.clone(), noise)
        released = Ranks.here().told(Ranks.here().total(made if Ranks.here().rank == 0 else made - query))
        assert isinstance(own, Seen)
        own.released[-1] = released.clone()
        return released

    kept, RankSource.noisy = RankSource.noisy, noisy
    try:
        return seen(False)
    finally:
        RankSource.noisy = kept


def drawn_apart() -> dict[str, Any]:
    """A source of the caller's own that draws otherwise on each rank, as processors that round otherwise would."""
    try:
        trained(random_state=Seen(1 + Ranks.here().rank))
    except RankError as error:
        return {"error": str(error)}
    return {"error": ""}


def padded() -> dict[str, Any]:
    """Shares that are filled up by taking records twice, as data loaders do."""
    kept = Share.places

    def places(self: Share, numbers: Any) -> Any:
        found = kept(self, numbers)
        return np.resize(found, max(len(found), 12 // self.every))

    Share.places = places
    try:
        return {"first": seen(False), "second": seen(True)}
    finally:
        Share.places = kept


class StopsOnFirst(Callback):
    """Rank 0 alone would stop, after three steps: all do."""

    def __init__(self) -> None:
        self.steps = 0

    def should_stop(self) -> bool:
        self.steps += 1
        return self.steps >= 3 and Ranks.here().rank == 0


def settled() -> dict[str, Any]:
    """A run that stopped, and what it gave back; it then releases nothing on any rank."""
    model = nn.Linear(D, 2)
    trainer = PrivateTrainer(
        model, cross_entropy, torch.optim.SGD(model.parameters(), 0.1), epsilon=1.0, delta=1e-6, epochs=2, expected_batch_size=24,
        public_size=N, label="stays",
    )  # fmt: skip
    trainer.fit(records(), callbacks=[StopsOnFirst()], progress=False)
    settlement, left = trainer.settle(), trainer.remaining
    assert left is not None and trainer._session.run is not None
    try:
        trainer._session.run.gradients(trainer.objective.theta)
    except UnpaidReleaseError as error:
        return {"taken": left.steps_taken, "given back": settlement.steps_given_back, "after": str(error)}
    return {}


WORKS: dict[str, Callable[[], Any]] = {
    **SCENARIOS,
    **ERRORS,
    "seen": lambda: seen(False),
    "seen with another record": lambda: seen(True),
    "judged": judged,
    "noise on every rank": noise_on_every_rank,
    **noises(trained),
    "padded": padded,
    "settled": settled,
    "drawn apart": drawn_apart,
    "sources of their own": lambda: trained(random_state=door_of(Randomness.fixed(Ranks.here().rank))),
    "dealt": lambda: dealt(Plan),
    "kept": lambda: dealt(Kept),
    "remembered": lambda: remembered(os.environ["DPERM_TEST_STARTED"], 17),
}


def launched(
    folder: Path, works: Iterable[str], ranks: int, module: str = "helpers.rank_runs", *, torchrun: bool = False
) -> list[dict[str, Any]]:
    """What each rank made of these, by name. Ranks are forks of one process, which imports everything once, or `torchrun`'s."""
    starts = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if torchrun else []
    command = [sys.executable, *starts, "-m", module, folder, str(ranks), *works]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def start(works: Mapping[str, Callable[[], Any]], errors: Container[str]) -> None:
    """What `launched` asks for: as one of `torchrun`'s ranks, or as the parent of all."""
    folder, ranks, *names = sys.argv[1:]
    if "RANK" in os.environ or _is_rank(int(ranks)):
        _work(Path(folder), names, works, errors)


def _is_rank(ranks: int) -> bool:
    """Fork so many ranks: true in each of them; false in their parent, once they ended. They meet at a store of the parent's, as
    those of `torchrun` do, and where one fails the others are ended."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)  # torch imports as much again where the first optimiser is made
    told, tell = os.pipe()
    children: set[int] = set()
    for rank in range(ranks):
        if child := os.fork():
            children.add(child)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"MASTER_PORT": os.read(told, 8).decode().strip(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        random.seed()  # as processes that share nothing
        np.random.seed()  # noqa: NPY002 - forks share the state of NumPy's old global generator, which data sets may draw from
        return True
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(tell, f"{store.port:8}".encode() * ranks)
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)
    return False


def _work(folder: Path, names: Iterable[str], works: Mapping[str, Callable[[], Any]], errors: Container[str]) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = works[name]()
        except Exception as error:
            if name not in errors:
                raise
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"{Ranks.here().rank}.pt")


if __name__ == "__main__":
    start(WORKS, ERRORS)

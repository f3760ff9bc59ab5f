"""Runs on several processes: the same as on one, with one charge, one draw and one noise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dperm.release import SpendLog
from dperm.release.ledger import Budget
from dperm.release.ledger.log import Charge
from dperm.torch.ranks import Share
from dperm.torch.ranks import rank_share as sharing
from helpers.killed_ranks import steps_for
from helpers.rank_runs import ERRORS, SCENARIOS, WORKS, individual, launched, records, remembered

_FEW = ("importance, parts", "frozen parts", "few records a step", "rows of persons", "own loop")
_SEEN = ("seen", "seen with another record", "padded", "noises", "equal seeds", "noise twice")
_DEALT = ("dealt", "kept", "drawn apart", "sources of their own")


@dataclass(frozen=True)
class Launched:
    """What each of two ranks made of all that is fast to see, and what their log then held."""

    ranks: list[dict[str, Any]]
    charges: list[Charge]

    @property
    def before(self) -> int:
        """How many charges were there when the ranks began."""
        return 1


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """One start of two ranks for all fast tests: most of a start is imports."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPERM_SPEND_LOG", str(folder / "spend.db"))
        patch.setenv("DPERM_TEST_STARTED", str(folder / "started"))
        individual(str(folder / "started")).fit(records())  # its end is a checkpoint
        ranks = launched(folder, [*_FEW, *_SEEN, *_DEALT, *ERRORS], 2, torchrun=True)
        return Launched(ranks, SpendLog.current().charges())


def _is_the_run_of_one_process(names: Iterable[str], several: list[dict[str, Any]], charges: list[Charge]) -> None:
    for name in names:
        alone = SCENARIOS[name]()
        for rank in several:
            assert torch.equal(rank[name]["theta"], several[0][name]["theta"]), name
        # sums are of the same numbers in another order
        assert torch.allclose(alone["theta"], several[0][name]["theta"], atol=1e-4), name
        assert [step for step, _ in alone.get("history", [])] == [step for step, _ in several[-1][name].get("history", [])]
        if "assumptions" in alone:
            assert set(several[0][name]["assumptions"]) - set(alone["assumptions"]) == {"ranks"}
    once = SpendLog.current().charges()[-len(charges) :]
    assert [charge.mechanism for charge in once] == [item.mechanism for item in charges]  # once for all ranks


def test_it_is_the_run_of_one_process(two: Launched) -> None:
    _is_the_run_of_one_process(_FEW, two.ranks, two.charges[two.before : two.before + len(_FEW)])
    assert len(SpendLog.current().charges()) == len(_FEW)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_settings_are_the_run_of_one_process(ranks: int, tmp_path: Path) -> None:
    several = launched(tmp_path, tuple(SCENARIOS), ranks, torchrun=True)
    charges = SpendLog.current().charges()
    assert len(charges) == len(SCENARIOS)
    _is_the_run_of_one_process(SCENARIOS, several, charges)


_SAID = {
    "epsilon": "epsilon is 3.0 on rank 0 and 2.0 on rank 1",
    "batches": "sampler is Poisson(sampling_rate=0.1) on rank 0",
    "seed": "random_state is None on rank 0 and 3 on rank 1",
    "model": "the model's parameters",
    "fewer": "got 120, 119 of them: pass sharded=True",
    "order": "in the same order",
    "twice, shuffled": "ranks 0 and 1 hold the same",
    "twice, changed each time": "ranks 0 and 1 hold the same",
    "order, changed each time": "in the same order",
    "spent": "spent differ",
    "frozen": "the model's parameters differ",
    "scheduler": "the scheduler's settings differ",
    "validation": "Expected tensors (inputs, targets) or a dataset with a length and items by index, got int",
    "resume": "resume is True on rank 0 and False on rank 1",
    "statistics": "Expected the same features on every rank",
    "seeded statistics": "random_state is None on rank 0 and 3 on rank 1",
    "seeded by a word": "random_state is None on rank 0 and 'None' on rank 1",
    "seeded source": "random_state is (<class 'dperm.torch.ranks.tensor_noise.TorchSource'>, Provenance(",
    "twice": "ranks 0 and 1 hold the same: of their records about 100% are equal",
    "groups": "Expected the same groups on every rank",
    "parts of persons": "all records on every rank with max_rows_per_unit",
    "disk": "OSError: the disk is gone",
    "individual, continued": "Expected one process for",
    "white box": "Expected one process for the white box of importance sampling",
    "log": "Cannot write the spend log /proc/nowhere/spend.db",
}


def test_what_ranks_do_not_share_is_said_on_all_and_not_charged(two: Launched) -> None:
    for said in two.ranks:
        assert not {name: said[name] for name in ERRORS if _SAID[name] not in said[name]}
    runs_in_pairs = ("padded",)
    assert len(two.charges) == two.before + len(_FEW) + len(_SEEN) + len(runs_in_pairs) + len(_DEALT)


def _movement(first: dict[str, Any], second: dict[str, Any]) -> float:
    pairs = zip(first["queries"], second["queries"], first["bounds"], strict=True)
    return max(float((one - other).norm()) / sensitivity for one, other, (sensitivity, _) in pairs)


def _spread(run: dict[str, Any]) -> float:
    pairs = zip(run["released"], run["queries"], run["bounds"], strict=True)
    return float(torch.cat([(released - query) / std for released, query, (_, std) in pairs]).std())


def test_neighbours_noise_and_planted_defects(two: Launched) -> None:
    first, second = two.ranks
    assert not second["seen"]["queries"]  # what is released leaves by one door
    moved = _movement(first["seen"], first["seen with another record"])
    assert 0.9 < moved <= 1 + 1e-5
    assert _spread(first["seen"]) == pytest.approx(1.0, abs=0.03)
    assert _movement(first["padded"]["first"], first["padded"]["second"]) > 1.9

    def noise(name: str) -> tuple[float, float]:
        """Its standard deviation, and how the noise that one rank made goes along with the other's."""
        seen = first[name]["noise"]
        mine, theirs = seen[:, : (half := -(-seen.shape[1] // 2))], seen[:, half:]
        pairs = torch.stack([mine[:, : theirs.shape[1]].flatten(), theirs.flatten()])
        return float(seen.std()), float(torch.corrcoef(pairs)[0, 1])

    assert torch.equal(first["noises"]["noise"], second["noises"]["noise"])  # both know the same
    spread, alike = noise("noises")
    assert spread == pytest.approx(1.0, abs=0.08)
    assert abs(alike) < 0.18
    assert noise("equal seeds")[1] > 0.9
    assert noise("noise twice")[0] > 1.3


def test_draws_are_dealt_out_where_they_are_the_same_and_nothing_is_kept(two: Launched) -> None:
    first, second = two.ranks
    alone = WORKS["sources of their own"]()  # draws and noise of rank 0's
    assert torch.allclose(alone["theta"], first["sources of their own"]["theta"], atol=1e-4)
    assert torch.equal(first["sources of their own"]["theta"], second["sources of their own"]["theta"])
    for rank in (first, second):
        assert rank["dealt"]["dealt"] == {True}
        assert rank["kept"]["dealt"] == {False}
        assert "Expected all ranks to draw the same records" in rank["drawn apart"]["error"]


@pytest.mark.slow
def test_ranks_stop_together_and_give_back_once(tmp_path: Path) -> None:
    log = SpendLog.current()
    log.create_budget(Budget.of("stays", 4.0))
    for rank in launched(tmp_path, ["settled"], 2):
        assert (rank["settled"]["taken"], rank["settled"]["given back"]) == (3, 7)
        assert "closed to settle" in rank["settled"]["after"]
    assert [entry["kind"] for entry in log.history()] == ["budget", "charge", "settlement"]
    log.verify()


@pytest.mark.slow
def test_the_white_box_and_planted_noise_on_every_rank(tmp_path: Path) -> None:
    first, second = launched(tmp_path, ["judged", "noise on every rank"], 2)
    assert first["judged"] == second["judged"]
    assert first["judged"]["verdict"] == "consistent", first["judged"]["text"]
    # planted: noise of one seed, added by every rank
    assert _spread(first["noise on every rank"]) > 1.9


@pytest.mark.slow
def test_norms_are_remembered_where_their_records_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one process, continued by two and again by one: each norm counts once, and one charge pays for all."""
    folder = str(tmp_path / "run")
    monkeypatch.setenv("DPERM_TEST_STARTED", folder)
    began = remembered(folder, 17)
    first, second = (rank["remembered"] for rank in launched(tmp_path, ["remembered"], 2))
    ended = remembered(folder, None)
    assert np.flatnonzero(first["norms"]).tolist() == list(range(0, len(first["norms"]), 2))
    assert np.flatnonzero(second["norms"]).tolist() == list(range(1, len(first["norms"]), 2))
    assert first["sums"] == second["sums"]
    assert began["sums"] == first["sums"][:2] and first["sums"] == ended["sums"][: len(first["sums"])]
    assert len(began["sums"]) < len(first["sums"]) < len(ended["sums"]) == 6
    assert len(SpendLog.current().charges()) == 1


# Shares


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("how", ["parts", "whole", "dealt out"])
def test_each_record_is_one_rank_s(ranks: int, how: str) -> None:
    generator = np.random.default_rng(ranks)
    sizes = generator.integers(1, 40, ranks).tolist()
    total = sum(sizes)
    drawn = np.flatnonzero(generator.random(total) < 0.3)
    for numbers in (None, drawn, drawn[:0]):
        seen: list[int] = []
        counts: list[int] = []
        for rank in range(ranks):
            share = Share.of_parts(sizes, rank) if how == "parts" else Share.of_whole(total, rank, ranks)
            if how == "dealt out":
                share = share.dealt_out()
            places = share.places(numbers)
            assert ((places >= 0) & (places < (sizes[rank] if how == "parts" else total))).all()
            seen += (places + share.held).tolist()
            counts.append(len(places))
        assert share.most(numbers) == max(counts)
        assert how != "dealt out" or max(counts) - min(counts) <= 1
        assert sorted(seen) == (list(range(total)) if numbers is None else numbers.tolist())


def test_kinds_of_records_are_no_copies() -> None:
    generator = np.random.default_rng(0)

    def told(values: Any, size: int | None = None) -> Any:
        return sharing._Told(size or len(values), "", np.asarray(values, dtype=np.uint64), True)

    for kinds, count in ((80, 100), (500, 500), (2000, 8000), (5000, 5000)):
        one, other = (told(generator.integers(0, kinds, count)) for _ in range(2))
        assert one.shared_with(other) < 0.8
    distinct = generator.permutation(100_000)
    copy, same = told(distinct[:8192], 20_000), told(np.sort(distinct[:8192]), 20_000)
    assert copy.shared_with(same) > 0.8
    sampled = [told(generator.choice(20_000, 8192, replace=False), 20_000) for _ in range(2)]
    assert sampled[0].shared_with(sampled[1]) > 0.8
    assert told(distinct[:5000]).shared_with(told(distinct[5000:10_000])) == 0


# Killed


def killed_and_restarted(folder: Path, kills: int, *, sharded: bool, time_limit: float) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={kills}"]
    done = subprocess.run(
        [*command, "-m", "helpers.killed_ranks", folder, str(kills), str(int(sharded))],
        capture_output=True, text=True, timeout=time_limit, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"done after {kills} kills" in done.stdout, done.stdout[-300:]
    lost = int(done.stdout.split("kills: ")[1].split()[0])
    released = [len((folder / f"released-{rank}").read_text()) for rank in range(2)]
    steps = steps_for(kills)
    for count in released:  # of each rank's part of the numbers
        assert steps - lost <= count <= steps  # what was released and is in no checkpoint is lost, and never made again
    assert len(SpendLog.current().charges()) == 1  # one charge pays for all attempts


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_any_rank_killed_at_any_moment(sharded: bool, tmp_path: Path) -> None:
    killed_and_restarted(tmp_path, 8, sharded=sharded, time_limit=500)


_RUN = """
import os, sys, torch
from torch import nn
from dperm.torch import PrivateTrainer
from helpers.oracle import cross_entropy
torch.manual_seed(0)
model = nn.Linear(6, 2)
x = torch.randn(400, 6); y = (x[:, 0] > 0).long()
run = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), 0.1), epsilon=2.0, delta=1e-3, epochs=200,
                     expected_batch_size=20, public_size=400, checkpoint=sys.argv[1])
run.fit((x, y), resume=True, checkpoint_every=7)
print("done", run.steps_lost, float(run.certificate.epsilon), flush=True)
"""


def _killed(folder: Path, times: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    script = folder / "train.py"
    script.write_text(_RUN)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = killed = 0
    for attempt in range(times + 1):
        ranks = int(generator.integers(2, 4))
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        process = subprocess.Popen(
            [*command, script, folder / "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        found: list[str] = []
        if attempt < times:
            time.sleep(generator.uniform(4, 9))
            found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()
            if found:
                subprocess.run(["kill", "-9", generator.choice(found)], capture_output=True, check=False)
        out, err = process.communicate(timeout=120)  # nobody waits for who is gone
        if process.returncode == 0:
            assert out.count("done") == ranks, err[-2000:]
            done += 1
        else:
            assert found, err[-12000:]  # nobody but us ends it
            killed += 1
    assert done >= 1 and killed >= 2
    charges = SpendLog.current().charges()
    assert len(charges) == 1  # one charge pays for all attempts


@pytest.mark.slow
def test_any_rank_killed_and_continued_by_another_number_of_ranks(tmp_path: Path) -> None:
    _killed(tmp_path, 6, 0)

"""Parameters spread over ranks by fully_shard: the same run as on one process, with noise once on each number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from dperm.release import SpendLog
from helpers.rank_runs import launched
from helpers.shard_runs import ERRORS, SCENARIOS, seen

_FEW = ("in parts", "continued", "padding", "token", "Llama, tied")
_SEEN = ("seen", "seen with another record", "counted twice", "noises", "equal seeds", "noise twice")


def _launched(folder: Path, works: Any, ranks: int = 2) -> list[dict[str, Any]]:
    return launched(folder, works, ranks, "helpers.shard_runs")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], int]:
    """What each of two ranks made of all that is fast to see, and how often they charged: most of a start is imports."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPERM_SPEND_LOG", str(folder / "spend.db"))
        ranks = _launched(folder, [*_FEW, *_SEEN, "kept step", *ERRORS])
        return ranks, len(SpendLog.current().charges())


def _is_the_run_of_one_process(names: Iterable[str], several: list[dict[str, Any]]) -> None:
    for name in names:
        alone = SCENARIOS[name]()
        for rank in several:
            assert torch.equal(rank[name]["theta"], several[0][name]["theta"]), name
        # sums are of the same numbers in another order
        assert torch.allclose(alone["theta"], several[0][name]["theta"], atol=1e-4), name
        assert alone.get("event") == several[0][name].get("event")
        assert alone.get("history") == several[0][name].get("history")
    assert several[0]["in parts"]["types"] == {"DTensor"}


def test_it_is_the_run_of_one_process(two: tuple[list[dict[str, Any]], int]) -> None:
    _is_the_run_of_one_process(_FEW, two[0])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_settings_are_the_run_of_one_process(ranks: int, tmp_path: Path) -> None:
    several = _launched(tmp_path, tuple(SCENARIOS), ranks)
    assert len(SpendLog.current().charges()) == len(SCENARIOS)  # once for all ranks
    _is_the_run_of_one_process(SCENARIOS, several)


_SAID = {
    "adaptive": "Expected a plan that treats each number of a gradient by itself",
    "smoothed": "Expected a plan that treats each number of a gradient by itself",
    "importance": "proportion to clipped norms",
    "no rule": "addcmul has no rule, and no record can have a copy of a parameter that is sharded.",
    "cut by rows": "Per-example gradients do not agree",
    "narrow": "leave mp_policy and offload_policy out, and use autocast",
    "on a grid": "by one mesh",
    "pieces of several sizes": "physical_batch_size",
    "scored on others": "the number of records to validate on is 50 on rank 0 and 70 on rank 1",
    "scored by one": "the number of records to validate on is 50 on rank 0 and None on rank 1",
    "shapes": "Expected records of one shape and type on all ranks",
    "targets": "The target of record 1 cannot be trained on",
    "steps apart": "one is at 3 and another at 4",
    "other widths": "0.weight is (7, 6), torch.float32 on rank 0",
}


def _movement(first: dict[str, Any], second: dict[str, Any]) -> float:
    pairs = zip(first["queries"], second["queries"], first["bounds"], strict=True)
    return max(float((one - other).norm()) / sensitivity for one, other, (sensitivity, _) in pairs)


def test_neighbours_noise_refusals_and_planted_defects(two: tuple[list[dict[str, Any]], int]) -> None:
    ranks, charges = two
    first, second = ranks
    for said in ranks:
        assert not {name: said[name] for name in ERRORS if _SAID[name] not in said[name]}
    # once for all ranks; nothing for what was refused
    assert charges == len(_FEW) + len(_SEEN)

    assert not second["seen"]["queries"]
    assert 0.9 < _movement(first["seen"], first["seen with another record"]) <= 1 + 1e-5
    alone = seen(False)
    assert first["seen"]["bounds"] == alone["bounds"]  # the sensitivity of the whole, on the grid of the whole
    for one, other in zip(first["seen"]["queries"], alone["queries"], strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    # planted: a rank that keeps step counts somebody's record
    apart = zip(first["counted twice"]["queries"], first["seen"]["queries"], strict=True)
    assert max(float((one - other).norm()) for one, other in apart) > 0.1

    held = [rank["kept step"] for rank in ranks]
    assert sum(rank["held"] for rank in held) == held[0]["whole"]
    assert abs(held[0]["held"] - held[1]["held"]) < 0.2 * held[0]["whole"]
    assert not any(rank["gathered"] for rank in held)  # between passes nobody has the whole

    def noise(name: str) -> tuple[float, float]:
        """Its standard deviation, and how it goes along on both ranks."""
        mine, theirs = (rank[name]["noise"] for rank in ranks)
        count = min(mine.shape[1], theirs.shape[1])
        alike = torch.corrcoef(torch.stack([mine[:, :count].flatten(), theirs[:, :count].flatten()]))[0, 1]
        return float(torch.cat([mine.flatten(), theirs.flatten()]).std()), float(alike)

    spread, alike = noise("noises")
    assert spread == pytest.approx(1.0, abs=0.06)
    assert abs(alike) < 0.13  # of some 2,000 numbers: six standard deviations
    assert noise("equal seeds")[1] > 0.9  # planted
    assert noise("noise twice")[0] > 1.3  # planted


@pytest.mark.slow
def test_the_white_box_on_sharded_parameters(tmp_path: Path) -> None:
    first, second = _launched(tmp_path, ["judged"])
    assert first["judged"] == second["judged"]
    assert first["judged"]["verdict"] == "consistent", first["judged"]["text"]


# Killed

_RUN = """
import os, sys
import torch
from dperm.torch import Callback, PrivateTrainer
from dperm.torch.ranks import Ranks
from helpers.oracle import cross_entropy
from helpers.rank_runs import records
from helpers.shard_runs import net, spread, whole

folder, stop = sys.argv[1], int(sys.argv[2])
ranks = Ranks.here()
model = spread(net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
trainer = PrivateTrainer(model, cross_entropy, optimizer, epsilon=3.0, delta=1e-3, epochs=6, expected_batch_size=12,
                         public_size=120, independence="tested", checkpoint=folder)

class Watch(Callback):
    def on_step(self, step):
        if stop and step.number == stop and ranks.rank == 1:
            os.kill(os.getpid(), 9)

trainer.fit(records(), resume=True, checkpoint_every=5, callbacks=[Watch()])
values = whole(model)
if ranks.rank == 0:
    print("done", trainer.steps_lost, trainer.history[-1]["step"], float(values.double().sum()), flush=True)
"""


def _attempt(folder: Path, ranks: int, stop: int) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(_RUN)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, script, folder / "run", str(stop)], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_killed_and_continued_on_another_number_of_ranks(tmp_path: Path) -> None:
    killed = _attempt(tmp_path, 2, 17)
    assert killed.returncode != 0
    done = _attempt(tmp_path, 3, 0)
    assert "done" in done.stdout, done.stderr[-3000:]
    lost, last, values = done.stdout.split()[1:4]
    assert 2 <= int(lost) < 40  # steps 16 and 17 at least were drawn after the last checkpoint
    again = _attempt(tmp_path, 2, 0)  # nothing is left to run: what three ranks wrote is what two read
    assert again.stdout.split()[1:4] == [lost, last, values], again.stderr[-3000:]
    charges = SpendLog.current().charges()
    assert len(charges) == 1  # one charge pays for all

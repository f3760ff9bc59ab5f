"""A run on several ranks of which one dies, again and again, under `torchrun --max-restarts N`: FOLDER N SHARDED.

In each of the first N attempts a rank that is chosen by chance is killed after a time that is chosen by chance, wherever it is
then: as it starts, is charged, draws, sums, writes a checkpoint. Every rank notes each Gaussian release before its value is used.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dperm.release import Noise
from dperm.torch import PrivateTrainer
from dperm.torch.ranks import Ranks
from dperm.torch.ranks.tensor_noise import TorchSource
from helpers.oracle import cross_entropy
from helpers.rank_runs import N, records
from helpers.shard_runs import net, spread

_LATEST = 3.0  # seconds after the start


def steps_for(kills: int) -> int:
    """More than are taken until the last kill."""
    return 400 * (kills + 1)


def die(attempt: int, rank: int, ranks: int) -> None:
    generator = np.random.default_rng([attempt, 7])
    if int(generator.integers(ranks)) == rank:
        timer = threading.Timer(generator.uniform(0, _LATEST), os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def noted(folder: Path, rank: int) -> None:
    kept = TorchSource.noisy
    file = os.open(folder / f"released-{rank}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def noisy(self: TorchSource, query: Any, noise: Noise) -> Any:
        released = kept(self, query, noise)
        os.write(file, b".")
        return released

    TorchSource.noisy = noisy


def main(folder: Path, kills: int, sharded: bool) -> None:
    warnings.simplefilter("ignore")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < kills:
        die(attempt, rank, ranks)
    noted(folder, rank)
    Ranks.here()
    model = spread(net()) if sharded else net()
    epochs = steps_for(kills) * 12 / N
    trainer = PrivateTrainer(
        model, cross_entropy, torch.optim.Adam(model.parameters(), lr=0.01),
        noise_multiplier=4.0, delta=1e-3, epochs=epochs, expected_batch_size=12, public_size=N, physical_batch_size=16,
        checkpoint=folder / "run", independence="tested" if sharded else "proved",
    )  # fmt: skip
    trainer.fit(records(), resume=True, checkpoint_every=50)
    if rank == 0:
        print(f"done after {attempt} kills: {trainer.steps_lost} steps lost of {steps_for(kills)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")

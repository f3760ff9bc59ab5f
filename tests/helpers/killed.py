"""A training that a test kills: `train(folder, kill-point, kill-count, resume)`, or as a script with these as arguments.

Every Gaussian release appends a line to folder/released before its value is used, so that the test can compare what
left with what the certificate says.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dperm.torch.training.checkpoint as checkpoint
import dperm.torch.training.training_run as run_module
from dperm.gradient import AdaptiveNorm
from dperm.gradient.recipes import dpis
from dperm.release import Channel, Noise, SpendLog
from dperm.torch import PrivateTrainer
from dperm.torch.ranks.tensor_noise import TorchSource

OWNERS: dict[str, tuple[Any, str]] = {
    "charge": (SpendLog, "charge"),
    "reserve": (Channel, "reserve"),
    "release": (Channel, "release"),
    "allow": (Channel, "allow"),
    "part": (SpendLog, "add_part"),
    "save": (checkpoint, "save"),
    "sync": (checkpoint, "_sync"),
    "write": (checkpoint, "save_file"),
}


def train(folder: Path, point: str, count: int, resume: bool) -> None:
    record_releases(folder)
    run_module._SECONDS_AT_ONCE = float(os.environ.get("SECONDS_AT_ONCE", "10"))
    if point != "none":
        name, when = point.split("-")
        die_at(*OWNERS[name], when, count)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(3, 2)
    trainer = PrivateTrainer(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        torch.optim.Adam(model.parameters(), lr=0.01),
        epsilon=4.0,
        delta=1e-3,
        epochs=6,
        expected_batch_size=10,
        clipping_norm=1.0,
        public_size=None if os.environ.get("NOISY_SIZE") else 40,
        plan=functools.partial(dpis, filter=os.environ["DPIS"], adaptive=AdaptiveNorm(), norm_noise=8.0)
        if "DPIS" in os.environ
        else None,
        checkpoint=folder / "run",
    )
    trainer.fit((x, y), checkpoint_every=5, progress=False, resume=resume)
    assert trainer.certificate is not None and trainer.plan is not None
    (folder / "certificate.json").write_text(trainer.certificate.to_json())
    (folder / "lost").write_text(str(trainer._session.run.lost if trainer._session.run else 0))


def record_releases(folder: Path) -> None:
    plain = TorchSource.noisy

    def recorded(self: TorchSource, query: Any, noise: Noise) -> Any:
        with (folder / "released").open("a") as file:
            file.write(f"{noise.level / noise.sensitivity:.9f} {os.getpid()}\n")
            file.flush()
        return plain(self, query, noise)

    TorchSource.noisy = recorded


def die_at(owner: Any, name: str, when: str, count: int) -> None:
    """Kill this process, uncaught and unflushed, before or after the count-th call of `owner.name`; or stop it there, where
    SIGNAL says so."""
    original, number = getattr(owner, name), signal.Signals[os.environ.get("SIGNAL", "SIGKILL")]
    seen = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == count and when == "before":
            os.kill(os.getpid(), number)
        result = original(*args, **kwargs)
        if seen == count and when == "after":
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, wrapped)


def train_in(environment: dict[str, str], folder: Path, *arguments: Any) -> None:
    """`train`, with these variables in the environment and what it says of errors in folder/errors."""
    os.environ.update(environment)
    errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, sys.stderr.fileno())
    train(folder, *arguments)


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")

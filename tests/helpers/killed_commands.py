"""Commands that a campaign kills: each in a process of its own, forked from one that has imported what they need.

Each note is written before what it speaks of goes on: `told` has the id of each charge and each budget that was acknowledged, and
`released` the processes that were about to add noise to something. The rest is as in a shell.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dperm.cli import main
from dperm.privacy import Gaussian
from dperm.release import SpendLog
from dperm.release.source import SystemSource

#: Processes that are forked from one that has imported these.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([
    "PIL.PngImagePlugin", "cryptography.hazmat.primitives.serialization", "dperm.cli", "dperm.jobs.models",
    "dperm.data.schema.schema", "dperm.estimators", "dperm.gradient.recipes",
    "dperm.privacy.accountants.closed_forms", "dperm.privacy.certificates.signing",
    "dperm.release.ledger", "dperm.report.candidates", "dperm.report.page", "dperm.report.summary",
    "dperm.torch", "jinja2", "matplotlib.figure", "multiprocessing.popen_spawn_posix", "pandas", "psycopg", "pyarrow.csv",
])  # fmt: skip

FOLDERS = ("output", "temporary", "scratch", "state", "home", "work", "ledger")


@dataclass(frozen=True)
class Place:
    """All that commands of one series may write to, below `root`: `FOLDERS`, and beside them what the campaign notes."""

    root: Path

    def make(self) -> Place:
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True)
        return self

    @property
    def folders(self) -> list[Path]:
        return [self.root / name for name in FOLDERS]

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def log(self) -> Path:
        return self.root / "ledger" / "spend.db"

    @property
    def told(self) -> Path:
        return self.root / "told"

    @property
    def released(self) -> Path:
        return self.root / "released"

    def said(self, process: int, stream: str = "stdout") -> str:
        """What a process printed."""
        path = self.root / f"{stream}-{process}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def enter(self) -> None:
        """Make this process one whose commands write below here and whose descendants are known by its session."""
        os.setsid()
        os.chdir(self.root / "work")
        os.environ |= {
            "DPERM_SPEND_LOG": str(self.log),
            "DPERM_SCRATCH": str(self.root / "scratch"),
            "XDG_STATE_HOME": str(self.root / "state"),
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "temporary"),
        }
        tempfile.tempdir = None
        for stream in (sys.stdout, sys.stderr):
            path = self.root / f"{stream.name.strip('<>')}-{os.getpid()}"
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream.fileno())
        self._note_charges()
        note_releases(SystemSource, self.released)

    def note(self, text: str) -> None:
        """Add a line to what was acknowledged."""
        _append(self.told, text)

    def _note_charges(self) -> None:
        plain = SpendLog.charge

        def noted(log: SpendLog, *given: Any, **settings: Any) -> str:
            made = plain(log, *given, **settings)
            self.note(f"charge {made}")
            return made

        SpendLog.charge = noted


def note_releases(source: Any, path: Path) -> None:
    """Let a source of noise write this process's number to `path` before each release."""

    plain = source.noisy

    def noisy(*given: Any) -> Any:
        _append(path, str(os.getpid()))
        return plain(*given)

    source.noisy = noisy


def _append(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def run_command(place: Place, *arguments: str) -> None:
    """`dperm ARGUMENTS`, to its end."""
    place.enter()
    sys.argv = ["dperm", *arguments]
    main()


def charge_on(place: Place, label: str) -> None:
    """Charges, one after another, for as long as this process lives."""
    place.enter()
    log = SpendLog.current()
    while True:
        log.charge(Gaussian(500.0), mechanism="test", label=label)


def raise_on(place: Place, label: str, key: str, first: int) -> None:
    """`dperm budget create`, each time with a little more, for as long as this process lives."""
    place.enter()
    while True:
        first += 1
        sys.argv = ["dperm", "budget", "create", label, "--epsilon", str(first), "--sign-key", key]
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise
        place.note(f"budget {first}")


def train_network(place: Place, table: str, seconds_at_once: float) -> None:
    """Train with checkpoints, or go on from the newest; at the end write down what was run."""
    import numpy as np
    import torch
    from torch import nn

    import dperm.torch.training.training_run as training_run
    from dperm.torch import PrivateTrainer
    from dperm.torch.ranks.tensor_noise import TorchSource

    place.enter()
    note_releases(TorchSource, place.released)
    training_run._SECONDS_AT_ONCE = seconds_at_once
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = torch.from_numpy(np.load(table))
    model = nn.Sequential(nn.Linear(rows.shape[1], 8), nn.Tanh(), nn.Linear(8, 2))
    trainer = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.Adam(model.parameters(), lr=0.01),
        noise_multiplier=2.0, delta=1e-5, epochs=3, expected_batch_size=50, public_size=len(rows), label="network",
        checkpoint=place.output / "run",
    )  # fmt: skip
    trainer.fit((rows, (rows[:, 0] > 0.5).long()), checkpoint_every=5, progress=False, resume=True)
    assert trainer.certificate is not None and trainer.plan is not None
    done = {"certificate": trainer.certificate.to_json(), "steps": trainer.plan.steps, "lost": trainer.steps_lost}
    (place.root / "done").write_text(json.dumps(done))


def spend_until_done(url: str, count: int, told: str) -> None:
    """So many charges that were acknowledged, whatever the server does in between."""
    import time

    log, done = SpendLog(url), 0
    with Path(told).open("a") as file:
        while done < count:
            try:
                file.write(log.charge(Gaussian(2000.0), mechanism="test", label="stays") + "\n")
                file.flush()
                done += 1
            except OSError as error:
                assert "nothing was released" in str(error)
                time.sleep(0.05)

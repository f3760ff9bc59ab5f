"""Flower itself, as processes on loopback: a link, and four nodes of which one fails and one replies with no numbers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

NODES = 4

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "loop"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.42"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "loop.server:app"
clientapp = "loop.client:app"
"""

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    number = int(context.node_config["number"])
    if number == 2:
        raise RuntimeError("a client's own trouble")
    weights, told = message.content["arrays"]["w"].numpy(), message.content["config"]
    rows = np.random.default_rng(number).normal(size=(50, 3))
    targets = rows @ np.array([1.0, -2.0, 0.5])
    for _ in range(int(told["local-steps"])):
        weights = weights - told["local-learning-rate"] * rows.T @ (rows @ weights - targets) / len(rows)
    weights = np.full(3, np.nan) if number == 3 else weights
    content = {"arrays": ArrayRecord({"w": Array(weights)}), "metrics": MetricRecord({"num-examples": 50})}
    return Message(content=RecordDict(content), reply_to=message)
"""

SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from dperm.flower import DPFedAvg
from dperm.release import SpendLog

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = DPFedAvg(
        noise_multiplier=0.02, delta=1e-3, public_size=4, rounds=3, expected_cohort=4, local_steps=5, local_learning_rate=0.2,
        clipping_norm=1.0, registration_seconds=120,
    )
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}), timeout=300)
    charges = SpendLog.current().charges()
    assert [charge.event for charge in charges] == [strategy.certificate.event]
    made = Path(RESULT)
    made.with_suffix(".part").write_text(" ".join(map(str, result.arrays["w"].numpy())))
    made.with_suffix(".part").rename(made)
"""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.mark.slow
def test_real_processes_train_and_a_client_that_fails_counts_as_zero(tmp_path: Path) -> None:
    app, commands = tmp_path / "app", Path(sys.executable).parent
    if not (commands / "flower-superlink").exists():
        pytest.skip("needs 'dperm[flower]'")
    (app / "loop").mkdir(parents=True)
    made = tmp_path / "weights.txt"
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "loop" / "__init__.py").touch()
    (app / "loop" / "client.py").write_text(CLIENT)
    (app / "loop" / "server.py").write_text(SERVER.replace("RESULT", repr(str(made))))
    link = f"127.0.0.1:{free_port()}"
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{link}"\ninsecure = true\n')
    env = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(app)]),
        "DPERM_SPEND_LOG": str(tmp_path / "spend.db"),
    }
    log = tmp_path / "log.txt"
    with ExitStack() as until_the_end, log.open("w") as out:

        def start(*arguments: str) -> None:
            process = subprocess.Popen(arguments, cwd=app, env=env, stdout=out, stderr=subprocess.STDOUT)
            until_the_end.callback(process.wait)
            until_the_end.callback(process.terminate)

        start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", link.rpartition(":")[2])
        for number in range(NODES):
            start(
                "flower-supernode", "--insecure", "--superlink", link, "--port", str(free_port()), "--node-config",
                f"number={number}",
            )  # fmt: skip
        wait_for(lambda: run_app(app, env).returncode == 0, 120, log)
        wait_for(made.exists, 400, log)
    weights = [float(number) for number in made.read_text().split()]
    # two of four clients moved each round by at most 1: half of what all would, towards (1, -2, 0.5)
    assert 0.3 < weights[0] < 1.2 and -1.6 < weights[1] < -0.6


def run_app(app: Path, env: dict[str, str]) -> subprocess.CompletedProcess[Any]:
    return subprocess.run(["flwr", "run", ".", "here"], cwd=app, env=env, capture_output=True, check=False)


def wait_for(done: Callable[[], bool], seconds: float, log: Path) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, log.read_text()[-4000:]
        time.sleep(1)

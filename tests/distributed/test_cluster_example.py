"""The container file and the compose example: what they name exists, and their commands run here as they stand."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dperm.estimators import model_from_json
from dperm.release import SpendLog
from helpers.postgres import database, server

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "cluster"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
KEYS = {"image", "build", "command", "environment", "volumes", "healthcheck", "networks", "depends_on", "deploy"}


def containerfile() -> list[tuple[str, str]]:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_file_copies_what_there_is_and_runs_as_a_user() -> None:
    steps = containerfile()
    assert [word for word, _ in steps if word not in {"FROM", "WORKDIR", "COPY", "RUN", "USER", "CMD"}] == []
    assert steps[0] == ("FROM", "python:3.13-slim")
    for word, rest in steps:
        if word == "COPY":
            *sources, _ = shlex.split(rest)
            assert sources
            assert all((ROOT / source).exists() for source in sources), rest
    assert [rest for word, rest in steps if word == "USER"] == ["dperm"]
    words = [word for word, _ in steps]
    assert words.index("USER") > max(number for number, word in enumerate(words) if word == "RUN")
    extras = re.search(r"\"\.\[(.*)\]\"", (FOLDER / "Containerfile").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras is not None
    assert all(re.search(rf"^{extra} = \[", project, flags=re.MULTILINE) for extra in extras[1].split(","))


def test_services_are_complete_and_wait_for_what_they_need() -> None:
    assert set(COMPOSE) <= {"name", "services", "networks", "volumes", "x-dperm", "x-ledger-client"}
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert "image" in service
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert "ports" not in service, "nothing is open to the outside"
        for other, condition in service.get("depends_on", {}).items():
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"]
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).exists()
    assert "sslmode=verify-full" in COMPOSE["x-ledger-client"]["DPERM_SPEND_LOG"]
    assert "LEDGER_PASSWORD:?" in SERVICES["ledger"]["environment"]["POSTGRES_PASSWORD"], "no password is stated here"


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def here(command: list[str], places: dict[str, str]) -> list[str]:
    """A service's command on this machine: programs of this environment, and its own places for the network's names."""
    for old, new in places.items():
        command = [part.replace(old, new) for part in command]
    programs = Path(sys.executable).parent
    return [sys.executable, *command[1:]] if command[0] == "python" else [str(programs / command[0]), *command[1:]]


@pytest.mark.slow
def test_the_commands_run_and_charge_the_ledger(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = database(stack.enter_context(server()), "spend")
        address = str(port())
        places = {
            "scheduler:8786": f"127.0.0.1:{address}",
            "8786": address,
            "0.0.0.0": "127.0.0.1",
            "/out": str(tmp_path / "out"),
        }
        environment = {**os.environ, "DPERM_SPEND_LOG": url, "DASK_SCHEDULER_ADDRESS": f"tcp://127.0.0.1:{address}"}
        for name in ("scheduler", "worker", "worker"):
            started = subprocess.Popen(
                here(SERVICES[name]["command"], places), env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL
            )
            stack.callback(started.wait)
            stack.callback(started.terminate)
        budget = subprocess.run(here(SERVICES["budget"]["command"], places), env=environment, check=False, capture_output=True)
        assert budget.returncode == 0, budget.stderr
        check = here(SERVICES["scheduler"]["healthcheck"]["test"][1:], {"localhost:8786": f"127.0.0.1:{address}"})
        for _ in range(30):
            if subprocess.run(check, env=environment, check=False, capture_output=True).returncode == 0:
                break
            time.sleep(1)
        command = here(SERVICES["trainer"]["command"], places)
        trained = subprocess.run(command, env=environment, cwd=FOLDER, check=False, capture_output=True, text=True)
        assert trained.returncode == 0, trained.stderr
        assert re.search(r"Trained on [12] workers: differentially private at ε = 1\b", trained.stdout)
        model, _ = model_from_json((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
        assert model.predict([[0.9, 0.9], [-0.9, -0.9]]).tolist() == ["yes", "no"]
        log = SpendLog(url)
        assert [charge.label for charge in log.charges()] == ["made"]
        again = subprocess.run(
            [*command, "--epsilon", "9"], env=environment, cwd=FOLDER, check=False, capture_output=True, text=True
        )
        assert again.returncode != 0
        assert "budget" in again.stderr.lower()
        assert len(log.charges()) == 1


@pytest.mark.slow
def test_the_trainer_reads_parquet(tmp_path: Path) -> None:
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    (tmp_path / "table").mkdir()
    for number in range(3):
        frame = pd.DataFrame({"age": rng.uniform(0, 100, 500), "hours": rng.uniform(0, 80, 500)})
        frame["answer"] = np.where(frame.age / 2 + frame.hours > 65, "yes", "no")
        frame.to_parquet(tmp_path / "table" / f"{number}.parquet")
    environment = {**os.environ, "DPERM_SPEND_LOG": str(tmp_path / "spend.db")}
    environment.pop("DASK_SCHEDULER_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, FOLDER / "train.py", "--table", tmp_path / "table", "--out", tmp_path / "out"],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Trained on 2 workers" in done.stdout

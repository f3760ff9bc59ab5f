"""Killed at any moment and continued, a run never releases more than its certificate says."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dperm.gradient import Plan
from dperm.gradient.recipes import dp_sgd, dpis
from dperm.privacy import Certificate, Composed, Gaussian, PoissonSampled, Relation, SelfComposed
from dperm.privacy.accountants.privacy_filters import filter_of
from dperm.privacy.events import leaves
from dperm.release import Channel, SpendLog, UnpaidReleaseError
from dperm.release.ledger import Charge
from dperm.torch import Callback, PrivateTrainer
from dperm.torch.training import checkpoint
from helpers import killed
from helpers.killed_commands import PROCESSES
from helpers.ledgers import without_parts
from helpers.oracle import cross_entropy
from helpers.told import Told

pytestmark = pytest.mark.filterwarnings("ignore:.*were reserved before an interruption")  # how many depends on the clock


def run(folder: Path, point: str = "none", count: int = 0, *, resume: bool = False, **environment: str) -> int:
    log = environment.pop("log", str(folder / "spend.db"))
    process = PROCESSES.Process(
        daemon=True, target=killed.train_in, args=({"DPERM_SPEND_LOG": log, **environment}, folder, point, count, resume)
    )
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), (folder / "errors").read_text()
    return process.exitcode


def released(folder: Path) -> int:
    path = folder / "released"
    return len(path.read_text().splitlines()) if path.exists() else 0


def paid(event: Any) -> int:
    return sum(count for leaf, count in leaves(event).items() if isinstance(leaf, (Gaussian, PoissonSampled)))


def finish(folder: Path, **environment: str) -> Certificate:
    """Continue until the run ends, and hold its certificate and log against what left."""
    resume = checkpoint.latest(folder / "run") is not None
    assert run(folder, resume=resume, **environment) == 0
    certificate = Certificate.from_json((folder / "certificate.json").read_text())
    certificate.verify()
    mine = certificate.event if not environment.get("NOISY_SIZE") else _plan_of(folder)
    charged = SpendLog(environment.get("log", folder / "spend.db")).charges()
    if environment.get("DPIS"):
        # killed before the first checkpoint a run is charged again: whatever left is of the last charge
        assert {charge.event for charge in charged} == {certificate.event}
        assert_within_the_filter(folder, charged[-1])
        return certificate
    if resume:
        assert released(folder) <= paid(mine), "more was released than the certificate says"
    assert environment.get("NOISY_SIZE") or released(folder) <= sum(paid(charge.event) for charge in charged)
    return certificate


def assert_within_the_filter(folder: Path, charge: Charge) -> None:
    """Every release is of a part that the log holds, as often as it holds it, and the parts are within the budget."""
    parts = [part.event for part in SpendLog(folder / "spend.db").parts(charge.id)]
    held = filter_of(charge.event)
    assert held is not None
    for part in parts:
        held.charge(part)
    paid_for: Counter[str] = Counter()
    for leaf, count in leaves(Composed(tuple(parts))).items():
        gaussian = leaf.event if isinstance(leaf, PoissonSampled) else leaf
        assert isinstance(gaussian, Gaussian)
        paid_for[f"{gaussian.noise_multiplier:.6f}"] += count
    left = Counter(f"{float(line.split()[0]):.6f}" for line in (folder / "released").read_text().splitlines())
    assert left <= paid_for


def _plan_of(folder: Path) -> Any:
    """The steps that a promise was kept with: what the plan of the checkpoint costs must be within it, step for step."""
    path = checkpoint.latest(folder / "run")
    assert path is not None
    state = checkpoint.load(path)["run"]
    return SelfComposed(Gaussian(1.0), int(state["plan"]["steps"]))


POINTS = [
    ("charge-after", 1),
    ("reserve-after", 2),
    ("release-after", 7),
    ("write-after", 2),
    ("save-before", 2),
    ("charge-before", 1),
    ("write-after", 1),
    ("save-after", 1),
    ("reserve-before", 1),
    ("release-before", 1),
    ("release-after", 1),
    ("sync-after", 6),
    ("save-after", 2),
    ("release-after", 24),
    ("save-after", 6),
]


@pytest.mark.slow  # killed after a release is fast, below: there the run that is killed also holds its folder
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_between_charge_release_and_checkpoint(tmp_path: Path, point: str, count: int) -> None:
    assert run(tmp_path, point, count) == -signal.SIGKILL
    certificate = finish(tmp_path)
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    assert run(tmp_path, "release-after", 3, SECONDS_AT_ONCE="0") == -signal.SIGKILL
    for point, count in (("release-after", 4), ("save-before", 1), ("reserve-after", 2)):
        assert run(tmp_path, point, count, resume=True, SECONDS_AT_ONCE="0") == -signal.SIGKILL
    certificate = finish(tmp_path, SECONDS_AT_ONCE="0")
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0
    assert int((tmp_path / "lost").read_text()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        resume = checkpoint.latest(tmp_path / "run") is not None
        process = subprocess.Popen(
            [sys.executable, killed.__file__, str(tmp_path), "none", "0", str(int(resume))],
            env={**os.environ, "DPERM_SPEND_LOG": str(tmp_path / "spend.db"), "SECONDS_AT_ONCE": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started = released(tmp_path)
        limit = time.monotonic() + 60
        while released(tmp_path) == started and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
    finish(tmp_path, SECONDS_AT_ONCE="0")


@pytest.mark.slow
def test_killed_with_a_noisy_size(tmp_path: Path) -> None:
    assert run(tmp_path, "release-after", 7, NOISY_SIZE="1") == -signal.SIGKILL
    certificate = finish(tmp_path, NOISY_SIZE="1")
    # the size was released once; its part and the promise for the rest are what the certificate holds
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0 + 1e-9


@pytest.mark.slow
def test_a_copy_continued_twice_takes_disjoint_steps(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    log = str(tmp_path / "spend.db")
    assert run(first, "release-after", 7, SECONDS_AT_ONCE="0", log=log) == -signal.SIGKILL
    shutil.copytree(first, second)
    already = released(first)
    assert run(first, "release-after", 5, resume=True, SECONDS_AT_ONCE="0", log=log) == -signal.SIGKILL
    assert run(second, resume=True, SECONDS_AT_ONCE="0", log=log) == 0
    assert run(first, resume=True, SECONDS_AT_ONCE="0", log=log) == 0
    certificate = Certificate.from_json((second / "certificate.json").read_text())
    assert released(first) + released(second) - already <= paid(certificate.event)


@pytest.mark.fast_cases("6")
@pytest.mark.parametrize("stop", [3, 6])
def test_two_copies_continued_at_once_share_epochs_and_places(tmp_path: Path, stop: int) -> None:
    """By profiles an epoch has one place: the copy that comes second takes the epoch of the first, and other steps of it."""
    settings: dict[str, Any] = {
        "noise_multiplier": None,
        "epsilon": 4.0,
        "plan": functools.partial(dpis),
        "ema_decay": None,
        "scheduler": None,
    }
    first, second = tmp_path / "a", tmp_path / "b"
    stopped(first, stop, **settings)
    shutil.copytree(first, second)
    copies = [trainer(folder, checkpoint_every=2, **settings) for folder in (first, second)]
    loops = [copy.steps(data(), resume=True) for copy in copies]
    done: list[set[int]] = [set(), set()]
    for turn in range(200):
        copy = copies[turn % 2]
        step = next(loops[turn % 2], None)
        if step is None:
            continue
        assert copy.optimizer is not None
        copy.optimizer.step()
        done[turn % 2].add(step.number)
    assert not done[0] & done[1] and len(done[0] | done[1]) > 4
    assert all(copy.certificate is not None and copy.certificate.epsilon <= 4.0 for copy in copies)
    assert len(SpendLog.current().charges()) == 1


@pytest.mark.slow  # killed; a run that is stopped is continued so below
def test_continued_where_the_log_is_another_the_rest_is_paid_again(tmp_path: Path) -> None:
    assert run(tmp_path, "release-after", 12) == -signal.SIGKILL
    elsewhere = str(tmp_path / "elsewhere.db")
    assert run(tmp_path, resume=True, log=elsewhere) == 0
    certificate = Certificate.from_json((tmp_path / "certificate.json").read_text())
    assert paid(certificate.event) == 24 + (24 - 10)
    assert certificate.epsilon is not None and certificate.epsilon > 4.0
    assert certificate.target_epsilon is None
    assert released(tmp_path) <= paid(certificate.event)
    assert [paid(charge.event) for charge in SpendLog(elsewhere).charges()] == [14]


def test_checkpoints_hold_no_random_state(tmp_path: Path) -> None:
    trainer(tmp_path).fit(data())
    text = "".join(path.read_text() for path in tmp_path.rglob("state.json"))
    assert "rng" not in text.lower()
    assert "generator" not in text
    assert "seed" not in text


DPIS_POINTS = [
    ("part-after", 4),
    ("release-after", 9),
    ("charge-after", 1),
    ("allow-before", 2),
    ("allow-after", 2),
    ("reserve-after", 3),
    ("save-before", 3),
    ("part-before", 3),
    ("part-after", 1),
    ("part-after", 2),
    ("part-after", 3),
    ("part-after", 5),
    ("release-after", 1),
    ("release-after", 2),
    ("release-after", 6),
    ("release-after", 7),
    ("release-after", 30),
    ("save-after", 2),
    ("sync-after", 6),
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "count"), DPIS_POINTS)
@pytest.mark.parametrize("seconds", ["10", "0"])
@pytest.mark.parametrize("held_by", ["profile", "renyi"])
def test_importance_sampling_killed_keeps_within_its_filter(
    tmp_path: Path, point: str, count: int, seconds: str, held_by: str
) -> None:
    """Also where the kill falls between a part's charge, the releases it pays for, and the checkpoint."""
    settings = {"DPIS": held_by, "SECONDS_AT_ONCE": seconds}
    assert run(tmp_path, point, count, **settings) == -signal.SIGKILL
    certificate = finish(tmp_path, **settings)
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0


@pytest.mark.parametrize(
    ("held_by", "size"),
    [("profile", ""), ("renyi", ""), ("renyi", "1")],
)
@pytest.mark.slow  # each kill by itself is tested above
def test_importance_sampling_killed_again_and_again(tmp_path: Path, held_by: str, size: str) -> None:
    settings = {"DPIS": held_by, "SECONDS_AT_ONCE": "0", "NOISY_SIZE": size}
    assert run(tmp_path, "release-after", 5, **settings) == -signal.SIGKILL
    for point, count in (("release-after", 4), ("part-after", 1), ("reserve-after", 2)):
        assert run(tmp_path, point, count, resume=True, **settings) == -signal.SIGKILL
    certificate = finish(tmp_path, **settings)
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0


# Within one process


def trainer(folder: Path, **changes: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = changes.pop("optimizer", torch.optim.Adam)(model.parameters(), lr=0.01)
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0, "delta": 1e-3, "epochs": 5, "expected_batch_size": 10, "clipping_norm": 1.0, "public_size": 40,
    }  # fmt: skip
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    settings |= {"ema_decay": 0.9, "scheduler": schedule} | changes
    return Told(model, cross_entropy, optimizer, checkpoint=folder, **settings)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def test_everything_comes_back(tmp_path: Path) -> None:
    first = trainer(tmp_path).fit(data())
    again = trainer(tmp_path).fit(data(), resume=True)
    assert torch.equal(again.objective.theta, first.objective.theta)
    assert again.history == first.history and again.certificate.event == first.certificate.event
    assert again.optimizer.state_dict()["state"][0]["step"] == 20
    assert again.told["scheduler"].state_dict()["last_epoch"] == first.told["scheduler"].state_dict()["last_epoch"]
    assert len(SpendLog.current().charges()) == 1
    files = sorted(path.name for path in tmp_path.glob("step*"))
    assert files == ["step-000000016", "step-000000020"]
    assert not list(tmp_path.rglob("*.pkl")) and not list(tmp_path.rglob("*.pt"))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    trainer(tmp_path).fit(data())
    with pytest.raises(ValueError, match="resume=True"):
        trainer(tmp_path).fit(data())
    with pytest.raises(ValueError, match=r"another plan: .*bounding"):
        trainer(tmp_path, clipping_norm=2.0).fit(data(), resume=True)
    assert len(SpendLog.current().charges()) == 1


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run, and another resume, are refused before they are charged or take a step, and told who holds the folder."""
    folder, log = tmp_path / "run", str(tmp_path / "spend.db")
    process = PROCESSES.Process(
        daemon=True,
        target=killed.train_in,
        args=({"DPERM_SPEND_LOG": log, "SIGNAL": "SIGSTOP"}, tmp_path, "release-after", 7, False),
    )
    process.start()
    try:
        limit = time.monotonic() + 120
        while released(tmp_path) < 7 and time.monotonic() < limit:
            time.sleep(0.02)
        monkeypatch.setenv("DPERM_SPEND_LOG", log)
        before = SpendLog.current().head()
        for resume in (False, True):
            with pytest.raises(ValueError, match=rf"Another run .*held by process {process.pid} of .* on .*, since .*charged"):
                trainer(folder).fit(data(), resume=resume)
        assert SpendLog.current().head() == before
    finally:
        process.kill()
        process.join()
    left = folder / ".writing-1"
    left.mkdir()
    (left / "tensors.safetensors").write_text("of a run that was killed")
    certificate = finish(tmp_path)  # at once, with nothing to tidy up by hand
    assert certificate.epsilon is not None and certificate.epsilon <= 4.0
    assert not left.exists() and not (folder / ".lock").exists()
    assert {path.stat().st_mode & 0o077 for path in folder.glob("step-*")} == {0}


def test_no_planted_link_is_written_through(tmp_path: Path) -> None:
    folder, target = tmp_path / "run", tmp_path / "theirs"
    folder.mkdir()
    target.write_text("theirs")
    (folder / f".trying-{os.getpid()}").symlink_to(target)
    trainer(folder).fit(data())
    other = tmp_path / "other"
    other.mkdir()
    (other / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="Too many levels"):
        trainer(other).fit(data())
    assert target.read_text() == "theirs" and len(SpendLog.current().charges()) == 1


def test_two_runs_of_one_process_are_kept_apart_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ema_decay": None, "scheduler": None}
    stopped(tmp_path, 5, **settings)
    first, second = (trainer(tmp_path, checkpoint_every=2, **settings) for _ in range(2))
    loop = first.steps(data(), resume=True)
    next(loop)
    head = SpendLog.current().head()
    with pytest.raises(ValueError, match=rf"Another run .*held by process {os.getpid()} "):
        second.fit(data(), resume=True)
    assert SpendLog.current().head() == head
    loop.close()
    trainer(tmp_path, checkpoint_every=2, **settings).fit(data(), resume=True)


class Stop(Exception):
    """Raised by a callback: a run that ends early."""


class After(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, step: Any) -> None:
        if step.number == self.steps:
            raise Stop


def stopped(folder: Path, steps: int, **changes: Any) -> None:
    with pytest.raises(Stop):
        trainer(folder, callbacks=[After(steps)], checkpoint_every=2, **changes).fit(data())


def test_stopped_and_continued_where_the_log_is_another_the_rest_is_paid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"noise_multiplier": None, "epsilon": 4.0}
    stopped(tmp_path / "run", 11, **settings)
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "elsewhere.db"))
    with pytest.warns(UserWarning, match="paid for again"):
        run = trainer(tmp_path / "run", checkpoint_every=2, **settings).fit(data(), resume=True)
    assert paid(run.certificate.event) == 20 + (20 - 10)
    assert run.certificate.epsilon is not None and run.certificate.epsilon > 4.0
    assert run.certificate.target_epsilon is None
    assert [paid(charge.event) for charge in SpendLog.current().charges()] == [10]


def test_another_relation_is_not_continued(tmp_path: Path) -> None:
    stopped(tmp_path, 5, relation="replace_one", public_size=None)
    with pytest.raises(ValueError, match="relation = 'replace_one'"):
        trainer(tmp_path, checkpoint_every=2).fit(data(), resume=True)


def test_a_seed_in_any_part_is_not_private(tmp_path: Path) -> None:
    stopped(tmp_path, 5, random_state=7)
    run = trainer(tmp_path, checkpoint_every=2).fit(data(), resume=True)
    assert run.certificate.status == "not private" and "NOT PRIVATE" in run.certificate.seeded


def test_a_log_without_reservations_does_not_hand_steps_out_again(tmp_path: Path) -> None:
    stopped(tmp_path, 9)
    without_parts(SpendLog.current())
    run = trainer(tmp_path, checkpoint_every=2).fit(data(), resume=True)
    assert run._session.run is not None
    assert run._session.run.step == 20
    assert run._session.run.lost == 0
    assert run.history[-1]["step"] == 20


def test_decay_under_replace_one_is_continued(tmp_path: Path) -> None:
    def decaying(noise: float, size: int) -> Plan:
        return dp_sgd(
            noise_multiplier=noise,
            public_size=size,
            expected_batch_size=10,
            epochs=5,
            clipping_norm=1.0,
            average_from=None,
            decay=0.1,
        )

    settings = {"epochs": None, "expected_batch_size": None, "clipping_norm": None, "plan": decaying}
    stopped(tmp_path, 7, relation="replace_one", public_size=None, **settings)
    run = trainer(tmp_path, relation="replace_one", public_size=None, checkpoint_every=2, **settings)
    run.fit(data(), resume=True)
    assert run.certificate.event == run.plan.event(Relation.REPLACE_ONE)


def test_a_stated_size_stays_stated(tmp_path: Path) -> None:
    stopped(tmp_path, 5)
    with pytest.raises(ValueError, match="a stated public_size = True"):
        trainer(tmp_path, public_size=None, noise_multiplier=None, epsilon=3.0).fit(data(), resume=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"noise_multiplier": 2.0}, "noise_multiplier = 1.0, not 2.0"),
        ({"delta": 1e-4}, "delta = 0.001"),
        ({"ema_decay": None}, "ema_decay = 0.9, not None"),
        ({"optimizer": torch.optim.SGD}, "optimizer = 'Adam', not 'SGD'"),
    ],
)
def test_other_settings_are_not_continued(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    stopped(tmp_path, 5)
    before = SpendLog.current().head()
    with pytest.raises(ValueError, match=reason):
        trainer(tmp_path, **change).fit(data(), resume=True)
    assert SpendLog.current().head() == before  # no step was reserved


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 3, {"a": torch.ones(2), 7: [1, None, {"b": torch.zeros(1)}]})
    found = checkpoint.load(path)
    assert found[7][:2] == [1, None] and torch.equal(found["a"], torch.ones(2))
    (path / "state.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="step-000000003 is not a readable checkpoint"):
        checkpoint.load(path)
    with pytest.raises(TypeError, match="/x"):
        checkpoint.save(tmp_path, 4, {"x": object()})


def test_reserved_steps_are_handed_out_once(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.db")
    channel = Channel.open(0, log=log)
    event = SelfComposed(Gaussian(1.0), 10)
    channel.charge(event, "test", continuable=True)
    assert channel.charge_id is not None
    assert [channel.reserve(4, 10) for _ in range(4)] == [(0, 4), (4, 8), (8, 10), (10, 10)]
    assert log.reserve("nobody", 1, 10) is None
    assert len(log.charges()) == 1
    other = Channel.open(0, log=log)
    with pytest.raises(UnpaidReleaseError, match="no charge"):
        other.resume(channel.charge_id, SelfComposed(Gaussian(1.0), 11))
    other.resume(channel.charge_id, event)
    assert other.reserve(1, 10) == (10, 10)

"""Commands killed at random moments, and a server that crashes: what was paid for is there, and nothing private is.

How many is `DPERM_KILLS` (CONTRIBUTING.md); `python benchmarks/kills.py` runs 1,000 and writes down what they left. Moments are
drawn evenly over the time that the same command took undisturbed. A kill counts where the process was still alive.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Schema, read_dataset
from dperm.estimators import model_from_json
from dperm.objectives import Records
from dperm.privacy import Certificate, Gaussian, PoissonSampled
from dperm.privacy.certificates.signing import SigningKey, make_key
from dperm.privacy.events import leaves
from dperm.release import SpendLog
from dperm.release.ledger import Budget
from dperm.torch.training import checkpoint
from helpers import killed_commands as commands
from helpers import postgres
from helpers.killed_commands import PROCESSES, Place

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills, forks and sessions")

KILLS = int(os.environ.get("DPERM_KILLS", "60"))
SERIES = 12  # kills of commands that write to one folder
BUDGET_SECONDS = 3.0  # from the start of a process that raises a budget or charges to it, in which it is killed
ALONE = 60.0  # seconds that a worker may outlive its command: as long as it takes to start on a busy machine, and no longer
DELTA = 1e-5
WARDS = ("north", "south", "east")
SCHEMA = {
    "name": "people", "target": "left", "classes": ["no", "yes"], "missing": "error", "proposed": False, "source": "made",
    "columns": [
        {"name": "age", "type": "number", "range": [0.0, 100.0]},
        {"name": "pay", "type": "number", "range": [0.0, 1000.0]},
        {"name": "ward", "type": "category", "categories": list(WARDS), "other": False},
        {"name": "note", "type": "ignore"},
        {"name": "left", "type": "label"},
    ],
}  # fmt: skip


# What is looked for


def known_by(table: pd.DataFrame, arrays: list[np.ndarray[Any, Any]]) -> dict[str, bytes]:
    """Bytes by which rows of a table, and of arrays that were made of it, would be known wherever they were left: as text, as
    numbers of 4 and 8 bytes, by rows and by columns. Each is so long that it stands nowhere by chance."""
    found: dict[str, bytes] = {}
    for row in range(0, len(table), max(1, len(table) // 20)):
        for name in table.columns:
            value = table[name].iloc[row]
            if isinstance(value, str) and len(value) > 8:
                found[f"{name} of row {row}"] = value.encode()
                found[f"{name} of row {row}, two bytes a letter"] = value.encode("utf-16-le")
            elif isinstance(value, float):
                found[f"{name} of row {row}, written out"] = repr(float(value))[:12].encode()
    for number, array in enumerate([table.select_dtypes("number").to_numpy(), *arrays]):
        for row in range(0, len(array) - 1, max(1, len(array) // 20)):
            for kind in (np.float64, np.float32):
                values = array[row : row + 2].astype(kind)
                places = [place for place in range(array.shape[1]) if min(map(_digits, values[:, place].tolist())) > 12]
                for place in places:
                    found[f"array {number}, {kind.__name__}, column {place} from row {row}"] = values[:, place].tobytes()
                if len(places) > 1 and places[1] == places[0] + 1:
                    found[f"array {number}, {kind.__name__}, row {row}"] = values[0, places[0] : places[1] + 1].tobytes()
    return found


def _digits(value: float) -> int:
    """Binary digits of a number, from the first to the last that is not 0."""
    return int(np.frexp(np.float32(value))[0] * (1 << 24)).bit_length() - _zeros(value) if value else 0


def _zeros(value: float) -> int:
    digits = abs(int(np.frexp(np.float32(value))[0] * (1 << 24)))
    return (digits & -digits).bit_length() - 1 if digits else 24


def left_behind(marks: dict[str, bytes], folders: list[Path]) -> list[str]:
    """Which marks stand in the content or the name of a file below the folders, and where."""
    found: list[str] = []
    for path in [path for folder in folders for path in folder.rglob("*")]:
        content = os.fsencode(path.name)
        if path.is_file() and not path.is_symlink():
            content += path.read_bytes()
        found += [f"{path}: {mark}" for mark, value in marks.items() if value in content]
    return found


def people(rng: random.Random, rows: int = 600) -> pd.DataFrame:
    numbers = np.random.default_rng(rng.getrandbits(64))
    age, pay = numbers.uniform(0, 100, rows), numbers.uniform(0, 1000, rows)
    return pd.DataFrame(
        {
            "age": age,
            "pay": pay,
            "ward": numbers.choice(WARDS, rows),
            "note": [f"qx{rng.getrandbits(96):024x}" for _ in range(rows)],
            "left": np.where(age + numbers.normal(0, 20, rows) > 50, "yes", "no"),
        }
    )


@dataclass(frozen=True)
class Table:
    """A table outside of where commands write, with its schema; and what its rows would be known by."""

    path: Path
    schema: Path
    marks: dict[str, bytes] = field(repr=False)

    @classmethod
    def made(cls, folder: Path, rng: random.Random) -> Table:
        folder.mkdir()
        table, path, schema = people(rng), folder / "people.csv", folder / "people.schema.json"
        table.to_csv(path, index=False)
        schema.write_text(json.dumps(SCHEMA))
        arrays: list[np.ndarray[Any, Any]] = []
        for knots in (0, 8):  # as it is encoded, and as a mechanism has it
            rows = read_dataset(path, None, Schema.load(schema), curves=lambda _, knots=knots: knots)[0].features
            batches = list(Records(rows, np.ones(len(rows)), 1.0, 0.5).batches())
            arrays += [rows, np.concatenate([batch.rows for batch in batches])]
        return cls(path, schema, known_by(table, arrays))


@pytest.mark.parametrize("left", ["csv", "pickle", "by rows", "by columns", "4 bytes", "json", "a name", "parquet", "units"])
def test_the_search_finds_rows_however_they_were_left(tmp_path: Path, left: str) -> None:
    """Else it would find nothing whatever a command left."""
    table = Table.made(tmp_path / "table", random.Random(0))
    frame, folder = pd.read_csv(table.path), tmp_path / "left"
    folder.mkdir()
    assert left_behind(table.marks, [folder]) == []
    rows = np.ascontiguousarray(read_dataset(table.path, None, Schema.load(table.schema))[0].features)
    units = np.concatenate([batch.rows for batch in Records(rows, np.ones(len(rows)), 1.0, 0.5).batches()])
    ways: dict[str, Callable[[], Any]] = {
        "csv": lambda: (folder / "x").write_text(frame.to_csv()),
        "pickle": lambda: (folder / "x").write_bytes(pickle.dumps(frame[["age", "pay"]])),
        "by rows": lambda: (folder / "x").write_bytes(rows.tobytes("C")),
        "by columns": lambda: (folder / "x").write_bytes(rows.tobytes("F")),
        "4 bytes": lambda: (folder / "x").write_bytes(rows.astype(np.float32).tobytes()),
        "json": lambda: (folder / "x").write_text(json.dumps(frame["pay"].tolist())),
        "a name": lambda: (folder / str(frame["note"][0])).touch(),
        "parquet": lambda: frame[["note"]].to_parquet(folder / "x", compression=None),
        "units": lambda: (folder / "x").write_bytes(units.tobytes()),
    }
    ways[left]()
    assert left_behind(table.marks, [folder])


# What a campaign does


class Campaign:
    """Kills so many commands, and counts what it finds. The seed is in the report of every test that fails."""

    def __init__(self, name: str, kills: int) -> None:
        self.name = name
        self.wanted = max(2, kills)
        self.seed = int(os.environ.get("DPERM_KILLS_SEED") or secrets.randbits(32))
        self.rng = random.Random(self.seed)
        self.found = Counter[str]()
        self.longest = 0.0  # seconds until no process of a killed command was left

    @property
    def goes_on(self) -> bool:
        return self.found["kills"] < self.wanted

    def killed(self, moments: list[float], begun: list[Any]) -> list[bool]:
        """Kill each process at its moment, in seconds from now. Whether it was still alive; AssertionError where it failed."""
        start, codes = time.monotonic(), dict[int, int]()
        for moment, process in sorted(zip(moments, begun, strict=True), key=lambda both: both[0]):
            process.join(max(0.0, start + moment - time.monotonic()))
            if process.exitcode is None:
                process.kill()
        for process in begun:
            process.join(120)
            assert process.exitcode is not None
            codes[process.pid] = process.exitcode
        for process in begun:
            self.longest = max(self.longest, seconds_until_alone(process.pid))
        self.found["kills"] += sum(code == -signal.SIGKILL for code in codes.values())
        self.found["ended before"] += sum(code == 0 for code in codes.values())
        return [codes[process.pid] == -signal.SIGKILL for process in begun]


def seconds_until_alone(session: int) -> float:
    """How long processes of a session outlive its leader, which has ended."""
    start = time.monotonic()
    while alive := alive_in(session):
        assert time.monotonic() - start < ALONE, f"{alive} are still alive"
        time.sleep(0.01)
    return time.monotonic() - start


def alive_in(session: int) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            about = path.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        state, _, _, of = about.rpartition(")")[2].split()[:4]
        if int(of) == session and state != "Z":
            found.append(about)
    return found


def begin(function: Callable[..., None], place: Place, *arguments: object) -> Any:
    process = PROCESSES.Process(target=function, args=(place, *arguments))
    process.start()
    return process


def ended(place: Place, *begun: Any, code: int = 0) -> None:
    """Wait for the end of processes, which is not by a kill."""
    for process in begun:
        process.join(300)
        assert process.exitcode == code, place.said(process.pid, "stderr")


def undisturbed(run: Callable[[Place], Any], places: Iterator[Place]) -> float:
    """Median seconds from the beginning of a command to its end."""
    seconds: list[float] = []
    for _ in range(4):
        place = next(places)
        start = time.monotonic()
        ended(place, run(place))
        seconds.append(time.monotonic() - start)
    return median(seconds[1:])  # the first waits until all is imported


def places_in(folder: Path, label: str) -> Iterator[Place]:
    """Places for series of commands, each with a spend log of its own and a budget for `label` in it."""
    for number in count():
        place = Place(folder / f"series-{number}").make()
        with state_of(place, copy=False):
            SpendLog(place.log).create_budget(Budget.of(label, 5e4, 1e-3, alert=1.0))
        yield place


@contextmanager
def state_of(place: Place, *, copy: bool = True) -> Iterator[None]:
    """Within the block the spend log is held against what commands remembered of it; in a `copy` looking changes nothing."""
    folder = place.root / ("looking" if copy else "state")
    if copy:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place.root / "state", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield


@dataclass(frozen=True)
class Ledger:
    """What the spend log of a place holds after a kill. Made only where its chain, its budgets and what was remembered agree."""

    charges: list[Any]
    process: dict[str, int]
    budgets: list[float]

    @classmethod
    def of(cls, place: Place, *, goes_on: bool = False) -> Ledger:
        """`goes_on`: a process may release what another, whose run it goes on with, was charged for."""
        log = SpendLog(place.log)
        with state_of(place):
            entries = log.verify()
            history = log.history()
            assert len(history) <= entries
        process = {each["id"]: each["pid"] for each in history if each["kind"] == "charge"}
        budgets = [Budget.from_dict(each["budget"]).epsilon for each in history if each["kind"] == "budget"]
        ledger = cls(log.charges(), process, budgets)
        assert len(ledger.charges) == len(ledger.process)  # none is there twice
        told = [line.split() for line in place.told.read_text().splitlines()] if place.told.exists() else []
        lost = {about for what, about in told if what == "charge"} - set(process)
        assert not lost, f"acknowledged charges are gone: {lost}"
        raised = {float(about) for what, about in told if what == "budget"}
        assert all(any(abs(one - other) < 1e-6 * one for other in budgets) for one in raised)
        released = {int(line) for line in place.released.read_text().split()} if place.released.exists() else set[int]()
        assert released <= set(process.values()) or (goes_on and process), "a process released what was not charged"
        return ledger

    def of_process(self, process: Any) -> list[Any]:
        return [charge for charge in self.charges if self.process[charge.id] == process.pid]


class Files:
    """What commands wrote and paid for in a folder, by content, since a series began: nothing of it may be gone later."""

    def __init__(self, folder: Path, stem: str, ending: str, read: Callable[[str], Any]) -> None:
        self.folder = folder
        # its name or a numbered one, or complete beside it and not yet in its place
        self._names = re.compile(
            rf"(?P<name>{stem}(\.\d+)?{re.escape(ending)})|\.{stem}{re.escape(ending)}\.[0-9a-f]{{16}}\.whole"
        )
        self._read = read
        self.held = dict[str, Any]()

    def look(self) -> list[Any]:
        """What is new since the last look, as it was read. AssertionError where something is gone or cannot be read."""
        there = {path.name: path.read_text() for path in self.folder.iterdir() if self._names.fullmatch(path.name)}
        gone = set(self.held) - set(there.values())
        assert not gone, f"{len(gone)} files that were complete are gone"
        new = {text: self._read(text) for text in there.values() if text not in self.held}
        self.held |= new
        return list(new.values())

    def settle(self) -> None:
        """After a command that nothing disturbed: all have names for people, and nothing else is left."""
        self.look()
        names = [path.name for path in self.folder.iterdir()]
        assert [name for name in names if name.startswith(".")] == []
        named = {(self.folder / name).read_text() for name in names if self._names.fullmatch(name)}
        assert set(self.held) == named

    def modes(self) -> set[str]:
        return {oct(path.stat().st_mode & 0o777) for path in self.folder.iterdir() if self._names.fullmatch(path.name)}


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Callable[[Campaign], None]:
    """Write down what a campaign counted, for `benchmarks/kills.py` and for whoever reads the test's output."""

    def write(campaign: Campaign) -> None:
        told = {**campaign.found, "seed": campaign.seed, "seconds until no process was left": round(campaign.longest, 2)}
        print(f"{campaign.name}: {told}")
        record_property(campaign.name, json.dumps(told))

    return write


# Trainings

TRAININGS: dict[str, tuple[int, tuple[str, ...], int, int]] = {  # of 1,000 kills; options; at once; files
    "train, objective": (160, ("--mechanism", "objective"), 1, 1),
    "train, gradient": (130, ("--mechanism", "gradient"), 1, 1),
    "train, a model for each part": (120, ("--mechanism", "objective", "--fit-by", "ward"), 1, len(WARDS)),
    "train, two at once to one output": (160, ("--mechanism", "objective"), 2, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_killed_trainings_lose_no_charge_and_no_model(name: str, tmp_path: Path, record: Callable[[Campaign], None]) -> None:
    """A charge without a model is of a process that was killed before its model was complete and had a name: it was spent, and
    nothing was released. Whatever had a name, or was printed, is there after the next command, and can be read."""
    share, options, at_once, files = TRAININGS[name]
    campaign = Campaign(name, KILLS * share // 1000)
    print(f"seed {campaign.seed}")
    table, places = Table.made(tmp_path / "table", campaign.rng), places_in(tmp_path, "people")

    def run(place: Place) -> Any:
        given = ("train", table.path, "--schema", table.schema, *options, "-o", place.output / "m.json")
        return begin(commands.run_command, place, *map(str, given))

    seconds = undisturbed(run, places) * (1.0 if at_once == 1 else 1.4)
    while campaign.goes_on:
        place = next(places)
        models = [Files(place.output, f"m.{ward}" if files > 1 else "m", ".json", model_read) for ward in WARDS[:files]]
        for _ in range(SERIES):
            begun = [run(place) for _ in range(at_once)]
            killed = campaign.killed([campaign.rng.uniform(0, seconds) for _ in begun], begun)
            ledger, new = Ledger.of(place), [model for each in models for model in each.look()]
            charged = [process for process in begun if ledger.of_process(process)]
            told = sum(place.said(process.pid).count("Model written to") for process in begun)
            assert all(len(ledger.of_process(process)) == 1 for process in charged)
            assert told <= len(new) <= files * len(charged)
            assert killed.count(False) * files <= len(new)
            events = [charge.event for process in charged for charge in ledger.of_process(process)]
            assert all(model.certificate_.event in events for model in new)
            assert left_behind(table.marks, place.folders) == []
            campaign.found["charges"] += len(charged)
            campaign.found["models"] += len(new)
            campaign.found["killed before the charge"] += len(begun) - len(charged)
            campaign.found["killed between the charge and the complete file"] += files * len(charged) - len(new)
            campaign.found["models that were complete and not in their place"] += len(list(place.output.glob(".*.whole")))
            if not campaign.goes_on:
                break
        last = run(place)
        ended(place, last)
        ledger = Ledger.of(place)
        for each in models:
            each.settle()
        assert sum(len(each.held) for each in models) <= files * len(ledger.charges)
        assert left_behind(table.marks, place.folders) == []
    record(campaign)


def model_read(text: str) -> Any:
    model = model_from_json(text)[0]
    model.certificate_.verify()
    return model


# Comparisons

COMPARISONS = {"compare, one process": (100, 1), "compare, two processes": (60, 2)}
EPSILONS, MECHANISMS, REPEATS = (1.0, 5.0), ("output", "objective-sharp"), 4


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_killed_comparisons_pay_for_no_result_twice(name: str, tmp_path: Path, record: Callable[[Campaign], None]) -> None:
    """But for what was in progress: at most one a process and kill. The main process alone is killed, and the others end."""
    share, jobs = COMPARISONS[name]
    campaign = Campaign(name, KILLS * share // 1000)
    print(f"seed {campaign.seed}")
    table, places = Table.made(tmp_path / "table", campaign.rng), places_in(tmp_path, "compare people")
    settings = ("--epsilons", ",".join(map(str, EPSILONS)), "--mechanisms", ",".join(MECHANISMS), "--repeats", REPEATS)
    total = len(EPSILONS) * len(MECHANISMS) * REPEATS

    def run(place: Place) -> Any:
        given = (
            "compare",
            table.path,
            "--schema",
            table.schema,
            *settings,
            "--jobs",
            jobs,
            "-o",
            place.output / "r.html",
            "--json",
        )
        return begin(commands.run_command, place, *map(str, given))

    seconds = undisturbed(run, places)
    while campaign.goes_on:
        place, kills = next(places), 0
        reports = Files(place.output, "r", ".html", report_read)
        there = dict[Any, float]()
        while True:
            process = run(place)
            if campaign.goes_on:
                killed = campaign.killed([campaign.rng.uniform(0, seconds)], [process])[0]
            else:
                ended(place, process)
                killed = False
            kills += killed
            charges, new = len(Ledger.of(place).charges), reports.look()
            assert left_behind(table.marks, place.folders) == []
            assert reports.modes() <= {"0o600"}
            found = results_in(place.output / "r.results.jsonl")
            if new:  # the comparison is over; its results were removed, or are those of the report
                assert not found or there.items() <= found.items()
                assert total <= charges <= total + jobs * kills
                campaign.found["killed between the report and the end"] += killed
                break
            assert killed and there.items() <= found.items(), "results that were kept are gone"
            paid = sum(epsilon is not None for _, epsilon, _ in found)
            assert paid <= charges <= paid + jobs * kills
            there = found
        campaign.found["comparisons"] += 1
        campaign.found["charges"] += charges
        campaign.found["paid for twice, in progress at a kill"] += charges - total
        if killed:  # with its report written: the next is a comparison of its own, or takes the results that are still there
            ended(place, run(place))
        else:
            told = json.loads(place.said(process.pid))["studies"][0]["cells"]
            cells = {(cell["mechanism"], cell["epsilon"]): cell["scores"] for cell in told}
            assert all(cells[mechanism, epsilon][repeat] == score for (mechanism, epsilon, repeat), score in there.items())
        reports.settle()
        assert Ledger.of(place).charges and not (place.output / "r.results.jsonl").exists()
    record(campaign)


def report_read(text: str) -> str:
    assert text.rstrip().endswith("</html>")
    return text


def results_in(path: Path) -> dict[Any, float]:
    """Whole lines of a file of results."""
    found = dict[Any, float]()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if "score" in item:
            found[item["mechanism"], item["epsilon"], item["repeat"]] = item["score"]
    return found


# Networks with checkpoints


@pytest.mark.slow
def test_killed_networks_go_on_and_are_charged_once(tmp_path: Path, record: Callable[[Campaign], None]) -> None:
    """Killed after the charge and before the first checkpoint, a run begins anew and is charged again: nothing was released."""
    campaign = Campaign("network with checkpoints", KILLS * 130 // 1000)
    print(f"seed {campaign.seed}")
    rows = np.random.default_rng(campaign.rng.getrandbits(64)).uniform(0, 1, (1000, 6)).astype(np.float32)
    table, marks = tmp_path / "rows.npy", known_by(pd.DataFrame({"none": []}), [rows])
    np.save(table, rows)
    assert left_behind(marks, [tmp_path])
    places = places_in(tmp_path, "network")

    def run(place: Place, seconds_at_once: float = 0.0) -> Any:
        return begin(commands.train_network, place, str(table), seconds_at_once)

    first = next(places)
    seconds = undisturbed(run, chain([first], places))
    plain = Certificate.from_json(json.loads((first.root / "done").read_text())["certificate"])
    while campaign.goes_on:
        place, anew, at_once = next(places), 0, campaign.rng.choice([0.0, 10.0])
        while not (place.root / "done").exists():
            process = run(place, at_once)
            if campaign.goes_on:
                killed = campaign.killed([campaign.rng.uniform(0, seconds)], [process])[0]
            else:
                ended(place, process)
                killed = False
            ledger = Ledger.of(place, goes_on=True)
            newest = checkpoint.latest(place.output / "run")
            if newest is None:
                assert killed and not place.released.exists()
                anew = len(ledger.charges)
            else:
                checkpoint.load(newest)
                assert len(ledger.charges) == anew + 1
            assert left_behind(marks, place.folders) == []
            assert all(path.stat().st_mode & 0o077 == 0 for path in (place.output / "run").glob("step-*"))
        done = json.loads((place.root / "done").read_text())
        certificate = Certificate.from_json(done["certificate"])
        certificate.verify()
        assert certificate.event == plain.event
        assert {charge.event for charge in ledger.charges} == {plain.event}
        drawn = len(place.released.read_text().split())
        paid = sum(times for leaf, times in leaves(plain.event).items() if isinstance(leaf, (Gaussian, PoissonSampled)))
        assert drawn <= paid == done["steps"] and drawn + done["lost"] >= paid
        campaign.found["runs"] += 1
        campaign.found["charges"] += len(ledger.charges)
        campaign.found["killed between the charge and the first checkpoint"] += anew
        campaign.found["steps"] += done["steps"]
        campaign.found["steps that were reserved at a kill and skipped"] += paid - drawn
    record(campaign)


# Budgets


@pytest.mark.slow
def test_killed_owners_and_chargers_of_a_budget_lose_nothing(tmp_path: Path, record: Callable[[Campaign], None]) -> None:
    """One process raises a signed budget again and again, another charges to it; each is killed at a moment of its own."""
    campaign = Campaign("budgets", KILLS * 140 // 1000)
    print(f"seed {campaign.seed}")
    key, label = tmp_path / "owner.pem", "stays"
    make_key(key)
    for number in count():
        place = Place(tmp_path / f"series-{number}").make()
        with state_of(place, copy=False):
            SpendLog(place.log).create_budget(Budget.of(label, 100.0, DELTA, alert=1.0), key=SigningKey(key))
        for _ in range(SERIES):
            before = Ledger.of(place)
            owner = begin(commands.raise_on, place, label, str(key), int(max(before.budgets)))
            charger = begin(commands.charge_on, place, label)
            killed = campaign.killed([campaign.rng.uniform(0, BUDGET_SECONDS) for _ in range(2)], [owner, charger])
            assert killed == [True, True], place.said(owner.pid, "stderr") + place.said(charger.pid, "stderr")
            ledger = Ledger.of(place)
            with state_of(place):
                account = SpendLog(place.log).account(label)
            assert account is not None and account.budget.epsilon == ledger.budgets[-1] == max(ledger.budgets)
            spent = len(ledger.charges) * account.budget.cost(Gaussian(500.0))["divergence"]
            assert account.spent.get("divergence", 0.0) == pytest.approx(spent, rel=1e-9)
            campaign.found["charges"] += len(ledger.charges) - len(before.charges)
            campaign.found["raises"] += len(ledger.budgets) - len(before.budgets)
            if not campaign.goes_on:
                record(campaign)
                return


# A server that crashes


@pytest.mark.slow
def test_a_server_that_crashes_loses_no_charge(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """What was acknowledged is there, once; and what the budget says was spent is what is there."""
    processes, each, crashes = 16, max(25, KILLS), max(2, KILLS // 100)
    rng = random.Random(seed := int(os.environ.get("DPERM_KILLS_SEED") or secrets.randbits(32)))
    print(f"seed {seed}")
    with postgres.running() as found:
        url = postgres.database(found.url, "spend")
        log = SpendLog(url)
        log.create_budget(Budget.of("stays", 50.0, DELTA, alert=1.0))
        files = [tmp_path / f"{number}" for number in range(processes)]
        workers = [PROCESSES.Process(target=commands.spend_until_done, args=(url, each, str(file))) for file in files]
        start = time.monotonic()
        for worker in workers:
            worker.start()

        def acknowledged() -> list[str]:
            return [line for file in files if file.exists() for line in file.read_text().split()]

        # evenly at random, once a share of the charges
        for crash in range(crashes):
            while len(acknowledged()) < (crash + rng.random()) * processes * each / crashes:
                time.sleep(0.01)
            found.crash()
            found.start()
        for worker in workers:
            worker.join(1800)
            assert worker.exitcode == 0
        seconds = time.monotonic() - start
        there, told = [charge.id for charge in log.charges()], acknowledged()
        assert len(told) == len(set(told)) == processes * each
        assert set(told) <= set(there)
        assert len(there) == len(set(there)) <= len(told) + crashes * processes  # in doubt: each process at most once a crash
        account = log.account("stays")
        assert account is not None
        spent = len(there) * account.budget.cost(Gaussian(2000.0))["divergence"]
        assert account.spent["divergence"] == pytest.approx(spent, rel=1e-9)
        assert log.verify() == len(there) + 1
    told_of = {
        "writers": processes, "stops": crashes, "acknowledged": len(told), "lost": len(set(told) - set(there)),
        "written and not acknowledged": len(there) - len(told), "seconds": round(seconds), "seed": seed,
    }  # fmt: skip
    print(told_of)
    record_property("PostgreSQL server stopped", json.dumps(told_of))

"""Results of comparisons are kept as they come: what was paid for is in the next report, whatever ended the one before."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm import data
from dperm._files import Lock
from dperm.release import SpendLog
from dperm.report import Study, StudyResult, run_study
from dperm.report.kept import KeptResults, ResultsNotKeptError, append_record
from helpers.commands import dperm

STUDY = Study(epsilons=(1.0, 5.0), mechanisms=("output", "objective-sharp"), repeats=3, seed=0, boosting=False)
FITS = 2 * 2 * 3  # that are charged


class Stopped(Exception):
    """Raised in place of an interruption."""


def after(count: int, happens: Callable[[], Any]) -> Callable[[int, int], None]:
    """Progress at whose `count`-th report something happens."""

    def progress(done: int, _: int) -> None:
        if done == count:
            happens()

    return progress


def stop() -> None:
    raise Stopped


def run(path: Path, study: Study = STUDY, name: str = "iris", **given: Any) -> StudyResult:
    kept = KeptResults(path)
    try:
        return run_study(data.load(name), study, kept=kept, **given)
    finally:
        kept.close()


def charges() -> int:
    return len(SpendLog.current().charges())


def numbers(result: StudyResult) -> dict[Any, Any]:
    return {
        (cell.mechanism, cell.epsilon): np.nan_to_num([cell.scores, *cell.measures.values(), cell.excess], nan=-1.0).tolist()
        for cell in result.cells
    }


def compared(epsilons: str, *, repeats: int, page: Path) -> tuple[Any, ...]:
    """The settings of a small comparison of output perturbation on iris, in one process."""
    kind = ("iris", "--epsilons", epsilons, "--mechanisms", "output", "--no-boosting")
    return *kind, "--repeats", repeats, "--jobs", 1, "-o", page


@pytest.mark.fast_cases("4")
@pytest.mark.parametrize("count", [1, 4, 7])
def test_an_interrupted_comparison_goes_on_and_pays_for_nothing_twice(tmp_path: Path, count: int) -> None:
    """With a seed, which no report of a user's has, the results are those of a comparison that nothing interrupted."""
    path = tmp_path / "results.jsonl"
    with pytest.raises(Stopped):
        run(path, progress=after(count, stop))
    before = charges()
    assert 0 < before < FITS or count == 1
    found = run(path)
    assert charges() == FITS
    whole = run_study(data.load("iris"), STUDY)
    assert numbers(found) == numbers(whole)
    assert [cell.certificate and cell.certificate.event for cell in found.cells] == [
        cell.certificate and cell.certificate.event for cell in whole.cells
    ]
    again = run(path)
    assert numbers(again) == numbers(whole) and charges() == 2 * FITS  # `whole` was paid for, `again` was not


def test_without_a_seed_the_splits_are_those_of_the_first_call(tmp_path: Path) -> None:
    path, study = tmp_path / "results.jsonl", replace(STUDY, seed=None)
    with pytest.raises(Stopped):
        run(path, study, progress=after(4, stop))
    there = {(item["mechanism"], item["epsilon"], item["repeat"]): item for item in records(path) if "score" in item}
    found = run(path, study)
    assert charges() == FITS
    for (mechanism, epsilon, repeat), item in there.items():
        assert found.cell(mechanism, epsilon).scores[repeat] == item["score"]
    assert len({item["entropy"] for item in records(path) if "entropy" in item}) == 1
    more = run(path, replace(study, repeats=4, epsilons=(1.0, 5.0, 9.0)))
    assert charges() == FITS + 2 * (2 + 4)  # another repeat at two ε, and four repeats at a new one
    assert numbers(more)["output", 1.0][0][:3] == numbers(found)["output", 1.0][0]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.mark.parametrize(
    "change",
    [{"delta": 1e-6}, {"data_norm": 2.0}, {"relation": "replace_one"}, {"seed": 1}, {"test_share": 0.3}, {"a record": True}],
)
def test_results_of_other_settings_or_records_are_not_taken(tmp_path: Path, change: dict[str, Any]) -> None:
    study, path = replace(STUDY, repeats=1, mechanisms=("output",)), tmp_path / "results.jsonl"
    run(path, study)
    assert charges() == 2
    kept, dataset = KeptResults(path), data.load("iris")
    if change.pop("a record", False):
        features = dataset.features.copy()
        features[7, 1] += 1e-3
        dataset = replace(dataset, features=features)
    run_study(dataset, replace(study, **change), kept=kept)
    kept.close()
    assert charges() == 4


def test_a_line_that_was_not_finished_and_one_that_was_changed_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    run(path)
    lines = path.read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if '"output"' in line)
    other = next(number for number, line in enumerate(lines) if '"objective-sharp"' in line)
    lines[number] = lines[number][:-20]
    lines[other] = json.dumps(json.loads(lines[other]) | {"event": "0" * 64})
    path.write_text("\n".join([*lines, '{"study": 7}', '{"study": 7, "score": "x"}', "[1]", "[" * 100_000, "{"]))
    run(path)
    assert charges() == FITS + 2


def test_a_disk_that_is_full_stops_the_charges_and_keeps_the_results(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    kept = KeptResults(path)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(ResultsNotKeptError, match=r"Cannot write .*: No space left on device") as found:
        run_study(data.load("iris"), STUDY, progress=after(3, lambda: os.dup2(full, kept.descriptor)), kept=kept)
    os.close(full)
    kept.close()
    before = charges()
    assert before == 3  # of the job that was the first to find no room, the second ε was not charged
    rescued = tmp_path / "elsewhere.jsonl"
    rescued.write_text(found.value.text)
    assert sum(item.get("epsilon") is not None for item in records(rescued)) == before
    run(rescued)
    assert charges() == FITS


def test_a_disk_that_is_full_before_the_first_result_costs_nothing(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "results.jsonl")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, kept.descriptor)
    os.close(full)
    with pytest.raises(OSError, match=r"Cannot write .*No space left on device\. Nothing was charged for this data set"):
        run_study(data.load("iris"), STUDY, kept=kept)
    kept.close()
    assert charges() == 0 and list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_grow_stops_the_command_and_its_results_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on every file of the process: none takes the results, and they go to the screen."""
    path, before = tmp_path / "r.results.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.touch(0o600)
    append_record(os.open(path, os.O_WRONLY), {"study": "another", "score": 0, "ballast": "x" * 2_000_000})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = compared("1,5", repeats=3, page=tmp_path / "r.html")
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2500, before[1]))
    try:
        done = dperm("compare", *settings, expect=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in done.stderr and "all of it was printed instead" in done.stderr
    paid = charges()
    assert 0 < paid < 6
    path.write_text("\n".join(line for line in done.stdout.splitlines() if line.startswith("{")))
    done = dperm("compare", *settings)
    assert charges() == 6
    assert (tmp_path / "r.html").exists()
    assert [item["study"] for item in records(path)] == ["another"]  # of a comparison that is not over yet


def test_a_report_that_finds_no_place_costs_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    settings = compared("1", repeats=2, page=out / "r.html")
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        patch.setattr("dperm.report.page.comparison_page", lambda *_: (out / "r.html").mkdir() or "page")
        done = dperm("compare", *settings, expect=1)
    saved = Path(done.stderr.split("it is in ")[1].split("\n")[0].removesuffix("."))
    assert saved.read_text() == "page" and stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert "6 results are kept" in done.stderr  # two of each model
    (out / "r.html").rmdir()
    assert "not paid again" in dperm("compare", *settings).stderr
    assert charges() == 2 and [path.name for path in out.iterdir()] == ["r.html"]
    dperm("compare", *settings)  # a comparison of its own: the one before is over
    assert charges() == 4 and sorted(path.name for path in out.iterdir()) == ["r.1.html", "r.html"]


@pytest.mark.parametrize(("kills", "repeats"), [(1, 8), pytest.param(6, 20, marks=pytest.mark.slow)])
def test_killed_with_all_its_processes_a_comparison_loses_only_what_was_in_progress(
    tmp_path: Path, kills: int, repeats: int
) -> None:
    """Each of two processes may have paid for one result that it had not yet kept."""
    path, total = tmp_path / "r.results.jsonl", 2 * 2 * repeats
    command = [
        sys.executable, "-m", "dperm", "compare", "iris", "--epsilons", "1,5", "--repeats", str(repeats), "--jobs", "2", "--json",
        "--no-boosting", "--mechanisms", "output,objective-sharp", "-o", str(tmp_path / "r.html"),
    ]  # fmt: skip
    there: dict[Any, float] = {}
    rng = np.random.default_rng(0)
    for number in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        deadline, size = time.monotonic() + 120, path.stat().st_size if path.exists() else 0
        while (not path.exists() or path.stat().st_size < size + 2000) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = {(item["mechanism"], item["epsilon"], item["repeat"]): item["score"] for item in whole_lines(path)}
        assert there.items() <= found.items()
        there = found
        assert charges() <= sum(epsilon is not None for _, epsilon, _ in there) + 2 * (number + 1)
    command[command.index("--jobs") + 1] = "1"
    done = dperm(*command[3:])
    assert total <= charges() <= total + 2 * kills
    cells = {(cell["mechanism"], cell["epsilon"]): cell["scores"] for cell in json.loads(done.stdout)["studies"][0]["cells"]}
    assert there and all(cells[mechanism, epsilon][repeat] == score for (mechanism, epsilon, repeat), score in there.items())
    assert [each.name for each in tmp_path.iterdir()] == ["r.html"]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in path.read_text().splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if "score" in item:
            found.append(item)
    return found


def test_a_file_of_results_is_one_comparisons_at_a_time_and_its_owners(tmp_path: Path) -> None:
    settings = ("compare", "iris", "--epsilons", "1", "--repeats", 1, "--mechanisms", "output", "--no-boosting", "--jobs", 1)
    settings = (*settings, "-o", tmp_path / "r.html")
    lock = Lock(tmp_path / ".r.results.jsonl.lock", "process 7 of somebody")
    assert "held by process 7 of somebody" in dperm(*settings, expect=1).stderr
    lock.release()
    target = tmp_path / "theirs"
    target.write_text("theirs")
    (tmp_path / "r.results.jsonl").symlink_to(target)
    assert "Cannot write" in dperm(*settings, expect=1).stderr
    assert target.read_text() == "theirs" and charges() == 0
    (tmp_path / "r.results.jsonl").unlink()
    kept = KeptResults(tmp_path / "r.results.jsonl")
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    kept.close()
    assert not kept.path.exists()  # nothing was found


def test_results_of_an_earlier_version_are_refused_before_any_charge(tmp_path: Path) -> None:
    """It noted one score of each model, and a report needs more: nobody is to pay again without a word."""
    path = tmp_path / "r.results.jsonl"
    run(path)
    old = [{name: value for name, value in item.items() if name != "scores"} for item in records(path)]
    path.write_text("".join(f"{json.dumps(item)}\n" for item in old))
    before, text = charges(), path.read_text()
    settings = ("iris", "--epsilons", "1", "--mechanisms", "output", "--repeats", 1, "--jobs", 1, "-o", tmp_path / "r.html")
    done = dperm("compare", *settings, expect=1)
    assert "an earlier one, which noted one score of each model" in done.stderr and "Move the file away" in done.stderr
    assert "goes on from there" not in done.stderr
    assert charges() == before and path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == [path.name]

"""Files are written whole or not at all, by one writer at a time, and nothing that was paid for is replaced for good."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dperm._files import HeldError, Lock, make_new, nameless, read_bounded, replace_own, rescue, this_process, write_new
from dperm.privacy.certificates.signing import make_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks, links and signals")


@pytest.fixture(params=["nameless", "named"])
def draft(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether files that are not in their place yet have a name: not every file system can do without."""
    if request.param == "named":
        monkeypatch.setattr("dperm._files._made_without_name", lambda *_: None)
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("this system has no files without names")
    return request.param


def put(path: Path, text: str, **options: bool) -> Path | None:
    with write_new(path, **options) as file:
        return file.write(text)


def held(folder: Path) -> list[str]:
    """What the files of a folder hold that have a name for people."""
    return sorted(path.read_text() for path in folder.iterdir() if not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_stood_there_is_kept_and_the_newest_has_the_name(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.json"
    assert put(path, "first") is None
    assert put(path, "second") == path.with_name("m.1.json")
    assert put(path, "third") == path.with_name("m.2.json")
    assert path.read_text() == "third"
    assert path.with_name("m.1.json").read_text() == "first" and path.with_name("m.2.json").read_text() == "second"
    with replace_own(path) as page:
        page.write("page")
    assert held(path.parent) == ["first", "page", "second"] and hidden(path.parent) == []


@pytest.mark.usefixtures("draft")
def test_of_many_writers_at_once_each_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    start = threading.Barrier(8)

    def write(number: int) -> None:
        with write_new(path) as file:  # reserved before anybody has written
            start.wait(30)
            file.write(f"{number:02d}")

    for first in (0, 8, 16):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(first, first + 8)))
    assert held(tmp_path) == [f"{number:02d}" for number in range(24)]
    assert len(path.read_text()) == 2 and hidden(tmp_path) == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from dperm import _files
from dperm._files import replace_own, write_new

if sys.argv[4] == "named":
    _files._made_without_name = lambda *_: None
seen, last = 0, int(sys.argv[2])
def counted(original):
    def call(*args, **kwargs):
        global seen
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    return call
with (write_new if sys.argv[3] == "kept" else replace_own)(sys.argv[1]) as file:
    for name in ("open", "fsync", "rename", "replace", "link", "unlink", "fchmod", "close", "lstat", "stat"):
        setattr(os, name, counted(getattr(os, name)))
    file.write("new")
"""


def killed(path: Path, moment: int, *arguments: str) -> bool:
    """Whether a writer was killed before its call of this number, or came to its end before."""
    command = [sys.executable, "-c", _KILLED, str(path), str(moment), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_writer_killed_at_any_moment_loses_neither_file(tmp_path: Path, draft: str) -> None:
    """Killed before each call of the operating system in turn. Once the new file is complete it is kept, too."""
    complete = False
    for moment in range(1, 60):
        folder = tmp_path / str(moment)
        put(folder / "m.json", "old")
        ended = not killed(folder / "m.json", moment, "kept", draft)
        assert (folder / "m.json").read_text() in ("old", "new")  # a reader always finds a complete file
        complete = complete or any(name.endswith(".whole") for name in hidden(folder))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            put(folder / "m.json", "last")
        found = held(folder)
        assert {"old", "last"} <= set(found) <= {"old", "last", "new"} and hidden(folder) == []
        assert ("new" in found) == complete
        assert all("had completed is kept as" in str(warning.message) for warning in told)
        if ended:
            break
    assert ended and complete
    assert moment > 8


def test_a_page_whose_writer_is_killed_leaves_nothing_for_long(tmp_path: Path, draft: str) -> None:
    """Without a name nothing at all is left, but between two calls in a row; with one, until the next writer comes."""
    left: list[int] = []
    for moment in range(1, 60):
        folder = tmp_path / str(moment)
        put(folder / "page", "old")
        ended = not killed(folder / "page", moment, "replaced", draft)
        assert (folder / "page").read_text() in ("old", "new")
        left.append(len(hidden(folder)))
        with replace_own(folder / "page") as page:
            page.write("last")
        assert held(folder) == ["last"] and hidden(folder) == []
        if ended:
            break
    assert ended and sum(left) <= (2 if draft == "nameless" else len(left))


def test_no_planted_link_is_written_through(tmp_path: Path) -> None:
    path, target = tmp_path / "m.json", tmp_path / "theirs"
    target.write_text("theirs")
    for name in (f".m.json.{os.getpid()}", ".m.json.probe", f".m.json.{'0' * 16}.writing", f".m.json.{'1' * 16}.whole"):
        (tmp_path / name).symlink_to(target)
    put(path, "mine")
    assert target.read_text() == "theirs" and path.read_text() == "mine"
    assert not path.is_symlink()
    (tmp_path / ".m.json.lock").symlink_to(target)
    with pytest.raises(OSError, match=r"Cannot write .*m\.json: Too many levels"):
        put(path, "again")
    assert target.read_text() == "theirs" and path.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_lock_empties_no_file_that_was_given_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    os.link(tmp_path / "mine.txt", tmp_path / ".m.json.lock")
    with pytest.raises(OSError, match=r"Cannot write .*: the name of its lock is another file's\."):
        put(tmp_path / "m.json", "new")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_name_too_long_for_what_stands_beside_it_is_refused_first(tmp_path: Path, draft: str) -> None:
    """A nameless file was found to have no name that its folder takes once it was written, and paid for."""
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    for length in range(longest - 30, longest + 2):
        path = tmp_path / ("n" * (length - 5) + ".json")
        try:
            for text in ("first", "second"):
                with write_new(path) as file:
                    reserved = path
                    file.write(text)
        except OSError as error:
            assert "Cannot write" in str(error) and "too long" in str(error)
            reserved = None
        if reserved is not None:
            assert path.read_text() == "second" and path.with_name(f"{path.stem}.1.json").read_text() == "first"
        assert (reserved is None) == (length > longest - 26)
        assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]


def test_what_is_rescued_may_have_a_long_name() -> None:
    path = rescue("ä" * 120 + ".json", "text")
    assert path is not None
    assert (path.read_text(), path.suffix) == ("text", ".json")
    path.unlink()


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "few").write_bytes(b"12345")
    assert read_bounded(tmp_path / "few", 5) == b"12345"
    for path in (tmp_path / "few", Path("/dev/zero")):
        with pytest.raises(OSError, match="it has more than 4 bytes"):
            read_bounded(path, 4)


def test_a_holder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "\udcff")  # how Python has a byte that is no UTF-8
    lock = Lock(tmp_path / "lock", this_process())
    with pytest.raises(HeldError, match=r"of .udcff on"):
        Lock(tmp_path / "lock")
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "mine", tmp_path / "m.json"
    target.write_text("mine")
    link.symlink_to(target)
    put(link, "through my own link")
    assert target.read_text() == "through my own link" and link.is_symlink()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="a link that another user made"):
        put(link, "through theirs")
    assert target.read_text() == "through my own link"


@pytest.mark.usefixtures("draft")
def test_modes_are_kept_and_what_is_private_is_the_owners(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    before = os.umask(0o022)
    try:
        path = tmp_path / "m.json"
        put(path, "a")
        assert mode(path) == 0o644
        path.chmod(0o640)
        put(path, "b")
        assert mode(path) == mode(tmp_path / "m.1.json") == 0o640
        put(path, "c", private=True)
        assert mode(path) == 0o600 and mode(tmp_path / "m.2.json") == 0o640
        with replace_own(tmp_path / "page", private=True) as page:
            assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob(".page.*")} <= {0o600}
            page.write("d")
        assert mode(tmp_path / "page") == 0o600
        found = rescue("m.json", "e")
        assert found is not None and mode(found) == 0o600
        found.unlink()
    finally:
        os.umask(before)


def limited(size: int, block: Callable[[], None]) -> None:
    """Run `block` where no file of this process may grow beyond so many bytes: a full disk, for one process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        block()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("draft")
def test_a_full_disk_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    put(path, "old")

    def fill() -> None:
        for door in (write_new, replace_own):
            with door(path) as file, pytest.raises(OSError, match=r"Cannot write .*File too large"):
                file.write("new" * 1000)
        with pytest.raises(OSError, match="too large"):
            make_new(tmp_path / "key", b"0" * 3000, 0o600)
        assert rescue("m.json", "new" * 1000) is None

    limited(1000, fill)
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"] and path.read_text() == "old"


def test_where_no_folder_is_for_temporary_files_it_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full has none: it does not take the file by which Python finds out."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    monkeypatch.setenv("HOME", str(tmp_path))
    found = rescue("m.json", "model")
    assert found is not None and found.parent == tmp_path
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home directory"))))
    assert rescue("m.json", "model") is None


def test_keys_are_made_anew_and_through_no_link(tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    (tmp_path / "a.pem").symlink_to(target)
    (tmp_path / "b.pem.pub").symlink_to(target)
    for name in ("a.pem", "b.pem"):
        with pytest.raises(ValueError, match=r"\.pem(\.pub)? exists already: choose another name"):
            make_key(tmp_path / name)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.pem", "b.pem.pub"]
    assert make_key(tmp_path / "c.pem").name == "c.pem.pub"


@pytest.mark.usefixtures("draft")
def test_a_reservation_that_is_not_used_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), write_new(tmp_path / "m.json"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("draft")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no links left")])
def test_what_was_complete_is_kept_unless_the_caller_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "m.json"
    put(path, "old")

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("dperm._files._kept", fails)
        with pytest.raises(type(error)):
            put(path, "new")
    assert path.read_text() == "old"
    if isinstance(error, OSError):
        put(path, "last")
        assert held(tmp_path) == ["last", "old"]
    else:
        with pytest.warns(UserWarning, match=r"had completed is kept as .*m\.1\.json"):
            put(path, "last")
        assert held(tmp_path) == ["last", "new", "old"]
    assert hidden(tmp_path) == []


@pytest.mark.usefixtures("draft")
def test_only_dead_writers_are_tidied_up_after(tmp_path: Path) -> None:
    path, other = tmp_path / "m.json", tmp_path / f".other.json.{'0' * 16}.writing"
    left = tmp_path / f".m.json.{'0' * 16}.writing"
    left.write_text("of a dead process")
    other.write_text("of another file")
    with write_new(path) as first:
        assert not left.exists() and other.exists()
        put(path, "second")
        first.write("first")
    assert path.read_text() == "first" and (tmp_path / "m.1.json").read_text() == "second"


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import sys, time; from pathlib import Path; from dperm._files import Lock; \
        lock = Lock(Path({str(path)!r}), 'somebody\\x1b[2J'); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(HeldError, match=r"lock is held by somebody\\x1b"):
            Lock(path)
        process.kill()
    lock = Lock(path, patience=5.0)
    with pytest.raises(HeldError, match="held by another process"):
        Lock(path)
    lock.release()
    lock.release()
    assert not path.exists()


def test_a_worker_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import os, time; from pathlib import Path; from dperm._files import Lock; lock = Lock(Path({str(path)!r})); \
        worker = os.fork(); worker or time.sleep(60); print(worker, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            process.kill()
            Lock(path, patience=5.0).release()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_nameless_file_is_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_SCRATCH", str(tmp_path))
    with nameless() as file:
        file.write(b"private")
        file.flush()
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(file.fileno()).st_dev == tmp_path.stat().st_dev and os.fstat(file.fileno()).st_nlink == 0
    monkeypatch.setenv("DPERM_SCRATCH", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        nameless()


def test_a_lock_waits_for_its_turn(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock")
    threading.Timer(0.1, first.release).start()
    started = time.monotonic()
    Lock(tmp_path / "lock", patience=10.0).release()
    assert 0.05 < time.monotonic() - started < 5

"""The one door for files: what a command writes appears whole or not at all, and replaces nothing that was paid for.

A writer reserves its file before anything is charged: a new file in the same folder, without a name where the file system has
such files (`O_TMPFILE`), else with a random one, made anew and through no link (`O_EXCL`, `O_NOFOLLOW`). It keeps it locked for
as long as it lives: a hidden name without a lock is the leftover of a dead process, which the next writer removes. What was paid
for gets a name with the ending `.whole` once it is complete and on disk: from then on it is kept even where its writer dies.
Writers of one file take turns. In its turn a writer links what stands at the path to the next free number (`m.1.json`), which
fails where that name exists, and then renames its own file to the path. Nobody else replaces the file between link and rename, so
every file that is replaced has another name by then, and a reader always finds a complete file.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import itertools
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dperm._json import on_one_line

_NO_LINKS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_WRITING, _WHOLE = ".writing", ".whole"
_PATIENCE = 60.0  # seconds that a writer waits for its turn: one takes milliseconds
_SHORT = 50  # letters of a name, which any file system takes with some more
_AT_ONCE = 1 << 20  # bytes
_PAUSE = 0.02  # seconds between tries
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class HeldError(ValueError):
    """Another process holds a lock; the message names it."""


class Lock:
    """A lock on what `path` stands for, taken when the object is made and held until `release`, or until the process ends.

    It is a lock of the operating system on the file `path` (`flock`), so that no lock outlives its process. Processes that this
    one forks do not hold it.

    holder : text that names the holder to whoever is refused.
    patience : seconds to wait for another holder.

    Raises HeldError, with the other holder's text, where the lock is held, and OSError where the file cannot be made.
    """

    def __init__(self, path: Path, holder: str = "", patience: float = 0.0) -> None:
        self.path = path
        self._descriptor = -1
        limit = time.monotonic() + patience
        while self._descriptor < 0:
            descriptor = _opened(path)
            try:
                if _locked(descriptor):
                    if _is_at(descriptor, path):  # else its holder removed it in the meantime
                        self._descriptor, descriptor = descriptor, -1
                elif time.monotonic() >= limit:
                    other = os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip()
                    raise HeldError(f"{path} is held by {on_one_line(other) or 'another process'}.")
                else:
                    time.sleep(_PAUSE)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        _HELD.add(self._descriptor)
        try:
            if os.fstat(self._descriptor).st_nlink != 1:  # somebody gave another file this name, too
                raise OSError("the name of its lock is another file's")
            os.ftruncate(self._descriptor, 0)
            if holder:
                os.pwrite(self._descriptor, holder.encode("utf-8", "backslashreplace"), 0)  # a user's name may be any bytes
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let go. A second call does nothing."""
        if self._descriptor in _HELD:
            _HELD.remove(self._descriptor)
            if _is_at(self._descriptor, self.path):
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
        self._descriptor = -1


_HELD: set[int] = set()  # descriptors of locks


def _forked() -> None:
    """A lock is its holder's alone: one whose process was killed must not live on in workers."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def user_name() -> str:
    """The user of this process, as the environment or the system has it. Bytes of another encoding are escaped, so that any file
    and any terminal can hold it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have a number and no name
        name = f"user {os.getuid()}" if hasattr(os, "getuid") else ""
    return printable(name)


def printable(text: str) -> str:
    """The text with bytes of another encoding, which Python keeps as halves of characters, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def this_process() -> str:
    """This process, as the holder of a lock is named to others."""
    who = user_name()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"process {os.getpid()} of {who} on {socket.gethostname()}, since {since}"


def _opened(path: Path) -> int:
    """The file of a lock, made where there is none."""
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666)
        with contextlib.suppress(FileNotFoundError):  # its holder removed it in the meantime
            return os.open(path, os.O_RDWR | _NO_LINKS)


def _locked(descriptor: int) -> bool:
    """Whether the file is now locked for this process alone."""
    import fcntl  # which not every system has

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


class _Draft:
    """The content of a file before it is in its place: an open and locked file. It has no name until `named` where the file
    system has such files, so that nothing of it is left when its process is killed."""

    def __init__(self, path: Path, private: bool) -> None:
        self._beside, mode = path, 0o600 if private else 0o666
        self._name: Path | None = None
        if (descriptor := _made_without_name(path.parent, mode)) is None:
            descriptor, self._name = _made_with_name(path, mode)
        self.descriptor = descriptor

    def named(self, ending: str) -> Path:
        """Its name, with this ending, from now on."""
        new = _hidden_name(self._beside, ending)
        if self._name is None:  # with a folder given, the link in /proc is followed to the file
            os.link(f"/proc/self/fd/{self.descriptor}", new, src_dir_fd=self.descriptor, follow_symlinks=True)
        else:
            self._name.rename(new)
        self._name = new
        return new

    def close(self) -> None:
        """Remove it, where it is neither in its place nor complete and paid for."""
        if self._name is not None and self._name.suffix == _WRITING:
            self._name.unlink(missing_ok=True)
        os.close(self.descriptor)


class Reserved:
    """A file that is to be written once: see `write_new` and `replace_own`."""

    def __init__(self, path: Path, *, private: bool, keeps: bool) -> None:
        self.path = path
        self._private, self._keeps = private, keeps
        self._draft = _Draft(path, private)

    def write(self, text: str | bytes) -> Path | None:
        """Put the file in its place, on disk. Returns the name under which the file that stood there is kept, if one is.

        OSError where that fails; the file that stood there then still does.
        """
        descriptor = self._draft.descriptor
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(text if isinstance(text, bytes) else _bytes_of(text))
            mode = _mode_of(self.path)
            if mode is not None and not self._private:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            older = self._put_beside_older() if self._keeps else None
            if not self._keeps:
                self._draft.named(_WRITING).replace(self.path)
            _sync_folder(self.path.parent)
        except (OSError, HeldError) as error:
            raise _unwritable(self.path, error) from error
        return older

    def _put_beside_older(self) -> Path | None:
        whole = self._draft.named(_WHOLE)  # from now on it is kept, whoever is killed
        try:
            turn = Lock(_lock_of(self.path), patience=_PATIENCE)
            try:
                older = _kept(self.path)
                whole.replace(self.path)
            finally:
                turn.release()
        except (OSError, HeldError):
            whole.unlink(missing_ok=True)  # the caller still has the text, and is told
            raise
        return older

    def close(self) -> None:
        """Give the reservation up, if nothing was written."""
        self._draft.close()


@contextlib.contextmanager
def write_new(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Reserved]:
    """Reserve a file for what is to be paid for. A file that stands there when it is written is kept, under the next free number.

    path : links to a file are followed, now. Missing folders are made.
    private : whether only its owner may read it (mode 0600); else it has the mode of the file that it replaces, if any.

    Raises OSError where the file could not be written. What a killed process had completed is kept as well, and a warning says
    under which name.
    """
    yield from _reserved(path, private=private, keeps=True)


@contextlib.contextmanager
def replace_own(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Reserved]:
    """Reserve a file that can be made again at no cost, so that it replaces what stands there. Arguments as of `write_new`."""
    yield from _reserved(path, private=private, keeps=False)


def _reserved(path: str | os.PathLike[str], *, private: bool, keeps: bool) -> Iterator[Reserved]:
    place = Path(path)
    try:
        place = _place_of(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        _refuse_long(place)
        _tidy(place)
        if keeps:  # a turn that can never be had is to be known now
            Lock(_lock_of(place), patience=_PATIENCE).release()
        reserved = Reserved(place, private=private, keeps=keeps)
    except (OSError, HeldError) as error:
        raise _unwritable(place, error) from None
    with contextlib.closing(reserved):
        yield reserved


def make_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet. FileExistsError where it does, or a link does; OSError, with nothing left behind,
    where it cannot be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read_bounded(path: Path, most: float) -> bytes:
    """The content of a file, read up to `most` bytes: a device, unlike a regular file, may never end. OSError where the file is
    longer."""
    parts: list[bytes] = []
    left = most
    with path.open("rb") as file:
        while part := file.read(_AT_ONCE):
            if (left := left - len(part)) < 0:
                raise OSError(f"it has more than {most:,.0f} bytes")
            parts.append(part)
    return b"".join(parts)


def open_to_append(path: Path) -> int:
    """A file for its owner alone, made where there is none: whoever has it open adds to its end. OSError where it cannot be."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_LINKS, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError("it is no regular file of this user")
    os.fchmod(descriptor, 0o600)
    return descriptor


def rescue(name: str, text: str) -> Path | None:
    """A new file with this text for its owner alone, in the system's temporary folder or, where that is full, in the user's own.
    None where neither takes it."""
    for folder in (tempfile.gettempdir, Path.home):
        path: Path | None = None
        try:
            descriptor, made = tempfile.mkstemp(prefix="dperm-", suffix=f"-{name[-_SHORT:]}", dir=folder())
            path = Path(made)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_bytes_of(text))
                file.flush()
                os.fsync(file.fileno())
            return path
        except (OSError, RuntimeError):  # there may be no such folder
            if path is not None:
                path.unlink(missing_ok=True)
    return None


def scratch_folder() -> Path:
    """The folder for what does not fit memory: `DPERM_SCRATCH`, or where temporary files are."""
    return Path(os.environ.get("DPERM_SCRATCH") or tempfile.gettempdir())


def nameless() -> IO[bytes]:
    """A file without a name in `scratch_folder`: whatever ends the processes that have it open ends the file. OSError where the
    folder takes none."""
    return tempfile.TemporaryFile(dir=scratch_folder())


def _place_of(path: Path) -> Path:
    """The path of a file that is to be written, with links followed. OSError for what is no regular file, and for a link that
    another user made."""
    if path.is_symlink() and path.lstat().st_uid not in (os.geteuid(), 0):
        raise OSError("it is a link that another user made")
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise OSError("it exists and is not a regular file")
    return place


def _bytes_of(text: str) -> bytes:
    """UTF-8; halves of characters, which UTF-8 has not, as escapes that JSON reads."""
    return text.encode("utf-8", "backslashreplace")


def _unwritable(path: Path, error: Exception) -> OSError:
    return OSError(f"Cannot write {path}: {str(getattr(error, 'strerror', None) or error).rstrip('.')}.")


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _hidden_name(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{ending}")


def _refuse_long(path: Path) -> None:
    """OSError where the file system takes no name as long as the longest that is needed beside `path`."""
    with contextlib.suppress(FileNotFoundError):
        _hidden_name(path, _WRITING).lstat()


def _made_without_name(folder: Path, mode: int) -> int | None:
    """A new file in a folder, open and locked; None where the system or the file system has no such files."""
    if not (hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()):
        return None
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
    except OSError:  # also for what keeps one with a name from being made, which then says so
        return None
    _locked(descriptor)
    return descriptor


def _made_with_name(path: Path, mode: int) -> tuple[int, Path]:
    """A new file beside `path`, open and locked."""
    while True:
        name = _hidden_name(path, _WRITING)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, mode)
        if _locked(descriptor) and _is_at(descriptor, name):
            return descriptor, name
        os.close(descriptor)  # another writer took it for a leftover before it was locked, and removes it


def _tidy(path: Path) -> None:
    """Remove what dead writers of `path` left beside it; what was paid for and complete is kept under the next free number."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}({re.escape(_WRITING)}|{re.escape(_WHOLE)})")
    for left in [left for left in path.parent.iterdir() if ours.fullmatch(left.name)]:
        try:
            descriptor = os.open(left, os.O_RDWR | os.O_NONBLOCK | _NO_LINKS)
        except OSError:  # gone by now, a link, or another user's
            continue
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not _locked(descriptor):
                continue
            if left.suffix == _WHOLE and (kept := _kept(left, path)) is not None:
                warnings.warn(f"A process was killed as it wrote {path}: what it had completed is kept as {kept}.", stacklevel=6)
            left.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _kept(path: Path, named: Path | None = None) -> Path | None:
    """The name under which the file at `path` is kept from now on, the next free number of `named` (None: of itself); None where
    there is no file. OSError where that cannot be."""
    named = path if named is None else named
    for number in itertools.count(1):
        name = named.with_name(f"{named.stem}.{number}{named.suffix}")
        try:
            os.link(path, name, follow_symlinks=False)
            return name
        except FileNotFoundError:
            return None
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        try:  # a file system without links to files
            _copy(path, name)
            return name
        except FileExistsError:
            continue
    raise AssertionError("unreachable: there is always a next number")


def _copy(path: Path, name: Path) -> None:
    with path.open("rb") as source:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode) & 0o777)
                os.fsync(file.fileno())
        except BaseException:
            name.unlink(missing_ok=True)
            raise


def _mode_of(path: Path) -> int | None:
    """The permissions of the file; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode) & 0o777 if stat.S_ISREG(found.st_mode) else None


def _sync_folder(folder: Path) -> None:
    """The folder's names on disk, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)

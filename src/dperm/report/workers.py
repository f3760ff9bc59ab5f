"""Work for several processes on data that they share: handed to them without a name, and ended with whoever began them."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

from dperm._files import nameless, scratch_folder

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_processes(
    work: Sequence[Job],
    run: Callable[[Job], Result],
    start: Callable[[Any, int | None], None],
    shared: Any,
    jobs: int,
    *,
    descriptor: int | None = None,
    last: Callable[[Result], bool] = lambda _: False,
) -> Iterator[Result]:
    """What `run` makes of each of `work`, as it comes, from `jobs` processes of one thread each, or from this one.

    `start(shared, descriptor)` is called once in each process before its first job; `descriptor` is of a file that is open here.
    Once a result is the `last`, no further job begins.
    """
    if jobs <= 1 or len(work) <= 1:
        start(shared, descriptor)
        for job in work:
            yield (result := run(job))
            if last(result):
                return
        return
    handed = None if descriptor is None else _Handed(descriptor)
    with (
        _shared_file(shared) as file,
        _single_threaded(),
        ProcessPoolExecutor(jobs, get_context("spawn"), _start_process, (start, file, handed)) as pool,
    ):
        waiting = {pool.submit(run, job) for job in work}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    if future.cancelled():
                        continue
                    result = future.result()
                    if last(result):
                        for other in waiting:
                            other.cancel()
                    yield result
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()  # a running job has nothing to tidy: what it charged is on disk
            raise


class _Handed:
    """An open file, which a process gets as it is spawned: no name leads to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.descriptor),)


def _received(duplicate: Any) -> _Handed:
    return _Handed(duplicate.detach())


@contextmanager
def _shared_file(shared: Any) -> Iterator[_Handed]:
    """The data in a file without a name, which workers read once each: nothing of it is left, whatever ends this process."""
    try:
        file = nameless()
        pickle.dump(shared, file)
        file.flush()
    except OSError as error:
        raise OSError(
            f"Cannot keep the encoded table below {scratch_folder()} ({error.strerror or error}): set DPERM_SCRATCH to a folder "
            "with room."
        ) from error
    with file:
        yield _Handed(file.fileno())


def _start_process(start: Callable[[Any, int | None], None], shared: _Handed, handed: _Handed | None) -> None:
    """An interrupt is for the parent, which stops the workers; where the parent is no more, they stop themselves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # all processes share one place in the file: it is mapped, and not read
    with mmap.mmap(shared.descriptor, 0, access=mmap.ACCESS_READ) as content:
        start(pickle.loads(content), None if handed is None else handed.descriptor)
    os.close(shared.descriptor)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()  # until the end of the pipe that the parent holds open, whatever ends the parent
    os._exit(1)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """New processes get one BLAS thread each: the processes are the parallelism."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

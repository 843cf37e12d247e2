"""Processes that read batches ahead, and one sentence for whatever ends them.

What torch's loader leaves open is closed here: its processes die of a signal to the whole
process group (torchrun, ``docker stop``, ``scancel``), although the run itself wants to save; and
where a batch cannot be handed over (shared memory, open files) it prints a traceback and waits
for ever.
"""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from medclip_debias.errors import UserError

PREFETCH = 2  # batches that each process reads ahead
_T = TypeVar("_T")
# Those of a terminal, of whoever started the run, and of Slurm: they are for the main process.
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_SHARED = Path("/dev/shm")

_MORE_SHARED = (
    "start the container with --shm-size=8g, lower train.workers or train.batch_size, or set "
    "train.workers=0"
)
_AGAIN = "then run the same command again."
# Exit codes by which a worker says why it ended.
_NO_SHARED, _NO_FILES, _NO_MEMORY, _NOT_SENT = 81, 82, 83, 84
_SENTENCES = {
    _NO_SHARED: f"{_SHARED}: is too small for the data loader's batches; {_MORE_SHARED}; {_AGAIN}",
    _NO_FILES: "The data loader has too few open files; raise the limit (ulimit -n 65536; docker "
    "run --ulimit nofile=65536), lower train.workers, or set train.workers=0; " + _AGAIN,
    _NO_MEMORY: "A process of the data loader was killed, most likely for lack of memory; lower "
    f"train.workers, or give the run more memory; {_AGAIN}",
    _NOT_SENT: "A process of the data loader ended without a batch; set train.workers=0 to see "
    "why.",
}


@dataclass(frozen=True)
class _Failure:
    """What a worker has to say in place of a batch."""

    sentence: str


class _Named(Dataset[Any]):
    """A data set whose errors that a user can mend are values: they reach the run unchanged."""

    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        try:
            return self.inner[index]
        except UserError as error:
            return _Failure(str(error))
        except OSError as error:
            name = error.filename or "the prepared set"
            return _Failure(
                f"{name}: cannot be read ({error.strerror or type(error).__name__}); fix it, then"
                " run the same command again."
            )
        except MemoryError:
            os._exit(_NO_MEMORY)


def ahead(items: Dataset[_T], order: range, workers: int, *, size: int = 0) -> Generator[_T]:
    """Yield ``items[k]`` for every k of ``order``, read ahead by ``workers`` processes.

    Args:
        items: reads one item; the same whatever process it is in.
        order: of the items.
        workers: number of processes; 0 reads in this one.
        size: bytes of one item, to see beforehand whether shared memory suffices.
    """
    pinned = torch.cuda.is_available()
    if not workers:
        yield from DataLoader(items, batch_size=None, sampler=order, pin_memory=pinned)
        return
    more_open_files()
    check_shared_memory(size * PREFETCH * workers)
    loader = DataLoader(
        _Named(items),
        batch_size=None,
        sampler=order,
        num_workers=workers,
        worker_init_fn=_begin,
        prefetch_factor=PREFETCH,
        pin_memory=pinned,
    )
    before = set(multiprocessing.active_children())
    mine: list[BaseProcess] = []
    # Python would wait for ever, at its end, for workers that were not asked to stop.
    atexit.register(end_all, mine)
    try:
        with _explained(mine):
            with _sheltered():
                batches = iter(loader)
            mine += set(multiprocessing.active_children()) - before
        while True:
            with _explained(mine):
                batch = next(batches, None)
            if batch is None:
                return
            if isinstance(batch, _Failure):
                raise UserError(batch.sentence)
            yield batch
            del batch
    except UserError:
        end_all(mine)
        raise
    finally:
        # They do not hear terminate(), by which torch and Python end the stubborn.
        batches = None  # type: ignore[assignment]
        end_all(mine or set(multiprocessing.active_children()) - before)
        atexit.unregister(end_all)


def end_all(processes: Iterable[BaseProcess]) -> None:
    """Kill the processes that are left, also stopped ones."""
    for process in processes:
        with suppress(ValueError, OSError):
            if process.is_alive():
                process.kill()
            process.join(5)


# ----------------------------------------------------------------------------- beforehand


def more_open_files() -> None:
    """Raise this process's limit of open files to what it may have.

    A batch travels as open files; the usual limit of 1024 is soon reached.
    """
    try:
        import resource
    except ImportError:  # not on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_shared_memory(need: int, folder: Path = _SHARED) -> None:
    """Refuse to start where batches read ahead do not fit into shared memory."""
    try:
        found = os.statvfs(folder)
    except OSError:  # as on a system that has no such folder
        return
    free = found.f_bavail * found.f_frsize
    if need > free:
        raise UserError(
            f"{folder}: the data loader needs {need / 2**20:.0f} MiB of shared memory, but "
            f"{free / 2**20:.0f} MiB are free; {_MORE_SHARED}."
        )


@contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes to which signals of the parent are blocked until `_begin` ignores them."""
    before = signal.getsignal(signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
    try:
        if multiprocessing.get_start_method() != "fork":
            # Python's helper process is started here and not later, as it lifts the blocks.
            from multiprocessing import resource_tracker

            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # torch's handler would raise in the middle of a step, or of a file being written.
        if before is not None:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGCHLD, before)


# ------------------------------------------------------------------------ inside a worker


def _begin(_: int) -> None:
    """Set up a worker: it ends with its parent, and never without a message."""
    torch.set_num_threads(1)
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    # A bus error shows in the exit code, not in torch's line on standard error.
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    # Both only print a traceback, upon which the run would wait for ever.
    Queue._on_queue_feeder_error = staticmethod(  # type: ignore[attr-defined]
        lambda error, _: os._exit(_code(error))
    )
    sys.excepthook = lambda _, error, __: os._exit(_code(error))


def _code(error: BaseException) -> int:
    number = getattr(error, "errno", None)
    words = str(error).lower()
    if number in (errno.EMFILE, errno.ENFILE) or "too many open files" in words:
        return _NO_FILES
    if number == errno.ENOSPC or "shared memory" in words or "no space left" in words:
        return _NO_SHARED
    if number == errno.ENOMEM or isinstance(error, MemoryError) or "memory" in words:
        return _NO_MEMORY
    return _NOT_SENT


# ------------------------------------------------------------------------ in the main process


@contextmanager
def _explained(workers: list[BaseProcess]) -> Iterator[None]:
    """Turn what torch raises when its processes fail into the sentence for it."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        broken = isinstance(error, (ConnectionError, EOFError, FileNotFoundError))
        if broken:  # a process that dies closes its connections before its exit code is there
            ended = multiprocessing.connection.wait([p.sentinel for p in workers], timeout=5)
            for process in workers:
                if process.sentinel in ended:  # its files are closed before it can be waited for
                    process.join(timeout=5)
        codes = [code for process in workers if (code := process.exitcode)]
        sentence = _of_code(codes[0]) if codes else None
        if sentence in (None, _SENTENCES[_NOT_SENT]):
            sentence = _of_main(error) or sentence
        if broken and sentence is None:
            sentence = (
                f"A process of the data loader does not answer; check memory and disk, {_AGAIN}"
            )
        if sentence is None:
            raise
        raise UserError(sentence) from error


def _of_code(code: int) -> str:
    """Why a worker ended with an exit code."""
    code = {-signal.SIGBUS: _NO_SHARED, -signal.SIGKILL: _NO_MEMORY}.get(code, code)
    if code < 0:
        return (
            f"A process of the data loader was ended by {signal.Signals(-code).name}; {_AGAIN} If"
            " it happens again, set train.workers=0."
        )
    return _SENTENCES.get(code, _SENTENCES[_NOT_SENT])


def _of_main(error: Exception) -> str | None:
    """What the main process lacks itself."""
    number = getattr(error, "errno", None)
    if _code(error) == _NO_FILES or "ancdata" in str(error).lower():
        return _SENTENCES[_NO_FILES]
    if number == errno.ENOSPC:
        return f"{_SHARED}: is full, so the data loader cannot start; {_MORE_SHARED}; {_AGAIN}"
    if number in (errno.EAGAIN, errno.ENOMEM):
        return (
            "The data loader's processes cannot be started (too many processes, or too little "
            f"memory); lower train.workers; {_AGAIN}"
        )
    return None

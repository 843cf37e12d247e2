"""One executor for work that is cut into pieces: processes of this machine, or a Dask cluster.

A piece must be idempotent: run again, it writes the same bytes. Then a worker that is lost costs
nothing but time, for its pieces run again elsewhere, and the results do not depend on how many
workers there were or which of them were lost.

On a cluster every worker needs this version of the program, and the same files under the same
paths. Whoever reaches the scheduler can run code in the name of its workers' user: keep it on
loopback or on a network of your own, or use ``tls://``.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from medclip_debias import __version__
from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError
from medclip_debias.named_settings import config_file
from medclip_debias.settings_files import load_yaml

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Promise

T = TypeVar("T")
R = TypeVar("R")
Start = Callable[..., None] | None

TIMEOUT = 30.0
"""Seconds in which a scheduler must answer."""
PATIENCE = 300.0
"""Seconds without any worker after which a cluster is given up."""
LOOK = 5.0
"""Seconds between two looks at whether scheduler and workers are still there."""
_AGAIN = "what is done is kept: run the same command again to resume"
_started: tuple[Any, ...] | None = None
"""What was started last in this worker: another command's pieces may come in between."""


class WorkerKilled(UserError):
    """A worker process was killed; what was done so far is good."""


class ClusterSettings(Settings):
    """A file of ``configs/clusters``: Slurm jobs that are started as workers.

    Attributes:
        jobs: how many; each is a worker, or as many as ``processes`` of ``job`` says.
        job: of each, as keywords of ``dask_jobqueue.SLURMCluster``.
    """

    jobs: int = Field(1, ge=1)
    job: dict[str, Any] = Field({})


def cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_number() -> int:
    """Return this process's number: the workers of one `map_pieces` have successive ones."""
    return (multiprocessing.current_process()._identity or (0,))[-1]


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut ``items`` into lists of ``size``.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def map_pieces(
    function: Callable[[T], R],
    pieces: Iterable[T],
    workers: int = 1,
    *,
    cluster: str | None = None,
    start: Start = None,
    start_args: tuple[Any, ...] = (),
) -> Iterator[R]:
    """Yield ``function(piece)`` for each piece, in their order.

    Only a few pieces per worker are on their way, so memory does not grow with their number.

    Args:
        function: module-level function; idempotent where it writes.
        pieces: anything picklable.
        workers: processes of this machine; 1 works in this one. Not for a cluster.
        cluster: None for this machine; the address of a Dask scheduler (``tcp://HOST:8786``); or
            a YAML file with `ClusterSettings`, or its name.
        start: called in each process before its first piece (on a cluster also after pieces of
            another command, whose start may have set other things).
        start_args: its arguments.

    Raises:
        WorkerKilled: a process was killed, or one task ended every worker that ran it.
        UserError: the cluster cannot be reached, its workers run another version or do not see
            this folder, or no worker is left.
    """
    if cluster is not None:
        with _client(cluster) as client:
            job = partial(_run, __version__, str(Path.cwd()), function, start, start_args)
            yield from in_order(
                partial(client.submit, job, pure=False),
                partial(_result, client, cluster),
                pieces,
                lambda: 4 * max(1, len(client.nthreads())),
            )
    elif workers > 1:
        with _processes(workers, start, start_args) as pool:
            yield from in_order(
                lambda piece: pool.submit(function, piece),
                Future.result,
                pieces,
                lambda: 4 * workers,
            )
    else:
        if start is not None:
            start(*start_args)
        yield from map(function, pieces)


def in_order(
    submit: Callable[[T], Any],
    result: Callable[[Any], R],
    pieces: Iterable[T],
    ahead: Callable[[], int],
) -> Iterator[R]:
    """Yield the result of each piece in their order, with so many of them on their way."""
    waiting: deque[Any] = deque()
    try:
        for piece in pieces:
            waiting.append(submit(piece))
            if len(waiting) >= ahead():
                yield result(waiting.popleft())
        while waiting:
            yield result(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()


# ------------------------------------------------------------------- processes of this machine


@contextmanager
def _processes(
    workers: int, start: Start, start_args: tuple[Any, ...]
) -> Iterator[ProcessPoolExecutor]:
    # Forked processes start at once and share what is loaded; "spawn" imports all anew.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (start, start_args))
    # A forked process believes that it has OpenCV's threads of its parent, and waits for them
    # forever; so they end before.
    cv2 = sys.modules.get("cv2")
    threads = int(cv2.getNumThreads()) if cv2 is not None else 0
    if cv2 is not None:
        cv2.setNumThreads(1)  # not 0, which keeps them
    try:
        yield pool
    except BrokenProcessPool as error:
        raise WorkerKilled(
            "a worker process was killed, most often for lack of memory; use fewer workers and"
            " run the same command again to resume."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if threads:
            sys.modules["cv2"].setNumThreads(threads)


def _start_worker(start: Start, start_args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start is not None:
        start(*start_args)


def _end_with_parent() -> None:
    """End this process when its parent was killed: an orphan would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


# ----------------------------------------------------------------------------------- a cluster


@contextmanager
def _client(cluster: str) -> Iterator[Client]:
    from distributed import Client, KilledWorker

    with ExitStack() as stack:
        where: Any = cluster
        if "://" not in cluster:
            where = stack.enter_context(_slurm(cluster))
        try:
            client = Client(where, timeout=TIMEOUT, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UserError(
                f"{cluster}: no Dask scheduler answers there ({type(error).__name__}); start it"
                " with 'dask scheduler', or correct the address."
            ) from error
        stack.callback(client.close, timeout=5)
        try:
            yield client
        except KilledWorker as error:
            raise WorkerKilled(
                f"{cluster}: one task ended every worker that ran it, most often for lack of"
                f" memory; {_AGAIN} with larger workers."
            ) from error
        except ModuleNotFoundError as error:
            raise UserError(
                f"{cluster}: a worker cannot load this program ({error}); install medclip-debias"
                " where the workers run."
            ) from error
        except (CancelledError, OSError, TimeoutError) as error:
            raise UserError(
                f"{cluster}: the Dask scheduler was lost ({type(error).__name__}); {_AGAIN}."
            ) from error


@contextmanager
def _slurm(cluster: str) -> Iterator[Any]:
    from dask_jobqueue import SLURMCluster

    path = config_file(cluster)
    settings = validate(ClusterSettings, load_yaml(path), str(path))
    try:
        slurm = SLURMCluster(**settings.job)
    except (TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path}: Slurm workers cannot be set up with these settings ({error})."
        ) from error
    with slurm:
        slurm.scale(jobs=settings.jobs)
        yield slurm


def _result(client: Client, cluster: str, future: Promise[R]) -> R:
    """The result of a piece; waits for workers to come, but not for ever."""
    since = time.monotonic()
    while True:
        try:
            return future.result(timeout=LOOK)
        except TimeoutError:
            if future.done():  # just now; a TimeoutError of the piece itself is raised again
                return future.result(timeout=LOOK)
            if client.status != "running":
                raise OSError(client.status) from None
            if client.nthreads():
                since = time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise UserError(
                    f"{cluster}: there has been no worker for {PATIENCE:.0f} seconds; start some"
                    f" with 'dask worker {cluster} --nthreads 1'; {_AGAIN}."
                ) from None


def _run(
    version: str,
    folder: str,
    function: Callable[[T], R],
    start: Start,
    start_args: tuple[Any, ...],
    piece: T,
) -> R:
    """One piece, in a worker of the same version, from the folder of the command."""
    global _started
    if version != __version__:
        raise UserError(
            f"a worker runs version {__version__}, but the command is of version {version}; install"
            " the same one everywhere."
        )
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: a worker does not see this folder ({type(error).__name__}); it must be on"
            " a disk that all machines share."
        ) from None
    if start is not None and _started != (start, start_args):
        _started = None
        start(*start_args)
        _started = start, start_args
    try:
        return function(piece)
    except OSError as error:  # its own: one of the wire is the scheduler's
        why = error.strerror or type(error).__name__
        raise UserError(f"a worker on {socket.gethostname()} failed ({why}); {_AGAIN}.") from error

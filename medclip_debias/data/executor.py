"""One executor for work that is cut into pieces: processes of this machine, or a Dask cluster.

A piece must be idempotent: run again, it writes the same bytes. Then a worker that is lost costs
nothing but time, for its pieces run again elsewhere, and the results do not depend on how many
workers there were or which of them were lost.

On a cluster every worker needs this version of the program, and the same files under the same
paths. Whoever reaches the scheduler can run code in the name of its workers' user: keep it on
loopback or on a network of your own, or use ``tls://``.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from medclip_debias import __version__
from medclip_debias.config import Settings, validate
from medclip_debias.data.parallel import WorkerKilled, ordered
from medclip_debias.errors import UserError
from medclip_debias.named_settings import config_file
from medclip_debias.settings_files import load_yaml

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
R = TypeVar("R")

TIMEOUT = 30.0
"""Seconds in which a scheduler must answer."""
PATIENCE = 300.0
"""Seconds without any worker after which a cluster is given up."""
_AGAIN = "what is done is kept: run the same command again to resume"
_started: tuple[Any, ...] | None = None
"""What was started last in this worker: another command's pieces may come in between."""


class ClusterSettings(Settings):
    """A file of ``configs/clusters``: Slurm jobs that are started as workers.

    Attributes:
        jobs: how many; each is a worker, or as many as ``processes`` of ``job`` says.
        job: of each, as keywords of ``dask_jobqueue.SLURMCluster``.
    """

    jobs: int = Field(1, ge=1)
    job: dict[str, Any] = Field({})


def map_pieces(
    function: Callable[[T], R],
    pieces: Iterable[T],
    workers: int = 1,
    *,
    cluster: str | None = None,
    start: Callable[..., None] | None = None,
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
        UserError: the cluster cannot be reached, its workers run another version or do not see
            this folder, no worker is left, or a piece ended every worker that took it.
    """
    if cluster is None:
        yield from ordered(function, pieces, workers, start=start, start_args=start_args)
        return
    with _client(cluster) as client:
        yield from _on_cluster(client, cluster, function, pieces, start, start_args)


@contextmanager
def _client(cluster: str) -> Iterator[Client]:
    from distributed import Client

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
        yield client


@contextmanager
def _slurm(cluster: str) -> Iterator[Any]:
    from dask_jobqueue import SLURMCluster

    path = config_file(cluster)
    settings = validate(ClusterSettings, load_yaml(path), str(path))
    try:
        slurm = SLURMCluster(**settings.job)
    except (TypeError, ValueError, OSError) as error:
        raise UserError(f"{path}: Slurm workers cannot be set up so ({error}).") from error
    with slurm:
        slurm.scale(jobs=settings.jobs)
        yield slurm


def _on_cluster(
    client: Client,
    cluster: str,
    function: Callable[[T], R],
    pieces: Iterable[T],
    start: Callable[..., None] | None,
    start_args: tuple[Any, ...],
) -> Iterator[R]:
    from distributed import KilledWorker

    folder = str(Path.cwd())
    waiting: deque[Future[R]] = deque()
    try:
        for piece in pieces:
            job = __version__, folder, function, start, start_args, piece
            waiting.append(client.submit(_run, job, pure=False))
            if len(waiting) >= 4 * max(1, len(client.nthreads())):
                yield _result(client, cluster, waiting.popleft())
        while waiting:
            yield _result(client, cluster, waiting.popleft())
    except KilledWorker as error:
        raise WorkerKilled(
            f"{cluster}: a piece ended every worker that took it, most often for lack of memory;"
            f" {_AGAIN} with larger workers."
        ) from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"{cluster}: a worker cannot load this program ({error}); install medclip-debias where"
            " the workers run."
        ) from error
    except (CancelledError, OSError, TimeoutError) as error:
        raise UserError(
            f"{cluster}: the Dask scheduler was lost ({type(error).__name__}); {_AGAIN}."
        ) from error
    finally:
        for future in waiting:
            future.cancel()


def _result(client: Client, cluster: str, future: Future[R]) -> R:
    """The result of a piece; waits for workers to come, but not for ever."""
    since = time.monotonic()
    while True:
        try:
            return future.result(timeout=5)
        except TimeoutError:
            if future.done():  # just now; a TimeoutError of the piece itself is raised again
                return future.result(timeout=5)
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
    job: tuple[str, str, Callable[[T], R], Callable[..., None] | None, tuple[Any, ...], T],
) -> R:
    """One piece, in a worker of the same version, from the folder of the command."""
    global _started
    version, folder, function, start, start_args, piece = job
    if version != __version__:
        raise UserError(
            f"a worker runs version {__version__}, and the command is of {version}; install the"
            " same one everywhere."
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
    return function(piece)

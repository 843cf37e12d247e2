"""Ordered work over processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import connection
from typing import Any, TypeVar

from medclip_debias.errors import UserError


class WorkerKilled(UserError):
    """A worker process was killed; what was done so far is good."""


T = TypeVar("T")
R = TypeVar("R")


def cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut ``items`` into lists of ``size``.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    workers: int,
    *,
    start: Callable[..., None] | None = None,
    start_args: tuple[Any, ...] = (),
) -> Iterator[R]:
    """Yield ``function(item)`` for each item in order, computed in ``workers`` processes.

    Only a few items per worker are on their way, so memory does not grow with their number.

    Args:
        function: module-level function.
        items: anything picklable.
        workers: processes; 1 works in this one.
        start: called once in each process before the first item.
        start_args: its arguments.

    Raises:
        WorkerKilled: a process was killed.
    """
    if workers <= 1:
        if start is not None:
            start(*start_args)
        yield from map(function, items)
        return
    # Forked processes start at once and share what is loaded; "spawn" imports all anew.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(start, start_args)
    )
    threads = end_opencv_threads()
    try:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerKilled(
            "a worker process was killed, most often for lack of memory; use fewer workers and"
            " run the same command again to resume."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if threads:
            sys.modules["cv2"].setNumThreads(threads)


def end_opencv_threads() -> int:
    """End OpenCV's own threads before a fork; return how many it may have again, 0 for no OpenCV.

    A forked process believes that it has the threads of its parent, and waits for them forever.
    """
    cv2 = sys.modules.get("cv2")
    if cv2 is None:
        return 0
    threads = int(cv2.getNumThreads())
    cv2.setNumThreads(1)  # not 0, which keeps them
    return threads


def _start_worker(start: Callable[..., None] | None, start_args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start is not None:
        start(*start_args)


def _end_with_parent() -> None:
    """End this process when its parent was killed: an orphan would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)

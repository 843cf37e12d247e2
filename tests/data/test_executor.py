"""Pieces on processes and on a real Dask scheduler: the same bytes, whoever is killed."""

from __future__ import annotations

import asyncio
import errno
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from medclip_debias.data import executor
from medclip_debias.data.executor import map_pieces
from medclip_debias.errors import UserError
from tests.data.set_files import set_files


def slowly(value):
    time.sleep(0.05)
    return value


def fail(number):
    raise UserError(f"piece {number}: is damaged; make it again.")


def fill(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end(number):
    os.kill(os.getpid(), signal.SIGKILL)


def start(folder, word):
    global word_of_this_worker
    word_of_this_worker = word
    with (folder / f"started-{os.getpid()}").open("a") as file:
        file.write(word)


def told(relative):
    return word_of_this_worker, Path(relative).read_text()


def run_scheduler(place):
    from distributed import Scheduler

    async def serve():
        options = {"host": "127.0.0.1", "port": 0, "allowed_failures": 50}
        async with Scheduler(**options, dashboard=False) as scheduler:
            place.with_suffix(".new").write_text(scheduler.address)
            place.with_suffix(".new").rename(place)
            await scheduler.finished()

    asyncio.run(serve())


def run_worker(address):
    from distributed import Worker

    async def serve():
        async with Worker(address, host="127.0.0.1", nthreads=1, dashboard=False) as worker:
            await worker.finished()

    asyncio.run(serve())


@contextmanager
def without_threads_of_opencv():
    """A forked process waits forever for those of its parent."""
    import cv2

    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(threads)


def fork_on_demand(asked):
    """A process without threads, which forks others, with all that it has imported."""
    bert = "transformers.models.bert.modeling_bert"
    for name in ("distributed", "medclip_debias.language.scoring", bert):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    parent = multiprocessing.parent_process()
    while asked in connection.wait([asked, parent.sentinel]):
        function, argument = asked.recv()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                function(argument)
            finally:
                os._exit(0)
        asked.send(child)


class Cluster:
    """A scheduler and three workers, each a process of its own, on loopback."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._asked, theirs = context.Pipe()
        self._forks = context.Process(target=fork_on_demand, args=(theirs,))
        with without_threads_of_opencv():
            self._forks.start()
        self._processes: list[int] = []
        self.scheduler = self._start(run_scheduler, folder / "address")
        while not (folder / "address").exists():
            time.sleep(0.02)
        self.address = (folder / "address").read_text()
        self.workers = [self.worker() for _ in range(3)]

    def _start(self, function, argument) -> int:
        self._asked.send((function, argument))
        self._processes.append(self._asked.recv())
        return self._processes[-1]

    def worker(self) -> int:
        return self._start(run_worker, self.address)

    def kill(self, process: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def kill_one(self, rng: random.Random) -> None:
        """End a worker as lack of memory would, and start another."""
        number = rng.randrange(len(self.workers))
        self.kill(self.workers[number])
        self.workers[number] = self.worker()

    @contextmanager
    def losing_workers(self, seed: int, pause: tuple[float, float], most: int) -> Iterator[None]:
        """Kill up to ``most`` workers at random moments, at least one while the block runs."""
        rng, over, kills = random.Random(seed), threading.Event(), []

        def killing() -> None:
            while not over.wait(rng.uniform(*pause)) and len(kills) < most:
                self.kill_one(rng)
                kills.append(time.monotonic())

        killer = threading.Thread(target=killing)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join(60)
        assert not killer.is_alive()
        assert kills

    def end(self) -> None:
        for process in self._processes:
            self.kill(process)
        self._forks.kill()
        self._forks.join(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One for all tests below, the last of which ends it."""
    pytest.importorskip("distributed")
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.end()


def test_items_are_taken_as_needed():
    taken = []
    results = map_pieces(slowly, (taken.append(i) or i for i in range(1000)), 2)
    next(results)
    assert len(taken) < 20
    results.close()


def test_a_killed_worker_is_a_sentence():
    with pytest.raises(UserError, match="use fewer workers"):
        list(map_pieces(end, [1, 2], 2))


def _scaled(side):
    import cv2

    cv2.setNumThreads(1)
    picture = np.full((side, side), 7, np.uint8)
    return int(cv2.GaussianBlur(picture, (31, 31), 5).max())


def _after_opencv():
    import cv2

    cv2.setNumThreads(4)
    cv2.GaussianBlur(np.zeros((1500, 1500), np.uint8), (31, 31), 5)
    assert list(map_pieces(_scaled, [1500, 1500], 2)) == [7, 7]
    assert cv2.getNumThreads() == 4


def test_processes_work_after_opencv_used_threads_of_its_own():
    """A forked copy of its pool has no threads, and waiting for them would never end."""
    child = multiprocessing.get_context("fork").Process(target=_after_opencv)
    with without_threads_of_opencv():
        child.start()
    child.join(30)
    ended = child.exitcode
    child.kill()
    assert ended == 0


def test_a_piece_that_ends_as_its_wait_ends_is_not_lost():
    """Between the end of a wait and the question whether the piece is done, it may be done."""

    piece = Mock(**{"result.side_effect": [TimeoutError, "made"], "done.return_value": True})
    assert executor._result(None, "tcp://here", piece) == "made"


def test_a_cluster_works_in_the_folder_of_the_command_and_starts_once_for_each(
    cluster, tmp_path, monkeypatch
):
    """What a start sets in a worker, another command's start would leave behind otherwise."""
    monkeypatch.chdir(tmp_path)
    Path("here.txt").write_text("here")
    for word in ("a", "b", "c"):
        how = {"start": start, "start_args": (tmp_path, word), "cluster": cluster.address}
        assert set(map_pieces(told, ["here.txt"] * 12, **how)) == {(word, "here")}
    started = [path.read_text() for path in tmp_path.glob("started-*")]
    assert 1 <= len(started) <= 3
    assert all(len(set(words)) == len(words) for words in started)


def test_a_set_prepared_while_workers_are_killed_is_the_same_bytes(
    cluster, small_phantom, small_prepared, tmp_path
):
    """And so are its claims and scores; a set of 40 pixels lies between, on the same workers."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.loader import training_corpus
    from medclip_debias.data.prepare import prepare
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.text.claims.table import claim_set
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
    from medclip_debias.language.scoring import score_prepared

    there = {"cluster": cluster.address}
    with cluster.losing_workers(seed=7, pause=(0.2, 1), most=3):
        prepare(small_phantom, tmp_path / "other", PrepareSettings(size=40), **there)
        made = prepare(small_phantom, tmp_path / "there", PrepareSettings(size=32), **there)
        claim_set(made.folder, **there)
    here = tmp_path / "here"
    shutil.copytree(small_prepared, here)
    assert set_files(made.folder).keys() - set_files(here).keys() == {"claims.parquet"}
    claim_set(here)
    model = tmp_path / "lm"
    small = LanguageModelSettings(
        vocabulary=300, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=32
    )
    train_masked_lm(training_corpus(PreparedSet.open(here)), model, small)
    score_prepared(PreparedSet.open(here), model)
    score_prepared(made, model, **there)
    assert set_files(made.folder) == set_files(here)


def test_what_goes_wrong_on_a_cluster_is_one_sentence(cluster, monkeypatch):
    monkeypatch.setattr(executor, "TIMEOUT", 1.0)
    monkeypatch.setattr(executor, "LOOK", 0.5)
    with pytest.raises(UserError, match="piece 0: is damaged; make it again"):
        list(map_pieces(fail, range(5), cluster=cluster.address))
    with pytest.raises(UserError, match=r"a worker on .* failed \(No space left on device\)"):
        list(map_pieces(fill, range(5), cluster=cluster.address))
    with pytest.raises(UserError, match="no Dask scheduler answers there"):
        list(map_pieces(slowly, [0], cluster="tcp://127.0.0.1:1"))
    for worker in cluster.workers:
        cluster.kill(worker)
    monkeypatch.setattr(executor, "PATIENCE", 1.0)
    with pytest.raises(UserError, match="there has been no worker for 1 seconds"):
        list(map_pieces(slowly, [0], cluster=cluster.address))
    cluster.worker()
    monkeypatch.setattr(executor, "PATIENCE", 100.0)
    pieces = map_pieces(slowly, range(40), cluster=cluster.address)
    next(pieces)
    cluster.kill(cluster.scheduler)
    with pytest.raises(UserError, match=r"the Dask scheduler was lost .* to resume"):
        list(pieces)


def test_a_file_of_slurm_jobs_is_checked(tmp_path):
    pytest.importorskip("dask_jobqueue")
    (tmp_path / "mine.yaml").write_text("jobs: 0\n")
    with pytest.raises(UserError, match="jobs"):
        list(map_pieces(slowly, [], cluster=str(tmp_path / "mine.yaml")))
    with pytest.raises(UserError, match="did you mean 'clusters/slurm'"):
        list(map_pieces(slowly, [], cluster="clusters/slrum"))

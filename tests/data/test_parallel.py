"""Ordered work over processes."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from medclip_debias.data.parallel import chunks, ordered
from medclip_debias.errors import UserError


def square(value):
    return value * value


def die(value):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order(workers):
    assert list(ordered(square, range(57), workers)) == [value**2 for value in range(57)]


def test_items_are_taken_as_needed():
    taken = []
    results = ordered(square, (taken.append(i) or i for i in range(1000)), 2)
    next(results)
    assert len(taken) < 20
    results.close()


def test_a_killed_worker_is_a_sentence():
    with pytest.raises(UserError, match="use fewer workers"):
        list(ordered(die, [1, 2], 2))


def test_chunks_hold_everything_once():
    assert [x for chunk in chunks(range(10), 3) for x in chunk] == list(range(10))


def _scaled(side):
    import cv2

    cv2.setNumThreads(1)
    picture = np.full((side, side), 7, np.uint8)
    return int(cv2.GaussianBlur(picture, (31, 31), 5).max())


def _after_opencv():
    import cv2

    cv2.setNumThreads(4)
    cv2.GaussianBlur(np.zeros((1500, 1500), np.uint8), (31, 31), 5)
    assert list(ordered(_scaled, [1500, 1500], 2)) == [7, 7]
    assert cv2.getNumThreads() == 4


def test_processes_work_after_opencv_used_threads_of_its_own():
    """A forked copy of its pool has no threads, and waiting for them would never end."""
    child = multiprocessing.get_context("spawn").Process(target=_after_opencv)
    child.start()
    child.join(30)
    ended = child.exitcode
    child.kill()
    assert ended == 0

"""Ordered work over processes."""

import os
import signal

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

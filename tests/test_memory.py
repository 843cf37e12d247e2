"""Freed memory is kept for the next array, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from medclip_debias import cli, memory

# Pages that the kernel gave while eight arrays of an image's size came and went time and again.
PAGES = """
import resource, sys
import numpy as np
from medclip_debias.memory import keep_freed_memory
done = sys.argv[1] == "kept" and keep_freed_memory()
for turn in range(20):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    images = [np.ones((256, 512)) for _ in range(8)]
    del images
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="the C library is not glibc",
)


def pages(word, **more):
    words = [sys.executable, "-c", PAGES, word]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    printed = subprocess.run(words, env=plain | more, capture_output=True, text=True, check=True)
    done, number = printed.stdout.split()
    return done == "True", int(number)


def test_the_next_array_gets_the_memory_of_the_last():
    usual, kept = pages("usual"), pages("kept")
    assert (usual[0], kept[0]) == (False, True)
    assert kept[1] < usual[1] / 10


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_who_chose_otherwise_keeps_their_choice(name, monkeypatch):
    monkeypatch.setenv(name, "")
    assert not memory.keep_freed_memory()


def test_the_program_asks_for_it(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setattr(cli.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["medclip-debias", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert asked == [True]

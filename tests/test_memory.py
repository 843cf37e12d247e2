"""Freed memory is kept for the next array, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Pages that the kernel gave while eight arrays of an image's size came and went time and again.
PAGES = """
import resource, sys
import numpy as np
from medclip_debias.cli import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for turn in range(20):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    images = [np.ones((256, 512)) for _ in range(8)]
    del images
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="the C library is not glibc",
)


def pages(word, **more):
    words = [sys.executable, "-c", PAGES, word]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    return int(subprocess.run(words, env=plain | more, capture_output=True, check=True).stdout)


def test_the_next_array_gets_the_memory_of_the_last_unless_the_user_chose_otherwise():
    usual = pages("usual")
    assert pages("kept") < usual / 10
    # How many depends on what the environment leaves on the heap.
    assert pages("kept", GLIBC_TUNABLES="") > usual / 4

"""Memory of a process that is this program's own."""

from __future__ import annotations

import os
import sys

MAPPED = 64 * 2**20
"""Bytes from which an array gets pages of its own, which its end gives back."""
KEPT = 256 * 2**20
"""Bytes of freed memory that a process keeps for its next arrays."""

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, up to `KEPT`, for the next array; whether it does.

    glibc gives memory back to the kernel at each free that leaves more than a megabyte or two, and
    the next array of an image's size gets its pages, zeroed, one by one again: up to a third of a
    phantom's time (docs/performance.md). Forked processes inherit the setting. Who chose otherwise
    (``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``) keeps their choice.
    """
    if sys.platform != "linux" or any(
        name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ
    ):
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    chosen = ((_M_MMAP_THRESHOLD, MAPPED), (_M_TRIM_THRESHOLD, KEPT))
    return all(mallopt(what, size) == 1 for what, size in chosen)

"""How fast a run goes, in words and in numbers.

Only the standard library is imported here: the command line uses it before its slow imports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping


def clock(seconds: float) -> str:
    """A span as hours, minutes and seconds.

    >>> clock(3725.4), clock(86400 * 2 + 61)
    ('1:02:05', '48:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Pace:
    """Images a second, and the share of the time spent waiting for data, since the last row."""

    def __init__(self, batch_size: int, start: int, steps: int) -> None:
        self.batch_size, self._start, self._steps = batch_size, start, steps
        self.began = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        self._mark = time.perf_counter()
        self.waited = 0.0
        self.steps_taken = 0

    def metrics(self) -> dict[str, float]:
        span = max(time.perf_counter() - self._mark, 1e-9)
        result = {
            "images_per_second": self.steps_taken * self.batch_size / span,
            "data_wait": self.waited / span,
            "seconds": self.elapsed,
        }
        self.restart()
        return result

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def left(self, done: int) -> float:
        """Seconds that the rest will take at the speed so far, validations and files included."""
        return self.elapsed / max(done - self._start, 1) * (self._steps - done)


def what_trains(counts: Mapping[str, Mapping[str, int]]) -> str:
    """One sentence: ``trainable parameters: 1,234 of 5,678 in the image encoder, ...``."""
    names = {"image": "the image encoder", "text": "the text encoder", "heads": "the rest"}
    parts = []
    for part, count in counts.items():
        trained, frozen = count["trained"], count["frozen"]
        parts.append(f"{trained:,} of {trained + frozen:,} in {names[part]}")
    return f"trainable parameters: {', '.join(parts)}"

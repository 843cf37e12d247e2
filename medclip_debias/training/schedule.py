"""Learning rate by step: linear warm-up, then a cosine to 0, or a constant."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "constant"]


def learning_rate(
    step: int, *, peak: float, warmup: int, steps: int, schedule: Schedule = "cosine"
) -> float:
    """Learning rate of ``step`` (0-based).

    Rises linearly and reaches ``peak`` at step ``warmup - 1``, then falls as a half cosine that
    would touch 0 at step ``steps``, or stays (``constant``). A warm-up longer than the run never
    reaches the peak.

    >>> [round(learning_rate(s, peak=1.0, warmup=2, steps=4), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    share = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

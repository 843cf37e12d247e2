"""Learning rate by step: linear warm-up, then a cosine to 0."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """Learning rate of ``step`` (0-based).

    Rises linearly and reaches ``peak`` at step ``warmup - 1``, then falls as a half cosine that
    would touch 0 at step ``steps``. A warm-up longer than the run never reaches the peak.

    >>> [round(learning_rate(s, peak=1.0, warmup=2, steps=4), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

"""Choices of grounding that are kept with results and models; imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from medclip_debias.config import Settings

Floats = NDArray[np.float64]
Sharpen = Literal["none", "contrast", "redundant", "prune", "findings"]
"""How maps are sharpened (`medclip_debias.grounding.sharpen`)."""
MapMethod = Literal["similarity", "gradcam", "occlusion"]
"""How maps are computed (`medclip_debias.grounding.saliency`)."""
EvidenceKind = Literal["offset", "negated", "peak", "score"]
"""What speaks for a sentence (`medclip_debias.grounding.suppression`)."""
KINDS: tuple[EvidenceKind, ...] = ("offset", "negated", "peak", "score")


class SuppressionSettings(Settings):
    """How the rule of suppression is chosen on validation images.

    ``evidence``: its kind; ``best`` takes the one that keeps (or suppresses) most there. ``aim``
    and ``share``: the share of true sentences ``kept``, or of absent ones suppressed
    (``specificity``), that the threshold ensures.
    """

    evidence: Literal["best", "offset", "negated", "peak", "score"] = "best"
    aim: Literal["kept", "specificity"] = "kept"
    share: float = Field(0.98, gt=0, lt=1)


class SuppressionRule(Settings):
    """A chosen rule: a sentence is given no box where its words deny, or below the threshold."""

    format: Literal[1] = 1
    evidence: EvidenceKind | None = None  # None for the words alone
    threshold: float = 0.0  # lowest evidence of what is there
    # From evidence to the probability that the image shows it, at as many sentences that are
    # there as are not.
    slope: float = 0.0
    intercept: float = 0.0
    # From a sentence's vector to its level, for ``offset``.
    level: tuple[float, ...] = ()
    level_constant: float = 0.0
    chosen: dict[str, Any] = Field(default_factory=dict)  # where and how, and what it held there
    model_hash: str | None = None  # of the model that it is for
    data_hash: str = ""  # of the set that it was chosen on

    def probability(self, evidence: float) -> float:
        """How probable it is that an image shows it, in [0, 1]; 1 for the words alone."""
        if self.evidence is None:
            return 1.0
        power = np.clip(self.slope * evidence + self.intercept, -700, 700)
        return float(1 / (1 + np.exp(-power)))

    def levels(self, vectors: NDArray[np.floating]) -> Floats:
        """The level of sentences by their vectors ``[T, D]``: ``[T]``."""
        return np.asarray(vectors.astype(np.float64) @ np.asarray(self.level) + self.level_constant)

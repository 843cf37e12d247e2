"""What can be chosen about a search index; stored inside it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from medclip_debias.config import Settings

IndexKind = Literal["auto", "flat", "ivf"]
ImageRanking = Literal["regions", "global"]

FLAT_UP_TO = 500_000
"""Images up to which ``auto`` compares a query with every global vector."""


class IndexSettings(Settings):
    """How an index is built (docs/search.md, Settings)."""

    landmarks: int = Field(1000, ge=2)
    rank: int = Field(256, ge=1)
    kind: IndexKind = "auto"
    k: int = Field(10, ge=1)
    target: float = Field(0.99, gt=0, le=1)
    queries: int = Field(100, ge=1)
    image_queries: int = Field(16, ge=0)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)

    def kind_for(self, images: int) -> IndexKind:
        """``kind``, with ``auto`` decided."""
        if self.kind != "auto":
            return self.kind
        return "flat" if images <= FLAT_UP_TO else "ivf"

"""The protocols by name: what the item table of each is called, and its way back to the metrics."""

from __future__ import annotations

from medclip_debias.evaluation.protocol import Protocol, registered

ITEMS: dict[str, type[Protocol]] = {kind.name: kind for kind in registered()}

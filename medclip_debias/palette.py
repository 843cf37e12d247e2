"""The colours of every plot: they read in grey and for the colour-blind."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours in an order whose greys differ, each with a marker and dashes.
STYLES: tuple[tuple[str, str, Any], ...] = (
    ("#000000", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#0072B2", "^", "-."),
    ("#009E73", "D", ":"),
    ("#CC79A7", "v", (0, (5, 1))),
    ("#E69F00", "P", (0, (3, 1, 1, 1))),
    ("#56B4E9", "X", (0, (1, 1))),
)

INK, AXIS, GRID = "#3c434b", "#aab1b8", "#e3e6ea"
"""Of words, of the axes' lines, and of the grid."""

ACCENT, SECOND, PALE = "#1f6aa5", "#b4572f", "#c8ccd1"
"""Of the only series of a plot, of one beside it, and of points that are no series."""

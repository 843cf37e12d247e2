"""Warnings that point at the user's own line, however deep in the package they arise."""

from __future__ import annotations

import sys
import warnings

from medclip_debias.errors import ReportedWarning

_PACKAGE = __name__.partition(".")[0]


def warn(sentence: str, category: type[Warning] = ReportedWarning) -> None:
    """Warn of ``sentence`` at the nearest line outside of the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE:
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, category, stacklevel=level)

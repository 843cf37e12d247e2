"""Find the papers' studies, which lie in the source tree beside the package and not in it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from medclip_debias.errors import UserError


def studies_of_the_source() -> ModuleType:
    """The module ``studies.command`` of the source tree that this package runs from.

    Its folder joins ``sys.path``, so that processes find it however they are started.
    """
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    if "studies" not in sys.modules:  # else this is `python scripts/studies`
        if not (scripts / "studies" / "command.py").is_file():
            raise UserError(
                "the papers' studies are not part of the installed package: they come with its "
                "source tree; get that and run 'python scripts/studies --list' in it."
            )
        sys.path.insert(0, str(scripts))
    return importlib.import_module("studies.command")

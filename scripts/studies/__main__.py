"""``python scripts/studies NAME ...``: the verb ``study``, also beside an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # As a package of its own: its modules' names are too common for the top level.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    import studies  # noqa: F401
    from medclip_debias.cli import run

    sys.exit(run(["study", *sys.argv[1:]]))

"""Write a phantom in the layout of an archive other than MIMIC-CXR, as the tests read it.

    python scripts/phantom_archive.py OUT --layout siim --studies 3000 --set regime=hospital

Two of the benchmark's cards are measured on such a tree (docs/cards.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.settings_files import apply_overrides
from phantom_layouts import LAYOUTS, ArchiveSettings, write_archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), required=True)
    parser.add_argument("--studies", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    content = {name: getattr(options, name) for name in ("layout", "studies", "seed")}
    try:
        content = apply_overrides(content, options.set)
        settings = validate(ArchiveSettings, content, "the command line")
        print(write_archive(options.out, settings, workers=options.workers))
    except (UserError, FileExistsError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()

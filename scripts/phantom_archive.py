"""Write a phantom in the layout of an archive other than MIMIC-CXR, as the tests read it.

    python scripts/phantom_archive.py OUT --layout siim --studies 3000 --set regime=hospital

Two of the benchmark's cards are measured on such a tree (docs/cards.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from commands import run_script
from medclip_debias.config import validate
from medclip_debias.errors import explained, one_of
from medclip_debias.settings_files import apply_overrides
from phantom_layouts import LAYOUTS, ArchiveSettings, write_archive


def main(
    out: Annotated[Path, typer.Argument(help="folder to write; it must not exist")],
    layout: Annotated[str, typer.Option(help=", ".join(sorted(LAYOUTS)))],
    studies: int = 3000,
    seed: int = 0,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    workers: int | None = None,
) -> None:
    """Write a phantom in the layout of an archive."""
    one_of(layout, sorted(LAYOUTS), "layout")
    content = {"layout": layout, "studies": studies, "seed": seed}
    checked = validate(
        ArchiveSettings, apply_overrides(content, settings or []), "the command line"
    )
    with explained(f"{out}: is there already; give another folder", FileExistsError):
        print(write_archive(out, checked, workers=workers))


if __name__ == "__main__":
    sys.exit(run_script(main))

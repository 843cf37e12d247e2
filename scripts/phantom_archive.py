"""Write a phantom in the layout of an archive other than MIMIC-CXR, as the tests read it.

    python scripts/phantom_archive.py OUT --layout siim --studies 3000 --set regime=hospital

Two of the benchmark's cards are measured on such a tree (docs/cards.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.settings_files import apply_overrides
from phantom_layouts import LAYOUTS, ArchiveSettings, write_archive


def main(
    out: Annotated[Path, typer.Argument(help="folder to write; it must not exist")],
    layout: Annotated[str, typer.Option(click_type=click.Choice(sorted(LAYOUTS)))],
    studies: int = 3000,
    seed: int = 0,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    workers: int | None = None,
) -> None:
    content = {"layout": layout, "studies": studies, "seed": seed}
    try:
        content = apply_overrides(content, changes or [])
        settings = validate(ArchiveSettings, content, "the command line")
        print(write_archive(out, settings, workers=workers))
    except (UserError, FileExistsError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)

"""Where the pages of documentation lie: in the checkout, or where the wheel put them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from medclip_debias.errors import UserError


def pages() -> tuple[Path, list[str]]:
    """Their folder, and the name of each, as ``start`` or ``studies/table1``."""
    checkout = Path(__file__).parents[1] / "docs"
    folder = checkout if (checkout / "start.md").is_file() else _installed()
    found = sorted(path.relative_to(folder).as_posix()[:-3] for path in folder.rglob("*.md"))
    return folder, found


def _installed() -> Path:
    try:
        listed = files("medclip-debias") or []
    except PackageNotFoundError:
        listed = []
    for path in listed:
        place = Path(str(path.locate()))
        if path.parts[-2:] == ("medclip-debias", "start.md") and place.is_file():
            return place.resolve().parent
    raise UserError("the pages were not installed; they are in the folder docs of the sources.")

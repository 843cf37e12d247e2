"""Where the pages of documentation lie: in the checkout, or where the wheel put them."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from medclip_debias.errors import UserError


def pages() -> tuple[Path, list[str]]:
    """Their folder, and the name of each, as ``start`` or ``studies/table1``."""
    starts = [Path(__file__).parents[1] / "docs" / "start.md"]
    with suppress(PackageNotFoundError):
        installed = files("medclip-debias") or []
        named = (path for path in installed if path.parts[-2:] == ("medclip-debias", "start.md"))
        starts += [Path(str(path.locate())) for path in named]
    folder = next((start.resolve().parent for start in starts if start.is_file()), None)
    if folder is None:
        raise UserError("the pages were not installed; they are in the folder docs of the sources.")
    names = sorted(path.relative_to(folder).as_posix()[:-3] for path in folder.rglob("*.md"))
    return folder, names

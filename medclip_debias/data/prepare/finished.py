"""What a finished set (or part of one) says of the command that wrote it.

A run may be killed behind its last rename, or its end may go unseen; the same command must then
find its work done, and any other command find the folder taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare.chunks import made_by
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_or_none

STAMP = "source_stamp"
"""Key of the hash that `medclip_debias.data.prepare.assemble.About.source_stamp` gives."""


def asked(
    settings: PrepareSettings, selection: SelectionSettings | None, reading: Reading | None
) -> dict[str, Any]:
    """Return what a command asks for, as a finished set repeats it."""
    return {
        "settings": settings.model_dump(mode="json"),
        "selection": (selection or SelectionSettings()).model_dump(mode="json"),
        "options": (reading or Reading()).options(),
    }


def has_the_recipe(out: Path, wanted: dict[str, Any]) -> bool:
    """Tell whether ``out`` is finished and was prepared as ``wanted`` says, from any source.

    Args:
        out: folder of a set or part, or one that is not there.
        wanted: what `asked` returned.
    """
    found = _content(out)
    part = "shard" in found
    return (
        STAMP in found
        and part == ("shard" in wanted)
        and wanted.items() <= found.items()
        and found.get("made_by") == made_by()
    )


def check_unchanged(out: Path, stamp: str) -> None:
    """Stop when ``out`` was prepared from another source, or its source is another by now.

    Raises:
        UserError: it is.
    """
    if _content(out).get(STAMP) != stamp:
        raise UserError(
            f"{out}: is not empty, and was prepared from another source or from this one before it"
            " changed; give another folder or --overwrite (--update adds what is new)."
        )


def _content(out: Path) -> dict[str, Any]:
    for name in ("meta.json", "part.json"):
        content = read_json_or_none(out / name)
        if isinstance(content, dict):
            about = content.get("about")
            return content | about if isinstance(about, dict) else content
    return {}

"""Put what was found where the documentation is: page, plot, results, settings, overview."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file, write_text

FILES = {"page.md": "md", "figure.svg": "svg", "results.json": "json", "settings.yaml": "yaml"}
"""What is copied, and what it ends with behind the name."""


def publish(name: str, out: Path, docs: Path) -> list[Path]:
    """Copy page, plot, results and settings of what ran; renew its part of the index.

    Args:
        name: of the study or experiment.
        out: the folder it ran in.
        docs: folder with ``index.md``, whose lines between ``<!-- NAME -->`` and
            ``<!-- /NAME -->`` are replaced by its overview, where it has one.

    Returns:
        The files written.

    Raises:
        UserError: ``docs`` is no folder, or it has an overview and the index no place
            for it.
    """
    if not docs.is_dir():
        raise UserError(f"{docs}: is not a folder; give the one that holds the pages.")
    overview, index = out / "overview.md", docs / "index.md"
    renewed = _renewed(name, overview, index) if overview.is_file() else None
    written = []
    for source, suffix in FILES.items():
        target = docs / f"{name}.{suffix}"
        with atomic_file(target) as temporary:
            shutil.copyfile(out / source, temporary)
        written.append(target)
    if renewed is not None:
        write_text(index, renewed)
        written.append(index)
    return written


def _renewed(name: str, overview: Path, index: Path) -> str:
    """The text of the index with its part replaced."""
    if not index.is_file():
        raise UserError(f"{index}: is missing; it is to hold the overview of {name}.")
    text = index.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    pattern = re.compile(re.escape(first) + ".*?" + re.escape(last), re.DOTALL)
    part = f"{first}\n{overview.read_text(encoding='utf-8').strip()}\n{last}"
    renewed, count = pattern.subn(lambda _: part, text)
    if count != 1:
        raise UserError(f"{index}: must hold '{first}' and '{last}' once, for the overview.")
    return renewed

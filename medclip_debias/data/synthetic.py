"""Which files are generated: `medclip_debias.phantom` leaves its truth in the folder it writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medclip_debias.files import read_json_or_none


def is_phantom(source_path: Path) -> bool:
    """Tell whether a source is synthetic: `medclip_debias.phantom` leaves its truth in it."""
    folder = source_path if source_path.is_dir() else source_path.parent
    content = read_json_or_none(folder / "truth" / "meta.json")
    return isinstance(content, dict) and {"settings_hash", "classes"} <= set(content)


def all_of_phantoms(files: Iterable[Path]) -> bool:
    """Tell whether every file lies in the folder of a phantom, at any depth; False for no file.

    A copy elsewhere does not: what is not known to be generated counts as real.
    """
    known: dict[Path, bool] = {}
    found = []
    for file in files:
        parents = file.absolute().parents
        for folder in parents:
            if folder not in known:
                known[folder] = is_phantom(folder)
        found.append(any(known[folder] for folder in parents))
    return bool(found) and all(found)

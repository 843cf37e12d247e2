"""Whether files belong to a phantom: `medclip_debias.phantom` leaves its truth beside them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from medclip_debias.files import read_json_or_none


def is_phantom(source_path: Path) -> bool:
    """Tell whether a source is synthetic, by the truth in its folder."""
    folder = source_path if source_path.is_dir() else source_path.parent
    return _holds_truth(folder)


def in_phantom(path: Path) -> bool:
    """Tell whether a file lies anywhere below the folder of a phantom."""
    return any(map(_holds_truth, path.absolute().parents))


def _holds_truth(folder: Path) -> bool:
    content = read_json_or_none(folder / "truth" / "meta.json")
    return isinstance(content, dict) and {"settings_hash", "classes"} <= set(content)


def all_of_phantoms(files: Iterable[Path]) -> bool:
    """Tell whether every file lies below the folder of a phantom; False for no file.

    A copy elsewhere does not: what is not known to be generated counts as real.
    """
    holds_truth = cache(_holds_truth)  # for this call: hundreds of thousands share a few folders
    found = [any(map(holds_truth, file.absolute().parents)) for file in files]
    return bool(found) and all(found)

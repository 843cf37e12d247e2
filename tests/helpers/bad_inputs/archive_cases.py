"""Archives in each layout that the phantom can write, damaged in the ways of downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import case
from bad_inputs.folder_cases import empty, halve, scramble
from bad_inputs.world import World
from phantom_layouts import LAYOUTS

TABLES = (".csv", ".csv.gz", ".json", ".jsonl", ".txt", ".xlsx", ".parquet")
IMAGES = (".png", ".jpg", ".dcm", ".dicom")
ASIDE = "(?i)row|line|cell|label|image|study"


def of_kind(tree: Path, endings: tuple[str, ...]) -> list[Path]:
    """The files of a tree with such an ending, the phantom's truth aside."""
    files = (path for path in sorted(tree.rglob("*")) if path.is_file())
    return [p for p in files if p.name.endswith(endings) and "truth" not in p.parts]


def _every(kind: str, endings: tuple[str, ...], damage: Callable[[Path], object]) -> None:
    """Damage every such file of a layout's tree."""

    def build(world: World) -> list[str]:
        tree = world.layout(kind)
        for path in of_kind(tree, endings):
            damage(path)
        return world.prepare(tree, "--kind", LAYOUTS[kind].source_kind)

    what, allowed = _WHAT[endings, damage]
    case(f"{LAYOUTS[kind].title} layout", what, *allowed, shows=ASIDE)(build)


def headless(path: Path) -> None:
    """Take the first line away."""
    content = path.read_bytes()
    path.write_bytes(content.partition(b"\n")[2])


def wide(path: Path) -> None:
    """Save a text as UTF-16, as spreadsheet programs do."""
    path.write_bytes(path.read_bytes().decode("utf-8", "replace").encode("utf-16"))


_WHAT = {
    (TABLES, empty): ("every table is empty", ("refused",)),
    (TABLES, halve): ("every table is cut off in the middle", ("refused", "counted")),
    (TABLES, scramble): ("every table is random bytes", ("refused",)),
    (TABLES, headless): ("every table without its first line", ("refused", "counted")),
    (TABLES, wide): ("every table in UTF-16", ("refused",)),
    (IMAGES, Path.unlink): ("no image is there", ("refused",)),
    (IMAGES, scramble): ("every image is random bytes", ("refused",)),
}
_READ_IMAGES = ("chexlocalize", "padchest", "rsna", "siim", "vindr_cxr")
"""Layouts whose source opens headers or compares sizes; images of the others take one way."""

for _kind in LAYOUTS:
    if _kind != "mimic_cxr":  # its cases are in table_cases
        for _endings, _damage in _WHAT:
            if _endings is TABLES or _kind in _READ_IMAGES:
                _every(_kind, _endings, _damage)

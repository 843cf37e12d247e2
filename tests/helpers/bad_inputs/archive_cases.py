"""Archives in each layout that the phantom can write, damaged in the ways of downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import case, cases, leads
from bad_inputs.folder_cases import empty, halve, scramble
from bad_inputs.world import World
from phantom_layouts import LAYOUTS

TABLES = (".csv", ".csv.gz", ".json", ".jsonl", ".txt", ".xlsx", ".parquet")
IMAGES = (".png", ".jpg", ".dcm", ".dicom")
ASIDE = "(?i)row|line|cell|label|image|study"


def headless(path: Path) -> None:
    """Take the first line away."""
    content = path.read_bytes()
    path.write_bytes(content.partition(b"\n")[2])


def wide(path: Path) -> None:
    """Save a text as UTF-16, as spreadsheet programs do."""
    path.write_bytes(path.read_bytes().decode("utf-8", "replace").encode("utf-16"))


def _every(world: World, kind: str, endings: tuple[str, ...], damage: Callable) -> list[str]:
    """Damage every such file of a layout's tree, the phantom's truth aside."""
    tree = world.layout(kind)
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        if path.name.endswith(endings) and "truth" not in path.parts:
            damage(path)
    return world.prepare(tree, "--kind", LAYOUTS[kind].source_kind)


_READ_IMAGES = ("chexlocalize", "padchest", "rsna", "siim", "vindr_cxr")
"""Layouts whose source opens headers or compares sizes; images of the others take one way."""

for _kind in LAYOUTS:
    if _kind == "mimic_cxr":  # its cases are in table_cases
        continue
    table = {
        "every table is empty": (_kind, TABLES, empty),
        "every table is cut off in the middle": leads(
            (_kind, TABLES, halve), "refused", "counted", shows=ASIDE
        ),
        "every table is random bytes": (_kind, TABLES, scramble),
        "every table without its first line": leads(
            (_kind, TABLES, headless), "refused", "counted", shows=ASIDE
        ),
        "every table in UTF-16": (_kind, TABLES, wide),
    }
    if _kind in _READ_IMAGES:
        table["no image is there"] = (_kind, IMAGES, Path.unlink)
        table["every image is random bytes"] = (_kind, IMAGES, scramble)
    cases(f"{LAYOUTS[_kind].title} layout", _every, table, shows=ASIDE)


@case("ChestX-ray14 layout", "small copies of the images under their names")
def _small_copies(world: World) -> list[str]:
    from PIL import Image

    tree = world.layout("chestxray14")
    for path in sorted(tree.rglob("*.png")):
        copy = tree / "images-20" / path.name
        copy.parent.mkdir(exist_ok=True)
        Image.open(path).resize((20, 20)).save(copy)
    return world.prepare(tree, "--kind", "chestxray14")

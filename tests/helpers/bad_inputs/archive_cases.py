"""Archives in each layout that the phantom can write, damaged in the ways of downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import cases
from bad_inputs.folder_cases import halve, scramble
from bad_inputs.world import World
from phantom_layouts import LAYOUTS

TABLES = (".csv", ".csv.gz", ".json", ".jsonl", ".txt", ".xlsx", ".parquet")
IMAGES = (".png", ".jpg", ".dcm", ".dicom")


def headless(path: Path) -> None:
    """Take the first line away."""
    content = path.read_bytes()
    path.write_bytes(content.partition(b"\n")[2])


def _every(
    world: World, kind: str, damage: Callable[[Path], object], endings: tuple[str, ...] = TABLES
) -> list[str]:
    """Damage every such file of a layout's tree, the phantom's truth aside."""
    tree = world.layout(kind)
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        if path.name.endswith(endings) and "truth" not in path.parts:
            damage(path)
    return world.prepare(tree, "--kind", LAYOUTS[kind].source_kind)


def _small_copies(world: World, kind: str) -> list[str]:
    """Copies of the images under their names, as made for a quick look."""
    from PIL import Image

    tree = world.layout(kind)
    for path in sorted(tree.rglob("*.png")):
        copy = tree / "images-20" / path.name
        copy.parent.mkdir(exist_ok=True)
        Image.open(path).resize((20, 20)).save(copy)
    return world.prepare(tree, "--kind", kind)


AREA = "layouts of archives"
cases(
    AREA,
    _every,
    {
        # MIMIC-CXR's own cases are in table_cases.
        f"{layout.title}: every table is cut off": (kind, halve)
        for kind, layout in LAYOUTS.items()
        if kind != "mimic_cxr"
    },
)
cases(
    AREA,
    _every,
    {
        "lists of a split that are random bytes": ("chestxray14", scramble),
        "no table is known by its first line": ("chexlocalize", headless),
        "no DICOM file is there": ("rsna", Path.unlink, IMAGES),
        "every DICOM file is random bytes": ("rsna", scramble, IMAGES),
        "no image is there": ("padchest", Path.unlink, IMAGES),
    },
)
cases(AREA, _small_copies, {"small copies of the images under their names": "chestxray14"})

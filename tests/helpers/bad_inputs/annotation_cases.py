"""PadChest, PadChest-GR, VinDr-CXR and MS-CXR-T, damaged: lists in cells, boxes, readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import Counted, case, cases
from bad_inputs.world import PATIENT, World, change_json
from phantom_layouts import LAYOUTS


def _cells(world: World, kind: str, file: str, **first: str) -> list[str]:
    """A phantom in the layout of an archive, with cells of a table's first row changed."""
    tree = world.layout(kind)
    path = next(tree.rglob(file))
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table.loc[0, list(first)] = list(first.values())
    table.to_csv(path, index=False)
    return world.prepare(tree, "--kind", LAYOUTS[kind].source_kind)


def _padchest(world: World, **first: str) -> list[str]:
    return _cells(world, "padchest", "PADCHEST*.csv", Report="Quackenbush , tos .", **first)


NO_LIST = "is a list"
cases(
    "PadChest",
    _padchest,
    {
        "a cell of labels that is code": Counted(
            NO_LIST, {"Labels": "__import__('os').system('true')"}
        ),
        "a cell of labels with inner lists without end": Counted(NO_LIST, {"Labels": "[" * 40_000}),
        "labels with stray blanks": Counted(
            "blank before or behind", {"Labels": "[' nodule', 'pleural effusion ']"}
        ),
        "a row that names no image": Counted("names an image", {"ImageID": ""}),
        "an image that leads out of the folder": Counted(
            "image file is there", {"ImageID": "../../../etc/Quackenbush.png"}
        ),
        "a patient id that lost its digits": {"PatientID": "1.9877E+35"},
    },
)


def _grounded(world: World, change: Callable[[list[Any]], object]) -> list[str]:
    tree = world.layout("padchest_gr")
    change_json(next(tree.glob("grounded_reports*.json")), change)
    return world.prepare(tree, "--kind", LAYOUTS["padchest_gr"].source_kind)


def _finding(**changes: Any) -> Callable[[list[Any]], object]:
    """Change the first finding that has boxes."""

    def change(entries: list[Any]) -> None:
        findings = (finding for entry in entries for finding in entry["findings"])
        next(finding for finding in findings if finding["boxes"]).update(changes)

    return change


GROUNDED = "PadChest-GR"
cases(
    GROUNDED,
    _grounded,
    {
        "a box that is no number": _finding(boxes=[[float("nan"), 0, 1, 1]]),
        "a sentence that is a number": _finding(sentence_en=3),
        "no entries": lambda entries: entries.clear(),
        "an entry without findings": lambda entries: entries.append({"ImageID": "Zebulon"}),
        "a box without area": Counted("box has an area", _finding(boxes=[[0.1, 0.1, 0.1, 0.5]])),
        "a box in pixels": Counted("box lies in the image", _finding(boxes=[[100, 200, 300, 400]])),
        "an image that the master table lacks": Counted(
            r"is in master_table\.csv",
            lambda entries: entries.append(entries[0] | {"ImageID": "Zebulon.png"}),
        ),
    },
)


@case(GROUNDED, "an image in two splits")
def _two_splits(world: World) -> list[str]:
    words = _grounded(world, len)
    path = next(world.here.rglob("master_table.csv"))
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    again = table.head(1).assign(split="test" if table["split"][0] != "test" else "train")
    pd.concat([table, again]).to_csv(path, index=False)
    return words


LABELS, BOXES = "image_labels_test.csv", "annotations_test.csv"
cases(
    "VinDr-CXR",
    lambda world, file, **cells: _cells(world, "vindr_cxr", file, **cells),
    {
        "a corner that is infinite": {"file": BOXES, "y_max": "inf"},
        "a label of 2": Counted(
            "value that the archive defines", {"file": LABELS, "Pneumonia": "2"}
        ),
        "a box of an image without labels": Counted(
            "its image in the table", {"file": BOXES, "image_id": "9"}
        ),
        "a box whose corners are swapped": Counted(
            "box has an area", {"file": BOXES, "x_min": "50", "x_max": "2"}
        ),
        "a box of a finding that nobody labelled": Counted(
            "see the finding", {"file": BOXES, "class_name": "Edema"}
        ),
    },
)
cases(
    "MS-CXR-T",
    lambda world, **cells: _cells(world, "ms_cxr_t", "MS_CXR_T*.csv", **cells),
    {
        "a progression by another word": {"edema_progression": "Zebulon is better"},
        "an image that the release lacks": Counted(
            "are listed", {"previous_dicom_id": "Quackenbush"}
        ),
    },
)


@case("boxes (CSV)", "a header of a patient's cells")
def _headless_boxes(world: World) -> list[str]:
    text = f"dicom_id,Zebulon,x,y,w,h\n{PATIENT},Nodule,Quackenbush,1,1,1\n"
    return world.prepare(world.manifest(), "--phrases", str(world.file("MS_CXR_x.csv", text)))

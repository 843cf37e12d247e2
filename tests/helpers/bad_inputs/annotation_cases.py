"""PadChest, PadChest-GR, VinDr-CXR and MS-CXR-T, damaged: lists in cells, boxes, readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import PATIENT, STUDY, World

PADCHEST = "PadChest"
TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
_STEMS = "Quackenbush , tos . no derram pleural . torax sin alter signific ."
"""A report as PadChest has it: Spanish stems, no headings."""


def _csv(path: Path, rows: list[dict[str, str]]) -> None:
    import pandas as pd

    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def _padchest(world: World, **first: str) -> list[str]:
    rows = [
        {
            "ImageID": f"{number}.png",
            "ImageDir": "0",
            "StudyID": f"{int(STUDY) + number}",
            "PatientID": f"{int(PATIENT) + number}",
            "Projection": "PA",
            "Report": _STEMS,
            "MethodLabel": "Physician",
            "Labels": "['nodule', 'pleural effusion']",
            "LabelsLocalizationsBySentence": "[['nodule', 'loc right']]",
        }
        for number in range(6)
    ]
    for number in range(6):
        world.picture(f"padchest/0/{number}.png", seed=number)
    rows[0] |= first
    _csv(world.here / "padchest" / TABLE, rows)
    return world.prepare(world.here / "padchest")


for what, cells in {
    "a cell of labels that is code": {"Labels": "__import__('os').system('true')"},
    "a cell of labels that is cut off": {"Labels": "['nodule', 'pleural"},
    "a cell of labels with inner lists without end": {"Labels": "[" * 40_000},
    "a list without quotes": {"Labels": "[Quackenbush]"},
}.items():
    case(PADCHEST, what, "counted", shows="is a list")(
        lambda world, cells=cells: _padchest(world, **cells)
    )
case(PADCHEST, "labels with stray blanks", "counted", shows="blank before or behind")(
    lambda world: _padchest(world, Labels="[' nodule', 'pleural effusion ']")
)
case(PADCHEST, "a row that names no image", "counted", shows="names an image")(
    lambda world: _padchest(world, ImageID="")
)
case(PADCHEST, "an image that leads out of the folder", "counted", shows="image file is there")(
    lambda world: _padchest(world, ImageID="../../../etc/Quackenbush.png")
)
case(PADCHEST, "a patient id that lost its digits", "refused")(
    lambda world: _padchest(world, PatientID="1.9877E+35")
)

GROUNDED = "PadChest-GR"


def _grounded(change: Callable[[Any], Any]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        root = world.here / "gr"
        finding = {
            **{"sentence_en": "Nodule.", "sentence_es": "Nódulo.", "abnormal": True},
            **{"boxes": [[0.1, 0.1, 0.4, 0.5]], "extra_boxes": [], "labels": ["nodule"]},
            **{"locations": [], "progression": None},
        }
        entries: list[Any] = []
        rows = []
        for number in range(6):
            world.picture(f"gr/PadChest_GR/{number}.png", seed=number)
            ids = {"StudyID": f"{int(STUDY) + number}", "ImageID": f"{number}.png"}
            entries.append({**ids, "findings": [dict(finding)]})
            split = ("train", "train", "validation", "test", "test", "test")[number]
            rows.append({**ids, "PatientID": f"{int(PATIENT) + number}", "split": split})
        content = json.dumps(change(entries))
        (root / "grounded_reports_20240819.json").write_text(content, encoding="utf-8")
        _csv(root / "master_table.csv", rows)
        return world.prepare(root)

    return build


def _finding(**changes: Any) -> Callable[[Any], Any]:
    def change(entries: Any) -> Any:
        entries[3]["findings"][0] |= changes
        return entries

    return change


for what, change in {
    "boxes of three numbers": _finding(boxes=[[0.1, 0.2, 0.3]]),
    "a box of words": _finding(boxes=[["Zebulon", 0, 1, 1]]),
    "a box that is no number": _finding(boxes=[[float("nan"), 0, 1, 1]]),
    "labels that are a word": _finding(labels="Quackenbush"),
    "a sentence that is a number": _finding(sentence_en=3),
    "an object in place of the list": lambda entries: {"studies": entries},
    "an entry without findings": lambda entries: [*entries, {"ImageID": "Zebulon"}],
    "an empty list": lambda _: [],
}.items():
    case(GROUNDED, what, "refused")(_grounded(change))
case(GROUNDED, "a box without area", "counted", shows="box has an area")(
    _grounded(_finding(boxes=[[0.1, 0.1, 0.1, 0.5], [0.1, 0.1, 0.4, 0.5]]))
)
case(GROUNDED, "a box in pixels", "counted", shows="box lies in the image")(
    _grounded(_finding(boxes=[[100, 200, 300, 400]]))
)
case(GROUNDED, "an image that the master table lacks", "counted", shows=r"is in master_table\.csv")(
    _grounded(lambda entries: [*entries, entries[0] | {"ImageID": "Zebulon.png"}])
)


@case(GROUNDED, "an image in two splits", "refused")
def _two_splits(world: World) -> list[str]:
    words = _grounded(lambda entries: entries)(world)
    path = world.here / "gr" / "master_table.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, lines[1].replace("train", "test")]) + "\n")
    return words


VINDR = "VinDr-CXR"


def _vindr(labels: dict[str, str] | None = None, **box: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        for number in range(4):
            world.picture(f"vindr/test/{number}.png", seed=number)
        rows = [
            {"image_id": str(n), "Aortic enlargement": "1", "Edema": "0", "No finding": "0"}
            for n in range(4)
        ]
        rows[0] |= labels or {}
        corners = {"x_min": "2", "y_min": "2", "x_max": "20", "y_max": "30"}
        boxes = [{"image_id": str(n), "class_name": "Aortic enlargement"} | corners for n in (0, 1)]
        boxes[0] |= box
        folder = world.here / "vindr" / "annotations"
        _csv(folder / "image_labels_test.csv", rows)
        _csv(folder / "annotations_test.csv", boxes)
        return world.prepare(world.here / "vindr")

    return build


case(VINDR, "a corner that is a word", "refused")(_vindr(x_min="Zebulon"))
case(VINDR, "a corner that is infinite", "refused")(_vindr(y_max="inf"))
case(VINDR, "one corner blank", "refused")(_vindr(y_max=""))
case(VINDR, "a label of 2", "counted", shows="value that the archive defines")(
    _vindr({"Edema": "2"})
)
case(VINDR, "a box of an image without labels", "counted", shows="its image in the table")(
    _vindr(image_id="9")
)
case(VINDR, "a box whose corners are swapped", "counted", shows="box has an area")(
    _vindr(x_min="20", x_max="2")
)
case(VINDR, "a box of a finding that nobody labelled", "counted", shows="see the finding")(
    _vindr(class_name="Edema")
)

PROGRESSION = "MS-CXR-T"
_PAIRS = "MS_CXR_T_temporal_image_classification_v1.0.0.csv"


def _progression(**cells: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        import pandas as pd

        tree = world.copy("tree")
        images = pd.read_csv(next(tree.glob("mimic-cxr-*-metadata.csv.gz")), dtype=str)
        same = images.groupby("subject_id")["dicom_id"].agg(list)
        pairs = [names[:2] for names in same if len(names) > 1]
        rows = [
            {
                **{"dicom_id": later, "previous_dicom_id": earlier},
                **{"edema_progression": "stable", "edema_label_quality": "one_expert"},
            }
            for earlier, later in pairs
        ]
        rows[0] |= cells
        _csv(tree / _PAIRS, rows)
        return world.prepare(tree)

    return build


case(PROGRESSION, "a progression by another word", "refused")(
    _progression(edema_progression="Zebulon is better")
)
case(PROGRESSION, "an image that the release lacks", "counted", shows="are listed")(
    _progression(previous_dicom_id="Quackenbush")
)
case(PROGRESSION, "a pair of blanks", "counted", shows="are listed")(
    _progression(dicom_id="", previous_dicom_id="")
)

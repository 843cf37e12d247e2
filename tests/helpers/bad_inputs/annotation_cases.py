"""PadChest, PadChest-GR, VinDr-CXR and MS-CXR-T, damaged: lists in cells, boxes, readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bad_inputs.case import case, cases, counted
from bad_inputs.world import PATIENT, STUDY, World


def _padchest(world: World, **first: str) -> list[str]:
    rows = [
        {
            "ImageID": f"{number}.png",
            "ImageDir": "0",
            "StudyID": f"{int(STUDY) + number}",
            "PatientID": f"{int(PATIENT) + number}",
            "Projection": "PA",
            # Spanish stems without headings
            "Report": "Quackenbush , tos . no derram pleural . torax sin alter signific .",
            "MethodLabel": "Physician",
            "Labels": "['nodule', 'pleural effusion']",
            "LabelsLocalizationsBySentence": "[['nodule', 'loc right']]",
        }
        for number in range(6)
    ]
    for number in range(6):
        world.picture(f"padchest/0/{number}.png", seed=number)
    rows[0] |= first
    name = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
    return world.prepare(world.table(f"padchest/{name}", rows).parent)


NO_LIST = "is a list"
cases(
    "PadChest",
    _padchest,
    {
        "a cell of labels that is code": counted(
            NO_LIST, {"Labels": "__import__('os').system('true')"}
        ),
        "a cell of labels with inner lists without end": counted(NO_LIST, {"Labels": "[" * 40_000}),
        "labels with stray blanks": counted(
            "blank before or behind", {"Labels": "[' nodule', 'pleural effusion ']"}
        ),
        "a row that names no image": counted("names an image", {"ImageID": ""}),
        "an image that leads out of the folder": counted(
            "image file is there", {"ImageID": "../../../etc/Quackenbush.png"}
        ),
        "a patient id that lost its digits": {"PatientID": "1.9877E+35"},
    },
)

GROUNDED = "PadChest-GR"


def _grounded(world: World, change: Callable[[Any], Any] = lambda entries: entries) -> list[str]:
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
    world.file("gr/grounded_reports_20240819.json", change(entries))
    return world.prepare(world.table("gr/master_table.csv", rows).parent)


def _finding(**changes: Any) -> Callable[[Any], Any]:
    def change(entries: Any) -> Any:
        entries[3]["findings"][0] |= changes
        return entries

    return change


cases(
    GROUNDED,
    _grounded,
    {
        "a box that is no number": _finding(boxes=[[float("nan"), 0, 1, 1]]),
        "a sentence that is a number": _finding(sentence_en=3),
        "an object in place of the list": lambda entries: {"studies": entries},
        "an entry without findings": lambda entries: [*entries, {"ImageID": "Zebulon"}],
        "a box without area": counted(
            "box has an area", _finding(boxes=[[0.1, 0.1, 0.1, 0.5], [0.1, 0.1, 0.4, 0.5]])
        ),
        "a box in pixels": counted("box lies in the image", _finding(boxes=[[100, 200, 300, 400]])),
        "an image that the master table lacks": counted(
            r"is in master_table\.csv",
            lambda entries: [*entries, entries[0] | {"ImageID": "Zebulon.png"}],
        ),
    },
)


@case(GROUNDED, "an image in two splits")
def _two_splits(world: World) -> list[str]:
    words = _grounded(world)
    path = world.here / "gr" / "master_table.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, lines[1].replace("train", "test")]) + "\n")
    return words


def _vindr(world: World, labels: dict[str, str] | None = None, **box: str) -> list[str]:
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
    world.table("vindr/annotations/image_labels_test.csv", rows)
    world.table("vindr/annotations/annotations_test.csv", boxes)
    return world.prepare(world.here / "vindr")


cases(
    "VinDr-CXR",
    _vindr,
    {
        "a corner that is infinite": {"y_max": "inf"},
        "a label of 2": counted("value that the archive defines", {"labels": {"Edema": "2"}}),
        "a box of an image without labels": counted("its image in the table", {"image_id": "9"}),
        "a box whose corners are swapped": counted(
            "box has an area", {"x_min": "20", "x_max": "2"}
        ),
        "a box of a finding that nobody labelled": counted(
            "see the finding", {"class_name": "Edema"}
        ),
    },
)


def _progression(world: World, **cells: str) -> list[str]:
    import pandas as pd

    tree = world.copy("tree")
    images = pd.read_csv(next(tree.glob("mimic-cxr-*-metadata.csv.gz")), dtype=str)
    same = images.groupby("subject_id")["dicom_id"].agg(list)
    rows = [
        {
            **{"dicom_id": names[1], "previous_dicom_id": names[0]},
            **{"edema_progression": "stable", "edema_label_quality": "one_expert"},
        }
        for names in same
        if len(names) > 1
    ]
    rows[0] |= cells
    world.table("tree/MS_CXR_T_temporal_image_classification_v1.0.0.csv", rows)
    return world.prepare(tree)


cases(
    "MS-CXR-T",
    _progression,
    {
        "a progression by another word": {"edema_progression": "Zebulon is better"},
        "an image that the release lacks": counted(
            "are listed", {"previous_dicom_id": "Quackenbush"}
        ),
    },
)


@case("boxes (CSV)", "a header of a patient's cells")
def _headless_boxes(world: World) -> list[str]:
    text = f"dicom_id,Zebulon,x,y,w,h\n{PATIENT},Nodule,Quackenbush,1,1,1\n"
    return world.prepare(world.manifest(), "--phrases", str(world.file("MS_CXR_x.csv", text)))

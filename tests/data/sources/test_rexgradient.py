"""ReXGradient-160K: studies of several images, blanks in every spelling, odd entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medclip_debias.data.sources.detect import detect
from tests.data.sources.trees import write_image

NAMES = {
    "train": "train_metadata_view_position.json",
    "valid": "valid_metadata_view_position.json",
}


def study(number: int, images: int = 1, **changed: Any) -> dict[str, Any]:
    place = f"../deid_png/GRDN{number}/A{number}/studies/1.{number}/series/2.{number}/instances"
    return {
        "PatientID": f"GRDN{number}",
        "StudyInstanceUid": f"1.{number}",
        "Indication": "Cough",
        "Comparison": "None",
        "Findings": "Clear lungs.",
        "Impression": float("nan"),
        "ImagePath": [f"{place}/3.{number}.{n}.png" for n in range(images)],
        "ImageViewPosition": ["PA", "LATERAL", None][:images],
        **changed,
    }


def write(root: Path, split: str, *studies: Any) -> None:
    (root / "metadata").mkdir(exist_ok=True)
    content = {f"key{n}": entry for n, entry in enumerate(studies)}
    (root / "metadata" / NAMES[split]).write_text(json.dumps(content))
    for entry in studies:
        for name in entry.get("ImagePath") or () if isinstance(entry, dict) else ():
            write_image(root / name.removeprefix("../"))


def test_images_are_found_from_the_folder_of_the_archive_and_from_metadata(tmp_path):
    write(tmp_path, "train", study(1, 3), study(2))
    for given in (tmp_path, tmp_path / "metadata"):
        images = detect(given).images()
        assert [image.path.is_file() for image in images] == [True] * 4
    assert [image.view for image in images] == ["PA", "LATERAL", "", "PA"]
    assert {image.split for image in images} == {"train"}


def test_views_have_several_spellings(tmp_path):
    views = {"POSTERO_ANTERIOR": "PA", "antero_posterior": "AP", "LL": "LATERAL", "LAO": "LAO"}
    views |= {"UNKNOWN": "", "N/A": "", None: ""}
    studies = [study(n, ImageViewPosition=[view]) for n, view in enumerate(views)]
    write(tmp_path, "train", *studies)
    assert [image.view for image in detect(tmp_path).images()] == list(views.values())


def test_blank_sections_are_not_in_the_report(tmp_path):
    write(tmp_path, "train", study(1), study(2, Indication=None, Findings=None))
    reports = [s.report for s in detect(tmp_path).studies()]
    assert reports == ["INDICATION: Cough\n \nFINDINGS: Clear lungs.", None]


def test_entries_without_patient_study_or_image_are_counted(tmp_path):
    odd = (
        *("no object", study(9, PatientID=None), study(9, StudyInstanceUid=float("nan"))),
        *(study(9, ImagePath=[]), study(9, ImagePath=None)),
    )
    write(tmp_path, "train", study(1), *odd)
    found = detect(tmp_path)
    assert len(found.images()) == 1
    step = f"study of {NAMES['train']} has a patient, an id and images"
    assert found.steps() == [(step, "rows", 1, 6)]

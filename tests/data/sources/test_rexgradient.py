"""ReXGradient-160K: studies of several images, blanks in every spelling, odd entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.counts import steps
from tests.data.sources.trees import write_image

NAME = "train_metadata_view_position.json"


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


def write(root: Path, *studies: Any) -> None:
    (root / "metadata").mkdir()
    content = {f"key{n}": entry for n, entry in enumerate(studies)}
    (root / "metadata" / NAME).write_text(json.dumps(content))


def test_images_and_reports_are_found_from_the_archives_folder_and_from_metadata(tmp_path):
    studies = study(1, 3), study(2, Indication=None, Findings=None)
    write(tmp_path, *studies)
    for name in [name for entry in studies for name in entry["ImagePath"]]:
        write_image(tmp_path / name.removeprefix("../"))
    for given in (tmp_path, tmp_path / "metadata"):
        found = detect(given)
        assert [image.path.is_file() for image in found.images()] == [True] * 4
    assert [image.view for image in found.images()] == ["PA", "LATERAL", "", "PA"]
    assert {image.split for image in found.images()} == {"train"}
    reports = [s.report for s in found.studies()]
    assert reports == ["INDICATION: Cough\n \nFINDINGS: Clear lungs.", None]


def test_views_have_several_spellings(tmp_path):
    views = {"POSTERO_ANTERIOR": "PA", "antero_posterior": "AP", "LL": "LATERAL", "LAO": "LAO"}
    views |= {"UNKNOWN": "", "N/A": "", None: ""}
    write(tmp_path, *(study(n, ImageViewPosition=[view]) for n, view in enumerate(views)))
    assert [image.view for image in detect(tmp_path).images()] == list(views.values())


def test_odd_entries_are_counted_and_a_damaged_file_is_a_sentence(tmp_path):
    odd = (
        *("no object", study(9, PatientID=None), study(9, StudyInstanceUid=float("nan"))),
        *(study(9, ImagePath=[]), study(9, ImagePath=None)),
    )
    write(tmp_path, study(1, ImageViewPosition=["PA", "PA"]), study(1), *odd)
    found = detect(tmp_path)
    assert [image.view for image in found.images()] == [""]
    assert steps(found) == {
        f"study of {NAME} has a patient, an id and images": (2, 7),
        f"image of {NAME} is named once": (1, 2),
    }
    assert "1 studies have more or fewer view positions than images" in " ".join(found.describe())
    (tmp_path / "metadata" / NAME).write_text("[]")
    with pytest.raises(UserError, match="is not an object of studies"):
        detect(tmp_path)

"""The MIMIC-CXR tree, whole and with parts missing."""

import gzip
import json
import zipfile

import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError


def table(tree, name):
    return next(tree.root.glob(f"mimic-cxr-*-{name}.csv.gz"))


def rewrite(path, change):
    with gzip.open(path, "rt") as file:
        text = file.read()
    with gzip.open(path, "wt") as file:
        file.write(change(text))


def test_the_tree_is_recognised_and_described(tiny_tree):
    source = detect(tiny_tree.root)
    assert source.kind == "mimic_cxr"
    said = " ".join(source.describe())
    assert "5 images" in said
    assert "MS_CXR_Local_Alignment_v1.0.0.json" in said


def test_images_carry_ids_view_and_split(tiny_tree):
    images = detect(tiny_tree.root).images()
    found = [(i.image_id, i.patient_id, i.study_id, i.view, i.split) for i in images]
    assert found[1] == ("b", "10000002", "102", "PA", "train")
    assert [i.path.suffix for i in images] == [".dcm", ".dcm", ".dcm", ".jpg", ".dcm"]
    assert all(i.path.is_file() for i in images)


def test_labels_join_by_study_and_radiologists_win_on_test_alone(tiny_tree):
    labels = {s.study_id: s.labels for s in detect(tiny_tree.root).studies()}
    assert labels["101"] == {"Edema": 0.0, "Lung Opacity": None, "Pleural Effusion": 0.0}
    assert labels["102"]["Lung Opacity"] == -1.0
    assert labels["103"] == {}
    assert labels["104"] == {"Lung Opacity": 0.0, "Edema": 1.0}


def test_reports_are_read_from_the_zip_as_from_the_tree(tiny_tree):
    expected = [s.report for s in detect(tiny_tree.root).studies()]
    with zipfile.ZipFile(tiny_tree.root / "mimic-cxr-reports.zip", "w") as archive:
        for path in sorted(tiny_tree.root.glob("files/*/*/s*.txt")):
            archive.write(path, path.relative_to(tiny_tree.root).as_posix())
            path.unlink()
    assert [s.report for s in detect(tiny_tree.root).studies()] == expected


def test_only_the_wanted_studies_are_read(tiny_tree):
    source = detect(tiny_tree.root)
    assert [s.study_id for s in source.studies({"104", "102"})] == ["102", "104"]


def test_one_phrase_is_the_union_of_its_boxes(tiny_tree):
    (phrase,) = detect(tiny_tree.root).phrases()
    assert (phrase.image_id, phrase.category) == ("b", "Pleural Effusion")
    assert phrase.boxes == ((10, 20, 30, 40), (50, 60, 10, 10))
    assert phrase.annotated_size == (80, 96)


def test_patients_with_boxes_are_held_out(tiny_tree):
    assert detect(tiny_tree.root).held_out_patients() == {"10000002"}


def test_patients_of_listed_images_that_are_elsewhere_are_held_out_too(tiny_tree):
    path = next(tiny_tree.root.glob("MS_CXR*.json"))
    coco = json.loads(path.read_text())
    place = "files/p10/p10000001/s999/zz.jpg"
    coco["images"].append({"id": 5, "file_name": "zz.jpg", "path": place})
    path.write_text(json.dumps(coco))
    assert detect(tiny_tree.root).held_out_patients() == {"10000001", "10000002"}


@pytest.mark.parametrize("name", ["metadata", "split"])
def test_a_missing_table_is_named(tiny_tree, name):
    table(tiny_tree, name).unlink()
    with pytest.raises(UserError, match=rf"the table mimic-cxr-\*-{name}\.csv\* is missing"):
        detect(tiny_tree.root)


def test_without_chexpert_the_set_goes_on_and_says_so(tiny_tree):
    table(tiny_tree, "chexpert").unlink()
    assert any("chexpert" in line for line in detect(tiny_tree.root).describe())


def test_a_release_without_reports_names_the_zip(tiny_tree):
    for path in tiny_tree.root.glob("files/*/*/s*.txt"):
        path.unlink()
    with pytest.raises(UserError, match=r"has no report.*mimic-cxr-reports\.zip"):
        detect(tiny_tree.root)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("metadata", lambda t: t.replace("ViewPosition", "View"), "column 'ViewPosition' is miss"),
        ("metadata", lambda t: t + "a,10000001,101,AP,48,40\n", "row 7: its dicom_id .* row 2"),
        ("metadata", lambda t: t.replace("\nb,10000002", "\nb,"), "row 3: .* blank or no number"),
        ("metadata", lambda t: t.splitlines()[0] + "\n", "has no rows"),
        ("split", lambda t: t.replace("validate", "dev"), "row 5: split 'dev' is not train"),
    ],
)
def test_a_broken_table_is_named_with_its_row(tiny_tree, name, change, sentence):
    path = table(tiny_tree, name)
    rewrite(path, change)
    with pytest.raises(UserError, match=sentence) as caught:
        detect(tiny_tree.root)
    assert path.name in str(caught.value)


def test_a_truncated_table_is_refused(tiny_tree):
    path = table(tiny_tree, "metadata")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match="gzip file is truncated"):
        detect(tiny_tree.root)


def test_two_releases_in_one_folder_are_refused(tiny_tree):
    (tiny_tree.root / "mimic-cxr-2.1.0-split.csv").write_text("dicom_id,split\n")
    with pytest.raises(UserError, match="keep one release"):
        detect(tiny_tree.root)


def test_the_phantom_is_such_a_tree(phantom_tree):
    source = detect(phantom_tree)
    assert source.kind == "mimic_cxr"
    assert {i.split for i in source.images()} == {"train", "validate", "test"}
    assert source.phrases()

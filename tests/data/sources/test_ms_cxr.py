"""COCO phrases: matching, scaling, and broken files."""

import json
from pathlib import Path

import pytest

from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources.ms_cxr import BoxFile, find
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_table

ROOT = Path("/data")


def read_phrases(path, images):
    return BoxFile(path, images, ROOT).phrases()


IMAGES = [
    ImageRecord("one", "s", "p", ROOT / "x" / "one.dcm", "AP", "train"),
    ImageRecord("x/1.2.840", "s", "p", ROOT / "x" / "1.2.840.dcm.gz", "AP", "train"),
    ImageRecord("y/two", "s", "p", ROOT / "y" / "two.png", "AP", "train"),
    ImageRecord("z/two", "s", "p", ROOT / "z" / "two.png", "AP", "train"),
]


def coco(tmp_path, **changes):
    content = {
        "images": [{"id": 1, "file_name": "one.jpg", "width": 10, "height": 20}],
        "categories": [{"id": 3, "name": "Edema"}],
        "annotations": [
            {"id": 8, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "label_text": "mild"}
        ],
    }
    path = tmp_path / "a.coco.json"
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"file_name": "one.jpg"}, "one"),
        ({"file_name": "release/data/x/1.2.840.jpg"}, "x/1.2.840"),
        ({"file_name": "elsewhere/1.2.840.jpg"}, "elsewhere/1.2.840.jpg"),
        ({"file_name": "z/two.png"}, "z/two"),
        ({"file_name": "two.png", "path": "y/two.png"}, "y/two"),
    ],
)
def test_images_match_when_one_path_ends_in_the_other(tmp_path, entry, expected):
    path = coco(tmp_path, images=[{"id": 1, "width": 10, "height": 20} | entry])
    (phrase,) = read_phrases(path, IMAGES)
    assert phrase.image_id == expected


CHEXPERT = [
    ImageRecord(
        f"{p}/study1/view1_frontal", "s", p, ROOT / p / "study1" / "view1_frontal.jpg", "", ""
    )
    for p in ("patient1", "patient2")
]


def named(tmp_path, *names):
    entries = [{"id": number} | name for number, name in enumerate(names, start=1)]
    box = {"category_id": None, "bbox": [1, 2, 3, 4], "label_text": "mild"}
    boxes = [{"id": e["id"], "image_id": e["id"]} | box for e in entries]
    return coco(tmp_path, images=entries, annotations=boxes)


FRONTAL = "study1/view1_frontal.jpg"


@pytest.mark.parametrize(
    ("names", "images", "found"),
    [
        (  # images that are all named alike
            [{"file_name": f"valid/patient{n}/{FRONTAL}"} for n in (2, 3, 1)],
            CHEXPERT,
            [CHEXPERT[1].image_id, f"valid/patient3/{FRONTAL}", CHEXPERT[0].image_id],
        ),
        (  # the longer path wins over the bare name
            [{"file_name": "view1_frontal.jpg", "path": f"patient{n}/{FRONTAL}"} for n in (3, 1)],
            CHEXPERT[:1],
            [f"patient3/{FRONTAL}", CHEXPERT[0].image_id],
        ),
        (  # an id without folders does not stand for every folder
            [{"file_name": "patient3/view1_frontal.jpg"}, {"file_name": "view1_frontal"}],
            [ImageRecord("view1_frontal", "s", "p", ROOT / "patient1/view1_frontal.jpg", "", "")],
            ["patient3/view1_frontal.jpg", "view1_frontal"],
        ),
    ],
    ids=["folders", "paths", "bare"],
)
def test_an_image_has_its_own_boxes_and_no_other_ones(tmp_path, names, images, found):
    path = named(tmp_path, *names)
    assert [phrase.image_id for phrase in read_phrases(path, images)] == found


def test_an_image_that_is_listed_twice_has_one_phrase_and_ids_stay_unique(tmp_path):
    one, large = {"file_name": "one.jpg"}, {"file_name": "one.jpg", "width": 20, "height": 40}
    found = read_phrases(named(tmp_path, one, one, large), IMAGES)
    read = [(phrase.phrase_id, len(phrase.boxes), phrase.annotated_size) for phrase in found]
    assert read == [("one/1", 2, None), ("one/2", 1, (20, 40))]


def test_the_boxes_of_another_patient_are_said_to_be_that(tmp_path):
    path = named(tmp_path, {"file_name": f"patient3/{FRONTAL}"})
    said = BoxFile(path, CHEXPERT[:1], ROOT).describe(None)[1]
    assert "1 images of a.coco.json have the name of an image here but lie in other" in said


@pytest.mark.parametrize(
    ("names", "images", "sentence"),
    [
        ([{"file_name": "view1_frontal.jpg"}], CHEXPERT, "image 1: 2 images have its name"),
        (
            [{"file_name": "a/view1_frontal.jpg"}, {"file_name": "b/view1_frontal.jpg"}],
            [ImageRecord("view1_frontal", "s", "p", ROOT / "view1_frontal.jpg", "", "")],
            "images 1 and 2: both have the name of one image",
        ),
    ],
)
def test_a_name_that_fits_two_is_refused(tmp_path, names, images, sentence):
    with pytest.raises(UserError, match=sentence):
        read_phrases(named(tmp_path, *names), images)


def annotation(**changes):
    base = {"id": 8, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "label_text": "mild"}
    return {"annotations": [base | changes]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (annotation(label_text=""), "annotation 8: has no 'label_text'"),
        (annotation(bbox=[float("nan"), 2, 3, 4]), "annotation 8: its 'bbox' must be"),
        ({"categories": [{"name": "x"}]}, "an entry of 'categories' has no 'id'"),
        ({"images": 2 * [{"id": 1}]}, "two of its images have one 'id'"),
        (annotation(split="other"), "annotation 8: its split is not one of"),
        ({"images": [{"id": 1, "width": "ten", "height": 3}]}, "image 1: 'width' and 'height'"),
    ],
)
def test_a_broken_file_names_the_annotation(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_phrases(coco(tmp_path, **changes), IMAGES)


ROW = {"category_name": "Edema", "label_text": "mild", "dicom_id": "one"}
ROW |= {"path": "files/p10/p10000005/s1/one.jpg", "image_width": "10", "image_height": "20"}
ROW |= {"x": "1", "y": "2", "w": "3", "h": "4"}


def table(path, *changes, extra=()):
    rows = [ROW | change for change in changes]
    names = [*ROW, *extra]
    return write_table(path, names, *([row.get(name, "") for name in names] for row in rows))


def test_the_csv_reads_as_the_json_does_a_phrase_per_image_category_and_text(tmp_path):
    json_phrases = read_phrases(coco(tmp_path), IMAGES)
    path = table(tmp_path / "MS_CXR_Local_Alignment_v1.0.0.csv", {})
    assert read_phrases(path, IMAGES) == json_phrases
    assert BoxFile(path, IMAGES, ROOT).patients() == {"p", "10000005"}
    changes = [{}, {"x": "7"}, {"category_name": "Pneumonia"}, {"label_text": "severe"}]
    path = table(tmp_path / "a.csv", *changes)
    found = [(p.category, p.text, len(p.boxes)) for p in read_phrases(path, IMAGES)]
    assert found == [("Edema", "mild", 2), ("Pneumonia", "mild", 1), ("Edema", "severe", 1)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{}, {"x": "?"}], "row 3: column 'x' must be a number of pixels"),
        ([{}, {"image_width": "11"}], "row 3: its image has another path or size above"),
        ([{"label_text": ""}], "row 2: has no 'label_text'"),
        ([{"dicom_id": "", "path": ""}], "row 2: names no image"),
    ],
)
def test_a_broken_csv_names_the_row(tmp_path, rows, sentence):
    path = table(tmp_path / "a.csv", *rows)
    with pytest.raises(UserError, match=sentence):
        read_phrases(path, IMAGES)


def test_the_json_is_preferred_because_the_csv_truncates(tmp_path):
    assert find(tmp_path) is None
    path = table(tmp_path / "MS_CXR_Local_Alignment_v1.0.0.csv", {})
    assert find(tmp_path) == path
    (tmp_path / "MS_CXR_Local_Alignment_v1.0.0.json").write_text("{}")
    assert find(tmp_path).suffix == ".json"
    (tmp_path / "MS_CXR_Local_Alignment_v1.1.0.json").write_text("{}")
    with pytest.raises(UserError, match=r"both MS_CXR_.*v1\.0\.0\.json and .*v1\.1\.0\.json"):
        find(tmp_path)


def test_version_1_1_splits_its_annotations(tmp_path):
    (phrase,) = read_phrases(coco(tmp_path, **annotation(split="val")), IMAGES)
    assert phrase.split == "validate"
    path = table(tmp_path / "a.csv", {"split": "test"}, extra=("split",))
    assert [p.split for p in read_phrases(path, IMAGES)] == ["test"]
    path = table(tmp_path / "a.csv", {"split": "test"}, {"split": "train"}, extra=("split",))
    with pytest.raises(UserError, match="row 3: its phrase has another split"):
        read_phrases(path, IMAGES)

"""COCO phrases: matching, scaling, and broken files."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources.ms_cxr import find, patients, read_phrases, scale_boxes
from medclip_debias.errors import UserError

ROOT = Path("/data")
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
        ({"file_name": "elsewhere/1.2.840.jpg"}, "x/1.2.840"),
        ({"file_name": "z/two.png"}, "z/two"),
        ({"file_name": "two.png", "path": "y/two.png"}, "y/two"),
        ({"file_name": "two.png"}, "two"),
        ({"file_name": "three.png"}, "three"),
    ],
)
def test_images_match_by_path_then_by_an_unshared_stem(tmp_path, entry, expected):
    path = coco(tmp_path, images=[{"id": 1, "width": 10, "height": 20} | entry])
    (phrase,) = read_phrases(path, IMAGES, ROOT)
    assert phrase.image_id == expected


def test_boxes_scale_with_the_image():
    scaled = scale_boxes([(10, 20, 30, 40)], (100, 200), (50, 50))
    assert scaled == [[5, 5, 15, 10]]
    assert scale_boxes([(10, 20, 30, 40)], None, (50, 50)) == [[10, 20, 30, 30]]
    assert scale_boxes([(60, 0, 5, 5)], None, (50, 50)) == []


@given(
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.lists(st.floats(-1, 2), min_size=4, max_size=4),
)
def test_scaled_boxes_lie_in_the_image(annotated, actual, part):
    left, top, *sides = (p * annotated[i % 2] for i, p in enumerate(part))
    box = (left, top, *map(abs, sides))
    for x, y, w, h in scale_boxes([box], annotated, actual):
        assert x >= 0
        assert y >= 0
        assert x + w <= actual[0] + 1e-6
        assert y + h <= actual[1] + 1e-6


def annotation(**changes):
    base = {"id": 8, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "label_text": "mild"}
    return {"annotations": [base | changes]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (annotation(label_text=""), "annotation 8: has no 'label_text'"),
        (annotation(bbox=[1, 2, 3]), "annotation 8: its 'bbox' must be"),
        (annotation(bbox=[1, 2, 0, 4]), "annotation 8: its 'bbox' must be"),
        (annotation(bbox=None), "annotation 8: its 'bbox' must be"),
        (annotation(image_id=2), "annotation 8: its image_id is not among"),
        (annotation(category_id=[3]), "annotation 8: its category_id must be"),
        ({"images": {}}, "has no list 'images'"),
        ({"annotations": [{}]}, "an entry of 'annotations' has no 'id'"),
        ({"annotations": [{"id": [1]}]}, "an entry of 'annotations' has no 'id'"),
        ({"categories": [{"name": "x"}]}, "an entry of 'categories' has no 'id'"),
        ({"categories": None}, "has no list 'categories'"),
        ({"images": 2 * [{"id": 1}]}, "two of its images have one 'id'"),
        (annotation(image_id=[1]), "annotation 8: its image_id is not among"),
        (annotation(bbox=[1, 2, float("nan"), 4]), "annotation 8: its 'bbox' must be"),
        (annotation(bbox=[float("nan"), 2, 3, 4]), "annotation 8: its 'bbox' must be"),
        (annotation(split="other"), "annotation 8: its split is not one of"),
        ({"images": [{"id": 1, "width": "ten", "height": 3}]}, "image 1: 'width' and 'height'"),
    ],
)
def test_a_broken_file_names_the_annotation(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_phrases(coco(tmp_path, **changes), IMAGES, ROOT)


def test_what_is_no_json_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(UserError, match="not a readable JSON"):
        read_phrases(path, IMAGES, ROOT)


ROW = {
    "category_name": "Edema",
    "label_text": "mild",
    "path": "files/p10/p10000005/s1/one.jpg",
    "dicom_id": "one",
    "image_width": "10",
    "image_height": "20",
    "x": "1",
    "y": "2",
    "w": "3",
    "h": "4",
}


def table(path, *changes, extra=()):
    rows = [ROW | change for change in changes]
    names = [*ROW, *extra]
    lines = [",".join(names)] + [",".join(row.get(n, "") for n in names) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_csv_reads_as_the_json_does(tmp_path):
    json_phrases = read_phrases(coco(tmp_path), IMAGES, ROOT)
    path = table(tmp_path / "MS_CXR_Local_Alignment_v1.0.0.csv", {})
    assert read_phrases(path, IMAGES, ROOT) == json_phrases
    assert patients(path, IMAGES, ROOT) == {"p", "10000005"}


def test_the_csv_gives_one_phrase_per_image_category_and_text(tmp_path):
    changes = [{}, {"x": "7"}, {"category_name": "Pneumonia"}, {"label_text": "severe"}]
    path = table(tmp_path / "a.csv", *changes)
    found = [(p.category, p.text, len(p.boxes)) for p in read_phrases(path, IMAGES, ROOT)]
    assert found == [("Edema", "mild", 2), ("Pneumonia", "mild", 1), ("Edema", "severe", 1)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{}, {"x": "?"}], "row 3, column 'x': must be a number of pixels"),
        ([{"w": "0"}], "row 2: its 'bbox' must be"),
        ([{"h": "nan"}], "row 2: its 'bbox' must be"),
        ([{}, {"image_width": "11"}], "row 3: its image has another path or size above"),
        ([{"label_text": ""}], "row 2: has no 'label_text'"),
        ([{"dicom_id": "", "path": ""}], "row 2: names no image"),
        ([{"image_width": "1e400"}], "'width' and 'height' must be"),
    ],
)
def test_a_broken_csv_names_the_row(tmp_path, rows, sentence):
    path = table(tmp_path / "a.csv", *rows)
    with pytest.raises(UserError, match=sentence):
        read_phrases(path, IMAGES, ROOT)


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
    (phrase,) = read_phrases(coco(tmp_path, **annotation(split="val")), IMAGES, ROOT)
    assert phrase.split == "validate"
    path = table(tmp_path / "a.csv", {"split": "test"}, extra=("split",))
    assert [p.split for p in read_phrases(path, IMAGES, ROOT)] == ["test"]
    path = table(tmp_path / "a.csv", {"split": "test"}, {"split": "train"}, extra=("split",))
    with pytest.raises(UserError, match="row 3: its phrase has another split"):
        read_phrases(path, IMAGES, ROOT)

"""VinDr-CXR: three readers in train, a consensus in test, DICOM files and no report."""

import numpy as np
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.label_maps import load_label_map
from medclip_debias.data.prepare import prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.counts import step
from tests.data.sources.trees import write_image, write_table

FINDINGS = (
    "Aortic enlargement",
    "Pleural effusion",
    "Rib fracture",
    "Other diseases",
    "No finding",
)
TRAIN = [
    ("a", "R1", "0", "1", "0", "0", "0"),
    ("a", "R2", "0", "1", "1", "0", "0"),
    ("a", "R3", "1", "1", "1.0", "0", "0"),
    ("b", "R1", "0", "0", "0", "0", "1"),
    ("b", "R4", "0", "0", "0", "0", "1"),
    ("b", "R5", "1", "0", "0", "0", "0"),
    ("c", "R1", "1", "0", "0", "0", "0"),
    ("c", "R2", "0", "1", "0", "0", "0"),
]
TEST = [("d", "1", "1", "0", "0", "0"), ("e", "0", "0", "0", "0", "1")]
BOXES = [
    ("a", "R1", "Pleural effusion", "2", "3", "10.5", "20"),
    ("a", "R2", "Pleural effusion", "3", "3", "11", "20"),
    ("a", "R3", "Aortic enlargement", "5", "5", "9", "9"),
    ("b", "R1", "No finding", "", "", "", ""),
]
TEST_BOXES = [("d", "Aortic enlargement", "1", "2", "6", "9"), ("e", "No finding", "", "", "", "")]


def write(root, train=TRAIN, test=TEST, boxes=BOXES, inside="annotations", reader="rad_id"):
    corners = ("x_min", "y_min", "x_max", "y_max")
    folder = root / inside
    if train is not None:
        write_table(folder / "image_labels_train.csv", ("image_id", reader, *FINDINGS), *train)
        names = ("image_id", "rad_id", "class_name", *corners)
        write_table(folder / "annotations_train.csv", names, *boxes)
    spelled = [name.replace("Other diseases", "Other disease") for name in FINDINGS]
    write_table(folder / "image_labels_test.csv", ("image_id", *spelled), *test)
    write_table(folder / "annotations_test.csv", ("image_id", "class_name", *corners), *TEST_BOXES)
    return root


def test_a_label_is_the_majoritys_and_uncertain_where_there_is_none(tmp_path):
    source = detect(write(tmp_path))
    assert source.kind == "vindr_cxr"
    labels = {s.study_id: s.labels for s in source.studies()}
    assert (labels["a"]["Pleural Effusion"], labels["a"]["Fracture"]) == (1.0, 1.0)
    assert labels["a"]["Aortic enlargement"] == labels["a"]["No Finding"] == 0.0
    assert (labels["b"]["No Finding"], labels["b"]["Aortic enlargement"]) == (1.0, 0.0)
    assert (labels["c"]["Pleural Effusion"], labels["c"]["Aortic enlargement"]) == (-1.0, -1.0)
    assert labels["c"]["No Finding"] == 0.0
    assert (labels["d"]["Aortic enlargement"], labels["e"]["No Finding"]) == (1.0, 1.0)
    assert labels["d"].keys() == labels["a"].keys()
    assert "Other diseases" in labels["d"]
    assert "Other disease" not in labels["d"]
    assert "Pneumothorax" not in labels["d"]  # no column asks for it, so that nobody denied it
    assert step(source, "every reader of the image sees") == (4, 10)
    assert step(source, "not equally many for and against") == (8, 10)


def test_readers_who_see_different_kinds_of_one_label_see_that_label(tmp_path):
    names = ("image_id", "rad_id", "Aortic enlargement", "Rib fracture", "Clavicle fracture")
    rows = ["a,R1,0,1,0", "a,R2,0,0,1", "a,R3,0,0,0"]
    rows += ["b,R1,0,1,0", "b,R2,0,1,1", "b,R3,0,0,0", "b,R4,0,0,0"]
    write_table(tmp_path / "image_labels_train.csv", names, *rows)
    labels = {s.study_id: s.labels for s in detect(tmp_path).studies()}
    assert labels["a"] == {"Fracture": 1.0} | dict.fromkeys(names[2:], 0.0)
    assert (labels["b"]["Fracture"], labels["b"]["Clavicle fracture"]) == (-1.0, 0.0)
    columns = {name: np.array([labels[image][name] for image in "ab"]) for name in labels["a"]}
    bound = load_label_map("vindr_cxr").bind([*columns], ["Fracture"], "a set")
    assert bound.values(columns.__getitem__, str)["Fracture"].tolist() == [1.0, -1.0]


def test_phrases_are_the_majoritys_findings_with_every_readers_boxes(tmp_path):
    source = detect(write(tmp_path))
    both = ((2, 3, 8.5, 17), (3, 3, 8, 17))
    assert [(p.image_id, p.category, p.text, p.split, p.boxes) for p in source.phrases()] == [
        ("a", "Pleural Effusion", "Pleural effusion.", "train", both),
        ("d", "Aortic enlargement", "Aortic enlargement.", "test", ((1, 2, 5, 7),)),
    ]
    assert step(source, "row of annotations_train.csv has a box") == (3, 4)
    assert step(source, "finding of the box (annotations_train.csv)") == (2, 3)
    assert step(source, "row of annotations_test.csv has a box") == (1, 2)
    labels, boxes = source.annotations()
    assert ("a", "R3", "Aortic enlargement") in labels.rows
    assert ("d", "consensus", "Aortic enlargement") in labels.rows
    assert ("a", "R3", "Aortic enlargement", [[5.0, 5.0, 4.0, 4.0]]) in boxes.rows


@pytest.mark.parametrize("name", ["train_meta.csv", "test_meta.csv"])
def test_copies_of_another_size_scale_their_boxes(tmp_path, name):
    root = write(tmp_path / "v", train=None, inside=".")
    for image in "de":
        write_image(root / "test" / f"{image}.png", shape=(24, 18), dtype=np.uint16)
    write_table(root / name, ("image_id", "dim0", "dim1"), ("d", "48", "36"))
    made = prepare(root, tmp_path / "o", PrepareSettings(size=16), workers=1)
    assert made.phrases["boxes"].tolist() == [[[0.5, 1.0, 2.5, 3.5]]]


def test_what_is_odd_in_the_tables_is_counted(tmp_path):
    train = [*TRAIN, TRAIN[0], ("f", "R1", "2", "", "0", "0", "0")]
    stray = ("z", *BOXES[0][1:])
    source = detect(write(tmp_path, train, boxes=[*BOXES, BOXES[0], stray]))
    for words, counts in {
        "row of image_labels_train.csv is not a repeat": (9, 10),
        "label cell of image_labels_train.csv has a value that the archive": (43, 44),
        "label cell of image_labels_train.csv is filled in": (44, 45),
        "row of annotations_train.csv is not a repeat": (5, 6),
        "box of annotations_train.csv has its image in the table": (3, 4),
    }.items():
        assert step(source, words) == counts


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test": [("a", *TEST[0][1:])]}, "row 2: its image is in both parts"),
        ({"boxes": [(*BOXES[0][:3], "nan", "1", "2", "3")]}, "row 2: x_min ... y_max must be"),
        ({"reader": "radiologist"}, "column 'rad_id' is missing"),
    ],
)
def test_a_broken_table_names_the_row(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        detect(write(tmp_path, **changes))

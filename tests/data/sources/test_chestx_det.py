"""ChestX-Det and ChestX-Det10: lists of boxes and outlines, and what is wrong in them."""

import json

import numpy as np

from medclip_debias.data.masks import component_boxes, decode
from medclip_debias.data.sources.detect import detect
from tests.data.sources.counts import steps

SQUARE = [[100, 200], [300, 200], [300, 260], [100, 260]]
DIAMOND = [[600, 500], [640, 540], [600, 580], [560, 540]]
TRAIN = [
    {
        "file_name": "36200.png",
        "syms": ["Effusion", "Diffuse Nodule", "Effusion"],
        "boxes": [[100, 200, 300, 260], [1, 2, 3, 4], [560, 500, 640, 580]],
        "polygons": [SQUARE, [[1, 2], [3, 2], [3, 4]], DIAMOND],
    },
    {"file_name": "36201.png", "syms": [], "boxes": [], "polygons": []},
]
TEST = [
    {"file_name": "36199.png", "syms": ["Mass"], "boxes": [[0, 0, 512, 1024]], "polygons": [SQUARE]}
]


def write(folder, train=TRAIN, test=TEST, names=("ChestX_Det_train.json", "ChestX_Det_test.json")):
    for name, entries in zip(names, (train, test), strict=True):
        (folder / name).write_text(json.dumps(entries))
    return folder


def test_boxes_of_a_class_are_one_phrase_with_the_outlines_as_its_mask_and_a_label(tmp_path):
    source = detect(write(tmp_path))
    assert source.kind == "chestx_det"
    phrases = {(p.image_id, p.category): p for p in source.phrases()}
    effusion = phrases["36200", "Pleural Effusion"]
    assert effusion.boxes == ((100.0, 200.0, 200.0, 60.0), (560.0, 500.0, 80.0, 80.0))
    assert effusion.text == "Pleural effusion."
    pixels = decode(effusion.mask)
    assert component_boxes(pixels)[0] == effusion.boxes[0]
    # Inside a diamond lies what is nearer to its centre than 40, by the sum of both distances;
    # on its edges, either answer is right.
    y, x = np.mgrid[500:580, 560:640] + 0.5
    distance = abs(x - 600) + abs(y - 540)
    clear = distance != 40
    assert np.array_equal(pixels[500:580, 560:640][clear], (distance < 40)[clear])
    assert pixels.sum() == 200 * 60 + pixels[500:580, 560:640].sum()
    assert all(kept == before for kept, before in steps(source).values())
    labels = {s.study_id: s.labels for s in source.studies()}
    assert {len(own) for own in labels.values()} == {13}
    assert {n for n, v in labels["36200"].items() if v} == {"Pleural Effusion", "Diffuse Nodule"}
    assert set(labels["36201"].values()) == {0.0}


def test_chestx_det10_has_ten_classes_and_no_outlines(tmp_path):
    train = [{k: v for k, v in entry.items() if k != "polygons"} for entry in TRAIN]
    source = detect(write(tmp_path, train, TRAIN[1:], ("train.json", "test.json")))
    assert source.kind == "chestx_det"
    assert {len(s.labels) for s in source.studies()} == {10}
    assert {p.mask for p in source.phrases()} == {None}
    assert steps(source)["finding of train.json is one of the archive's"] == (2, 3)
    assert steps(source)["entry of test.json is not a repeat"] == (0, 1)


def test_what_is_odd_in_the_lists_is_counted(tmp_path):
    both = {"syms": ["Mass", "Nodule"], "boxes": [[1, 2, 3, 4]] * 2, "polygons": [SQUARE] * 2}
    train = [
        {"file_name": "1.png", **both, "polygons": [SQUARE, SQUARE[:2]]},
        {"file_name": "2.png", **both, "boxes": [[1, 2, 3], [1, 2, 3, 4]]},
        {"file_name": "3.png", **both, "boxes": [[1, 2, 3, 4]]},
        {"file_name": "4.png", "syms": []},
    ]
    source = detect(write(tmp_path, train))
    assert {
        name.replace(" of ChestX_Det_train.json", ""): n for name, n in steps(source).items()
    } == {
        "entry has a name and its lists": (3, 4),
        "finding has a box of its own": (4, 6),
        "box is four numbers": (3, 4),
        "outline has three points or more": (3, 4),
    }
    labels = {s.study_id: s.labels for s in source.studies()}
    assert all(labels[name]["Nodule"] == 1.0 for name in "123")

"""CheXlocalize: masks by image and finding, on CheXpert's images and labels beside them."""

import json

import numpy as np
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.masks import as_coco, decode, encode
from medclip_debias.data.prepare import merge, prepare
from medclip_debias.data.prepare.run import prepare_part
from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.counts import steps
from tests.data.sources.trees import write_image, write_table

LABELS = (
    "No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,Edema,"
    "Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,"
    "Support Devices"
)
SHAPE = (50, 60)
VALUES = ",".join(["0.0", "0.0", "1.0", *["0.0"] * 11])


def area(*boxes):
    pixels = np.zeros(SHAPE, dtype=bool)
    for x, y, width, height in boxes:
        pixels[y : y + height, x : x + width] = True
    return pixels


def coco(pixels):
    return json.loads(as_coco(encode(pixels)))


HEART, EMPTY = area((10, 20, 30, 20)), area()


def write(folder, val=None, test=None):
    """One patient of each set; the validation table's paths are those of CheXpert's release."""
    root = folder / "CheXpert"
    images = ("val/patient1/study1/view1_frontal.jpg", "val/patient1/study1/view2_lateral.jpg")
    for name in (*images, "test/patient2/study1/view1_frontal.jpg"):
        write_image(root / name, shape=SHAPE)
    rows = [
        f"CheXpert-v1.0/valid/patient1/study1/view1_frontal.jpg,Male,73,Frontal,AP,{VALUES}",
        f"CheXpert-v1.0/valid/patient1/study1/view2_lateral.jpg,Male,73,Lateral,,{VALUES}",
    ]
    header = f"Path,Sex,Age,Frontal/Lateral,AP/PA,{LABELS}"
    write_table(root / "val_labels.csv", header, *rows)
    row = f"test/patient2/study1/view1_frontal.jpg,{VALUES}"
    write_table(root / "test_labels.csv", f"Path,{LABELS}", row)
    (folder / "CheXlocalize").mkdir(exist_ok=True)
    for name, content in (("val", val), ("test", test)):
        if content is not None:
            path = folder / "CheXlocalize" / f"gt_segmentations_{name}.json"
            path.write_text(json.dumps(content))
    return folder


VAL = {"patient1_study1_view1_frontal": {"Cardiomegaly": coco(HEART), "Edema": coco(EMPTY)}}
TEST = {
    "patient2_study1_view1_frontal": {
        "Airspace Opacity": coco(area((1, 2, 3, 4), (40, 30, 5, 6))),
        "Cardiomegaly": coco(HEART),
    }
}


def test_masks_are_phrases_with_the_boxes_of_their_parts(tmp_path):
    source = detect(write(tmp_path, VAL, TEST))
    assert source.kind == "chexlocalize"
    phrases = {(p.image_id, p.category): p for p in source.phrases()}
    assert set(phrases) == {
        ("patient1/study1/view1_frontal", "Cardiomegaly"),
        ("patient2/study1/view1_frontal", "Lung Opacity"),
        ("patient2/study1/view1_frontal", "Cardiomegaly"),
    }
    opacity = phrases["patient2/study1/view1_frontal", "Lung Opacity"]
    assert opacity.boxes == ((1.0, 2.0, 3.0, 4.0), (40.0, 30.0, 5.0, 6.0))
    assert (opacity.text, opacity.annotated_size) == ("Lung opacity.", (60, 50))
    heart = phrases["patient1/study1/view1_frontal", "Cardiomegaly"]
    assert np.array_equal(decode(heart.mask), HEART)
    assert steps(source)[
        "mask of gt_segmentations_val.json has a pixel (the finding is present)"
    ] == (1, 2)


def test_images_and_labels_are_those_of_chexpert(tmp_path):
    source = detect(write(tmp_path, VAL, TEST))
    found = [(i.image_id, i.view, i.split, i.path.is_file()) for i in source.images()]
    assert found == [
        ("patient1/study1/view1_frontal", "AP", "validate", True),
        ("patient1/study1/view2_lateral", "LATERAL", "validate", True),
        ("patient2/study1/view1_frontal", "FRONTAL", "test", True),
    ]
    assert {s.labels["Cardiomegaly"] for s in source.studies()} == {1.0}
    assert detect(tmp_path / "CheXpert").kind == "chexpert"


def test_parts_join_to_the_set_of_one_run_with_its_masks(tmp_path):
    write(tmp_path / "tree", VAL, TEST)
    settings = PrepareSettings(size=32)
    whole = prepare(tmp_path / "tree", tmp_path / "whole", settings, workers=1)
    parts = [tmp_path / "part1", tmp_path / "part2"]
    for number, part in enumerate(parts, start=1):
        prepare_part(tmp_path / "tree", part, settings, f"{number}/2", workers=1)
    joined = merge(parts, tmp_path / "joined")
    assert joined.content_hash == whole.content_hash
    assert joined.masks == whole.masks


def test_what_is_odd_is_counted(tmp_path):
    val = {
        "patient1_study1_view1_frontal": {
            "Cardiomegaly": {"size": [50, 60], "counts": "!"},
            "Edema": {"size": [50, 60]},
            "Atelectasis": coco(np.ones((70, 60), dtype=bool)),  # of another shape
        },
        "patient9_study1_view1_frontal": {"Edema": coco(HEART)},
    }
    source = detect(write(tmp_path, val))
    name = "gt_segmentations_val.json"
    assert {step: n for step, n in steps(source).items() if name in step} == {
        f"image of {name} is in the labels' table": (1, 2),
        f"mask of {name} can be read": (2, 4),
    }
    out = prepare(tmp_path, tmp_path / "set", PrepareSettings(size=32), workers=1)
    assert len(out.phrases) == 0
    funnel = {step["step"]: (step["kept"], step["dropped"]) for step in out.funnel}
    assert funnel["image of the phrase kept"] == (1, 1)
    assert funnel["image has the shape it had when it was annotated"] == (0, 1)


@pytest.mark.parametrize("content", [[], {"patient1_study1_view1_frontal": []}])
def test_a_file_of_another_form_is_one_sentence(tmp_path, content):
    with pytest.raises(UserError, match="does not map images to findings and masks"):
        detect(write(tmp_path, content))


def test_masks_without_chexpert_beside_them_are_refused(tmp_path):
    (tmp_path / "gt_segmentations_val.json").write_text(json.dumps(VAL))
    with pytest.raises(UserError, match="has no table of CheXlocalize"):
        detect(tmp_path)

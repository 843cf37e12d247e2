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


VAL = {"patient1_study1_view1_frontal": {"Cardiomegaly": coco(HEART), "Edema": coco(EMPTY)}}
TEST = {
    "patient2_study1_view1_frontal": {
        "Airspace Opacity": coco(area((1, 2, 3, 4), (40, 30, 5, 6))),
        "Cardiomegaly": coco(HEART),
    }
}


def write(folder, **masks):
    """One patient of each set; the validation table's paths are those of CheXpert's release."""
    root = folder / "CheXpert"
    names = [f"study1/view{view}" for view in ("1_frontal.jpg", "2_lateral.jpg")]
    for name in (*(f"val/patient1/{name}" for name in names), f"test/patient2/{names[0]}"):
        write_image(root / name, shape=SHAPE)
    sides = ("Male,73,Frontal,AP", "Male,73,Lateral,")
    rows = [
        f"CheXpert-v1.0/valid/patient1/{name},{side},{VALUES}"
        for name, side in zip(names, sides, strict=True)
    ]
    write_table(root / "val_labels.csv", f"Path,Sex,Age,Frontal/Lateral,AP/PA,{LABELS}", *rows)
    row = f"test/patient2/{names[0]},{VALUES}"
    write_table(root / "test_labels.csv", f"Path,{LABELS}", row)
    (folder / "CheXlocalize").mkdir()
    for name, content in masks.items():
        path = folder / "CheXlocalize" / f"gt_segmentations_{name}.json"
        path.write_text(json.dumps(content))
    return folder


def test_masks_are_phrases_on_chexperts_images(tmp_path):
    source = detect(write(tmp_path, val=VAL, test=TEST))
    assert source.kind == "chexlocalize"
    first, second = "patient1/study1/view1_frontal", "patient2/study1/view1_frontal"
    assert {s.labels["Cardiomegaly"] for s in source.studies()} == {1.0}
    phrases = {(p.image_id, p.category): p for p in source.phrases()}
    expected = {(first, "Cardiomegaly"), (second, "Lung Opacity"), (second, "Cardiomegaly")}
    assert set(phrases) == expected
    opacity = phrases[second, "Lung Opacity"]
    assert opacity.boxes == ((1.0, 2.0, 3.0, 4.0), (40.0, 30.0, 5.0, 6.0))
    assert (opacity.text, opacity.annotated_size) == ("Lung opacity.", (60, 50))
    assert np.array_equal(decode(phrases[first, "Cardiomegaly"].mask), HEART)
    pixel = "mask of gt_segmentations_val.json has a pixel (the finding is present)"
    assert steps(source)[pixel] == (1, 2)
    assert detect(tmp_path / "CheXpert").kind == "chexpert"


def test_parts_join_to_the_set_of_one_run_with_its_masks(tmp_path):
    write(tmp_path / "tree", val=VAL, test=TEST)
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
    source = detect(write(tmp_path, val=val))
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


def test_a_file_of_another_form_and_masks_without_chexpert_are_refused(tmp_path):
    (tmp_path / "gt_segmentations_val.json").write_text(json.dumps(VAL))
    with pytest.raises(UserError, match="has no table of CheXlocalize"):
        detect(tmp_path)
    with pytest.raises(UserError, match="does not map images to findings and masks"):
        detect(write(tmp_path / "tree", val={"patient1_study1_view1_frontal": []}))

"""TBX11K: boxes of tuberculosis, in COCO's lists or in tables; images without a box have none."""

import json

import pytest

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image, write_table

BOXES = {
    "tb/tb1.png": [("ActiveTuberculosis", [1.5, 2, 10, 12]), ("ActiveTuberculosis", [20, 2, 5, 5])],
    "tb/tb2.png": [("ObsoletePulmonaryTuberculosis", [3, 4, 5, 6])],
    "health/h1.png": [],
}
SPLITS = {"tb/tb1.png": "train", "tb/tb2.png": "val", "health/h1.png": "val"}


def images(folder):
    for number, name in enumerate(SPLITS):
        write_image(folder / name, number, (40, 40))


def coco(folder, names, boxes, classes=("ActiveTuberculosis",), split="train"):
    """Write a list; a box is the numbers of its image and class, and its sides."""
    path = folder / "annotations" / "json" / f"TBX11K_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = ("image_id", "category_id", "bbox")
    content = {
        "images": [{"id": at, "file_name": name} for at, name in enumerate(names)],
        "categories": [{"id": at, "name": name} for at, name in enumerate(classes)],
        "annotations": [dict(zip(keys, box, strict=True)) for box in boxes],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(params=["lists", "tables"])
def tree(request, tmp_path):
    images(tmp_path / "imgs")
    if request.param == "tables":
        rows = [f"{name.split('/')[1]},{split}" for name, split in SPLITS.items()]
        write_table(tmp_path / "images.csv", "image,class", *rows)
        rows = [
            f"{name.split('/')[1]},{finding},{','.join(map(str, box))}"
            for name, own in BOXES.items()
            for finding, box in own
        ]
        write_table(tmp_path / "boxes.csv", "image,finding,x,y,width,height", *rows)
        return tmp_path
    classes = ["ActiveTuberculosis", "ObsoletePulmonaryTuberculosis"]
    for split in ("train", "val"):
        names = [name for name in SPLITS if SPLITS[name] == split]
        boxes = [
            (at, classes.index(finding), box)
            for at, name in enumerate(names)
            for finding, box in BOXES[name]
        ]
        coco(tmp_path, names, boxes, classes, split)
    return tmp_path


def test_boxes_are_phrases_and_classes_are_labels(tree, tmp_path):
    keep = SelectionSettings(without_sentence="keep")
    made = prepare(tree, tmp_path / "o", PrepareSettings(size=32), selection=keep, workers=1)
    assert made.meta["kind"] == "tbx11k"
    labels = made.studies.set_index("study_id")
    assert labels["Active Tuberculosis"].to_dict() == {"tb1": 1.0, "tb2": 0.0, "h1": 0.0}
    obsolete = {"tb1": 0.0, "tb2": 1.0, "h1": 0.0}
    assert labels["Obsolete Pulmonary Tuberculosis"].to_dict() == obsolete
    assert labels["split"].to_dict() == {"tb1": "train", "tb2": "validate", "h1": "validate"}
    phrases = {phrase.image_id: phrase for phrase in made.phrases.itertuples()}
    assert phrases["tb1"].text == "Active tuberculosis."
    assert phrases["tb1"].boxes == [[1.5, 2, 10, 12], [20, 2, 5, 5]]
    assert set(phrases) == {"tb1", "tb2"}


def test_a_finding_whose_box_is_broken_is_there_and_no_phrase(tmp_path):
    rows = (
        "a.png,ActiveTuberculosis,?,2,3,4",
        "b.png,,,,,",
        "c.png,ObsoletePulmonaryTuberculosis,,,,",
    )
    table = write_table(tmp_path / "t" / "boxes.csv", "image,finding,x,y,width,height", *rows)
    write_table(table.with_name("images.csv"), "image,class", *(f"{n}.png,train" for n in "abc"))
    coco(tmp_path / "l", ["a.png", "b.png"], [(0, 0, [1, 2, 3])])
    for folder, present in (("t", [1.0, 0.0, 0.0]), ("l", [1.0, 0.0])):
        source = detect(tmp_path / folder, "tbx11k")
        assert [study.labels["Active Tuberculosis"] for study in source.studies()] == present
        assert source.phrases() == []
    labels = {s.study_id: s.labels for s in detect(tmp_path / "t").studies()}
    assert labels["c"]["Obsolete Pulmonary Tuberculosis"] == 1.0


def test_boxes_of_lists_fit_a_copy_of_another_size(tmp_path):
    """The archive's images have 512 pixels a side, copies of it 256 or 224."""
    write_image(tmp_path / "imgs" / "tb1.png", 0, (40, 40))
    path = coco(tmp_path, ["tb/tb1.png"], [(0, 0, [128, 256, 64, 32])])
    content = json.loads(path.read_text())
    content["images"][0] |= {"width": 512, "height": 512}
    path.write_text(json.dumps(content))
    keep = SelectionSettings(without_sentence="keep")
    made = prepare(tmp_path, tmp_path / "o", PrepareSettings(size=32), selection=keep, workers=1)
    assert made.phrases["boxes"].tolist() == [[[10.0, 20.0, 5.0, 2.5]]]


def test_the_real_copy_is_read(shared_data, tmp_path):
    keep = SelectionSettings(without_sentence="keep")
    made = prepare(
        shared_data / "tbx11k", tmp_path / "o", PrepareSettings(size=32), selection=keep, workers=1
    )
    assert len(made) == 522
    assert sum(map(len, made.phrases["boxes"])) == 789


@pytest.mark.parametrize("content", ['{"images": []}', '{"images": [{"id": [1]}]}', "[]"])
def test_damaged_lists_are_a_sentence(tmp_path, content):
    coco(tmp_path, [], []).write_text(content)
    with pytest.raises(UserError, match="is not a list of images, categories and annotations"):
        detect(tmp_path)


@pytest.mark.parametrize(("image", "side"), [(0, "x"), (9, 4), (None, 4)])
def test_odd_boxes_are_counted(tmp_path, image, side):
    coco(tmp_path, ["a.png"], [(image, 0, [1, 2, 3, side])])
    step = ("annotation of TBX11K_train.json has image and box", "boxes", 0, 1)
    assert step in detect(tmp_path).steps()


def test_images_of_one_stem_are_one_and_counted(tree):
    path = tree / "images.csv"
    if path.is_file():
        path.write_text(path.read_text() + "tb1.jpg,train\n")
    else:
        path = tree / "annotations" / "json" / "TBX11K_train.json"
        content = json.loads(path.read_text())
        content["images"].append({"id": 9, "file_name": "tb/tb1.jpg"})
        path.write_text(json.dumps(content))
    source = detect(tree)
    assert len(source.images()) == len(SPLITS)
    (step,) = [s for s in source.steps() if s[0] == f"image of {path.name} has a stem of its own"]
    assert step[3] - step[2] == 1

"""Files that grounding writes: maps, pictures, boxes, and what is said about bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from medclip_debias.cli import run
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.errors import UserError
from medclip_debias.grounding.files import GroundOptions, ground_files
from medclip_debias.grounding.find import find_images
from medclip_debias.grounding.reference import ReferenceBoxes
from medclip_debias.grounding.regions import threshold_regions
from medclip_debias.grounding.settings import SuppressionRule
from medclip_debias.grounding.validation import NOT_MEASURED
from medclip_debias.models.synthetic import WARNING
from tests.helpers.coco import write_coco

PLAIN = GroundOptions(style={"legend": False})
"""For tests that do not look at the pictures: a legend takes most of their time."""


@pytest.fixture
def image_file(tmp_path, radiograph):
    """A function that writes a picture and returns its path."""

    def write(name, *shape):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(radiograph(*shape).astype(np.uint8)).save(path)
        return path

    return write


@pytest.fixture
def coco(tmp_path):
    """A COCO file of two phrases on ``a.png`` (annotated at half its size) and one on ``z.png``."""
    boxes = [("Left lung", [5, 6, 10, 12]), ("Left lung", [20, 6, 10, 12])]
    boxes.append(("Heart.", [30, 20, 8, 9]))
    other = [("Left lung", [0, 0, 5, 5])]
    return write_coco(
        tmp_path / "boxes.json", ("a.jpg", boxes, (60, 40)), ("z.jpg", other, (60, 40))
    )


def test_maps_scores_and_pictures_of_each_sentence(model, image_file, tmp_path):
    path = image_file("image.png", 120, 180)
    texts = ["Left lung.", "  Right lung: effusion?  "]
    options = GroundOptions(style={"legend": False, "max_side": 0, "alpha": 1})
    result = ground_files(model, [path], texts, tmp_path / "out", options)
    assert json.loads((tmp_path / "out" / "groundings.json").read_text()) == result
    assert "share them only under the terms of the data" in result["notice"]
    square = prepare_image(read_radiograph(path), model.preprocessing.prepare)
    pixels = torch.from_numpy(square)[None]
    (entry,) = result["images"]
    assert (entry["height"], entry["width"]) == (120, 180)
    names = ["01_left-lung", "02_right-lung-effusion"]
    for name, row, text in zip(names, entry["sentences"], texts, strict=True):
        with torch.no_grad():  # one sentence at a time, the image encoded anew
            features = model.encode_images(pixels)
            vector = model.encode_sentences([text.strip()])
            score = model.score(features, vector).item()
            cosines = (features.regions[0] @ vector[0]).numpy()
        assert row["map"] == str(tmp_path / "out" / f"{name}.npy")
        heatmap = np.load(row["map"], allow_pickle=False)
        assert (heatmap.shape, heatmap.dtype) == ((120, 180), np.float32)
        assert row["score"] == pytest.approx(score, abs=1e-5)
        assert row["highest"] == pytest.approx(np.nanmax(heatmap))
        assert cosines.min() - 1e-5 <= np.nanmin(heatmap) <= np.nanmax(heatmap)
        assert np.nanmax(heatmap) <= cosines.max() + 1e-5
        x, y = row["peak"]
        assert heatmap[int(y), int(x)] == np.nanmax(heatmap)
        # 96 / 180 prepared pixels to one: the crop of 8 on each side hides 15 columns.
        assert np.isnan(heatmap[:, :15]).all()
        assert not np.isnan(heatmap[:, 16:-16]).any()
        # By default only what exceeds absent findings is coloured.
        picture = np.asarray(Image.open(row["picture"]).convert("RGB")).astype(int)
        below = ~(heatmap >= entry["absent"]["reference"])
        assert not (np.ptp(picture, axis=2)[below] > 0).any()


def test_found_boxes_are_those_of_the_map(model, image_file, tmp_path):
    path = image_file("image.png", 90, 70)
    ground_files(model, [path], ["Left lung."], tmp_path / "plain", PLAIN)
    heatmap = np.load(tmp_path / "plain" / "01_left-lung.npy")
    threshold = float(np.nanmin(heatmap) + np.nanmax(heatmap)) / 2
    options = PLAIN.model_copy(update={"threshold": threshold, "min_area": 3, "maps": False})
    found = ground_files(model, [path], ["Left lung."], tmp_path / "out", options)
    (row,) = found["images"][0]["sentences"]
    regions = threshold_regions(heatmap, threshold, min_area=3)
    assert [found["box"] for found in row["boxes"]] == [list(region.box) for region in regions]
    assert row["map"] is None
    assert not list((tmp_path / "out").glob("*.npy"))


def test_reference_boxes_are_scaled_and_matched_by_phrase(model, image_file, coco, tmp_path):
    texts, options = ["left lung.", "Pleural effusion."], PLAIN.model_copy(update={"maps": False})
    paths = [image_file("a.png", 80, 120)]
    result = ground_files(model, paths, texts, tmp_path / "out", options, boxes=coco)
    same, other = (row["reference"] for row in result["images"][0]["sentences"])
    assert same == {"match": "phrase", "boxes": [[10, 12, 20, 24], [40, 12, 20, 24]]}
    assert other == {"match": "image", "boxes": [*same["boxes"], [60, 40, 16, 18]]}


def test_several_images_get_folders_and_bad_ones_are_listed(model, image_file, tmp_path):
    good = [image_file("a.png", 50, 60), image_file("b.png", 60, 50)]
    flat, broken = (tmp_path / "images" / name for name in ("flat.png", "x.jpg"))
    Image.fromarray(np.full((19, 19), 7, np.uint8)).save(flat)
    broken.write_bytes(good[0].read_bytes()[:-60])
    files = find_images([tmp_path / "images"])
    assert files == [*good, flat, broken]
    result = ground_files(model, files, ["Left lung."], tmp_path / "out", PLAIN)
    assert [entry["image"] for entry in result["images"]] == [str(path) for path in good]
    assert [entry["image"] for entry in result["rejected"]] == [str(flat), str(broken)]
    for entry, name in zip(result["images"], "ab", strict=True):
        assert entry["sentences"][0]["map"] == str(tmp_path / "out" / name / "01_left-lung.npy")
        assert np.load(entry["sentences"][0]["map"]).shape == (entry["height"], entry["width"])
    with pytest.raises(UserError, match="none of the 2 images can be used"):
        ground_files(model, [flat, broken], ["Left lung."], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_list_names_images_relative_to_itself(image_file, tmp_path):
    path = image_file("a.png", 40, 40)
    (tmp_path / "list.txt").write_text("images/a.png\n\n")
    assert find_images([tmp_path / "list.txt", path]) == [path]
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "folder").mkdir()
    empty = {"empty.txt": "lists no image", "folder": "holds no DICOM", "": "No image was given"}
    for name, words in empty.items():
        with pytest.raises(UserError, match=words):
            find_images([tmp_path / name] if name else [])


def test_the_verb_grounds_sentences_from_a_file(model, image_file, coco, tmp_path, capsys):
    folder = tmp_path / "model"
    model.save(folder)
    path = image_file("a.png", 80, 120)
    (tmp_path / "words.txt").write_text("Left lung.\n\nRight lung.\n" + "lung " * 40 + "\n")
    words = ["ground", folder, path, "--sentences", tmp_path / "words.txt", "--text", "Heart."]
    words += ["--threshold", "0.1", "--contour", "0.0", "--boxes", coco, "--no-legend"]
    assert run([str(word) for word in [*words, "--out", tmp_path / "out", "--json"]]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    texts = [row["text"] for row in result["images"][0]["sentences"]]
    assert texts == ["Heart.", "Left lung.", "Right lung.", ("lung " * 40).strip()]
    # 40 words need more than the 16 tokens that the encoder reads: cut, and said without them.
    assert result["cut_sentences"] == [4]
    assert "Sentence 4 has" in captured.err
    assert "lung lung" not in captured.err

    text = ["--text", "Lung."]
    for words, sentence in (
        ([], "No sentence was given"),
        (["--sentences", "absent.txt"], "absent.txt"),
        ([*text, "--colormap", "jett"], "did you mean 'jet'"),
        ([*text, "--limits", "0.5", "0.1"], "limits must rise"),
        ([*text, "--boxes", "absent.json"], "absent.json"),
    ):
        assert run(["ground", str(folder), str(path), *words, "--out", str(tmp_path / "no")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


TWO = ("patient1/study1/frontal.png", "patient2/study1/frontal.png")
ASIDE = "images whose name the file lists in other"


@pytest.mark.parametrize(
    ("images", "listed", "boxes", "aside"),
    [
        (  # of an image that is listed in other folders nothing is drawn, and that is said
            TWO,
            ((f"images/{TWO[0]}", [1, 1, 9, 9]), (f"train/{TWO[1]}", [2, 2, 9, 9])),
            [[[1, 1, 9, 9]], []],
            ASIDE,
        ),
        (  # boxes that mean nothing are counted; those of another size are scaled
            ("a.png", "b.png", "c.png"),
            (
                ("a.png", [2, 4, 20, 20], 120, 80),
                ("b.png", [1, 1, 9, 9], 60, 60),
                ("c.png", [1, 1, 0, 9]),
                ("c.png", [99, 99, 9, 9]),
            ),
            [[[1, 2, 10, 10]], [], []],
            "phrases of an image with another ratio of its sides: 1; boxes without area: 1; boxes"
            " outside their image: 1",
        ),
    ],
)
def test_reference_boxes_are_those_of_the_right_image(tmp_path, images, listed, boxes, aside):
    file = write_coco(
        tmp_path / "b.json",
        *((name, [("Phrase", box)], (*size, 60, 40)[:2]) for name, box, *size in listed),
    )
    paths = [tmp_path / "images" / image for image in images]
    references = ReferenceBoxes.read(file, paths)
    assert [references.of(path, "Left lung.", (40, 60))[0] for path in paths] == boxes
    assert aside in "".join(references.left_aside())
    with pytest.raises(UserError, match="holds no box for the images given"):
        ReferenceBoxes.read(file, [tmp_path / "other.png"])


def test_links_are_followed_once_and_counted_where_they_lead_nowhere(image_file, tmp_path):
    root, picture = tmp_path / "archive", image_file("a.png", 40, 60)
    root.mkdir()
    (root / "other").symlink_to(picture.parent)
    (picture.parent / "back").symlink_to(root)
    (root / "gone.png").symlink_to("nowhere")
    lines = []
    assert find_images([root], lines.append) == [root / "other" / "a.png"]
    assert "1 links that lead nowhere" in lines[0]


def test_a_model_of_synthetic_images_says_so_before_images_that_are_no_phantoms(
    make_model, image_file, tmp_path, capsys
):
    model = make_model(96, 80, (0, 100))
    model.provenance = {"synthetic": True}
    model.save(tmp_path / "model")
    path = image_file("a.png", 60, 60)
    words = ["ground", tmp_path / "model", path, "--text", "Left lung.", "--out", tmp_path / "out"]
    assert run([str(word) for word in words]) == 0
    assert WARNING in capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "groundings.json").read_text())
    assert (found["warning"], found["maps"]) == (WARNING, NOT_MEASURED)
    truth = path.parent / "truth" / "meta.json"
    truth.parent.mkdir()
    truth.write_text('{"settings_hash": "x", "classes": []}')
    assert run([str(word) for word in words]) == 0
    assert WARNING not in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "groundings.json").read_text())["warning"] is None


def test_a_sentence_that_is_not_in_the_image_has_no_box_and_says_why(model, image_file, tmp_path):
    options = PLAIN.model_copy(update={"maps": False, "sharpen": "contrast"})
    path = image_file("a.png", 60, 80)

    def found(threshold):
        rule = SuppressionRule(evidence="score", threshold=threshold, slope=1.0)
        texts, out = ["Left lung.", "No pneumothorax."], tmp_path / f"{threshold}"
        made = ground_files(model, [path], texts, out, options, rule=rule)
        assert made["suppression"]["threshold"] == threshold
        return made["images"][0]["sentences"]

    there, denied = found(-1.0)
    assert there["in_image"]["there"]
    confidences = [box["confidence"] for box in there["boxes"]]
    assert confidences == sorted(confidences, reverse=True)
    assert confidences[0] == pytest.approx(there["in_image"]["probability"], abs=1e-5)
    assert (denied["boxes"], denied["in_image"]["why"]) == ([], "words")
    absent, _ = found(1.1)
    assert (absent["boxes"], absent["in_image"]["why"]) == ([], "image")

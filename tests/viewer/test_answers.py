"""What the page shows agrees with what the other verbs write for the same image and sentences."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pydicom
import pytest
import torch

from medclip_debias.cli import run
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.calibration import Calibration, FittedClass
from medclip_debias.evaluation.decisions.probability import Line
from medclip_debias.grounding.reference import ReferenceBoxes
from medclip_debias.grounding.validation import NOT_MEASURED
from medclip_debias.viewer.answers import (
    MOST_CHARACTERS,
    Answers,
    ShownPixels,
    checked_sentence,
    listed_images,
)
from tests.helpers.coco import write_coco

TEXTS = ["Left lung.", "Right lung."]


def test_an_export_is_what_the_verb_ground_writes(
    answers, model_folder, image_folder, tmp_path, capsys
):
    words = ["ground", model_folder, image_folder / "good.png", "--out", tmp_path / "maps"]
    words += ["--threshold", "0.05", "--no-legend", "--device", "cpu", "--json"]
    for text in TEXTS:
        words += ["--text", text]
    assert run([str(word) for word in words]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["images"]
    image = replace(answers.choose("good.png"), pixels=None)
    name, content = answers.export(image, 0, TEXTS, 0.05, "json")
    assert name == "found.json"
    found = json.loads(content)
    assert found["image"] == {"height": 90, "width": 70}
    assert NOT_MEASURED in found["warning"]
    assert found["findings"] == answers.models[0].findings(image.encoded[0])
    for row, entry in zip(found["sentences"], reported["sentences"], strict=True):
        assert row["text"] == entry["text"]
        assert [one["box"] for one in row["boxes"]] == [one["box"] for one in entry["boxes"]]
        (shown,) = answers.look(image, entry["text"])
        assert row["score"] == pytest.approx(entry["score"], abs=1e-6)
        for key in ("score", "lowest", "highest"):
            assert shown[key] == pytest.approx(entry[key], abs=1e-6)
        assert shown["peak"] == entry["peak"]
    with pytest.raises(UserError, match="not a DICOM file"):
        answers.export(image, 0, TEXTS, 0.05, "seg")
    with pytest.raises(UserError, match="1 to 20 sentences, not 0"):
        answers.export(image, 0, [], 0.05, "json")


def test_an_export_never_reads_a_file_of_the_images_name(answers, phantom_tree):
    """What was opened as one name may be called as a file that lies where the viewer runs."""
    image = replace(answers.read(next(phantom_tree.rglob("*.dcm"))), pixels=None)
    _, content = answers.export(image, 0, TEXTS, None, "json")
    assert json.loads(content)["image"]["SOPInstanceUID"] == image.source.header.SOPInstanceUID
    for threshold, words in ((None, "switch them on"), (1.0, "no box was found")):
        with pytest.raises(UserError, match=words):
            answers.export(image, 0, TEXTS, threshold, "seg")
    name, content = answers.export(image, 0, TEXTS, None, "sr")
    assert (name, content[128:132]) == ("scores_sr.dcm", b"DICM")


def test_pixels_come_as_the_file_holds_them(phantom_tree, answers):
    path = next(phantom_tree.rglob("*.dcm"))
    stored = pydicom.dcmread(path)
    pixels = answers.read(path).pixels
    sent = np.frombuffer(pixels.bytes(), "<u2").reshape(stored.Rows, stored.Columns)
    shown = pixels.low + pixels.step * sent.astype(float)
    values = sum((pixels.low, pixels.high)) - shown if pixels.inverted else shown
    slope, intercept = stored.get("RescaleSlope", 1), stored.get("RescaleIntercept", 0)
    np.testing.assert_allclose(values, stored.pixel_array * float(slope) + float(intercept))
    assert pixels.low <= pixels.window[0] < pixels.window[1] <= pixels.high


def test_a_first_window_shows_what_the_model_sees():
    """MONOCHROME1 with a window: the stored values at which the model's grey is black and white."""
    stored = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    raw = Radiograph.of(stored, inverted=True)
    seen = Radiograph(raw.codes, np.clip((raw.values - 1000) / 2000, 0, 1), inverted=True)
    found = ShownPixels.of(raw, (0, 100), seen)
    assert found.inverted
    # From 1,001 to 2,999 as stored; the scale is turned over for display.
    assert found.window == (4095 - 2999, 4095 - 1001)


def test_probabilities_are_the_logistic_of_the_scaled_difference(answers):
    """By hand, prompt by prompt, in double precision."""
    model, viewed = answers.model, answers.models[0]
    features = answers.choose("good.png").encoded[0].features
    rows = viewed.finder.of(features)
    (prompts,) = viewed.finder.prompt_sets
    assert {row["name"] for row in rows} == set(prompts.classes)

    def mean(texts):
        scores = [model.score(features, model.encode_sentences([text])).item() for text in texts]
        return math.fsum(scores) / len(scores)

    with torch.no_grad():
        scale = float(model.similarity.scale)
        for row in rows:
            sides = prompts.classes[row["name"]]
            means = mean(sides.positive), mean(sides.negative)
            assert (row["present"], row["absent"]) == pytest.approx(means, abs=1e-6)
            expected = 1 / (1 + math.exp(-scale * (means[0] - means[1])))
            assert row["probability"] == pytest.approx(expected, abs=1e-5)
            assert row["seen"] == (means[0] >= means[1])
            assert (row["calibrated"], row["threshold"]) == (False, 0.5)
    order = [(not row["seen"], -row["probability"]) for row in rows]
    assert order == sorted(order)


def test_calibrated_findings_take_the_files_probability_and_threshold(
    answers, model_folder, tmp_path
):
    viewed = answers.models[0]
    features = answers.choose("good.png").encoded[0].features
    first, *_ = viewed.finder.of(features)
    d = first["present"] - first["absent"]
    # Of six images those with the finding score above d + .1, with one exception below d: the
    # best cut, of 2/3 + 1, is at the lower of the two above.
    fitted = FittedClass(
        map=Line(slope=3.0, intercept=-0.4),
        positive=(d - 0.3, d + 0.1, d + 0.2),
        negative=(d - 0.2, d - 0.1, d + 0.05),
        target=0.2,
    )
    calibration = Calibration(
        model_hash=viewed.model.content_hash,
        data_hash="x",
        split="validate",
        prompts=viewed.finder.prompt_sets[0],
        method="platt",
        classes={first["name"]: fitted},
    )
    calibration.write(tmp_path / "own.json")
    opened = Answers.open(model_folder, device="cpu", calibrations=[tmp_path / "own.json"])
    assert ("Probabilities", "calibrated on labelled images") in opened.models[0].described()
    (found,) = (one for one in opened.models[0].finder.of(features) if one["calibrated"])

    def probability(score):
        return 1 / (1 + math.exp(-(3 * score - 0.4 + math.log(0.2 / 0.8))))

    assert found["name"] == first["name"]
    assert found["probability"] == pytest.approx(probability(d), abs=1e-6)
    assert found["threshold"] == pytest.approx(probability(d + 0.1), abs=1e-6)
    assert not found["seen"]
    calibration.model_copy(update={"model_hash": "other"}).write(tmp_path / "other.json")
    with pytest.raises(UserError, match="was made for the model other"):
        Answers.open(model_folder, device="cpu", calibrations=[tmp_path / "other.json"])


def test_search_finds_what_the_verb_finds_and_opens_the_prepared_images(
    searching, index_folder, prepared_phantom, phantom_tree, capsys
):
    text = "Left effusion."
    assert run(["search", str(index_folder), "--text", text, "-k", "3", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["hits"]
    found = searching.find_sentence(text, 3)
    assert [hit.image_id for hit in found] == [hit["image_id"] for hit in reported]
    data = PreparedSet.open(prepared_phantom)
    # A hit opens with the score that it was found by.
    image = searching.hit(found[0].row)
    (seen,) = searching.look(image, text)
    assert seen["score"] == pytest.approx(found[0].score, abs=2e-3)
    levels = image.pixels.low + image.pixels.step * image.pixels.levels
    np.testing.assert_array_equal(levels, data.pixels[found[0].row])
    path = next(phantom_tree.rglob(f"{data.images.iloc[5]['image_id']}.dcm"))
    best, second = searching.find_similar(searching.read(path), 2)
    assert best.row == 5
    assert best.score == pytest.approx(1, abs=2e-3)
    assert second.score < best.score
    for row in (-1, len(data)):
        with pytest.raises(UserError, match="no longer exists"):
            searching.hit(row)


def test_a_hit_brings_its_true_boxes_in_its_own_pixels(searching, prepared_phantom):
    data = PreparedSet.open(prepared_phantom)
    phrase = data.phrases.iloc[0]
    row = int(np.flatnonzero(data.images["image_id"] == phrase["image_id"])[0])
    height, width = (int(data.images.iloc[row][side]) for side in ("height", "width"))
    scale, size = data.settings.size / max(height, width), data.settings.size
    left, top = ((size - scale * side) / 2 for side in (width, height))
    expected = [
        [left + scale * x, top + scale * y, scale * w, scale * h] for x, y, w, h in phrase["boxes"]
    ]
    found = dict(searching.hit(row).phrases)[phrase["text"]]
    np.testing.assert_allclose(found, expected, atol=scale)  # an odd margin is rounded down


def test_images_of_a_folder_have_the_boxes_of_a_file(answers, image_folder, tmp_path):
    assert answers.names == ["good.png", "letter.jpg", "more/wide.png"]
    path = tmp_path / "boxes.json"

    def chosen(name, width):
        """With a box on good.png, which was annotated at 180 rows and ``width`` columns."""
        write_coco(path, ("good.png", [("A", [20, 40, 60, 80])], (width, 180)))
        references = ReferenceBoxes.read(path, list(answers.images.values()))
        image = Answers(answers.models, images=answers.images, references=references).choose(name)
        return image.phrases, image.aside

    assert chosen("good.png", 140) == ([("A", [[10, 20, 30, 40]])], 0)
    assert chosen("more/wide.png", 140) == ([], 0)
    # Of another shape than the image: nobody knows where it lies.
    assert chosen("good.png", 180) == ([], 1)


def test_images_whose_boxes_are_of_other_folders_are_counted(model_folder, image_folder, tmp_path):
    boxes = [("good.png", [("A", [20, 40, 30, 30])], (70, 90))]
    boxes.append(("elsewhere/wide.png", [("B", [1, 2, 3, 4])], (110, 60)))
    write_coco(tmp_path / "boxes.json", *boxes)
    said = []
    options = {"images": image_folder, "boxes": tmp_path / "boxes.json", "device": "cpu"}
    Answers.open(model_folder, say=said.append, **options)
    assert "the file lists in other folders" in said[-1]
    assert said[-1].endswith(": 1.")


def test_an_unusable_image_is_a_sentence_without_its_place(answers, image_folder, tmp_path):
    with pytest.raises(UserError) as caught:
        answers.choose("letter.jpg")
    assert str(caught.value).startswith("letter.jpg: ")
    assert str(image_folder) not in str(caught.value)
    for name in ("../images/good.png", "absent.png", str(image_folder / "good.png")):
        with pytest.raises(UserError, match="no such image"):
            answers.choose(name)
    path = tmp_path / "p10" / "p10000032" / "letter.jpg"  # folders that no error names
    path.parent.mkdir(parents=True)
    path.write_text("Dear patient")
    with pytest.raises(UserError) as caught:
        answers.read(path)
    assert str(caught.value).startswith("letter.jpg: ")


def test_names_that_are_not_utf8_can_be_sent_and_chosen(answers, image_folder, tmp_path):
    shutil.copy(image_folder / "good.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    images = listed_images(tmp_path)
    assert list(images) == ["caf\\udce9.png"]
    json.dumps(list(images), ensure_ascii=False).encode()
    assert Answers(answers.models, images=images).choose("caf\\udce9.png").name in images


def test_what_cannot_be_answered_is_a_sentence(
    answers, searching, model_folder, make_model, tmp_path
):
    image = answers.choose("good.png")
    assert checked_sentence(" a \n b ") == "a b"
    other = tmp_path / "other"
    make_model(72, 64, (0.5, 99.5), seed=8).save(other)
    two = ["gradcam", "occlusion"]
    for words, ask in (
        ("write a sentence", lambda: answers.look(image, " \n\t\n")),
        ("has 1,001 characters, more", lambda: checked_sentence("b" * (MOST_CHARACTERS + 1))),
        ("--index", lambda: answers.find_sentence("Left lung.", 3)),
        ("--index", lambda: answers.find_similar(image, 3)),
        ("one method", lambda: answers.look(image, "Left lung.", two)),
        ("more --method", lambda: Answers.open(model_folder, methods=two)),
        ("no method for maps 'camgrad'", lambda: Answers.open(model_folder, methods=["camgrad"])),
        ("is not the model", lambda: Answers.open(other, searching.index.folder)),
        ("give --images", lambda: Answers.open(tmp_path, boxes=tmp_path / "boxes.json")),
        ("no such folder", lambda: Answers.open(tmp_path, images=tmp_path / "absent")),
    ):
        with pytest.raises(UserError, match=words):
            ask()


def test_maps_that_real_boxes_confirm_have_no_warning_but_those_of_another_method(
    answers, model_folder, tmp_path
):
    shutil.copytree(model_folder, tmp_path / "model")
    maps = {"validated": True, "real": True, "phrases": 40, "boxes": 49, "sentence": None}
    results = {"maps": maps, "model_hash": answers.model.content_hash}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (confirmed,) = Answers.open(tmp_path / "model", device="cpu").models
    assert confirmed.maps_warning("similarity") is None
    assert confirmed.maps_warning("gradcam") == NOT_MEASURED


def test_the_method_of_the_maps_is_a_choice(model_folder, image_folder):
    """Each model starts with its own; another is as if the viewer had been started with it."""
    methods = ["similarity", "gradcam"]
    start = {"images": image_folder, "device": "cpu", "beside": model_folder}
    started = Answers.open(model_folder, methods=methods, **start)
    chosen = Answers.open(model_folder, **start)
    image = chosen.choose("good.png")
    plain, explained = started.look(started.choose("good.png"), "Left lung.")
    assert plain["score"] == explained["score"]
    assert chosen.look(image, "Left lung.", methods) == [plain, explained]
    described = chosen.opened(image, methods)
    assert described == started.opened(started.choose("good.png"))
    assert [one["kind"] for one in described] == ["cosine", "gradcam"]
    for shown, one in zip((plain, explained), described, strict=True):
        geometry = one["geometry"]
        assert len(shown["grid"]) == geometry["rows"] * geometry["columns"]
    _, content = chosen.export(image, 0, ["Left lung."], -1, "json", "gradcam")
    (box,) = json.loads(content)["sentences"][0]["boxes"]
    assert box["peak"] == pytest.approx(explained["highest"], abs=1e-6)

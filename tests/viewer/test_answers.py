"""What the page shows agrees with what the other verbs write for the same image and sentences."""

from __future__ import annotations

import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from medclip_debias.cli import run
from medclip_debias.data.images import read_radiograph
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.grounding.files import GroundOptions
from medclip_debias.grounding.ground import ground_image
from medclip_debias.grounding.overlay import OverlayStyle
from medclip_debias.viewer import answers as answers_module
from medclip_debias.viewer.answers import (
    MOST_CHARACTERS,
    MOST_SENTENCES,
    Answers,
    listed_images,
    sentence_lines,
)

TEXTS = ["Left lung.", "Right lung."]


def test_pictures_and_figures_are_those_of_the_verb_ground(
    answers, model_folder, image_folder, tmp_path, capsys
):
    words = [
        "ground",
        model_folder,
        image_folder / "good.png",
        "--out",
        tmp_path / "maps",
        "--json",
    ]
    words += ["--threshold", "0.05", "--alpha", "0.7", "--scale", "image", "--device", "cpu"]
    for text in TEXTS:
        words += ["--text", text]
    assert run([str(word) for word in words]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["images"]
    options = GroundOptions(threshold=0.05, scale="image", style=OverlayStyle(alpha=0.7))
    look = answers.look(answers.choose("good.png"), "\n".join(TEXTS) + "\n\n", options)
    assert len(look.rows) == len(reported["sentences"]) == 2
    for row, picture, entry in zip(look.rows, look.pictures, reported["sentences"], strict=True):
        for key in ("text", "peak", "boxes", "lowest", "highest", "score"):
            assert row[key] == entry[key]
        drawn = np.asarray(Image.open(io.BytesIO(picture)))
        np.testing.assert_array_equal(drawn, np.asarray(Image.open(entry["picture"])))


def test_an_image_read_once_gives_what_a_fresh_reading_gives(answers, image_folder):
    image = answers.read(image_folder / "more" / "wide.png")
    assert image.shape == (60, 110)
    assert image.name == "wide.png"
    (fresh,) = ground_image(
        answers.model, read_radiograph(image_folder / "more/wide.png"), [TEXTS[0]]
    )
    (row,) = answers.look(image, TEXTS[0]).rows
    assert row["score"] == pytest.approx(fresh.score, abs=1e-6)
    assert row["highest"] == pytest.approx(float(np.nanmax(fresh.heatmap)), abs=1e-6)


def test_probabilities_are_the_logistic_of_the_scaled_difference(answers):
    """By hand, prompt by prompt, in double precision."""
    model, image = answers.model, answers.choose("good.png")
    rows = answers.classes(image)
    (prompts,) = answers.prompt_sets
    assert [row.name for row in rows] == list(prompts.classes)
    with torch.no_grad():
        scale = float(model.similarity.scale)
        for row in rows:
            means = []
            for texts in (prompts.classes[row.name].positive, prompts.classes[row.name].negative):
                scores = [
                    model.score(image.features, model.encode_sentences([text])).item()
                    for text in texts
                ]
                means.append(math.fsum(scores) / len(scores))
            assert (row.present, row.absent) == pytest.approx(means, abs=1e-6)
            expected = 1 / (1 + math.exp(-scale * (means[0] - means[1])))
            assert row.probability == pytest.approx(expected, abs=1e-5)
    assert len({row.probability for row in rows}) > 1


def test_search_finds_what_the_verb_finds_and_shows_the_prepared_images(
    searching, index_folder, prepared_phantom, phantom_tree, capsys
):
    text = "Left effusion."
    assert run(["search", str(index_folder), "--text", text, "-k", "3", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["hits"]
    found = searching.find_sentence(text, 3)
    assert [one.hit.image_id for one in found] == [hit["image_id"] for hit in reported]
    data = PreparedSet.open(prepared_phantom)
    for one in found:
        np.testing.assert_array_equal(one.image, data.pixels[one.hit.row])
    row = 5
    path = next(phantom_tree.rglob(f"{data.images.iloc[row]['image_id']}.dcm"))
    (best, second) = searching.find_similar(searching.read(path), 2)
    assert best.hit.row == row
    assert best.hit.score == pytest.approx(1, abs=2e-3)
    assert second.hit.score < best.hit.score


def test_results_come_without_pictures_where_the_set_is_gone(
    model_folder, index_folder, prepared_phantom, tmp_path
):
    moved = tmp_path / "index"
    shutil.copytree(index_folder, moved)
    meta = json.loads((moved / "index.json").read_text())
    (moved / "index.json").write_text(json.dumps(meta | {"prepared": str(tmp_path / "gone")}))
    found = Answers.open(model_folder, moved, device="cpu").find_sentence("Left effusion.", 2)
    assert [one.image for one in found] == [None, None]


def test_the_head_names_the_model_that_answers(answers, searching):
    reported = dict(answers.described())
    assert answers.model.content_hash in reported["Model"]
    assert reported["Model"].startswith("run/model, ")
    assert "72 px" in reported["Sees"]
    assert "central 64" in reported["Sees"]
    assert "Index" not in reported
    assert f"{len(searching.index):,} images" in dict(searching.described())["Index"]


def test_images_of_a_folder_are_named_by_their_place_in_it(image_folder, monkeypatch, tmp_path):
    assert list(listed_images(image_folder)) == ["good.png", "letter.jpg", "more/wide.png"]
    monkeypatch.setattr(answers_module, "MOST_IMAGES", 2)
    with pytest.raises(UserError, match="3 images"):
        listed_images(image_folder)
    with pytest.raises(UserError, match="no such folder"):
        listed_images(tmp_path / "absent")


def test_an_unusable_image_is_a_sentence_without_its_place(answers, image_folder):
    with pytest.raises(UserError) as caught:
        answers.choose("letter.jpg")
    assert str(caught.value).startswith("letter.jpg: ")
    assert str(image_folder) not in str(caught.value)
    for name in ("../images/good.png", "absent.png", str(image_folder / "good.png")):
        with pytest.raises(UserError, match="no such image"):
            answers.choose(name)


def test_what_cannot_be_answered_is_a_sentence(answers, searching, make_model, tmp_path):
    image = answers.choose("good.png")
    with pytest.raises(UserError, match="at least one sentence"):
        answers.look(image, " \n\t\n")
    with pytest.raises(UserError, match="too many"):
        sentence_lines("a\n" * (MOST_SENTENCES + 1))
    with pytest.raises(UserError, match=r"sentence 2 has 1,001 characters, more than the 1,000"):
        sentence_lines("a\n" + "b" * (MOST_CHARACTERS + 1))
    assert sentence_lines("b" * MOST_CHARACTERS) == ["b" * MOST_CHARACTERS]
    with pytest.raises(UserError, match="--index"):
        answers.find_sentence("Left lung.", 3)
    with pytest.raises(UserError, match="--index"):
        answers.find_similar(image, 3)
    with pytest.raises(UserError, match="one sentence at a time"):
        searching.find_sentence("Left lung.\nRight lung.", 3)
    make_model(72, 64, (0.5, 99.5), seed=8).save(tmp_path / "other")
    with pytest.raises(UserError, match="is not the model"):
        Answers.open(tmp_path / "other", searching.index.folder, device="cpu")


def test_a_long_sentence_is_said_to_be_cut(answers):
    look = answers.look(answers.choose("good.png"), "Left lung. " * 20)
    (note,) = look.notes
    assert note.startswith("Sentence 1 has")

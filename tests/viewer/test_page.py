"""The page in memory: every handler fits its components, and errors are one sentence on it."""

from __future__ import annotations

import pytest

from medclip_debias.models.synthetic import WARNING
from medclip_debias.viewer.calls import Calls
from medclip_debias.viewer.page import Handlers, _head, build, functions, ground_options
from medclip_debias.viewer.sessions import Sessions
from medclip_debias.viewer.uploads import Uploads

pytest.importorskip("gradio")

DRAWING = ("Left lung.", False, 0.3, 0.55, "each")
A = "session"


@pytest.fixture
def sessions():
    return Sessions()


@pytest.fixture
def uploads(tmp_path):
    return Uploads(tmp_path / "uploads")


@pytest.fixture
def handlers(answers, sessions, uploads):
    return Handlers(answers, sessions, uploads)


def test_handlers_return_as_many_values_as_the_page_has_places(
    answers, handlers, sessions, uploads
):
    page = build(answers, sessions, uploads)
    places = {fn.api_name: len(fn.outputs) for fn in page.fns.values()}
    before = [handlers.looked(A, *DRAWING), handlers.redrawn(A, *DRAWING)]
    answered = {
        "opened": [handlers.opened(A, None, *DRAWING)],
        "chosen": [
            handlers.chosen(A, "good.png", *DRAWING),
            handlers.chosen(A, "good.png", "", *DRAWING[1:]),
            handlers.chosen(A, "letter.jpg", *DRAWING),
            handlers.chosen(A, None, *DRAWING),
        ],
    }
    handlers.chosen(A, "good.png", *DRAWING)
    answered |= {
        "looked": [before[0], handlers.looked(A, *DRAWING)],
        "redrawn": [before[1], handlers.redrawn(A, *DRAWING)],
        "by_sentence": [handlers.by_sentence(A, "Left lung.", 3)],
        "by_image": [handlers.by_image(A, 3)],
    }
    for name, returned in answered.items():
        assert {len(values) for values in returned} == {places[name]}, name
    named = {page.fns[index].api_name for index in functions(page)}
    assert named == set(answered)


def test_analytics_are_off(answers, sessions, uploads):
    assert build(answers, sessions, uploads).analytics_enabled is False


def test_a_component_without_a_rule_is_not_served(answers, sessions, uploads):
    import gradio as gr

    with pytest.raises(TypeError, match="no rule for what a json may send"):
        Calls({0: [gr.JSON(render=False)]}, uploads.claim)


@pytest.mark.parametrize("name", ["good.png", "letter.jpg"])
def test_an_upload_is_removed_when_it_was_read_or_could_not_be(
    handlers, uploads, image_folder, name
):
    with (image_folder / name).open("rb") as stream:
        ticket = uploads.add(name, stream)
    uploads.claim(ticket, A)
    path = uploads.path(ticket, A)
    shown = handlers.opened(A, ticket, *DRAWING)
    assert ("alert" in shown[2]) == (name == "letter.jpg")
    assert not path.parent.exists()
    assert (image_folder / name).exists()


def test_a_path_is_no_upload(handlers, image_folder):
    shown = handlers.opened(A, str(image_folder / "good.png"), *DRAWING)
    assert "give the file once more" in shown[2]
    assert (image_folder / "good.png").exists()


def test_one_that_cannot_be_read_takes_the_place_of_the_one_before(handlers, sessions):
    shown = handlers.chosen(A, "good.png", *DRAWING)[1]
    assert sessions.picture(shown[0][0]) is not None
    handlers.chosen(A, "letter.jpg", *DRAWING)
    assert sessions.image(A) is None
    assert sessions.picture(shown[0][0]) is None


def test_an_unforeseen_error_says_neither_where_nor_what(handlers, answers, monkeypatch):
    def broken(*_):
        raise RuntimeError("Mrs Smith")

    monkeypatch.delenv("MEDCLIP_DEBIAS_DEBUG", raising=False)
    monkeypatch.setattr(answers, "choose", broken)
    returned = handlers.chosen(A, "good.png", *DRAWING)
    assert "internal error (RuntimeError)" in returned[0]
    assert "Smith" not in str(returned)


def test_names_and_sentences_are_shown_as_words_not_as_html(handlers, image_folder, sessions):
    (image_folder / "good.png").rename(image_folder / "<img src=x>.png")
    image = handlers._answers.read(image_folder / "<img src=x>.png")
    sessions.keep(A, image)
    assert "<img" not in handlers.looked(A, *DRAWING)[0]


def test_a_model_of_synthetic_images_says_so_at_the_head_of_the_page(answers):
    assert "synthetic" not in _head(answers)
    answers.model.provenance = {"synthetic": True}
    assert f"<p class='notice wrong' role='alert'>{WARNING}</p>" in _head(answers)


def test_without_the_tick_there_is_no_threshold():
    assert ground_options(False, 0.3, 0.5, "each").threshold is None
    options = ground_options(True, 0.25, 0.5, "image")
    assert (options.threshold, options.scale, options.style.alpha) == (0.25, "image", 0.5)

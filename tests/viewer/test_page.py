"""The page in memory: every handler fits its components, and errors are one sentence on it."""

from __future__ import annotations

import pytest

from medclip_debias.viewer.page import Handlers, build, ground_options

pytest.importorskip("gradio")

DRAWING = ("Left lung.", False, 0.3, 0.55, "own")


@pytest.fixture
def handlers(answers, tmp_path):
    return Handlers(answers, tmp_path / "work")


def test_handlers_return_as_many_values_as_the_page_has_places(answers, handlers, tmp_path):
    page = build(answers, tmp_path / "work")
    places = {fn.api_name: len(fn.outputs) for fn in page.fns.values()}
    film = answers.choose("good.png")
    answered = {
        "open": [handlers.opened(None, *DRAWING)],
        "choose": [
            handlers.chosen("good.png", *DRAWING),
            handlers.chosen("good.png", "", *DRAWING[1:]),
            handlers.chosen("letter.jpg", *DRAWING),
            handlers.chosen(None, *DRAWING),
        ],
        "look": [handlers.looked(film, *DRAWING), handlers.looked(None, *DRAWING)],
        "redraw": [handlers.redrawn(film, *DRAWING), handlers.redrawn(None, *DRAWING)],
        "search": [handlers.by_sentence("Left lung.", 3)],
        "search_film": [handlers.by_film(film, 3)],
    }
    for name, returned in answered.items():
        assert {len(values) for values in returned} == {places[name]}, name


def test_analytics_are_off(answers, tmp_path):
    page = build(answers, tmp_path / "work")
    assert page.analytics_enabled is False


def test_an_upload_is_removed_but_a_file_elsewhere_is_not(handlers, films, tmp_path):
    work = tmp_path / "work" / "hash"
    work.mkdir(parents=True)
    upload = work / "good.png"
    upload.write_bytes((films / "good.png").read_bytes())
    handlers.opened(str(upload), *DRAWING)
    assert not work.exists()
    assert work.parent.is_dir()
    handlers.opened(str(films / "good.png"), *DRAWING)
    assert (films / "good.png").exists()


def test_an_unforeseen_error_says_neither_where_nor_what(handlers, answers, monkeypatch):
    def broken(*_):
        raise RuntimeError("Mrs Smith")

    monkeypatch.delenv("MEDCLIP_DEBIAS_DEBUG", raising=False)
    monkeypatch.setattr(answers, "choose", broken)
    returned = handlers.chosen("good.png", *DRAWING)
    assert "internal error (RuntimeError)" in returned[1]
    assert "Smith" not in str(returned)
    assert returned[0] is None


def test_names_and_sentences_are_shown_as_words_not_as_html(handlers, films):
    (films / "good.png").rename(films / "<img src=x>.png")
    film = handlers._answers.read(films / "<img src=x>.png")
    assert "<img" not in handlers.looked(film, *DRAWING)[0]


def test_without_the_tick_there_is_no_threshold():
    assert ground_options(False, 0.3, 0.5, "own").threshold is None
    options = ground_options(True, 0.25, 0.5, "image")
    assert (options.threshold, options.scale, options.style.alpha) == (0.25, "image", 0.5)

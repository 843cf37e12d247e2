"""Sentences from people: checked, read, and cut only with a word about it."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from medclip_debias.grounding.sentences import (
    checked_sentences,
    cut_notes,
    cut_sentences,
    read_sentences,
)


def test_sentences_of_a_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffLeft lung.\r\n\n  Épanchement.  \n".encode())
    assert read_sentences(path) == ["Left lung.", "Épanchement."]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no such file"), (b" \n", "no sentence"), (b"\xff\xfe", "UTF-8")]
)
def test_files_that_hold_no_sentences_are_refused(tmp_path, content, words):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_sentences(path)


def test_empty_sentences_are_refused():
    assert checked_sentences([" Lung. "]) == ["Lung."]
    assert checked_sentences(" Left lung. ") == ["Left lung."]
    with pytest.raises(UserError, match="Sentence 1 is empty"):
        checked_sentences(["", "Lung."])
    with pytest.raises(UserError, match="Sentence 2 is empty"):
        checked_sentences(["Lung.", "\x07 \x1b"])
    # what the shell hands over of a word in Latin-1
    with pytest.raises(UserError, match="Sentence 1 is not UTF-8"):
        checked_sentences([b"\xc9panchement".decode("utf-8", "surrogateescape")])
    with pytest.raises(UserError, match="No sentence"):
        checked_sentences([])


def test_only_sentences_beyond_the_encoders_length_are_cut(model):
    limit = model.settings.text.max_tokens
    for count in range(1, 40):
        text = "lung " * count
        tokens = len(model.tokenizer.encode([text], 10_000)[0])
        expected = {0: tokens} if tokens > limit else {}
        assert cut_sentences(model, [text]) == expected
    notes = cut_notes(model, ["Lung.", "lung " * 40])
    assert len(notes) == 1
    assert notes[0].startswith("Sentence 2 has")

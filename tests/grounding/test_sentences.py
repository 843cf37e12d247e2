"""Sentences from people: checked, read, and cut only with a word about it."""

from __future__ import annotations

import os

import pytest

from medclip_debias.errors import UserError
from medclip_debias.grounding.search.landmarks import Landmarks
from medclip_debias.grounding.sentences import (
    checked_sentences,
    cut_notes,
    cut_sentences,
    read_sentences,
)
from medclip_debias.language.class_probability import eta_table


def test_a_file_holds_sentences_or_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffLeft lung.\r\n\n  Épanchement.  \n".encode())
    assert read_sentences(path) == ["Left lung.", "Épanchement."]
    for content, words in ((b" \n", "no sentence"), (b"\xff\xfe", "UTF-8")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_sentences(path)
    os.mkfifo(tmp_path / "pipe")
    for read in (read_sentences, Landmarks.load, lambda path: eta_table(path, ["No edema."])):
        with pytest.raises(UserError, match="is a pipe, not a regular file"):
            read(tmp_path / "pipe")


def test_empty_sentences_are_refused():
    for texts in (" Left lung. ", [" Left lung. "]):
        assert checked_sentences(texts) == ["Left lung."]
    latin = b"\xc9panchement".decode("utf-8", "surrogateescape")  # as the shell hands it over
    for texts, words in (
        ([], "No sentence"),
        (["Lung.", "\x07 \x1b"], "Sentence 2 is empty"),
        ([latin], "Sentence 1 is not UTF-8"),
    ):
        with pytest.raises(UserError, match=words):
            checked_sentences(texts)


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

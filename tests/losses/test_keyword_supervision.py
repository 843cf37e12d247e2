"""Keyword supervision: which class a sentence belongs to; its loss is in `test_reference`."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from medclip_debias.losses.keywords import KeywordList, load_keywords


def test_cardinal_numbers_run_from_two_to_twenty():
    words = load_keywords("cardinal_numbers")
    assert len(words.classes) == 19
    sentences = ["Two cats", "One cat", "a TWENTY dollar bill", "someone", "two or three"]
    assert words.classify(sentences) == [1, 0, 19, 0, 0]
    assert words.classify(["twenty-one pilots", "nineteen", "sixteenth"]) == [0, 18, 0]


@pytest.mark.parametrize(
    ("source", "sentence", "expected"),
    [
        ("laterality", "Left and right effusions", ()),
        ("severity", "Small pleural effusion", ("mild",)),
        ("findings", "No pneumothorax.", ("no pneumothorax",)),
        ("findings", "No change in the pleural effusion.", ("effusion",)),
        ("findings", "No focal opacity; stable effusion.", ()),
        ("findings", "Without edema but with cardiomegaly", ()),
    ],
)
def test_packaged_lists_name_what_a_reader_would(source, sentence, expected):
    assert load_keywords(source).named(sentence) == expected


def test_several_classes_in_a_sentence_follow_the_setting():
    options = {"name": "n", "classes": {"a": ["alpha"], "b": ["beta"]}}
    texts = ["beta, alpha", "alpha and beta", "alpha"]
    assert KeywordList(**options).classify(texts) == [0, 0, 1]
    assert KeywordList(**options, several="first").classify(texts) == [2, 1, 1]
    combined = KeywordList(**options, several="combine").classify(texts)
    assert combined[0] == combined[1] not in (0, 1, 2)


def test_any_word_list_is_a_yaml_file(tmp_path):
    path = tmp_path / "devices.yaml"
    # Words are matched as one space, whatever the sentence's own spacing.
    path.write_text("name: devices\nclasses:\n  tube: [et tube, Endotracheal tube]\n")
    assert load_keywords(path).classify(["ET\n tube in place", "endotracheal tubes"]) == [1, 0]
    path.write_text("name: devices\nclasses:\n  tube: [tube]\n  line: [line, tube]\n")
    with pytest.raises(UserError, match=r"'tube' is in the classes 'tube' and 'line'"):
        load_keywords(path)
    path.write_text("name: devices\nclases: {}\n")
    with pytest.raises(UserError, match="did you mean 'classes'"):
        load_keywords(path)

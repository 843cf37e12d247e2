"""L_g as printed, its limits, and which class a sentence belongs to."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import CLIP, InfoNCE, InfoNCESettings, KeywordSettings
from medclip_debias.losses import KeywordSupervision as Keyword
from medclip_debias.losses.keywords import KeywordList, load_keywords


def test_with_all_classes_distinct_g1_is_infonce_from_image_to_text(make_batch):
    batch = make_batch(owners=range(6), keywords=torch.tensor([3, 1, 4, 5, 9, 2]))
    infonce = InfoNCESettings(direction="image_to_text")
    doubled = Keyword(KeywordSettings(core=infonce))(batch).per_anchor
    torch.testing.assert_close(doubled, 2 * InfoNCE(infonce)(batch).per_anchor)


@pytest.mark.parametrize("g", ["g1", "g2"])
@pytest.mark.parametrize("denominator", ["pair", "same_class"])
def test_without_any_other_class_the_term_and_its_gradient_are_zero(make_batch, g, denominator):
    batch = make_batch(owners=range(4), keywords=torch.tensor([2, 2, 0, 2]))
    batch.similarity = batch.similarity.requires_grad_()
    with_term, core = Keyword(KeywordSettings(g=g, denominator=denominator)), CLIP()
    assert torch.equal(with_term(batch).per_anchor, core(batch).per_anchor)
    slopes = (torch.autograd.grad(each(batch).loss, batch.similarity) for each in (with_term, core))
    torch.testing.assert_close(*slopes, rtol=0, atol=0)


# --------------------------------------------------------------------------------- word lists


def test_cardinal_numbers_run_from_two_to_twenty():
    words = load_keywords("cardinal_numbers")
    assert len(words.classes) == 19
    sentences = ["Two cats", "One cat", "a TWENTY dollar bill", "someone", "two or three"]
    assert words.classify(sentences) == [1, 0, 19, 0, 0]
    assert words.classify(["twenty-one pilots", "nineteen", "sixteenth"]) == [0, 18, 0]


@pytest.mark.parametrize(
    ("source", "sentence", "expected"),
    [
        ("laterality", "Left basal atelectasis.", ("left",)),
        ("laterality", "Right-sided effusion", ("right",)),
        ("laterality", "Left and right effusions", ()),
        ("severity", "Small pleural effusion", ("mild",)),
        ("severity", "Moderately enlarged heart", ("moderate",)),
        ("findings", "No pneumothorax.", ("no pneumothorax",)),
        ("findings", "There is a pneumothorax.", ("pneumothorax",)),
        ("findings", "No change in the pleural effusion.", ("effusion",)),
        ("findings", "No focal opacity; stable effusion.", ()),
        ("findings", "Without edema but with cardiomegaly", ()),
        ("findings", "Heart is enlarged", ("cardiomegaly",)),
        ("findings", "Pneumomediastinum", ()),
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

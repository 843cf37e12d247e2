"""L_g as printed, its limits, and which class a sentence belongs to."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import (
    CLIP,
    ContrastiveBatch,
    InfoNCE,
    InfoNCESettings,
    KeywordSettings,
    KeywordSupervision,
)
from medclip_debias.losses.keyword_supervision import keyword_per_anchor
from medclip_debias.losses.keywords import KeywordList, load_keywords


@pytest.mark.parametrize("g", ["g1", "g2"])
@pytest.mark.parametrize("denominator", ["pair", "same_class"])
@pytest.mark.parametrize("draw", range(4))
def test_the_term_is_definition_4_1_in_float64(make_batch, g, denominator, draw):
    batch = make_batch(draw)
    found = keyword_per_anchor(batch.anchors("image_to_text")[0], batch["keywords"], g, denominator)
    owners, labels = batch.owners.tolist(), batch["keywords"].tolist()
    for i, owner in enumerate(owners):
        s = [math.exp(3 * batch.similarity[owner, j].item()) for j in range(8)]
        foreign = [j for j in range(8) if owners[j] != owner]
        above = sum(s[j] for j in foreign if labels[j] not in (0, labels[i]))
        below = s[i]
        if denominator == "same_class":
            below += sum(s[j] for j in foreign if labels[j] == labels[i])
        x = above / below
        expected = math.log(1 + x) if g == "g1" else x / (1 + x)
        if labels[i] == 0 or above == 0:
            expected = 0.0
        assert found[i].item() == pytest.approx(expected, rel=1e-10)


def pairs(keywords, seed=0, scale=5.0):
    g = torch.Generator().manual_seed(seed)
    n = len(keywords)
    similarity = torch.rand(n, n, generator=g, dtype=torch.float64) * 2 - 1
    return ContrastiveBatch(
        similarity, torch.tensor(scale).double(), keywords=torch.tensor(keywords)
    )


def test_with_all_classes_distinct_g1_is_infonce_from_image_to_text():
    batch = pairs([3, 1, 4, 5, 9, 2])
    found = keyword_per_anchor(batch.anchors("image_to_text")[0], batch["keywords"])
    expected = InfoNCE(InfoNCESettings(direction="image_to_text"))(batch).per_anchor
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_without_any_other_class_the_term_and_its_gradient_are_zero():
    batch = pairs([2, 2, 0, 2])
    similarity = batch.similarity.clone().requires_grad_()
    anchors = ContrastiveBatch(similarity, batch.scale).anchors("image_to_text")[0]
    for g in ("g1", "g2"):
        for denominator in ("pair", "same_class"):
            value = keyword_per_anchor(anchors, batch["keywords"], g, denominator).sum()
            (gradient,) = torch.autograd.grad(value, similarity, retain_graph=True)
            assert value.item() == 0
            assert (gradient == 0).all()


# --------------------------------------------------------------------------------- word lists


def classes(source, sentences):
    words = load_keywords(source)
    return [words.named(sentence) for sentence in sentences]


def test_cardinal_numbers_run_from_two_to_twenty():
    words = load_keywords("cardinal_numbers")
    assert len(words.classes) == 19
    found = words.classify(
        ["Two cats", "One cat", "a TWENTY dollar bill", "someone", "two or three"]
    )
    assert found == [1, 0, 19, 0, 0]
    assert words.classify(["twenty-one pilots", "nineteen", "sixteenth"]) == [0, 18, 0]


@pytest.mark.parametrize(
    ("source", "sentence", "expected"),
    [
        ("laterality", "Left basal atelectasis.", ("left",)),
        ("laterality", "Right-sided effusion", ("right",)),
        ("laterality", "Bilateral effusions", ("bilateral",)),
        ("laterality", "Left and right effusions", ()),
        ("laterality", "Heart is enlarged", ()),
        ("severity", "Small pleural effusion", ("mild",)),
        ("severity", "Moderately enlarged heart", ("moderate",)),
        ("severity", "Severe edema", ("severe",)),
        ("findings", "No pneumothorax.", ("no pneumothorax",)),
        ("findings", "There is a pneumothorax.", ("pneumothorax",)),
        ("findings", "No change in the pleural effusion.", ("effusion",)),
        ("findings", "No focal opacity; stable effusion.", ()),
        ("findings", "Without edema but with cardiomegaly", ()),
        ("findings", "Lungs are clear.", ()),
        ("findings", "Heart is enlarged", ("cardiomegaly",)),
        ("findings", "Pneumomediastinum", ()),
    ],
)
def test_packaged_lists_name_what_a_reader_would(source, sentence, expected):
    assert classes(source, [sentence]) == [expected]


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
    with pytest.raises(UserError, match=r"'tube' stands in the classes 'tube' and 'line'"):
        load_keywords(path)
    path.write_text("name: devices\nclases: {}\n")
    with pytest.raises(UserError, match="did you mean 'classes'"):
        load_keywords(path)
    with pytest.raises(UserError, match="no such file"):
        load_keywords(tmp_path / "absent.yaml")


def test_sentences_of_another_image_of_the_study_are_no_negatives():
    """Two views of study 5 say class 1 and 2; only study 6's sentence is a true negative."""
    g = torch.Generator().manual_seed(0)
    similarity = torch.rand(3, 3, generator=g, dtype=torch.float64)
    batch = ContrastiveBatch(
        similarity,
        torch.tensor(2.0).double(),
        study_of_image=torch.tensor([5, 5, 6]),
        keywords=torch.tensor([1, 2, 3]),
    )
    loss, core = KeywordSupervision(KeywordSettings(weight=1.0)), CLIP()
    extra = loss(batch).per_anchor - core(batch).per_anchor
    s = (2 * similarity).exp()
    x = [s[0, 2] / s[0, 0], s[1, 2] / s[1, 1], (s[2, 0] + s[2, 1]) / s[2, 2]]
    torch.testing.assert_close(extra, torch.stack(x).log1p())

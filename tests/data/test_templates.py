"""Sentences that labels say: the claims parser reads the label in each, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.config import PrepareSettings
from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.data.layout import STATED, TEMPLATE
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.templates import (
    ABSENT,
    STATES,
    WORDINGS,
    label_sentences,
    sentences_of,
    wordings,
)
from medclip_debias.data.text.claims.claim import Claim
from medclip_debias.data.text.claims.rules import RuleParser

PARSER = RuleParser()
SMALL = PrepareSettings(size=16)
SAID = {"reading": Reading(label_sentences=True), "workers": 1}
EXPECTED = {
    "present": ("present", "certain"),
    "absent": ("absent", "certain"),
    "uncertain": ("present", "uncertain"),
}
KNOWN = sorted(
    {
        *wordings().labels,
        *CHEXPERT_LABELS,
        *(c for name in ("chestx_det", "openi", "vindr_cxr") for c in load_prompts(name).classes),
    }
)


@pytest.mark.parametrize("state", EXPECTED)
def test_the_claims_of_every_sentence_are_its_label(state):
    said = [(label, text) for label in KNOWN for text in sentences_of(label, state)]
    for label, text in said:
        finding = wordings().labels[label].finding if label in wordings().labels else ...
        claims = PARSER.parse(text).claims
        if label == "No Finding":
            assert claims
            assert all(claim.polarity == "absent" for claim in claims)
        elif finding is None:  # the lexicon has no such finding
            assert claims == (), text
        else:
            name = claims[0].finding if finding is ... else finding
            assert claims == (Claim(name, *EXPECTED[state]),), text


def test_every_label_of_an_archive_without_reports_has_sentences():
    archives = "chestxray14", "chexpert", "chestx_det", "siim", "rsna"
    classes = {c for name in archives for c in load_prompts(name).classes}
    silent = {label for label in classes if not sentences_of(label, "present")}
    assert silent == set()
    texts = [text for label in wordings().labels for text in sentences_of(label, "present")]
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


@pytest.mark.parametrize(
    "labels",
    [
        {"Rib fracture": 1.0, "Clavicle fracture": 0.0, "Fracture": 1.0, "Edema": 0.0},
        {"Diffuse Nodule": 1.0, "Nodule": 0.0, "Mass": 0.0},
        {"Consolidation": 1.0, "Lung Opacity": 0.0, "Pneumonia": 0.0},
        {"Lung Lesion": 1.0, "Lung cavity": 0.0},
    ],
)
def test_no_study_contradicts_itself(labels):
    """By the claims of its sentences: what is there, or may be, is denied by none of them."""
    claims = [c for _, text in label_sentences(labels, "s") for c in PARSER.parse(text).claims]
    denied = {c.finding for c in claims if c.polarity == "absent"}
    for claim in claims:
        if claim.polarity == "present":
            assert not denied & PARSER.lexicon.ancestors[claim.finding]
    assert {c.finding for c in claims} & {"fracture", "nodule", "consolidation", "lung_lesion"}


# What is a kind of another label, in CheXpert's tree as far as the lexicon has it.
KINDS = {
    "Enlarged Cardiomediastinum": {"Cardiomegaly"},
    "Lung Opacity": {"Consolidation", "Pneumonia"},
}
LABELS = st.dictionaries(
    st.sampled_from(CHEXPERT_LABELS), st.sampled_from([1.0, 0.0, -1.0, None]), max_size=14
)


@given(LABELS, st.text(max_size=8), st.integers(0, 3))
def test_every_known_label_is_said_and_no_other(labels, study, seed):
    said = label_sentences(labels, study, seed)
    assert said == label_sentences(dict(reversed(labels.items())), study, seed)
    by_text = {
        text: (label, value)
        for label in CHEXPERT_LABELS
        for value, state in STATES.items()
        for text in sentences_of(label, state)
    }
    told = [by_text[text] for _, text in said]
    there = {label for label, value in labels.items() if value in (1.0, -1.0)}
    sayable = {
        (k, v)
        for k, v in labels.items()
        if v is not None
        and sentences_of(k, STATES[v])
        and not (v == 0 and there & KINDS.get(k, set()))
    }
    assert set(told) == sayable
    assert len({text for _, text in said}) == len(said)
    for label, value in sayable:
        wordings = 1 if value == 0 else min(WORDINGS, len(sentences_of(label, STATES[value])))
        assert told.count((label, value)) == wordings
    aside = [by_text[text][1] for section, text in said if section == STATED]
    assert aside == [0] * max(0, sum(value == 0 for _, value in sayable) - ABSENT)


def test_wordings_differ_between_studies_and_seeds():
    first, second = (
        [label_sentences({"Pneumothorax": 1.0}, f"s{study}", seed) for study in range(200)]
        for seed in range(2)
    )
    texts = {text for said in first for _, text in said}
    assert texts == set(sentences_of("Pneumothorax", "present"))
    assert first != second


def test_a_set_has_the_sentences_and_says_which_labels_say_none(nih_folder, tmp_path):
    folder = nih_folder(
        "nih",
        {f"{n:08d}_000": ("Mass|Nodule", "train") for n in range(1, 9)}
        | {"00000020_000": ("No Finding", "test"), "00000021_000": ("Hernia", "test")},
    )
    made = prepare(folder, tmp_path / "set", SMALL, **SAID)
    table = made.sentences
    learned = table[table["section"] == TEMPLATE]
    stated = table[table["section"] == STATED]
    texts = {study: set(rows["text"]) for study, rows in learned.groupby("study_id")}
    for study, label in ((1, "Mass"), (1, "Nodule"), (20, "No Finding")):
        said = texts[f"{study:08d}_000"] & set(sentences_of(label, "present"))
        assert len(said) == WORDINGS
    steps = {row["step"]: row["kept"] for row in made.funnel}
    assert steps["study has a report, or labels that say its sentences"] == 10
    aside = set(stated["text"]) - set(learned["text"])
    assert aside
    assert not set(TrainingStudies.of(made).texts) & aside
    # Without the option the training images of such an archive are left aside, as ever.
    plain = prepare(folder, tmp_path / "plain", SMALL, workers=1)
    assert set(plain.images["split"]) <= {"test", "validate"}
    assert {"train", "test"} <= set(made.images["split"])


def test_blank_reports_of_a_manifest_are_said_by_its_labels(tmp_path):
    rows = ["study_id,report,split,Edema,Pneumonia", "1,,train,1,0", "3,,train,-1,"]
    rows += ["2,The heart is enlarged.,train,1,0", ""]
    (tmp_path / "manifest.csv").write_text("\n".join(rows))
    how = {"reading": Reading(label_sentences=True, text_only=True), "workers": 1}
    made = prepare(tmp_path / "manifest.csv", tmp_path / "set", SMALL, **how)
    texts = {study: set(rows["text"]) for study, rows in made.sentences.groupby("study_id")}
    assert texts["2"] == {"The heart is enlarged."}
    assert texts["1"] < {*sentences_of("Edema", "present"), *sentences_of("Pneumonia", "absent")}
    assert texts["3"] < set(sentences_of("Edema", "uncertain"))

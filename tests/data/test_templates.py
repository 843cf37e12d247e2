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


KINDS = {
    "Enlarged Cardiomediastinum": {"Cardiomegaly"},
    "Lung Opacity": {"Consolidation", "Pneumonia"},
}
"""What is a kind of another label, in CheXpert's tree as far as the lexicon has it."""


@pytest.mark.parametrize(
    "labels",
    [
        {"Rib fracture": 1.0, "Clavicle fracture": 0.0, "Fracture": 1.0, "Edema": 0.0},
        {"Diffuse Nodule": 1.0, "Nodule": 0.0, "Mass": 0.0},
        {"Nodule": -1.0, "Diffuse Nodule": 0.0, "Pneumothorax": 0.0},
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
        count = told.count((label, value))
        assert count == (
            1 if value == 0 else min(WORDINGS, len(sentences_of(label, STATES[value])))
        )
    aside = [section for section, _ in said].count(STATED)
    absent = sum(value == 0 for _, value in sayable)
    assert aside == max(0, absent - ABSENT)
    assert all(by_text[text][1] == 0 for section, text in said if section == STATED)


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
    assert set(table["section"]) == {TEMPLATE, STATED}
    assert {"train", "test"} <= set(made.images["split"])
    learned = table[table["section"] == TEMPLATE]
    texts = {study: set(rows["text"]) for study, rows in learned.groupby("study_id")}
    for label in ("Mass", "Nodule"):
        assert len(texts["00000001_000"] & set(sentences_of(label, "present"))) == WORDINGS
    assert len(texts["00000020_000"] & set(sentences_of("No Finding", "present"))) == WORDINGS
    steps = {row["step"]: row["kept"] for row in made.funnel}
    assert steps["study has a report, or labels that say its sentences"] == 10
    assert made.meta["options"]["label_sentences"]
    studies = TrainingStudies.of(made)
    assert not set(studies.texts) & (
        set(table["text"][table["section"] == STATED]) - set(learned["text"])
    )
    # Without the option the training images of such an archive are left aside, as ever.
    plain = prepare(folder, tmp_path / "plain", SMALL, workers=1)
    assert set(plain.images["split"]) <= {"test", "validate"}
    assert "label_sentences" not in plain.meta["options"]


def test_blank_reports_of_a_manifest_are_said_by_its_labels(tmp_path, nih_folder):
    folder = nih_folder("nih", {f"0000000{n}_000": ("Mass", "test") for n in (1, 2, 3)})
    (folder / "Data_Entry_2017.csv").unlink()
    rows = [
        "image,patient_id,study_id,view,split,report,Edema,Pneumonia",
        "images/00000001_000.png,1,1,PA,train,,1,0",
        "images/00000002_000.png,2,2,PA,train,The heart is enlarged.,1,0",
        "images/00000003_000.png,3,3,PA,train,,-1,",
    ]
    (folder / "manifest.csv").write_text("\n".join([*rows, ""]))
    made = prepare(folder, tmp_path / "set", SMALL, **SAID)
    texts = {study: set(rows["text"]) for study, rows in made.sentences.groupby("study_id")}
    assert texts["2"] == {"The heart is enlarged."}
    assert texts["1"] < {*sentences_of("Edema", "present"), *sentences_of("Pneumonia", "absent")}
    assert texts["3"] < set(sentences_of("Edema", "uncertain"))
    again = prepare(folder, tmp_path / "set", SMALL, **SAID, update=True)
    assert again.content_hash == made.content_hash

"""Sentences of a section, and what is dropped from them."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.reports import report_sentences
from medclip_debias.data.sentences import DROPPED, split_sentences, split_sentences_counted
from medclip_debias.data.sources.detect import detect


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. No acute disease. 2. Stable nodule.", ["No acute disease.", "Stable nodule."]),
        ("1. No acute disease.\n 2. Stable nodule.", ["No acute disease.", "Stable nodule."]),
        ("1) Edema\n2) Effusion", ["Edema", "Effusion"]),
        ("- Edema\n- Effusion", ["Edema", "Effusion"]),
        ("A 1.5 cm nodule. Stable.", ["A 1.5 cm nodule.", "Stable."]),
        ("Told to Dr. ___ by phone. Clear.", ["Told to Dr. ___ by phone.", "Clear."]),
        ("Clear. ___. 3. XXXX.", ["Clear."]),
        (
            "Heart size is\n normal. Lungs\tare  clear.",
            ["Heart size is normal.", "Lungs are clear."],
        ),
        ("First line\n\nSecond paragraph", ["First line", "Second paragraph"]),
        ("Compression of L1. 2 views.", ["Compression of L1.", "2 views."]),
        ("1.\n2.", []),
    ],
)
def test_sentences(text, expected):
    assert split_sentences(text) == expected


@given(st.text(alphabet=st.sampled_from("aB1. :\n_-/()XFINDGS?!•∯♨\t\r"), max_size=120))
def test_any_text_is_cut_without_losing_letters(text):
    sentences = split_sentences(text)
    assert all(s == " ".join(s.split()) and re.search("[a-zA-Z]", s) for s in sentences)
    letters = [c for c in re.sub(r"_+|\bX{3,}\b", "", text) if c.isalpha()]
    kept = [c for c in re.sub(r"_+|\bX{3,}\b", "", " ".join(sentences)) if c.isalpha()]
    assert kept == letters
    report_sentences(text)


@pytest.mark.parametrize(
    ("text", "kept", "dropped"),
    [
        ("1. Clear.\n2.\n3. Edema.", ["Clear.", "Edema."], {"list number only": 1}),
        ("Clear. ___. XXXX. Stable.", ["Clear.", "Stable."], {"de-identified only": 2}),
        ("___ ___", [], {"de-identified only": 1}),
        ("1.\n2.", [], {"list number only": 1}),
        ("-", [], {"list number only": 1}),
        ("?!", [], {"no word": 1}),
        ("\u00b3 \u00be", [], {"no word": 1}),
        ("1. No acute\u222f. 2. Clear.", ["No acute\u222f.", "Clear."], {}),
        ("\n \n \n", [], {}),
        ("", [], {}),
    ],
)
def test_what_is_dropped_is_counted_by_its_reason(text, kept, dropped):
    assert split_sentences_counted(text) == (kept, dropped)
    assert set(dropped) <= set(DROPPED)


def test_a_section_too_long_for_the_segmenter_is_still_cut():
    text = "The lungs are clear. No effusion is seen by Dr. Who. " * 500
    assert split_sentences(text) == 500 * [
        "The lungs are clear.",
        "No effusion is seen by Dr. Who.",
    ]


def test_titles_without_end_take_no_more_time_than_their_number_asks_for():
    start = time.process_time()
    assert len(split_sentences("Dr. " * 50_000)) == 1
    assert time.process_time() - start < 5


def test_real_reports_give_sensible_sentences(shared_data):
    reports = [study.report for study in detect(shared_data / "openi").studies()]
    cut = [sentence for report in reports for _, sentence in report_sentences(report)]
    assert 20_000 < len(cut) < 26_000
    assert 7_500 < len(set(cut)) < 9_500
    words = sorted(len(sentence.split()) for sentence in cut)
    assert 4 <= words[len(words) // 2] <= 10
    assert words[-1] < 90
    assert not [s for s in cut if re.match(r"\d{1,2}[.)]\s+[A-Z]", s)]

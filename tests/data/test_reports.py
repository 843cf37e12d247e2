"""Sections and sentences, on well-formed and on malformed reports."""

import re
import tarfile
import textwrap

import pytest
from defusedxml import ElementTree
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.reports import report_sentences, sections, split_sentences

REPORT = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___F with cough  // pneumonia?

 TECHNIQUE:  Chest PA and lateral

 COMPARISON:  ___

 FINDINGS:

 The cardiac and hilar contours are normal. Pulmonary
 vasculature is normal.  Lungs are clear.

 IMPRESSION:

 No acute cardiopulmonary abnormality.
"""


def test_a_well_formed_report_has_its_sections_in_order():
    found = sections(REPORT)
    assert list(found) == [
        *("examination", "indication", "technique", "comparison", "findings", "impression")
    ]
    assert found["impression"] == "No acute cardiopulmonary abnormality."
    assert report_sentences(REPORT) == [
        ("findings", "The cardiac and hilar contours are normal."),
        ("findings", "Pulmonary vasculature is normal."),
        ("findings", "Lungs are clear."),
        ("impression", "No acute cardiopulmonary abnormality."),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "FINDINGS:Lungs clear.\nIMPRESSION:Normal.",
        "Findings: Lungs clear.\nImpression: Normal.",
        "findings:\nLungs clear.\n\nimpression: Normal.",
        "  FINDINGS :\n\n Lungs clear.\n\n  IMPRESSION :\n\n Normal.",
        "CHEST 2 VIEWS: today\nFINDINGS: Lungs clear.\nIMPRESSION: Normal.",
        "FINDINGS: Lungs clear. IMPRESSION: Normal.",
        "Findings: Lungs clear. Impression: Normal.",
        "INDICATION: cough FINDINGS: Lungs clear. CONCLUSION: Normal.",
        "FINDINGS\nLungs clear.\nIMPRESSION\nNormal.",
        "FINDINGS:\r\nLungs clear.\r\n\r\nIMPRESSION:\r\nNormal.\r\n",
        "FINIDNGS: Lungs clear.\n IMPRESSON: Normal.",
        "FINDINGS: Lungs clear.\nIMPRESSION:\nNormal.\nNOTIFICATION: by phone",
    ],
)
def test_malformed_headers_are_understood(text):
    assert report_sentences(text) == [("findings", "Lungs clear."), ("impression", "Normal.")]


def test_the_last_section_of_a_name_wins_unless_empty():
    assert sections("IMPRESSION: one\nIMPRESSION: two\nIMPRESSION:\n") == {"impression": "two"}


def test_wet_read_and_addendum_stay_apart():
    text = (
        " WET READ: ___ ___ 9:11 PM\n  No acute process.\n " + "_" * 78 + "\n FINAL REPORT\n"
        " FINDINGS: Clear.\n IMPRESSION: Normal.\n " + "_" * 78 + "\n ADDENDUM: Dr. ___ was told."
    )
    found = sections(text)
    assert found["wet_read"].endswith("No acute process.")
    assert found["impression"] == "Normal."
    assert found["addendum"] == "Dr. ___ was told."
    assert report_sentences(text) == [("findings", "Clear."), ("impression", "Normal.")]


def test_a_deidentified_word_is_no_separator():
    assert sections("FINDINGS: seen\n ___\n today")["findings"] == "seen\n ___\n today"


def test_subheadings_stay_inside_findings():
    text = "FINDINGS:\nLUNGS: Clear.\nHEART: Normal.\nIMPRESSION: Fine."
    assert sections(text)["findings"] == "LUNGS: Clear.\nHEART: Normal."


def test_prose_is_no_header():
    text = "FINDINGS: No change since the prior\n comparison: stable heart. Read at\n 10:30 today."
    assert list(sections(text)) == ["findings"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "COMPARISON: None.\n \n Lungs are clear.\n \n Heart is big.",
            [("last_paragraph", "Lungs are clear."), ("last_paragraph", "Heart is big.")],
        ),
        ("INDICATION: cough\n COMPARISON: Unchanged.", [("comparison", "Unchanged.")]),
        ("INDICATION: cough", []),
        ("Severe ARDS. CXR: white.", [("note", "Severe ARDS."), ("note", "CXR: white.")]),
        ("PORTABLE CHEST AT 10:30 shows edema", [("note", "PORTABLE CHEST AT 10:30 shows edema")]),
        ("", []),
        ("___", []),
    ],
)
def test_fallback_without_findings_and_impression(text, expected):
    assert report_sentences(text) == expected


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


@given(st.text(max_size=300))
def test_no_text_makes_the_parser_fail(text):
    assert all(name and piece for name, piece in sections(text).items())
    report_sentences("FINDINGS: " + text)


def _openi(shared_data):
    with tarfile.open(shared_data / "openi" / "NLMCXR_reports.tgz") as archive:
        for member in archive:
            if member.name.endswith(".xml"):
                root = ElementTree.fromstring(archive.extractfile(member).read())
                texts = root.iter("AbstractText")
                yield {t.get("Label"): " ".join((t.text or "").split()) for t in texts}


def test_real_reports_in_the_mimic_layout_give_back_their_sections(shared_data):
    reports = list(_openi(shared_data))
    wrong = 0
    for report in reports:
        text = " " * 33 + "FINAL REPORT\n"
        for name in ("INDICATION", "COMPARISON", "FINDINGS", "IMPRESSION"):
            if report.get(name):
                lines = textwrap.wrap(report[name], 78, break_on_hyphens=False)
                text += f" {name}: \n \n" + "\n".join(f" {line}" for line in lines) + "\n \n"
        found = sections(text)
        for name in ("FINDINGS", "IMPRESSION"):
            wrong += " ".join(found.get(name.lower(), "").split()) != report.get(name, "")
    assert len(reports) == 3955
    assert wrong <= 0.001 * len(reports)


def test_real_reports_give_sensible_sentences(shared_data):
    cut = [
        sentence
        for report in _openi(shared_data)
        for name in ("FINDINGS", "IMPRESSION")
        for sentence in split_sentences(report.get(name) or "")
    ]
    assert 20_000 < len(cut) < 26_000
    assert 7_500 < len(set(cut)) < 9_500
    words = sorted(len(sentence.split()) for sentence in cut)
    assert 4 <= words[len(words) // 2] <= 10
    assert words[-1] < 90
    assert not [s for s in cut if re.match(r"\d{1,2}[.)]\s+[A-Z]", s)]

"""Headings of reports: every entry of the public MIMIC-CXR parser's list is read as it says."""

import pytest

from medclip_debias.data.text.languages import language
from medclip_debias.data.text.reports import report_sentences, sections

HEADINGS = language("en").headings

# The facts of the public list, written out from MIT-LCP/mimic-cxr txt/section_parser.py.
PUBLIC = {
    "impression": [
        *("impression", "conclusion", "impresson", "imprression", "imoression", "impressoin"),
        *("imprssion", "impresion", "imperssion", "mpression", "impession", "ndication"),
        *("findings and impression", "findings/impression", "findings/ impression"),
    ],
    "findings": [
        *("findings", "finding", "findins", "findindgs", "findgings", "findngs", "findnings"),
        *("finidngs", "chest, two views", "reference findings"),
    ],
    "comparison": [
        *("comparison", "comparisons", "comparision", "comparsion", "comparrison"),
        *("comparisions", "reference exam", "comparison exam", "comparison film"),
    ],
    "indication": [
        *("indication", "reason for examination", "reason for exam", "clinical indication"),
        "idication",
    ],
    "history": ["history", "clinical history", "clinical information", "patient history", "pfi"],
    "examination": ["examination", "exam", "type of examination"],
    "technique": ["technique"],
    "notification": ["notification"],
    "recommendations": ["recommendation(s)", "recommendations", "recommendation"],
    "addendum": ["addendum"],
    "wet read": ["wet read", "wetread"],
    "date": ["date"],
    "comment": ["comment"],
}
PUBLIC_TITLES = (
    *("chest", "portable", "pa and lateral", "lateral and pa", "ap and lateral"),
    *("lateral and ap", "frontal and", "two views", "frontal view", "pa view", "ap view"),
    *("one view", "lateral view", "bone window", "frontal upright", "frontal semi-upright"),
    *("ribs", "pa and lat"),
)
ENTRIES = [(heading, name) for name, headings in PUBLIC.items() for heading in headings]


def test_every_heading_of_the_public_list_starts_the_section_that_it_says():
    ours = {"recommendations": "recommendation"}
    for heading, public in ENTRIES:
        name = "indication" if heading == "ndication" else ours.get(public, public)
        text = f" \n {heading.upper()}:  Some words here.\n \n NOTIFICATION: By phone.\n"
        found = sections(text).texts
        assert found[name.replace(" ", "_")] in ("Some words here.", "By phone."), heading
        assert "Some words here." in found.values() or name == "notification", heading


@pytest.mark.parametrize("heading", ["NARRATIVE", "Narrative", "RESULT", "RESULTS"])
def test_other_hospitals_headings_of_findings_are_not_left_aside(heading):
    cut = report_sentences(f"EXAM: Chest.\n{heading}: Clear lungs.\nIMPRESSION: Normal.")
    assert cut.sentences == [("findings", "Clear lungs."), ("impression", "Normal.")]


def test_below_a_title_stand_findings():
    for written in (
        *(phrase.upper() for phrase in PUBLIC_TITLES),
        *(f"{phrase.upper()} OF THE THORAX" for phrase in PUBLIC_TITLES),
        *("FRONTAL AND LATERAL VIEWS OF THE CHEST", "CHEST, PA AND LATERAL", "AP UPRIGHT VIEW"),
        *("PORTABLE CHEST, 10:30 A.M., ___", "CHEST RADIOGRAPH OF ___", "CXR", "CHEST (PA & LAT)"),
    ):
        text = f" \n INDICATION: Cough.\n \n {written}: Clear.\n \n IMPRESSION: Normal.\n"
        found = report_sentences(text).sentences
        assert found == [("findings", "Clear."), ("impression", "Normal.")], written


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("REASON FOR CHEST X-RAY", ("section", "indication")),
        ("PRIOR CHEST FILM", ("section", "comparison")),
        ("COMPARISON STUDY", ("section", "comparison")),
        ("CHEST PAIN", ("other", "chest pain")),
        ("CHEST TUBES", ("organ", "findings")),
        ("ETT", ("organ", "findings")),
        ("LINES/TUBES", ("organ", "findings")),
        ("EXAM DATE", ("section", "examination")),
        ("XYZ", ("other", "xyz")),
    ],
)
def test_what_a_heading_in_capitals_is(written, kind):
    assert HEADINGS.kind_of(written, capitals=True) == kind


def test_ordinary_words_with_a_colon_are_no_heading():
    for written in ("Chest", "We saw", "Comment", "Date", "The lungs"):
        assert HEADINGS.kind_of(written, capitals=False) is None


def test_a_date_or_a_view_is_no_finding():
    assert HEADINGS.is_title_only("___ at 3:15 p.m., PA and lateral")
    assert HEADINGS.is_title_only("")
    assert not HEADINGS.is_title_only("PA and lateral views: clear")

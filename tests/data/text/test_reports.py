"""Sections, on well-formed and on malformed reports."""

import re
import tarfile
import textwrap
import time
from itertools import cycle

import pytest
from defusedxml import ElementTree
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from medclip_debias.data.text.reports import (
    ReportSettings,
    report_sentences,
    sections,
    words_in,
)

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
    found = sections(REPORT).texts
    assert list(found) == [
        *("examination", "indication", "technique", "comparison", "findings", "impression")
    ]
    assert found["impression"] == "No acute cardiopulmonary abnormality."
    assert report_sentences(REPORT).sentences == [
        ("findings", "The cardiac and hilar contours are normal."),
        ("findings", "Pulmonary vasculature is normal."),
        ("findings", "Lungs are clear."),
        ("impression", "No acute cardiopulmonary abnormality."),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IMPRESSION: one\nIMPRESSION: two\nIMPRESSION:\n", {"impression": "two"}),
        ("findings: clear.\nimpression: fine.", {"findings": "clear.", "impression": "fine."}),
        ("FINDINGS: seen\n ___\n today", {"findings": "seen\n ___\n today"}),
        (
            "FINDINGS:\nETT: 3 cm up.\nHEART: Big.\nIMPRESSION:\nRIGHT SIDE: Good.",
            {"findings": "ETT: 3 cm up.\nHEART: Big.", "impression": "RIGHT SIDE: Good."},
        ),
        (
            "INDICATION: Cough.\nLUNGS: Clear.\nHEART: Big.\nIMPRESSION: Fine.",
            {
                **{"indication": "Cough.", "findings": "LUNGS: Clear.\nHEART: Big."},
                "impression": "Fine.",
            },
        ),
        (
            "FINDINGS: Calm.\nCOMPARISON: None.\nLUNGS: Clear.",
            {"findings": "Calm.\nLUNGS: Clear.", "comparison": "None."},
        ),
        (
            "FINDINGS: Since the prior\n comparison: stable. Read at\n 10:30.",
            {"findings": "Since the prior\n comparison: stable. Read at\n 10:30."},
        ),
        (
            "**Indication:** Cough.\n\n- **FINDINGS**: No **large** mass.\n**Impression**\nFine.",
            {"indication": "Cough.", "findings": "No large mass.", "impression": "Fine."},
        ),
        (
            "## Findings\nOld.\n# left 5th rib\n### Impression:\n***\nFine.",
            {"findings": "Old.\n# left 5th rib", "impression": "Fine."},
        ),
    ],
)
def test_what_starts_a_section_and_what_does_not(text, expected):
    assert sections(text).texts == expected


def test_a_heading_that_no_list_knows_is_a_section_where_the_settings_name_it():
    named = report_sentences("FINDINGS:\nSUPPORT: Fine.", ReportSettings(sections=("support",)))
    assert named.sentences == [("support", "Fine.")]


def test_wet_read_and_addendum_stay_apart():
    text = (
        " WET READ: ___ ___ 9:11 PM\n  No acute process.\n " + "_" * 78 + "\n FINAL REPORT\n"
        " FINDINGS: Clear.\n IMPRESSION: Normal.\n " + "_" * 78 + "\n ADDENDUM: Dr. ___ was told."
    )
    found = sections(text).texts
    assert found["wet_read"].endswith("No acute process.")
    assert found["impression"] == "Normal."
    assert found["addendum"] == "Dr. ___ was told."
    assert report_sentences(text).sentences == [("findings", "Clear."), ("impression", "Normal.")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "FINDINGS: Lungs clear. Comparison: None. Heart is big.\nIMPRESSION: Fine.",
            {"findings": "Lungs clear.\nHeart is big.", "comparison": "None."},
        ),
        (
            "FINDINGS: Clear. History: cough\n\nHeart is big.\nIMPRESSION: Fine.",
            {"findings": "Clear.\nHeart is big.", "history": "cough"},
        ),
        (
            "FINDINGS: Clear. Findings: Heart is big. \nIMPRESSION: Fine.",
            {"findings": "Clear.\nHeart is big."},
        ),
        ("COMPARISON: None.\nIMPRESSION:\nPA AND LATERAL CHEST: Clear", {}),
        ("INDICATION: Cough. PA AND LATERAL CHEST: Big heart.\nIMPRESSION: Fine.", {}),
        (
            "INDICATION: Cough.\n\nPORTABLE CHEST\n\nBig heart.\n\nIMPRESSION: Fine.",
            {"findings": "Big heart.", "indication": "Cough."},
        ),
        (
            "CHEST, PA VIEW: ___\n\nINDICATION: Cough.\n\nLungs are clear.",
            {"indication": "Cough.", "last_paragraph": "Lungs are clear."},
        ),
    ],
)
def test_a_heading_inside_a_line_neither_swallows_nor_loses_what_follows(text, found):
    counted = sections(text)
    assert found.items() <= counted.texts.items()
    said = " ".join(text for _, text in report_sentences(text).sentences)
    for words in ("Clear", "Big heart", "Heart is big", "Lungs are clear"):
        assert words not in text or words in said


def test_words_that_are_left_aside_are_counted_by_section():
    text = (
        "Read today.\nINDICATION: Cough and fever.\nSTAMP: Ward nine\nCHEST 2 VIEWS: today\n"
        "FINDINGS: Old text here.\n" + "_" * 70 + "\nFINDINGS: Lungs clear.\nIMPRESSION: Normal."
    )
    cut = report_sentences(text)
    assert [sentence for _, sentence in cut.sentences] == ["Lungs clear.", "Normal."]
    assert cut.used == 3
    assert cut.aside == {
        "preamble": 2,
        "indication": 3,
        "examination": 1,
        "other heading": 2,
        "findings (replaced)": 3,
    }


HEADS = st.sampled_from(
    (
        *("\n FINDINGS: ", "\n\nIMPRESSION:\n", " Comparison: ", "\nPORTABLE CHEST: ", "\nLUNGS: "),
        *(". Technique: ", "\nXYZ: ", "\n\nPA AND LATERAL CHEST\n\n", "\nWET READ: ", "\n\n", ". "),
        *("\n ADDENDUM: ", "\nHISTORY: ", " FINDINGS: ", "\n FINAL REPORT\n"),
    )
)


@given(st.lists(HEADS, max_size=12))
@example([" Comparison: ", " Comparison: ", "\n\n", "\n FINAL REPORT\n"])
def test_every_word_is_used_or_counted_as_left_aside(heads):
    """Words are numbered; each is in a section once, or is counted as left aside."""
    text = "w0 a" + "".join(f"{head}W{i} b." for i, head in enumerate(heads, 1))
    counted = sections(text)
    there = re.findall(r"[wW]\d+", " ".join(counted.texts.values()))
    assert len(set(there)) == len(there)
    numbered = len(there) * 2  # "W1 b." are two words
    below = sum(map(words_in, counted.texts.values())) + counted.aside.total()
    headings = sum(words_in(head) for head in heads)
    total = words_in(text)
    assert numbered <= sum(map(words_in, counted.texts.values()))
    assert total - headings <= below <= total


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "COMPARISON: None.\n \n Lungs are clear.\n \n Heart is big.",
            [("last_paragraph", "Lungs are clear."), ("last_paragraph", "Heart is big.")],
        ),
        ("INDICATION: cough\n COMPARISON: Unchanged.", [("comparison", "Unchanged.")]),
        ("Severe ARDS. CXR: white.", [("note", "Severe ARDS."), ("note", "CXR: white.")]),
        ("", []),
        ("___", []),
    ],
)
def test_fallback_without_findings_and_impression(text, expected):
    assert report_sentences(text).sentences == expected


# --------------------------------------------------------- the public parser, as reference

HEADER = re.compile(r"\n ([A-Z ()/,-]+):\s")
TABLE = {
    "preamble": "preamble",
    "conclusion": "impression",
    "conclusions": "impression",
    "impressions": "impression",
    "finding": "findings",
    "reason for examination": "indication",
    "reason for exam": "indication",
    "clinical information": "history",
    "exam": "examination",
    "addenda": "addendum",
}
WORDS = (
    *("impression", "findings", "addendum", "indication", "comparison", "technique", "history"),
    *("examination", "recommendation", "wet read", "notification"),
)


def reference_sections(text):
    """Cut a report as the public MIMIC-CXR section parser does, written from its description.

    A header is a newline, a space, capitals and ``()/,-``, a colon and white space; the next
    header is looked for after the first line of a section. Names are normalised by a table, then
    by the first known word they hold; empty findings and impressions are dropped; without either,
    what follows the first paragraph of the last section is ``last_paragraph``; the last section
    of a name wins.
    """
    found = []
    match = HEADER.search(text)
    if match is None:
        return {"full report": text.strip()}
    found.append(("preamble", text[: match.start(1)]))
    while match is not None:
        start = match.end()
        skip = max(text[start:].find("\n"), 0)
        following = HEADER.search(text, start + skip)
        end = len(text) if following is None else following.start()
        found.append((_normal(match[1].lower().strip()), text[start:end]))
        match = following
    found = [
        (name, body)
        for name, body in found
        if name not in ("findings", "impression") or body.strip()
    ]
    if not {"findings", "impression"} & {name for name, _ in found}:
        name, body = found[-1]
        if "\n \n" in body:
            first, rest = body.split("\n \n", 1)
            found[-1:] = [(name, first), ("last_paragraph", rest)]
    return {name: body.strip() for name, body in found}


def _normal(name):
    if name in TABLE:
        return TABLE[name]
    return next((word for word in WORDS if word in name), name)


@pytest.fixture(scope="module")
def openi(shared_data):
    """The parts of each real report by their labels, and the same wrapped to lines."""
    found = []
    with tarfile.open(shared_data / "openi" / "NLMCXR_reports.tgz") as archive:
        for member in archive:
            if member.name.endswith(".xml"):
                root = ElementTree.fromstring(archive.extractfile(member).read())
                texts = root.iter("AbstractText")
                report = {t.get("Label"): " ".join((t.text or "").split()) for t in texts}
                lines = {
                    name: textwrap.wrap(report[name], 78, break_on_hyphens=False)
                    for name in ("INDICATION", "COMPARISON", "FINDINGS", "IMPRESSION")
                    if report.get(name)
                }
                found.append((report, lines))
    return found


def _blank_lines(name, lines):
    return f" {name}: \n \n" + "\n".join(f" {line}" for line in lines) + "\n \n"


def _tight(name, lines):
    return f" {name}: " + "\n ".join(lines) + "\n"


@pytest.mark.parametrize("layout", [_blank_lines, _tight])
def test_real_reports_in_the_mimic_layout_are_read_as_the_public_parser_reads_them(openi, layout):
    different = wrong = 0
    for report, parts in openi:
        text = " " * 33 + "FINAL REPORT\n"
        text += "".join(layout(name, lines) for name, lines in parts.items())
        found, reference = sections(text).texts, reference_sections(text)
        pairs = [
            [" ".join(which.get(name, "").split()) for name in ("findings", "impression")]
            for which in (found, reference)
        ]
        different += pairs[0] != pairs[1]
        wrong += pairs[0] != [report.get(name, "") for name in ("FINDINGS", "IMPRESSION")]
    assert len(openi) == 3955
    assert different <= 0.001 * len(openi)
    assert wrong <= 0.001 * len(openi)


def test_real_findings_below_a_title_are_not_lost(openi):
    titles = ("CHEST, TWO VIEWS", "FRONTAL AND LATERAL VIEWS OF THE CHEST", "PORTABLE AP CHEST")
    other = 0
    for (report, parts), heading in zip(openi, cycle(titles)):
        text = " " * 33 + "FINAL REPORT\n"
        for name, lines in parts.items():
            text += _blank_lines(heading if name == "FINDINGS" else name, lines)
        found, aside = sections(text)
        other += words_in(found.get("findings", "")) != words_in(report.get("FINDINGS") or "")
        if report.get("FINDINGS"):
            below = sum(words_in(text) for text in report.values())
            assert sum(map(words_in, found.values())) + aside.total() in range(below - 9, below + 1)
    # One says "AP and lateral view" alone, and one holds a whole second report.
    assert other <= 2


BODY = [("findings", "Lungs clear."), ("impression", "Normal.")]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("mixed case", " \n Findings: Lungs clear.\n Impression: Normal.\n"),
        ("lower case", " \n findings: Lungs clear.\n \n impression: Normal.\n"),
        ("space before the colon", " \n FINDINGS : Lungs clear.\n Impression : Normal.\n"),
        ("no leading space", "EXAM: CHEST\nFINDINGS: Lungs clear.\nIMPRESSION: Normal.\n"),
        ("header on line one", "FINDINGS: Lungs clear.\n IMPRESSION: Normal.\n"),
        ("missing white space", " \n FINDINGS:Lungs clear.\n IMPRESSION:Normal.\n"),
        ("tab before the header", "\n\tFINDINGS:\tLungs clear.\n\tIMPRESSION:\tNormal.\n"),
        ("two on one line", " \n FINDINGS: Lungs clear. IMPRESSION: Normal.\n"),
        ("no colon", " \n FINDINGS\n Lungs clear.\n IMPRESSION\n Normal.\n"),
        ("misspelt", " \n FINIDNGS: Lungs clear.\n IMPRESSON: Normal.\n"),
        (
            "digits in a header",
            " \n FINDINGS: Lungs clear.\n IMPRESSION: Normal.\n RECOMMENDATION 2: CT of ___.\n",
        ),
        (
            "addendum after a line",
            " \n FINDINGS: Lungs clear.\n IMPRESSION: Normal.\n " + "_" * 78 + "\n FINAL ADDENDUM\n"
            " Dr. ___ was told.\n",
        ),
        (
            "wet read first",
            " \n WET READ: ___ 9:11 PM\n  Edema?\n " + "_" * 60 + "\n FINAL REPORT\n"
            " FINDINGS: Lungs clear.\n Impression: Normal.\n",
        ),
        ("carriage returns", " \r\n FINDINGS: Lungs clear.\r IMPRESSION: Normal.\r"),
        ("a byte order mark", "\ufeffFINDINGS: Lungs clear.\n IMPRESSION: Normal.\n"),
    ],
)
def test_malformed_reports_are_read_where_the_public_parser_fails(fault, text):
    reference = reference_sections(text)
    assert [(k, v) for k, v in reference.items() if k in ("findings", "impression")] != BODY
    assert report_sentences(text).sentences == BODY


FULL = """FINAL REPORT
 INDICATION: Cough.
 FINDINGS: Lungs clear. Lungs clear. Left basal opacity is small.
 WET READ: Edema.
 IMPRESSION: Lungs clear. Stable.
"""


@pytest.mark.parametrize(
    ("settings", "expected", "dropped"),
    [
        (
            {},
            [*2 * ["Lungs clear."], "Left basal opacity is small.", "Lungs clear.", "Stable."],
            {},
        ),
        (
            {"sections": ["Impressions", "WET READ"], "order": "settings"},
            ["Lungs clear.", "Stable.", "Edema."],
            {},
        ),
        ({"sections": ["technique"], "fallback": ["history", "indication"]}, ["Cough."], {}),
        ({"sections": ["technique"], "fallback": []}, [], {}),
        ({"sections": ["impression"], "min_words": 2}, ["Lungs clear."], {"too short": 1}),
        (
            {"max_words": 2, "sections": ["findings"]},
            ["Lungs clear.", "Lungs clear."],
            {"too long": 1},
        ),
        (
            {"drop_repeated": True},
            ["Lungs clear.", "Left basal opacity is small.", "Stable."],
            {"repeated": 2},
        ),
    ],
)
def test_sections_their_order_and_filters_are_settings(settings, expected, dropped):
    cut = report_sentences(FULL, ReportSettings(**settings))
    assert [sentence for _, sentence in cut.sentences] == expected
    assert cut.dropped == dropped
    assert cut.used + cut.aside.total() == 14  # every word below a heading


@pytest.mark.parametrize(
    "settings", [{"sections": ["findings", "Finding"]}, {"min_words": 5, "max_words": 4}]
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValidationError):
        ReportSettings(**settings)


def test_a_huge_report_takes_no_more_time_than_its_length_asks_for():
    lines = "findings: clear lungs and heart\n" * 2_000
    start = time.process_time()
    sections(lines)
    once = time.process_time() - start
    start = time.process_time()
    sections(lines * 8)
    assert time.process_time() - start < 8 * 4 * once + 0.5

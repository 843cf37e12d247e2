"""Spanish reports: their headings and sentences."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.text.languages import language
from medclip_debias.data.text.reports import (
    ReportSettings,
    report_sentences,
    sections,
)
from medclip_debias.data.text.sentences import split_sentences
from medclip_debias.errors import UserError
from tests.data.text.languages.invented import REPORTS

SPANISH = ReportSettings(language="es")


@pytest.mark.parametrize(("text", "expected"), REPORTS)
def test_invented_reports_are_cut_as_judged(text, expected):
    assert report_sentences(text, SPANISH).sentences == expected
    # The accents may be characters of their own.
    assert report_sentences(unicodedata.normalize("NFD", text), SPANISH).sentences == expected
    assert report_sentences(text.replace("\n", "\r\n"), SPANISH).sentences == expected


def test_the_language_that_the_source_states_is_taken_unless_the_settings_name_one():
    text = "Hallazgos: Sin derrame. Conclusión: Normal."
    spanish = [("findings", "Sin derrame."), ("impression", "Normal.")]
    assert report_sentences(text, declared="es").sentences == spanish
    assert report_sentences(text, declared="es").language == "es"
    assert report_sentences(text).language == "en"
    assert report_sentences(text, SPANISH).sentences == spanish
    with pytest.raises(UserError, match=r"'it'.*en, es"):
        language("it")
    english = ReportSettings(language="en")
    assert report_sentences(text, english, declared="es").language == "en"


def test_every_heading_is_found_with_and_without_accents_and_in_capitals():
    spoken = language("es")
    for written, name in spoken.headings.names.items():
        loud = written.upper()
        body = "Xyz abc."
        if written in spoken.headings.capitals_only or loud.lower() not in spoken.headings.names:
            continue
        for heading in (loud, written.capitalize()):
            found = sections(f"{heading}: {body}\nHallazgos", rules=spoken).texts
            assert name.replace(" ", "_") in found or name in ("date", "comment"), heading


WORDS = ("Sin", "derrame", "1,5", "cm.", "dcho.", "aprox.", "Dr.", "izq", "No", "Corazón", "LSD")
AFTER = st.sampled_from([" ", " ", " ", ". ", " . ", "? ", "\n", "\n\n", ".", ", ", "; ", "XXXX "])


@given(data=st.data())
def test_no_letter_is_lost_and_cutting_again_cuts_no_more(data):
    bits = data.draw(st.lists(st.tuples(st.sampled_from(WORDS), AFTER), max_size=14))
    text = "".join(word + after for word, after in bits)
    sentences, dropped = split_sentences(text, "es")
    assert _letters(" ".join(sentences)) == _letters(text)
    assert "signature" not in dropped
    assert all(s == " ".join(s.split()) for s in sentences)
    again = [part for sentence in sentences for part in split_sentences(sentence, "es")[0]]
    assert _letters(" ".join(again)) == _letters(" ".join(sentences))
    assert split_sentences("\n\n".join(again), "es")[0] == again or any(
        split_sentences(s, "es")[0] != [s] for s in again
    )


def _letters(text):
    plain = re.sub(r"_+|\bX{3,}\b", " ", unicodedata.normalize("NFC", text))
    return [c for c in plain if c.isalpha()]

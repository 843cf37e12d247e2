"""Reports of other languages than English: their headings, sentences and negations."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.text.languages import LANGUAGES, language, negations
from medclip_debias.data.text.reports import (
    UNSUPPORTED,
    ReportSettings,
    report_sentences,
    report_sentences_counted,
    sections,
)
from medclip_debias.data.text.sentences import split_sentences
from medclip_debias.errors import UserError
from tests.data.text.languages.invented import REPORTS

OTHERS = LANGUAGES[1:]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [(code, *pair) for code, pairs in REPORTS.items() for pair in pairs],
)
def test_invented_reports_are_cut_as_judged(code, text, expected):
    assert report_sentences(text, ReportSettings(language=code)) == expected
    # The accents may be characters of their own.
    parted = unicodedata.normalize("NFD", text)
    assert report_sentences(parted, ReportSettings(language=code)) == expected
    assert report_sentences(text.replace("\n", "\r\n"), ReportSettings(language=code)) == expected


def test_the_language_that_the_source_states_is_taken_where_a_report_is_not_clearly_another():
    text = "Hallazgos: Sin derrame. Conclusión: Normal."
    cut = report_sentences_counted(text, declared="es")
    assert cut.sentences == [("findings", "Sin derrame."), ("impression", "Normal.")]
    assert cut.language == "es"
    assert report_sentences_counted(text).language == "en"  # too short to be sure
    english = "FINDINGS: There is a nodule of the left lung with no effusion. IMPRESSION: Normal."
    cut = report_sentences_counted(english, declared="es")
    assert cut.language == "en"
    assert ("impression", "Normal.") in cut.sentences


def test_a_report_in_a_language_that_is_not_supported_is_left_aside_and_counted():
    text = "Il cuore è nei limiti. Non si osservano lesioni della pleura e dei polmoni."
    cut = report_sentences_counted(text)
    assert (cut.sentences, cut.language, cut.used) == ([], "Italian", 0)
    assert cut.aside == {UNSUPPORTED: 14}
    assert report_sentences_counted(text, ReportSettings(language="es")).sentences


@pytest.mark.parametrize(
    ("code", "text", "names"),
    [
        ("es", "HALLAZGOS: A.\nIMPRESION: B.", ["findings", "impression"]),
        ("es", "Técnica: PA.\nHallazgos: A.\nRecomendación: TC.", ["technique", "findings"]),
        ("fr", "Antécédents : asthme.\nRésultats : A.\nConclusion : B.", ["history", "findings"]),
        ("fr", "RESULTAT : A. CONCLUSION : B.", ["findings", "impression"]),
        ("pt", "IMPRESSAO: B.\nACHADOS: A.", ["impression", "findings"]),
        ("pt", "Comparação: 2019.\nLaudo", ["comparison"]),
        ("de", "VORAUFNAHMEN: Keine.\nBEFUND: A.\nBEURTEILUNG: B.", ["comparison", "findings"]),
        ("de", "Rechtfertigende Indikation: Husten.\nBefund: A.", ["indication", "findings"]),
    ],
)
def test_headings_of_each_language_have_the_names_of_the_english_ones(code, text, names):
    assert list(sections(text, language(code)))[: len(names)] == names


@pytest.mark.parametrize("code", OTHERS)
def test_every_heading_is_found_with_and_without_accents_and_in_capitals(code):
    spoken = language(code)
    for written, name in spoken.headings.names.items():
        loud = written.upper()
        body = "Xyz abc."
        if written in spoken.headings.capitals_only or loud.lower() not in spoken.headings.names:
            continue
        for heading in (loud, written.capitalize()):
            found = sections(f"{heading}: {body}\nBefund Hallazgos", spoken)
            assert name.replace(" ", "_") in found or name in ("date", "comment"), heading


@pytest.mark.parametrize("code", OTHERS)
def test_the_last_section_of_a_name_wins_and_the_first_is_counted(code):
    names = language(code).headings.names
    heading = next(written for written, name in names.items() if name == "impression")
    text = f"{heading.upper()}: Uno dos.\n\n{heading.upper()}: Tres."
    cut = report_sentences_counted(text, ReportSettings(language=code))
    assert cut.sentences == [("impression", "Tres.")]
    assert cut.aside == {"impression (replaced)": 2}


WORDS = {
    "es": ("Sin", "derrame", "1,5", "cm.", "dcho.", "aprox.", "Dr.", "izq", "No", "Corazón", "LSD"),
    "fr": ("Pas", "d'épanchement", "1,5", "cm.", "env.", "Dr.", "œdème", "Cœur", "inf.", "À", "n°"),
    "pt": (
        "Não",
        "há",
        "derrame",
        "2,0",
        "cm.",
        "esq.",
        "aprox.",
        "Dra.",
        "Área",
        "pulmão",
        "p.ex.",
    ),
    "de": (
        "Kein",
        "Erguss",
        "1,5",
        "cm.",
        "re.",
        "bds.",
        "ca.",
        "Z.n.",
        "Größe",
        "BWK",
        "12.",
        "5.",
    ),
}
AFTER = st.sampled_from([" ", " ", " ", ". ", " . ", "? ", "\n", "\n\n", ".", ", ", "; ", "XXXX "])


@pytest.mark.parametrize("code", OTHERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_letter_is_lost_and_cutting_again_cuts_no_more(code, data):
    bits = data.draw(st.lists(st.tuples(st.sampled_from(WORDS[code]), AFTER), max_size=14))
    text = "".join(word + after for word, after in bits)
    sentences, dropped = split_sentences(text, code)
    assert _letters(" ".join(sentences)) == _letters(text)
    assert "signature" not in dropped
    assert all(s == " ".join(s.split()) for s in sentences)
    again = [part for sentence in sentences for part in split_sentences(sentence, code)[0]]
    assert _letters(" ".join(again)) == _letters(" ".join(sentences))
    assert split_sentences("\n\n".join(again), code)[0] == again or any(
        split_sentences(s, code)[0] != [s] for s in again
    )


@pytest.mark.parametrize("code", OTHERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_sentence_crosses_sections(code, data):
    names = language(code).headings.names
    heads = [next(w for w, n in names.items() if n == name) for name in ("findings", "impression")]
    drawn = st.lists(st.tuples(st.sampled_from(WORDS[code]), AFTER), min_size=1, max_size=8)
    bodies = ["".join(w + a for w, a in data.draw(drawn)) for _ in heads]
    text = "\n\n".join(f"{h.upper()}: {b}" for h, b in zip(heads, bodies, strict=True))
    cut = report_sentences(text, ReportSettings(language=code))
    for name, body in zip(("findings", "impression"), bodies, strict=True):
        said = " ".join(sentence for section, sentence in cut if section == name)
        assert _letters(said) == _letters(body)


def _letters(text):
    plain = re.sub(r"_+|\bX{3,}\b", " ", unicodedata.normalize("NFC", text))
    return [c for c in plain if c.isalpha()]


@pytest.mark.parametrize("code", LANGUAGES)
def test_negations_are_small_letters_longest_first(code):
    words = negations(code)
    for group in (words.before, words.after, words.not_negations):
        assert all(word == word.lower().strip() for word in group)
        assert [len(word) for word in group] == sorted(map(len, group), reverse=True)
        assert len(set(group)) == len(group)


@pytest.mark.parametrize("code", OTHERS)
def test_the_prompts_of_a_language_deny_on_the_negative_side_alone(code):
    prompts, english = load_prompts(f"chex5_{code}"), load_prompts("chex5")
    assert list(prompts.classes) == list(english.classes)
    denying = negations(code).before
    for name, sides in prompts.classes.items():
        assert not any(text.lower().startswith(denying) for text in sides.positive)
        if name != "Cardiomegaly":  # its negative says what a normal heart is
            assert all(text.lower().startswith(denying) for text in sides.negative)


def test_an_unknown_language_is_refused_with_those_that_are_read():
    with pytest.raises(UserError, match=r"'it' is not supported.*en, es, fr, pt, de"):
        language("it")
    with pytest.raises(UserError, match="'xx' is not supported"):
        negations("xx")

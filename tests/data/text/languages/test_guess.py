"""The guess of a report's language is right or not made."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.text.languages.guess import guess_language
from tests.data.text.languages.invented import REPORTS

UNSUPPORTED = {
    "Italian": "Non si apprezzano lesioni pleuro-parenchimali in atto. Ombra cardiaca nei limiti"
    " della norma, con lieve accentuazione della trama.",
    "Dutch": "Er is geen pleuravocht zichtbaar en het hart is niet vergroot. Geen infiltraten bij"
    " een patiënt met koorts.",
    "Catalan": "No hi ha vessament pleural amb els sins lliures i sense condensacions. Els pulmons"
    " són normals.",
    "Romanian": "Fără leziuni pleuro-pulmonare și cu cord în limite. Nu sunt modificări în plus,"
    " este normal pentru vârstă.",
    "Polish": "Serce i śródpiersie bez zmian. W prawym płucu nie stwierdza się zagęszczeń, oraz nie"
    " ma płynu w jamie opłucnej.",
    "Swedish": "Hjärtat är inte förstorat och det finns ingen pleuravätska. Inga infiltrat på höger"
    " eller vänster sida.",
    "Turkish": "Her iki akciğer normal görünümde ve plevral sıvı yok. Sağ hiler dolgunluk mevcut"
    " ancak kitle izlenmedi.",
    "a language in Cyrillic letters": "Лёгкие без очаговых изменений. Сердце не увеличено.",
    "a language in Cjk letters": "両側肺野に異常陰影は認められない。心拡大なし。胸水なし。",
}


@pytest.mark.parametrize(("name", "text"), UNSUPPORTED.items())
def test_a_language_that_is_not_supported_is_named(name, text):
    assert guess_language(text) == name


@pytest.mark.parametrize("code", REPORTS)
def test_an_invented_report_is_guessed_right_or_not_at_all(code):
    guesses = [guess_language(text) for text, _ in REPORTS[code]]
    assert set(guesses) <= {code, None}
    assert code in guesses


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Normal.",
        "XXXX",
        "12.03.2021",
        "cambi pulmonar cronic sever . sign fibrosis bibasal . sutil infiltr pseudonodul",
        "sin hallazg patolog signific . cardiomegali . elong aort . no deram pleural",
        "RX TORAX PA. NORMAL.",
        "No pleural effusion. No pneumothorax. Heart size normal.",
        "PA e perfil",
    ],
)
def test_a_few_words_or_stems_are_not_guessed(text):
    assert guess_language(text) is None


@given(st.text(max_size=200))
def test_any_text_is_guessed_without_error(text):
    assert guess_language(text) is None or guess_language(text)


def test_real_english_reports_are_english_or_unsure(shared_data, openi_studies):
    reports = [study.report or "" for study in openi_studies]
    with (shared_data / "real_cxr" / "manifest.csv").open(encoding="utf-8", newline="") as file:
        reports += [row["report"] for row in csv.DictReader(file)]
    guesses = [guess_language(report) for report in reports]
    assert set(guesses) == {"en", None}
    assert guesses.count("en") > len(guesses) / 2

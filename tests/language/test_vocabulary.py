"""What a tokenizer learns of reports: words of several patients, and no names."""

import json

import pytest

from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.language.vocabulary import allowed_words, without_others

PATIENTS = [str(number) for number in range(8)]
SAID = {
    "The lungs are clear.": PATIENTS,
    "Findings discussed with Dr. Zebrowska by phone.": PATIENTS,
    "Compared with Quillfeather Hospital, no change.": PATIENTS[:6],
    "A Swan Ganz catheter, and a Dobbhoff tube.": PATIENTS[:6],
    "Large echinococcal cyst.": PATIENTS[:1],
    "Call 5550199 at 10 pm.": PATIENTS,
}


def test_words_need_patients_not_occurrences():
    allowed, left_out = allowed_words(SAID, 5)
    assert {"the", "lungs", "are", "clear", "10", "change"} <= allowed
    assert not allowed & {"echinococcal", "cyst"}
    assert {"echinococcal", "cyst"} <= allowed_words(SAID, 1)[0]
    assert left_out >= 2


def test_names_and_numbers_stay_out_however_frequent_and_eponyms_stay_in():
    allowed, _ = allowed_words(SAID, 5)
    assert not allowed & {"zebrowska", "quillfeather", "hospital", "5550199"}
    assert {"swan", "ganz", "dobbhoff"} <= allowed
    assert "Zebrowska" not in without_others("Dr. Zebrowska saw clear lungs.", allowed)


def test_a_folder_holds_no_name_and_its_card_says_what_was_done(tmp_path):
    small = LanguageModelSettings(
        vocabulary=400, hidden=16, layers=1, heads=2, steps=2, batch_size=4, max_tokens=16
    )
    corpus = [text for text in SAID for _ in range(50)]
    figures = train_masked_lm(corpus, tmp_path / "lm", small, patients_of=SAID)
    vocabulary = json.loads((tmp_path / "lm/tokenizer.json").read_text())["model"]["vocab"]
    assert {"lungs", "clear"} <= set(vocabulary)
    assert not {"zebrowska", "quillfeather", "echinococcal", "5550199"} & set(vocabulary)
    assert figures["words_left_out"] > 0
    card = (tmp_path / "lm/README.md").read_text()
    assert "fewer than 5 patients" in card
    train_masked_lm(corpus, tmp_path / "all", small)
    open_vocabulary = json.loads((tmp_path / "all/tokenizer.json").read_text())["model"]["vocab"]
    assert "zebrowska" in open_vocabulary  # what the filter is for


def test_a_corpus_of_too_few_patients_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"said of 5 patients.*min_patients=1"):
        train_masked_lm(["a b", "c d"], tmp_path / "lm", patients_of={"a b": ["1"], "c d": ["2"]})

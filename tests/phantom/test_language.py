"""What reports say: no word gives a label away, settings do what they say, statements hold."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from medclip_debias.data.text.reports import report_sentences
from medclip_debias.phantom import PhantomSettings
from medclip_debias.phantom.catalogue import CLASS_NAMES, CLASSES, class_probabilities
from medclip_debias.phantom.language import NOUNS
from medclip_debias.phantom.study import Study, forced_class, plan_study
from medclip_debias.phantom.truth import agrees

# The paper's Table 2.
PROMPTS = (
    "No signs of pneumonia",
    "Findings suggesting pneumonia",
    "Heart size normal",
    "Cardiomegaly",
    "No pulmonary edema",
    "Pulmonary edema",
    "No pleural effusions",
    "Pleural effusions",
    "No pneumothorax",
    "Pneumothorax",
)
STUDIES = 1700
SETTINGS = PhantomSettings(studies=4000, seed=5)


@pytest.fixture(scope="module")
def studies() -> list[Study]:
    return [plan_study(SETTINGS, "train", i) for i in range(STUDIES)]


def by_polarity(studies: list[Study]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {"positive": [], "negative": []}
    for study in studies:
        for placed in study.report.sentences:
            polarity = placed.sentence.statement.polarity
            if polarity in texts:
                texts[polarity].append(placed.sentence.text.lower())
    return texts


@pytest.mark.parametrize("regime", ["easy", "natural", "hospital"])
def test_no_prompt_word_leaks_a_label(regime: str) -> None:
    settings = PhantomSettings.model_validate({"studies": 3000, "seed": 6, "regime": regime})
    texts = by_polarity([plan_study(settings, "train", i) for i in range(600)])
    words = {w for prompt in PROMPTS for w in prompt.lower().split()}
    for polarity, sentences in texts.items():
        counts = Counter(w for s in sentences for w in set(re.findall(r"[a-z]+", s)))
        for word in words:
            assert counts[word] >= 10, f"'{word}' is rare in {polarity} sentences"


def test_every_noun_is_used_in_both_polarities(studies: list[Study]) -> None:
    texts = {k: "\n".join(v) for k, v in by_polarity(studies).items()}
    for kind in ("effusion", "cardiomegaly", "edema", "pneumonia", "pneumothorax"):
        for noun in NOUNS[kind]:
            for polarity, text in texts.items():
                assert re.search(rf"\b{noun.text.lower()}\b", text), f"{noun.text}: {polarity}"


def test_every_prompt_of_the_paper_occurs_as_a_sentence(studies: list[Study]) -> None:
    said = {p.sentence.text.lower().rstrip(".") for s in studies for p in s.report.sentences}
    assert {p.lower() for p in PROMPTS} <= said


def test_class_frequencies_follow_the_design(studies: list[Study]) -> None:
    found = np.zeros(len(CLASSES))
    for study in studies:
        found[list(study.findings)] += 1
    design = 0.25 / np.arange(1, 29) ** 0.8
    assert class_probabilities(28, 1.0, 0.8) == pytest.approx(design)
    tolerance = 3 * np.sqrt(design * (1 - design) / STUDIES)
    assert (np.abs(found / STUDIES - design) < tolerance).all()


def test_statements_are_true_of_their_own_study_and_severities_exclude_each_other(
    studies: list[Study],
) -> None:
    for study in studies:
        groups = [CLASSES[i].group for i in study.findings]
        assert len(groups) == len(set(groups))
        names = [CLASS_NAMES[i] for i in study.findings]
        for placed in study.report.sentences:
            assert agrees(placed.sentence.statement, names), placed.sentence.text


def test_sides_named_in_words_are_the_sides_of_the_statement(studies: list[Study]) -> None:
    for study in studies:
        for placed in study.report.sentences:
            statement = placed.sentence.statement
            if statement.kind not in ("positive", "hedged"):
                continue
            words = re.findall(r"[a-z]+", placed.sentence.text.lower())
            for side, other in (("left", "right"), ("right", "left")):
                if statement.clauses[0].side == side and side in words:
                    assert other not in words


def test_reading_the_report_gives_the_sentences_of_the_truth(studies: list[Study]) -> None:
    for study in studies[:400]:
        read = [text for _, text in report_sentences(study.report.text).sentences]
        assert read == [p.sentence.text for p in study.report.sentences]


def test_naming_rate_zero_names_nothing_and_one_names_all() -> None:
    for rate in (0.0, 1.0):
        settings = PhantomSettings(naming_rate=rate, compound_rate=0, seed=2)
        for i in range(200):
            for placed in plan_study(settings, "train", i).report.sentences:
                statement = placed.sentence.statement
                if statement.kind not in ("positive", "hedged"):
                    continue
                clause = statement.clauses[0]
                if rate == 0:
                    assert (clause.side, clause.zone, clause.severity) == (None, None, None)
                else:
                    assert clause.matches().sum() == 1


def test_negation_settings_raise_the_share_of_denials() -> None:
    def denials(**changed: float) -> float:
        settings = PhantomSettings.model_validate({"seed": 4, **changed})
        kinds = Counter(
            p.sentence.statement.polarity
            for i in range(150)
            for p in plan_study(settings, "train", i).report.sentences
            if p.section == "findings"
        )
        return kinds["negative"] / 150

    none = denials(negation_single=0, negation_combined=0)
    assert (
        none
        < denials(negation_single=0.5, negation_combined=0)
        < denials(negation_single=1.0, negation_combined=1.0)
    )


def test_a_larger_training_set_keeps_its_first_studies_and_its_test_set() -> None:
    small, large = PhantomSettings(studies=100), PhantomSettings(studies=1000)
    for split in ("train", "test"):
        for i in (0, 3, 9):
            assert plan_study(small, split, i) == plan_study(large, split, i)
    other = small.model_copy(update={"seed": 2})
    assert plan_study(small, "test", 3) != plan_study(other, "test", 3)


def test_forced_test_studies_have_their_class_equally_often() -> None:
    forced = [forced_class(i, 28) for i in range(5 * 28)]
    assert forced.count(None) == 56  # 40% natural
    assert all(forced.count(k) == 3 for k in range(28))
    for i in range(2, 60):
        study = plan_study(SETTINGS, "test", i)
        assert study.forced is None or study.forced in study.findings


def test_marker_follows_its_class_in_training_only() -> None:
    name = "cardiomegaly_mild"
    settings = PhantomSettings(
        studies=4000, marker_class=name, marker_correlation=1.0, test_studies=600
    )
    train = [plan_study(settings, "train", i) for i in range(100)]
    assert all(s.marker == (CLASS_NAMES.index(name) in s.findings) for s in train)
    test = [plan_study(settings, "test", i) for i in range(300)]
    for present in (True, False):
        rate = [s.marker for s in test if (CLASS_NAMES.index(name) in s.findings) == present]
        assert abs(np.mean(rate) - 0.5) < 4 * 0.5 / np.sqrt(len(rate))

"""Sentences that claims add to a batch: what they say, whom they are given to, and what decides."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.claim_sentences import ClaimSentences
from medclip_debias.data.text.claims import Claim, load_lexicon
from medclip_debias.data.text.evidence import Evidence

LEXICON = load_lexicon()
SAID = [
    [Claim("pleural_effusion")],
    [Claim("pleural_effusion", side="left")],
    [Claim("pleural_effusion", "absent")],
    [Claim("cardiomegaly")],
    [Claim("cardiomegaly", "absent"), Claim("pleural_effusion", "absent")],
    [Claim("cardiomegaly", "absent")],
    [Claim("nodule", certainty="uncertain")],
    [],
]


def evidence_of(*reports):
    """Evidence on studies that say the sentences of `SAID` with these numbers."""
    study = np.repeat(np.arange(len(reports)), [len(report) for report in reports])
    sentence = np.concatenate(reports)
    return Evidence(SAID, study, sentence, len(reports), LEXICON, ())


def drawn(evidence, count, each=1, seed=0):
    numbers = np.arange(count), np.arange(len(SAID))
    return ClaimSentences(evidence, *numbers, each).draw(numbers[0], np.random.default_rng(seed))


def test_a_finding_that_some_have_is_said_and_denied_by_single_sentences():
    texts, places = drawn(evidence_of([1], [4], [7], [2]), 4, each=3)
    assert set(texts) <= {0, 1, 2}  # cardiomegaly is nobody's
    assert (np.isin(texts, (0, 1)) == (places == 0)).all()
    assert set(places[texts == 2]) <= {1, 3}  # denied in a sentence of two claims, or alone
    assert len(texts) == 6


def test_what_all_have_or_nobody_has_for_certain_is_left_out():
    assert not len(drawn(evidence_of([0], [0], [1]), 3)[0])
    assert not len(drawn(evidence_of([2, 5], [7], [6]), 3)[0])


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=2, max_size=6),
    st.integers(0, 99),
)
def test_every_sentence_agrees_with_the_study_that_it_is_given_to(reports, seed):
    evidence = evidence_of(*reports)
    texts, places = drawn(evidence, len(reports), 2, seed)
    assert (
        evidence.pairs(np.arange(len(reports)), texts)[places, np.arange(len(texts))] == 1
    ).all()
    again = drawn(evidence, len(reports), 2, seed)
    assert (texts.tolist(), places.tolist()) == (again[0].tolist(), again[1].tolist())

"""Pair evidence against a loop over every study, sentence and claim."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import Claim, load_lexicon
from medclip_debias.data.text.claims.claim import FIELDS
from medclip_debias.data.text.claims.table import claim_set, read_claims
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.data.text.evidence.entail import implied, judge, said
from medclip_debias.errors import UserError
from medclip_debias.phantom.truth import Truth

LEXICON = load_lexicon()
FINDINGS = ("opacity", "consolidation", "pleural_effusion", "cardiomegaly", "nodule")


def by_loop(claims, study, sentence, studies, always, lexicon=LEXICON):
    """One pair at a time, without states, tables or numbers."""
    own = [{int(t) for s, t in zip(study, sentence, strict=True) if s == i} for i in range(studies)]
    known = [{name: set() for name in lexicon.names} for _ in range(studies)]
    for i, texts in enumerate(own):
        for text in texts:
            for claim in claims[text]:
                for finding, what in implied(claim, lexicon):
                    known[i][finding].add(what)
    result = np.zeros((studies, len(claims)), dtype=np.int8)
    for i in range(studies):
        for t, found in enumerate(claims):
            verdicts, conflict = [], False
            for claim in found:
                asked = said(claim)
                if asked is None:
                    verdicts.append(0)
                    continue
                judged = judge(known[i][claim.finding], asked, claim.finding in always)
                verdicts.append(judged.verdict)
                conflict |= judged.conflict
            if verdicts and all(v == 1 for v in verdicts):
                result[i, t] = 1
            elif any(v == -1 for v in verdicts):
                result[i, t] = -1
            if t in own[i] and not conflict:
                result[i, t] = 1
    return result


CLAIM = st.builds(
    Claim,
    st.sampled_from(FINDINGS),
    st.sampled_from(["present", "absent"]),
    st.sampled_from(["certain", "certain", "uncertain"]),
    st.sampled_from(FIELDS["side"]),
    st.sampled_from(FIELDS["zone"]),
    st.sampled_from(FIELDS["severity"]),
    st.sampled_from(FIELDS["change"][:-1]),
)
SENTENCES = st.lists(st.lists(CLAIM, max_size=3, unique=True), min_size=1, max_size=8)


@given(SENTENCES, st.integers(1, 6), st.integers(0, 10_000), st.booleans())
def test_evidence_is_what_a_loop_over_all_pairs_finds(claims, studies, seed, closed):
    rng = np.random.default_rng(seed)
    occurrences = int(rng.integers(0, 4 * studies))
    study = rng.integers(0, studies, occurrences)
    sentence = rng.integers(0, len(claims), occurrences)
    always = FINDINGS if closed else ()
    evidence = Evidence(claims, study, sentence, studies, LEXICON, always)
    expected = by_loop(claims, study, sentence, studies, always)
    rows, columns = rng.integers(0, studies, 5), rng.integers(0, len(claims), 9)
    assert np.array_equal(evidence.pairs(rows, columns), expected[rows][:, columns])
    value, confidence = evidence.graded(rows, columns)
    decided = expected[rows][:, columns] != 0
    assert np.array_equal(value[decided], expected[rows][:, columns][decided])
    assert (confidence[decided] == 1).all()
    assert np.isin(confidence[~decided], [0, 0.5]).all()
    assert ((value == 0) == (confidence == 0)).all()


def claim(finding, polarity, certainty="certain", severity=""):
    return Claim(finding, polarity, certainty, "", "", severity, "")


# A report that contradicts itself: of the last sentence one claim is certain for it, and one rests
# on what it only calls possible.
AGAINST_ITSELF = [
    [],
    [claim("opacity", "present"), claim("opacity", "absent", severity="mild")],
    [claim("consolidation", "present"), claim("consolidation", "absent", severity="mild")],
    [claim("opacity", "present"), claim("consolidation", "present", "uncertain", "mild")],
]


@given(SENTENCES, st.integers(1, 6), st.integers(0, 10_000))
@example(AGAINST_ITSELF, 1, 104)
def test_claim_by_claim_gives_the_evidence_of_every_foreign_sentence(claims, studies, seed):
    """What training computes for a batch, the least over a sentence's claims, is `graded`."""
    rng = np.random.default_rng(seed)
    occurrences = int(rng.integers(0, 4 * studies))
    study, sentence = (rng.integers(0, n, occurrences) for n in (studies, len(claims)))
    evidence = Evidence(claims, study, sentence, studies, LEXICON, FINDINGS)
    every = np.arange(studies), np.arange(len(claims))
    value, confidence = evidence.graded(*every, uncertain=0.3)
    stated, numbers = evidence.stated(every[0], uncertain=0.3), evidence.claim_numbers(every[1])
    foreign = np.ones((studies, len(claims)), dtype=bool)
    foreign[study, sentence] = False
    for i in range(studies):
        for t in range(len(claims)):
            columns = [n - 1 for n in numbers[t] if n]
            found = min(stated[i, columns]) / 100 if columns else 0.0
            if foreign[i, t]:
                assert found == pytest.approx(float(value[i, t]) * float(confidence[i, t]))


@given(SENTENCES, st.integers(0, 10_000))
def test_a_report_never_contradicts_its_own_sentences(claims, seed):
    rng = np.random.default_rng(seed)
    study, sentence = rng.integers(0, 3, 10), rng.integers(0, len(claims), 10)
    evidence = Evidence(claims, study, sentence, 3, LEXICON, FINDINGS)
    own = evidence.pairs(np.arange(3), np.arange(len(claims)))[study, sentence]
    assert (own >= 0).all()
    assert (own == 0).sum() == evidence.conflicts


def test_uncertain_claims_give_a_confidence():
    claims = [
        [Claim("edema", certainty="uncertain")],
        [Claim("edema")],
        [Claim("edema", "absent")],
        [],
    ]
    study, sentence = np.array([0, 1, 2]), np.array([0, 1, 3])
    evidence = Evidence(claims, study, sentence, 3, LEXICON, ())
    every = np.arange(3), np.arange(4)
    assert evidence.pairs(*every).tolist() == [[1, 0, 0, 0], [0, 1, -1, 0], [0, 0, 0, 1]]
    value, confidence = evidence.graded(*every, uncertain=0.3)
    assert value.tolist() == [[1, 1, -1, 0], [1, 1, -1, 0], [0, 0, 0, 1]]
    assert confidence[0] == pytest.approx([1, 0.3, 0.3, 0])


def test_what_is_always_mentioned_is_counted_or_given():
    claims = [[Claim("edema", "absent")], [Claim("nodule")]]
    study, sentence = np.array([0, 1, 2, 2]), np.array([0, 0, 0, 1])
    counted = np.array([True, True, False, True])
    evidence = Evidence(claims, study, sentence, 4, LEXICON, 0.9, counted)
    assert evidence.always == ("edema",)  # the fourth study has no sentence and does not count
    assert evidence.mentioned["nodule"] == 0
    assert evidence.meta()["always_mentioned"] == {"edema": 1.0}
    assert evidence.pairs(np.array([3]), np.array([0])).tolist() == [[1]]
    for always, says in ((0.0, "above 0"), (["oedema"], "did you mean 'edema'")):
        with pytest.raises(UserError, match=says):
            Evidence(claims, study, sentence, 4, LEXICON, always)


def test_a_prepared_set_agrees_with_a_loop_and_with_the_truth(
    prepared_phantom, phantom_tree, tmp_path
):
    folder = tmp_path / "set"
    shutil.copytree(prepared_phantom, folder)
    with pytest.raises(UserError, match="has no claims yet"):
        Evidence.open(folder)
    claim_set(folder, "phantom")
    prepared = PreparedSet.open(folder)
    evidence = Evidence.open(prepared)
    studies = np.arange(len(prepared.studies))
    sentences = np.arange(0, len(prepared.texts), 4)
    found = evidence.pairs(studies, sentences)

    table = read_claims(prepared)
    place = {text: n for n, text in enumerate(prepared.texts)}
    row = {name: n for n, name in enumerate(prepared.studies["study_id"])}
    study = [row[name] for name in prepared.sentences["study_id"]]
    sentence = [place[text] for text in prepared.sentences["text"]]
    some = studies[::16]
    expected = by_loop(
        table.claims, study, sentence, len(studies), evidence.always, evidence.lexicon
    )
    assert np.array_equal(found[some], expected[some][:, sentences])

    # against what the images show; reports leave some findings out, so not every verdict is true
    truth = Truth(phantom_tree)
    images = prepared.images.drop_duplicates("study_id").set_index("study_id")["image_id"]
    seen = [n for n, name in enumerate(prepared.studies["study_id"]) if name in images.index]
    names = [images[prepared.studies["study_id"][n]] for n in seen]
    agrees = truth.agreement([prepared.texts[t] for t in sentences], names).T
    verdict = found[seen]
    assert agrees[verdict == 1].mean() > 0.9
    assert agrees[verdict == -1].mean() < 0.1
    assert (verdict != 0).mean() > 0.4

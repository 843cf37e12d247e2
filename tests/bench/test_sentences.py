"""The bench of sentences: its samples are stable, its verdicts complete."""

from __future__ import annotations

import sentences

from medclip_debias.data.text.reports import sections


def test_a_sentence_has_the_same_key_whatever_is_cut_around_it():
    text = "1. Clear lungs. 2. No edema.Stable."
    whole = list(sentences.located("r|findings", text, ["Clear lungs.", "No edema.Stable."]))
    apart = list(sentences.located("r|findings", text, ["Clear lungs.", "No edema.", "Stable."]))
    assert whole[0].key == apart[0].key
    assert {s.key for s in whole[1:]}.isdisjoint(s.key for s in apart[1:])
    assert apart[1].gap == "2."
    assert sentences.sample(apart, 2, 5) == sentences.sample(apart[::-1], 2, 5)


def test_the_published_samples_have_a_verdict_each(openi_studies, openi_text):
    cut = openi_text.sentences.groupby(["study_id", "section"])["text"].apply(list)
    found = [
        sentence
        for study in openi_studies
        for name, text in sections(study.report or "").items()
        if name in ("findings", "impression")
        for sentence in sentences.located(
            f"{study.study_id}|{name}", text, cut.get((study.study_id, name), [])
        )
    ]
    verdicts = sentences.read_verdicts(sentences.JUDGED)
    assert len(found) == 22_854  # docs/data.md
    for seed in (17, 18):
        assert all(s.key in verdicts for s in sentences.sample(found, 300, seed))

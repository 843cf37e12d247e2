"""The bench of sentences: its samples are stable, its verdicts complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.reports import sections
from medclip_debias.data.text.sentences import split_sentences

PLACE = Path(__file__).parents[2] / "scripts" / "bench" / "sentences.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_sentences", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_sentence_has_the_same_key_whatever_is_cut_around_it(bench):
    text = "1. Clear lungs. 2. No edema.Stable."
    whole = list(bench.located("r|findings", text, ["Clear lungs.", "No edema.Stable."]))
    apart = list(bench.located("r|findings", text, ["Clear lungs.", "No edema.", "Stable."]))
    assert whole[0].key == apart[0].key
    assert {s.key for s in whole[1:]}.isdisjoint(s.key for s in apart[1:])
    assert apart[1].gap == "2."
    assert bench.sample(apart, 2, 5) == bench.sample(apart[::-1], 2, 5)


def test_the_published_samples_have_a_verdict_each(bench, shared_data):
    found = [
        sentence
        for study in detect(shared_data / "openi" / "NLMCXR_reports.tgz").studies()
        for name, text in sections(study.report or "").items()
        if name in ("findings", "impression")
        for sentence in bench.located(f"{study.study_id}|{name}", text, split_sentences(text)[0])
    ]
    verdicts = bench.read_verdicts(bench.JUDGED)
    assert len(found) == 22_854  # docs/sentences.md
    for seed in (17, 18):
        assert all(s.key in verdicts for s in bench.sample(found, 300, seed))

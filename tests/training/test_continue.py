"""A run that is given more steps: exact where the schedule does not know the end, else said."""

from __future__ import annotations

import json
import shutil

import pytest

from medclip_debias.cli import run as command
from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.optim import learning_rate
from medclip_debias.training.train import train
from tests.training.conftest import FULL, LOSS, judge, same, table, train_until, weights


def test_with_a_constant_rate_a_continued_run_is_one_that_was_longer_from_the_start(run):
    plain = FULL | {"keep": "best", "schedule": "constant"}
    whole = train(run("whole", LOSS, steps=4, **plain), validator=judge)
    train(run("part", LOSS, steps=2, **plain), validator=judge)
    sentences = []
    settings = run("part", LOSS, steps=4, **plain)
    result = train(settings, validator=judge, longer=True, say=sentences.append)
    assert result.resumed_at == 2
    assert same(weights(whole.model), weights(result.model))
    assert (whole.best, whole.best_step) == (result.best, result.best_step)
    assert any("the learning rate stays" in sentence for sentence in sentences)
    earlier = DualEncoder.load(result.model).provenance["continued"]
    assert earlier == [{"train.steps": 2, "train.patience": None}]
    assert "continued" not in DualEncoder.load(whole.model).provenance


def test_a_cosine_goes_on_as_that_of_the_longer_run_and_says_so(run):
    """Also where it is killed before its first checkpoint and resumes as any run."""
    train(run(steps=4))
    with pytest.raises(UserError, match=r"of 4 steps \(give --continue to train it for more\)"):
        train(run(steps=6))
    said, settings = [], run(steps=8)
    train_until(settings, 5, longer=True, say=said.append)
    result = train(settings)
    assert (result.resumed_at, result.steps) == (4, 8)
    (sentence,) = {each for each in said if "follows the cosine of 8 steps" in each}
    rates = {
        step: learning_rate(step - 1, peak=1e-3, warmup=2, steps=4 if step <= 4 else 8)
        for step in (2, 4, 6, 8)
    }
    rows = table(settings.out / "metrics.csv")
    assert {int(row["step"]): float(row["lr"]) for row in rows} == pytest.approx(rates, rel=1e-5)
    assert f"{learning_rate(4, peak=1e-3, warmup=2, steps=8):.3g} at the next step" in sentence
    assert DualEncoder.load(result.model).provenance["continued"][0]["train.steps"] == 4


def test_a_finished_model_without_its_checkpoints_is_not_replaced_unasked(run):
    first = train(run(steps=2))
    before, rows = weights(first.model), (run().out / "metrics.csv").read_bytes()
    shutil.rmtree(run().out / "checkpoints")
    for again in (run(steps=2), run(steps=2, lr=1e-2)):
        with pytest.raises(UserError, match="checkpoints are gone"):
            train(again)
    assert same(before, weights(first.model))
    assert (run().out / "metrics.csv").read_bytes() == rows
    assert not same(before, weights(train(run(steps=2, lr=1e-2), fresh=True).model))


def test_the_verb_continues_a_run_by_its_folder(config, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert command(["train", config(steps=2), "--quiet"]) == 0
    assert command(["train", "--continue", out]) == 0
    assert "to continue it, give train.steps above 2" in capsys.readouterr().err
    assert command(["train", "--continue", out, "train.steps=4", "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert (figures["resumed_at"], figures["steps"]) == (2, 4)
    assert "a run of 2 steps, continued after step 2 to step 4" in captured.err

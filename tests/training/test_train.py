"""The loop on a small phantom: what it writes, resumes from, and refuses."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch

from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import (
    language_model_hash,
)
from medclip_debias.language.scoring import score_prepared
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.optim import learning_rate
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import same, table, weights


@pytest.fixture(scope="module")
def scored(prepared_phantom, one_layer_model, tmp_path_factory):
    """A copy of the prepared phantom with scores, and the language model that gave them."""
    folder = tmp_path_factory.mktemp("scored") / "prepared"
    shutil.copytree(prepared_phantom, folder)
    score_prepared(PreparedSet.open(folder), one_layer_model)
    return folder, one_layer_model


def settings_in(run_in, scored, root):
    loss = {"kind": "debiased", "eta": {"kind": "language_model"}}
    made = run_in(root, "tiny")(loss=loss, steps=4)
    return made.model_copy(update={"prepared": scored[0]})


@pytest.fixture
def settings(run_in, scored, tmp_path):
    return settings_in(run_in, scored, tmp_path)


def changed(settings, **train):
    return settings.model_copy(update={"train": settings.train.model_copy(update=train)})


@pytest.fixture(scope="module")
def whole(run_in, scored, tmp_path_factory):
    """A run that nothing interrupted: settings, result, and its calls of ``progress``."""
    settings = changed(
        settings_in(run_in, scored, tmp_path_factory.mktemp("whole")), checkpoint_every=1
    )
    seen = []
    result = train(settings, progress=lambda done, total, loss: seen.append((done, total)))
    return settings, result, seen


def test_a_run_leaves_what_is_needed_to_repeat_it(whole):
    settings, result, seen = whole
    assert seen == [(step, 4) for step in range(1, 5)]
    out = settings.out
    rows = table(out / "metrics.csv")
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert {"loss", "lr", "scale", "clamped", "mean_eta", "positive_similarity"} <= set(rows[0])
    assert 0 < float(rows[0]["mean_eta"]) < 0.2
    assert [path.name for path in checkpoints(out / "checkpoints")] == [
        "step_00000003.pt",
        "step_00000004.pt",
    ]
    assert list((out / "tensorboard").iterdir())
    model = DualEncoder.load(result.model)
    assert model.preprocessing == settings.preprocessing
    assert "chex5" in model.prompts
    assert (
        model.provenance["provenance"]["data_hash"]
        == PreparedSet.open(settings.prepared).content_hash
    )
    meta = PreparedSet.open(settings.prepared).meta
    assert model.provenance["synthetic"] is meta["synthetic"] is True
    assert model.provenance["data"] == {"kind": meta["kind"], "synthetic": meta.get("synthetic")}


def test_the_same_settings_give_the_same_weights_with_or_without_workers(settings, whole, tmp_path):
    one = weights(whole[1].model)
    assert same(one, weights(train(changed(settings, workers=2)).model))
    other = settings.model_copy(update={"out": tmp_path / "other"})
    assert not same(one, weights(train(changed(other, seed=1)).model))


def test_a_run_with_other_settings_does_not_continue(settings):
    train(changed(settings, steps=2))
    with pytest.raises(UserError, match=r"other settings \(train\.steps\)"):
        train(settings)
    with pytest.raises(UserError, match=r"\((train\.\w+, ){3}train\.\w+ and 1 more\)"):
        train(changed(settings, steps=3, lr=0.1, seed=5, warmup_steps=1, weight_decay=0.2))
    assert train(settings, fresh=True).resumed_at == 0


def test_scores_of_another_language_model_are_refused(settings, scored, tmp_path):
    copy = tmp_path / "prepared"
    shutil.copytree(scored[0], copy)
    data = PreparedSet.open(copy)
    write_scores(copy, data.texts, np.zeros(len(data.texts)), np.ones(len(data.texts), int), "else")
    moved = settings.model_copy(update={"prepared": copy})
    with pytest.raises(UserError, match="else"):
        train(moved)
    (copy / "scores.json").unlink()
    with pytest.raises(UserError, match="no scores yet"):
        train(moved)
    # InfoNCE asks for no scores, so it does not miss them.
    train(changed(moved.model_copy(update={"loss": {"kind": "infonce"}}), steps=1))
    assert json.loads((scored[0] / "scores.json").read_text())["model_hash"] == language_model_hash(
        scored[1]
    )


def test_a_table_of_eta_is_used_sentence_by_sentence(settings, scored, tmp_path):
    texts = TrainingStudies.of(PreparedSet.open(scored[0])).texts
    path = tmp_path / "eta.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "eta"])
        writer.writerows([text, 0.25] for text in texts)
    loss = {"kind": "debiased", "eta": {"kind": "table", "path": str(path)}}
    table = changed(settings.model_copy(update={"loss": loss}), steps=2)
    constant = table.model_copy(
        update={
            "loss": {"kind": "debiased", "eta": {"kind": "constant", "value": 0.25}},
            "out": tmp_path / "constant",
        }
    )
    assert same(weights(train(table).model), weights(train(constant).model))
    missing = table.model_copy(update={"loss": {"kind": "debiased", "eta": {"kind": "table"}}})
    with pytest.raises(UserError, match=r"loss\.eta\.path"):
        train(missing)


def test_settings_that_do_not_fit_the_prepared_set_are_refused(settings):
    other = settings.preprocessing.prepare.model_copy(update={"clip": (1.0, 99.0)})
    preprocessing = settings.preprocessing.model_copy(update={"prepare": other})
    with pytest.raises(UserError, match=r"preprocessing\.prepare"):
        train(settings.model_copy(update={"preprocessing": preprocessing}))
    with pytest.raises(UserError, match=r"train\.batch_size"):
        train(changed(settings, batch_size=100000))
    with pytest.raises(UserError, match="device"):
        train(changed(settings, device="cuda:99"))


# --------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    "loss",
    [
        {"kind": "infonce"},
        {"kind": "debiased", "eta": {"kind": "constant", "value": 0.1}},
        {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]},
        {"kind": "clip", "negatives": [{"kind": "fnc", "alpha": 0.1}]},
        {"kind": "xclr", "graph": "labels"},
    ],
    ids=["infonce", "debiased", "glofnd", "fnc", "xclr"],
)
def test_images_without_text_train_end_to_end(run, loss, prepared_phantom, monkeypatch):
    settings = run(loss=loss, task="two_view", steps=2)
    data = PreparedSet.open(prepared_phantom)
    data.sentences = data.sentences.iloc[:0]
    monkeypatch.setattr(PreparedSet, "open", lambda folder: data)
    result = train(settings)
    first, last = Trainer(settings).model.state_dict(), weights(result.model)
    assert not torch.equal(first["image_encoder.conv1.weight"], last["image_encoder.conv1.weight"])
    assert torch.equal(first["text_projection.weight"], last["text_projection.weight"])


def test_two_views_have_no_sentences_for_an_objective_to_read(run):
    with pytest.raises(UserError, match="has no sentences"):
        train(run(loss={"kind": "xclr", "graph": "text"}, task="two_view"))


def test_several_images_of_a_study_share_its_positives(run):
    loss = {
        "kind": "debiased",
        "eta": {"kind": "constant", "value": 0.1},
        "positives": "study",
    }
    whole = Trainer(run(loss=loss, views_per_study=3))
    batch = whole.batches[0]
    assert len(batch.studies.unique()) == 8 < len(batch.studies)
    assert torch.isfinite(whole.step(0)["loss"])


# ------------------------------------------------------------------------------- batches


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    rates = [learning_rate(s, peak=2.0, warmup=10, steps=110) for s in range(110)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[60] == pytest.approx(1.0)
    assert 0 < rates[-1] < 0.01
    assert learning_rate(5, peak=1.0, warmup=100, steps=10) == pytest.approx(0.06)

"""The loop on a small phantom: what it writes, trains on, and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.prompt_checks import unsaid_prompts
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.language.scoring import score_prepared
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.reporting.report import write_report
from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.distributed import Place
from medclip_debias.training.resolve import load_run
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import exit_code, in_processes, same, table, weights


@pytest.fixture(scope="module")
def scored(prepared_phantom, one_layer_model, tmp_path_factory):
    """A copy of the prepared phantom with scores."""
    folder = tmp_path_factory.mktemp("scored") / "prepared"
    shutil.copytree(prepared_phantom, folder)
    score_prepared(PreparedSet.open(folder), one_layer_model)
    return folder


@pytest.fixture
def settings(run, scored):
    """A run whose eta is the scores of a language model."""
    loss = {"kind": "debiased", "eta": {"kind": "language_model"}}
    return run(loss=loss, steps=4, checkpoint_every=1).model_copy(update={"prepared": scored})


def with_train(settings, **changes):
    return settings.model_copy(update={"train": settings.train.model_copy(update=changes)})


def test_a_run_leaves_what_is_needed_and_the_same_settings_give_the_same_weights(
    settings, tmp_path
):
    seen = []
    result = train(settings, progress=lambda done, total, loss: seen.append((done, total)))
    assert seen == [(step, 4) for step in range(1, 5)]
    out = settings.out
    rows = table(out / "metrics.csv")
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert {"loss", "lr", "scale", "clamped", "mean_eta", "positive_similarity"} <= set(rows[0])
    assert 0 < float(rows[0]["mean_eta"]) < 0.2
    names = [path.name for path in checkpoints(out / "checkpoints")]
    assert names == ["step_00000003.pt", "step_00000004.pt"]
    model = DualEncoder.load(result.model)
    assert model.preprocessing == settings.preprocessing
    assert "chex5" in model.prompts
    data = PreparedSet.open(settings.prepared)
    assert model.provenance["provenance"]["data_hash"] == data.content_hash
    assert model.provenance["synthetic"] is True
    assert model.provenance["data"] == {"kind": data.meta["kind"], "synthetic": True}
    prompts = load_prompts("chex5").texts  # judged elsewhere it says which it has never read
    spoken = [text.lower() for text in TrainingStudies.of(data).texts]
    read = [p for p in prompts if any(p.lower().rstrip(".") in text for text in spoken)]
    assert 0 < len(read) < len(prompts)
    assert unsaid_prompts(model.provenance, prompts) == [p for p in prompts if p not in read]

    other = settings.model_copy(update={"out": tmp_path / "other"})
    assert same(weights(result.model), weights(train(with_train(other, workers=2)).model))
    other = settings.model_copy(update={"out": tmp_path / "seed"})
    assert not same(weights(result.model), weights(train(with_train(other, seed=1)).model))


def test_scores_of_another_language_model_are_refused(settings, tmp_path):
    copy = tmp_path / "prepared"
    shutil.copytree(settings.prepared, copy)
    texts = PreparedSet.open(copy).texts
    write_scores(copy, texts, np.zeros(len(texts)), np.ones(len(texts), int), "else")
    moved = settings.model_copy(update={"prepared": copy})
    with pytest.raises(UserError, match="else"):
        Trainer(moved)
    (copy / "scores.json").unlink()
    with pytest.raises(UserError, match="no scores yet"):
        Trainer(moved)
    # InfoNCE asks for no scores, so it does not miss them.
    Trainer(moved.model_copy(update={"loss": {"kind": "infonce"}}))


def test_a_table_of_eta_is_used_sentence_by_sentence(run, tmp_path, prepared_phantom):
    path = tmp_path / "eta.csv"
    texts = TrainingStudies.of(PreparedSet.open(prepared_phantom)).texts
    pd.DataFrame({"text": texts, "eta": 0.25}).to_csv(path, index=False)

    def losses(**eta):
        trainer = Trainer(run(loss={"kind": "debiased", "eta": eta}))
        return [float(trainer.step(step)["loss"]) for step in range(2)]

    assert losses(kind="table", path=str(path)) == losses(kind="constant", value=0.25)
    with pytest.raises(UserError, match=r"loss\.eta\.path"):
        losses(kind="table")


@pytest.mark.parametrize(
    "loss",
    [
        {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]},
        {"kind": "xclr", "graph": "labels"},
    ],
    ids=["glofnd", "xclr"],
)
def test_images_without_text_train(run, loss, prepared_phantom, monkeypatch):
    data = PreparedSet.open(prepared_phantom)
    data.sentences = data.sentences.iloc[:0]
    monkeypatch.setattr(PreparedSet, "open", lambda folder: data)
    trainer = Trainer(run(loss=loss, task="two_view"))
    first = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.step(0)
    last = trainer.model.state_dict()
    assert not torch.equal(first["image_encoder.conv1.weight"], last["image_encoder.conv1.weight"])
    assert torch.equal(first["text_projection.weight"], last["text_projection.weight"])
    with pytest.raises(UserError, match="has no sentences"):
        Trainer(run(loss={"kind": "xclr", "graph": "text"}, task="two_view"))


# ------------------------------------------------------------------------- several images


@pytest.fixture(scope="module")
def with_laterals(phantom_tree, prepared_phantom, tmp_path_factory):
    """The phantom with all of its views."""
    prepare_settings = PrepareSettings(size=PreparedSet.open(prepared_phantom).settings.size)
    views = SelectionSettings(views=("all",))
    out = tmp_path_factory.mktemp("views") / "set"
    return prepare(phantom_tree, out, prepare_settings, selection=views, workers=1).folder


@pytest.mark.parametrize(
    "loss",
    [
        {"kind": "multi_positive", "evidence": {"kind": "study"}},
        {"kind": "debiased", "eta": {"kind": "constant", "value": 0.1}, "positives": "study"},
    ],
    ids=["multi-positive", "debiased"],
)
def test_a_run_learns_from_views_as_further_positives_or_says_that_it_does_not(
    run, with_laterals, loss
):
    settings = run(loss=loss, views_per_study=2).model_copy(update={"prepared": with_laterals})
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReportedWarning)
        trainer = Trainer(settings)
    batch = trainer.batches[0]
    assert len(batch.studies) > len(batch.studies.unique())
    figures = trainer.step(0, batch)
    assert torch.isfinite(figures["loss"])
    assert float(figures.get("positives", 2)) > 1
    with pytest.warns(ReportedWarning, match="views_per_study' is 2, but the loss takes"):
        Trainer(settings.model_copy(update={"loss": {"kind": "infonce"}}))


# --------------------------------------------------------------------------- several sets

FINDINGS = ("Mass", "No Finding", "Cardiomegaly|Effusion", "Pneumonia", "Edema|Atelectasis")


def test_a_run_on_several_sets_resumes_and_validates_on_each(
    run, prepared_phantom, nih_folder, tmp_path
):
    """On the phantom and on films with labels alone."""
    phantom, labelled = tmp_path / "phantom", tmp_path / "nih-set"
    images = {f"{n:08d}_000": (FINDINGS[n % 5], "train") for n in range(1, 60)}
    size = PreparedSet.open(prepared_phantom).settings.size
    source, reading = nih_folder("nih", images), Reading(label_sentences=True)
    prepare(source, labelled, PrepareSettings(size=size), reading=reading, workers=1)
    shutil.copytree(prepared_phantom, phantom)
    for path in (phantom, labelled):
        claim_set(path)
    loss = {"kind": "multi_positive", "core": {"kind": "infonce"}, "evidence": {"kind": "claims"}}

    def joint(out, first=2.0, **changes):
        plain = run(out, loss, validate_every=3, **changes).model_dump(mode="json")
        sets = [{"path": str(phantom), "weight": first}, str(labelled)]
        return RunSettings.model_validate(plain | {"prepared": sets})

    validator = validator_of(joint("whole").prepared, 64)
    whole, broken = joint("whole"), joint("broken", checkpoint_every=1)
    expected = weights(train(whole, validator=validator).model)

    def kill(done, *_):
        if done == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    code = exit_code(lambda: train(broken, validator=validator, progress=kill))
    assert code == -signal.SIGKILL
    result = train(broken, validator=validator)
    assert result.resumed_at > 0
    assert same(expected, weights(result.model))
    with pytest.raises(UserError, match="began on data with the hash"):
        train(joint("broken", first=5.0, checkpoint_every=1), validator=validator)
    for row in table(whole.out / "validation.csv"):
        figures = [float(row[name]) for name in row if name.endswith(".recall_at_10")]
        assert float(row["recall_at_10"]) == pytest.approx(sum(figures) / len(figures))
    assert f"{phantom} (weight 2), " in write_report(whole.out).read_text()


# ----------------------------------------------------------------------------- settings


def test_what_a_file_says_of_sets_and_of_on_and_off_is_taken_as_the_pages_write_it(tmp_path):
    path, minimal = tmp_path / "run.yaml", "prepared: {}\nout: o\nmodel: {{text: {{folder: lm}}}}\n"
    path.write_text(minimal.format("[runs/a, {path: runs/b, weight: 2.5}]"))
    settings = load_run(path, ["train.shard_loss=on", "train.wandb=off"])
    assert (settings.train.shard_loss, settings.train.wandb) == ("on", "off")
    sets = [(str(each.path), each.weight) for each in settings.prepared]
    assert sets == [("runs/a", 1), ("runs/b", 2.5)]
    for prepared, word, sentence in (
        ("p", "train.wandb=on", r"train\.wandb.* is wrong: input should be 'off'"),
        ("p", "train.patience=2", "patience and keep: best need validate_every"),
        ("[{path: a, wieght: 2}]", "train.lr=1", r"'prepared.0.wieght' \(did you mean 'weight'"),
        ("[]", "train.lr=1", "setting 'prepared' is wrong"),
    ):
        path.write_text(minimal.format(prepared))
        with pytest.raises(UserError, match=sentence):
            load_run(path, [word])


# ------------------------------------------------------------------------------- the verb


def test_the_verb_validates_and_says_which_step_was_best(config, capsys, tmp_path):
    path = config(steps=3, validate_every=1, validate_images=8, keep="best", best_metric="mean_auc")
    assert command(["train", path, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    rows = table(tmp_path / "run" / "validation.csv")
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    best = max(rows, key=lambda row: float(row["mean_auc"]))
    assert figures["best_step"] == int(best["step"])
    assert figures["best_mean_auc"] == pytest.approx(float(best["mean_auc"]), rel=1e-5)
    row = table(tmp_path / "run" / "metrics.csv")[0]
    assert 0 <= float(row["data_wait"]) <= 1
    assert float(row["memory_mib"]) > 50


PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


def test_the_place_of_a_process_is_read_from_torchrun_or_slurm(monkeypatch):
    for name in PLACES + SLURM:
        monkeypatch.delenv(name, raising=False)

    def environment(names, values):
        for name, value in zip(names, values, strict=True):
            monkeypatch.setenv(name, value)

    assert Place.from_environment() == Place()
    # A batch script has a SLURM_PROCID too, but is no step of several tasks.
    environment(SLURM[:1], ["0"])
    assert Place.from_environment() == Place()
    environment(SLURM, ["5", "8", "1"])
    assert Place.from_environment() == Place(5, 8, 1)
    environment(PLACES, ["2", "4", "0"])
    assert Place.from_environment() == Place(2, 4, 0)
    environment(PLACES, ["4", "4", "0"])
    with pytest.raises(UserError, match="RANK is 4, but WORLD_SIZE is 4"):
        Place.from_environment()
    for number, value in enumerate(("one", "2(x3)", "")):
        values = ["0", "2", "0"]
        values[number] = value
        environment(PLACES, values)
        with pytest.raises(UserError, match=f"{PLACES[number]} must be"):
            Place.from_environment()


def test_what_is_wrong_in_all_processes_is_said_once(config, capfd):
    path = config()

    def work():
        raise SystemExit(command(["train", path, "train.learning_rate=1"]))

    assert in_processes(2, work) == [2, 2]
    stderr = capfd.readouterr().err
    assert stderr.count("'train.learning_rate'") == stderr.count("medclip-debias:") == 1


def test_fp16_whose_gradient_is_never_a_number_ends(settings):
    """The scaler left out every step to the end, and the model was saved as it had begun."""
    trainer = Trainer(with_train(settings, precision="fp16", steps=40))
    trainer.parameters[0].register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(UserError, match="the gradient is NaN or infinite"):
        list(map(trainer.step, range(40)))


def test_steps_that_fp16_skips_are_counted_and_leave_the_norm_to_the_others(settings, monkeypatch):
    backward = Trainer.backward

    def overflowing(trainer, batch, step):
        metrics = backward(trainer, batch, step)
        if step in (0, 2):
            trainer.parameters[0].grad.fill_(torch.inf)
        return metrics

    monkeypatch.setattr(Trainer, "backward", overflowing)
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=1024.0))
    run = with_train(settings, precision="fp16", log_every=1)
    train(run)
    rows = table(run.out / "metrics.csv")
    assert [row["skipped_steps"] for row in rows] == ["1", "1", "2", "2"]
    assert [np.isnan(float(row["gradient_norm"])) for row in rows] == [True, False, True, False]
    assert "2 of 4 steps were skipped" in (run.out / "train.log").read_text()
    resumed = with_train(run, steps=8, log_every=4)
    train(resumed, longer=True)
    (*_, last) = table(run.out / "metrics.csv")
    assert (last["skipped_steps"], np.isfinite(float(last["gradient_norm"]))) == ("2", True)

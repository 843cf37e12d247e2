"""Runs with every kind of objective: what they are fed, that they resume, what they refuse."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from medclip_debias.config import SimilaritySettings
from medclip_debias.data.agreement import write_agreement
from medclip_debias.data.loader import Batch, TrainingStudies
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.errors import UserError
from medclip_debias.losses.evidence import claim_evidence
from medclip_debias.losses.keywords import load_keywords
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm
from medclip_debias.training.checkpoint import checkpoints, load_checkpoint
from medclip_debias.training.fields import BatchFields, RunData, study_ids
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import same, table, weights


@pytest.fixture
def settings(run, claimed):
    made = run(steps=3, lr=1e-2, warmup_steps=1, log_every=1, adam_eps=1e-8)
    return made.model_copy(update={"prepared": claimed})


RUNS = {
    "all text policies": {
        "kind": "infonce",
        "negatives": [
            {"kind": "mask_same_study"},
            {"kind": "mask_identical_text"},
            {"kind": "remove_by_text", "threshold": 0.99},
            {"kind": "reweight_by_text"},
            {"kind": "resample_by_text"},
        ],
    },
    "labels": {
        "kind": "debiased",
        "eta": {"kind": "constant", "value": 0.1},
        "positives": "study",
        "negatives": [{"kind": "remove_by_label"}, {"kind": "fnc", "alpha": 0.1, "start_step": 3}],
    },
    "xclr": {"kind": "xclr"},
    "siglip": {"kind": "siglip"},
    "keyword": {"kind": "keyword", "core": {"kind": "biovil"}, "words": "findings"},
    "sogclr": {"kind": "sogclr"},
    "claims": {
        "kind": "multi_positive",
        "core": {
            "kind": "clip",
            "negatives": [
                {"kind": "weigh_by_evidence", "contradict": 2, "schedule": {"start": 0.3}},
                {"kind": "remove_by_text", "schedule": {"end": 0.9, "shape": "cosine"}},
            ],
        },
        "schedule": {"end": 0.9, "shape": "linear"},
    },
}


AGGREGATORS = {"xclr": "cross_attention", "siglip": "local_words", "sogclr": "attention"}


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_resumes_to_bit_identical_weights(settings, tmp_path, name):
    similarity = SimilaritySettings(aggregator=AGGREGATORS.get(name, "lse_nl"))
    model = settings.model.model_copy(update={"similarity": similarity})
    settings = settings.model_copy(update={"loss": RUNS[name], "model": model})
    broken = settings.model_copy(update={"out": tmp_path / "broken"})

    def copy_at_two(done, total, loss):
        if done == 2:  # as it lies on the disk if the run is killed here
            shutil.copytree(settings.out, broken.out)

    whole = train(settings, progress=copy_at_two)
    rows = table(settings.out / "metrics.csv")
    assert all(np.isfinite(float(row["loss"])) for row in rows)
    result = train(broken)
    assert result.resumed_at == 2
    assert same(weights(whole.model), weights(result.model))
    state, resumed = (
        load_checkpoint(checkpoints(out / "checkpoints")[-1]) for out in (settings.out, broken.out)
    )
    for part in ("objective", "masked_lm"):
        assert same(state.get(part, {}), resumed.get(part, {}))
    if name == "siglip":  # an objective's own parameters are trained
        assert state["objective"]["bias"].item() != -10
        assert float(rows[0]["bias"]) == -10


def test_the_masked_language_model_term_is_added_and_trains_its_head(settings, one_layer_model):
    loss = {"kind": "biovil", "masked_lm": {"weight": 0.5, "mask_share": 0.3}}
    trainer = Trainer(settings.model_copy(update={"loss": loss}))
    before = load_masked_lm(one_layer_model).cls.state_dict()
    # A head that knows next to nothing is off by about the logarithm of the vocabulary.
    size = SentenceTokenizer.load(one_layer_model).size
    for step in range(2):
        figures = trainer.step(step)
        total = float(figures["contrastive_loss"]) + 0.5 * float(figures["masked_lm_loss"])
        assert float(figures["loss"]) == pytest.approx(total, rel=1e-4)
        assert float(figures["masked_lm_loss"]) < 2 * np.log(size)
    moved = trainer.state()["masked_lm"]["head.predictions.transform.dense.weight"]
    assert not torch.equal(moved, before["predictions.transform.dense.weight"])


# --------------------------------------------------------------------------------- the fields


def fields_of(prepared, one_layer_model, loss):
    chosen = loss_settings(loss, "run.yaml")
    studies = TrainingStudies.of(prepared)
    run = RunData(
        build_objective(chosen),
        chosen,
        prepared=prepared,
        studies=studies,
        text_folder=one_layer_model,
        max_tokens=32,
        device=torch.device("cpu"),
        where="run.yaml",
    )
    return BatchFields(run), studies


def test_every_field_is_of_the_batchs_own_sentences_and_studies(claimed, one_layer_model):
    prepared = PreparedSet.open(claimed)
    policies = RUNS["all text policies"]["negatives"] + RUNS["labels"]["negatives"]
    loss = {
        "kind": "keyword",
        "core": {"kind": "clip", "negatives": policies},
        "words": "laterality",
    }
    made, studies = fields_of(prepared, one_layer_model, loss)
    chosen = torch.tensor([3, 0, 7])
    texts = torch.tensor([int(studies.sentences[s][0]) for s in chosen])
    batch = Batch(torch.zeros(3, 8, 8, dtype=torch.uint8), texts, torch.arange(3), chosen)
    fields = made.of(batch, seed=99)
    assert set(fields) == {
        "keywords", "text_ids", "sample_ids", "seed", "text_vectors", "labels", "label_names",
    }  # fmt: skip
    assert fields["seed"] == 99
    assert torch.equal(fields["sample_ids"], chosen)
    assert torch.equal(fields["text_ids"], texts)
    words = load_keywords("laterality")
    bert = load_masked_lm(one_layer_model).bert
    tokenizer = SentenceTokenizer.load(one_layer_model)
    for place, study in enumerate(chosen.tolist()):
        named = words.named(studies.texts[int(texts[place])])
        number = 1 + list(words.classes).index(named[0]) if named else 0
        assert fields["keywords"][place] == number
        identity = prepared.images["study_id"].iloc[studies.rows[study][0]]
        table = prepared.studies.set_index("study_id").loc[identity]
        for name, value in zip(fields["label_names"], fields["labels"][place], strict=True):
            np.testing.assert_equal(value.item(), float(table[name]))
        ids = torch.tensor(tokenizer.encode([studies.texts[int(texts[place])]], 32))
        mean = bert(input_ids=ids).last_hidden_state[0].mean(dim=0).detach()
        vector = fields["text_vectors"][place]
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=1e-4, atol=1e-5)


def test_a_table_of_what_agrees_is_read_for_the_batchs_studies(claimed, one_layer_model, tmp_path):
    prepared, rng = PreparedSet.open(claimed), np.random.default_rng(0)
    studies = TrainingStudies.of(prepared)
    names = study_ids(prepared, studies)
    agree = rng.random((len(studies.texts), len(names))) < 0.3
    order = rng.permutation(len(names))  # the table's own
    path = tmp_path / "known.npz"
    write_agreement(path, studies.texts, [names[place] for place in order], agree[:, order])
    loss = {"kind": "infonce", "negatives": [{"kind": "remove_known", "path": str(path)}]}
    made, _ = fields_of(prepared, one_layer_model, loss)
    chosen = torch.tensor([3, 0, 7])
    texts = torch.tensor([int(studies.sentences[study][0]) for study in chosen])
    batch = Batch(torch.zeros(3, 8, 8, dtype=torch.uint8), texts, torch.arange(3), chosen)
    np.testing.assert_array_equal(made.of(batch, seed=0)["agreement"], agree.T[chosen])


def test_claims_of_a_batch_are_those_of_its_studies_and_sentences(claimed, one_layer_model):
    prepared = PreparedSet.open(claimed)
    made, studies = fields_of(prepared, one_layer_model, {"kind": "multi_positive"})
    chosen = torch.tensor([5, 1, 2, 9])
    texts = torch.tensor([int(studies.sentences[s][0]) for s in chosen])
    batch = Batch(torch.zeros(4, 8, 8, dtype=torch.uint8), texts, torch.arange(4), chosen)
    fields = made.of(batch, seed=1)
    assert set(fields) == {"stated", "claims"}
    found = claim_evidence(fields["stated"], fields["claims"])
    evidence = Evidence.open(prepared)
    ids = [str(prepared.images["study_id"].iloc[studies.rows[s][0]]) for s in chosen.tolist()]
    numbers = [prepared.studies["study_id"].astype(str).tolist().index(name) for name in ids]
    sentences = [prepared.texts.index(studies.texts[int(t)]) for t in texts]
    value, confidence = evidence.graded(np.array(numbers), np.array(sentences))
    for i in range(4):
        for t in range(4):
            if i != t:  # of its own sentence a report is right by rule
                assert found[i, t].item() == pytest.approx(value[i, t] * confidence[i, t])
    assert found.abs().max() == 1


def test_data_that_lacks_what_is_read_is_refused(claimed, one_layer_model, tmp_path):
    path = tmp_path / "words.yaml"
    path.write_text("name: none\nclasses: {a: [xylophone]}\n")
    table = {"kind": "keyword", "core": {"kind": "debiased", "eta": {"kind": "table"}}}
    policy = {"kind": "weigh_by_evidence", "evidence": {"kind": "claims", "always": 0.9}}
    claims = {"kind": "multi_positive", "core": {"kind": "infonce", "negatives": [policy]}}
    for loss, sentence in (
        ({"kind": "xclr", "graph": "given"}, r"loss\.graph"),
        ({"kind": "keyword", "words": str(path)}, r"no sentence .* keyword list"),
        (table, r"'loss\.core\.eta\.path' is missing"),
        (claims, "other values of 'always'"),
    ):
        with pytest.raises(UserError, match=sentence):
            fields_of(PreparedSet.open(claimed), one_layer_model, loss)
    folder = tmp_path / "unlabelled"
    shutil.copytree(claimed, folder)
    bare = PreparedSet.open(folder)
    bare.studies[["study_id", "patient_id", "split"]].to_parquet(folder / "studies.parquet")
    with pytest.raises(UserError, match="have no labels"):
        fields_of(PreparedSet.open(folder), one_layer_model, {"kind": "supcon"})


def test_a_run_does_not_go_on_with_other_claims(settings, tmp_path):
    folder = tmp_path / "claimed"
    shutil.copytree(settings.prepared, folder)
    settings = settings.model_copy(update={"prepared": folder})
    reads = settings.model_copy(update={"loss": {"kind": "multi_positive"}})
    ignores = settings.model_copy(update={"out": tmp_path / "plain"})
    train(reads)
    train(ignores)
    claim_set(folder, "phantom")  # the same claims again
    assert train(reads).finished_before
    claim_set(folder, "english")
    with pytest.raises(UserError, match="began with other claims"):
        train(reads)
    assert train(ignores).finished_before

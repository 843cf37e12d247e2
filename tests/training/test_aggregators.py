"""Attending aggregators in training: cut up in any way, stopped, saved, validated and looked at."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pydantic import ValidationError

from medclip_debias.config import SimilaritySettings
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.distributed import Place, process_group
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.stall import StallTimer
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import in_processes, largest_difference, train_until

KINDS = ["attention", "cross_attention", "local_words"]
every = pytest.mark.parametrize("kind", KINDS)


def of_kind(run, kind, out="run", **more):
    # Frozen, since batch norm and dropout depend on how a batch is cut.
    settings = run(out, {"kind": "clip"}, trainable={"image": "frozen", "text": "frozen"}, **more)
    similarity = SimilaritySettings(aggregator=kind)
    model = settings.model.model_copy(update={"similarity": similarity})
    return settings.model_copy(update={"model": model})


def after(settings, **more):
    trainer = Trainer(settings, **more)
    for step in range(3):
        trainer.step(step)
    return trainer.model.state_dict()


@pytest.fixture(scope="module")
def whole(run_in, tmp_path_factory):
    """A function: the weights of a kind after the steps of one process and one pass."""
    run = run_in(tmp_path_factory.mktemp("aggregators"), "tiny")
    return cache(lambda kind: after(of_kind(run, kind)))


@every
def test_micro_batches_train_as_one_batch_does(run, whole, kind):
    assert largest_difference(whole(kind), after(of_kind(run, kind, accumulate=2))) < 1e-5


@pytest.mark.parametrize("kind", ["cross_attention", "local_words"])
def test_two_processes_train_as_one_does(run, whole, tmp_path, kind):
    one = whole(kind)

    def work():
        place = Place.from_environment()
        with process_group(place, "cpu", StallTimer(0)) as (ranks, device):
            found = after(of_kind(run, kind), ranks=ranks, device=device)
            if place.rank == 0:
                torch.save(found, tmp_path / "two.pt")

    assert in_processes(2, work) == [0, 0]
    assert largest_difference(one, torch.load(tmp_path / "two.pt")) < 1e-5


@every
def test_a_run_resumes_validates_and_leaves_a_model_that_loads(run, prepared_phantom, kind):
    more = {"validate_every": 4, "steps": 4}
    settings = of_kind(run, kind, **more)
    validator = validator_of(prepared_phantom, 16)

    train_until(settings, 2, validator=validator)
    result = train(settings, validator=validator)
    assert result.resumed_at == 2
    whole = train(of_kind(run, kind, "whole", **more), validator=validator)
    names = [each.model / "model.safetensors" for each in (result, whole)]
    assert names[0].read_bytes() == names[1].read_bytes()

    model = DualEncoder.load(result.model)
    assert model.self_test is not None
    assert model.self_test["status"] == "passed"
    assert model.outputs.map_kind == ("cosine" if kind == "attention" else "attention")
    images = torch.from_numpy(PreparedSet.open(prepared_phantom).pixels[:3].copy())
    with torch.no_grad():
        sentences = model.encode_sentences(["There is a nodule.", "Clear.", ""])
        features = model.encode_images(images)
        maps = model.region_scores(features, sentences)
        scores = model.score(features, sentences)
        alone = model.score(features, model.encode_sentences("Clear."))
    assert maps.shape == (3, 3, model.grid.rows * model.grid.columns)
    assert scores.abs().max() <= 1
    torch.testing.assert_close(alone[:, 0], scores[:, 1], atol=1e-5, rtol=0)


def test_words_and_stored_sentences_exclude_each_other(run):
    settings = of_kind(run, "local_words", features={})
    content = settings.model_dump()
    content["train"]["features"] = {"text": True}
    with pytest.raises(ValidationError, match="local_words reads its words"):
        RunSettings.model_validate(content)

"""What a GPU runs, on a second device (tests/helpers/second_device.py).

In a process of its own, for with a second device, as with CUDA, autograd bears no fork:
``python -m pytest tests/training/on_second_device.py``.
"""

from __future__ import annotations

import shutil

import pytest

from medclip_debias.config import SetSettings, SimilaritySettings
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from second_device import DEVICE, waits
from tests.losses.conftest import full_batch, view_batch
from tests.losses.test_recorded import NAMED
from tests.training.conftest import same, weights
from tests.training.test_objectives import RUNS

GLOFND = {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]}
TRAININGS = {
    "cross_attention": {"loss": RUNS["all text policies"], "ema": 0.9, "channels_last": True},
    "attention": {"loss": RUNS["xclr"], "trainable": {"text": {"lora": {"rank": 2}}}},
    "lse_nl": {"loss": RUNS["keyword"], "accumulate": 2, "checkpoint_text": True},
    "local_words": {"loss": RUNS["sogclr"], "augment": {"where": "device"}},
    "max": {"loss": RUNS["claims"], "validate_every": 2, "keep": "best"},
    "nl": {"loss": RUNS["labels"], "views_per_study": 2, "boxes": {"phrases": 4}},
    "global": {"loss": GLOFND, "task": "two_view"},
    "lse": {
        "features": {"cache": True, "text": True, "augmentations": 2},
        "trainable": {"image": "frozen", "text": "frozen"},
    },
}


@pytest.mark.parametrize("make", [full_batch, view_batch])
def test_every_loss_stays_on_its_device(make):
    """Values, gradients, diagnostics and state; mixing it with the processor's is an error."""
    batch = make(0)
    fields = {k: v.to(DEVICE) if hasattr(v, "to") else v for k, v in batch.fields.items()}
    for name, content in NAMED.items():
        objective = build_objective(loss_settings(content, "test")).to(DEVICE)
        objective.begin(samples=14, steps_per_epoch=1)
        leaves = [x.to(DEVICE).requires_grad_() for x in (batch.similarity, batch.scale)]
        out = objective(type(batch)(*leaves, **fields))
        out.loss.backward()
        values = [out.per_anchor, *out.diagnostics.values(), *objective.state_dict().values()]
        assert {x.device for x in [*values, leaves[0].grad]} == {DEVICE}, name


@pytest.mark.parametrize("aggregator", TRAININGS)
def test_a_training_resumes_to_the_same_weights(run, claimed, box_file, tmp_path, aggregator):
    """Checkpoints, validation and heatmaps of examples are part of it."""
    plain = {"device": "second", "steps": 2, "lr": 1e-2, "checkpoint_every": 1, "preview": "on"}
    settings, said = run(**plain, **TRAININGS[aggregator]), []
    similarity = SimilaritySettings(aggregator=aggregator, chunk=3)
    model = settings.model.model_copy(update={"similarity": similarity})
    files = (box_file,) if settings.train.boxes else ()
    sets = (SetSettings(path=claimed, boxes=files),)
    settings = settings.model_copy(update={"prepared": sets, "model": model})
    broken = settings.model_copy(update={"out": tmp_path / "broken"})
    validator = validator_of(claimed, 20)

    def copy_at_one(done, *_):
        if done == 1:
            shutil.copytree(settings.out, broken.out)

    whole = train(settings, validator=validator, progress=copy_at_one, warn=said.append)
    again = train(broken, validator=validator, warn=said.append)
    assert again.resumed_at == 1
    assert same(weights(whole.model), weights(again.model))
    assert not [sentence for sentence in said if "no more heatmaps" in sentence]
    if aggregator == "max":
        figures = [
            evaluate(whole.model, claimed, tmp_path / to, bootstrap=0, device=to)["metrics"]
            for to in ("cpu", "second")
        ]
        there, here = ([row["value"] for row in rows] for rows in figures)
        assert there == pytest.approx(here, abs=1e-5, nan_ok=True)


def test_a_step_waits_for_the_device_as_seldom_as_it_can(run):
    """Once for the checks of the batch, once for those of loss and gradient; once transformers."""
    trainer = Trainer(run(loss={"kind": "clip"}), device=DEVICE)
    trainer.step(0)
    batch = trainer.batches[1]
    waits.clear()
    trainer.step(1, batch)
    assert waits.total() <= 3, waits

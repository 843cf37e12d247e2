"""A finished run is left alone, and is known from one that is not."""

from __future__ import annotations

import shutil

import pytest

from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.train import train
from tests.training.conftest import flip


def stamps(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_a_finished_run_leaves_its_model_folder_alone(run):
    settings = run(steps=2)
    assert not train(settings).finished_before
    before = stamps(settings.out / "model")
    log = (settings.out / "metrics.csv").read_bytes()
    again = train(settings)
    assert again.finished_before
    assert (again.steps, again.resumed_at) == (2, 2)
    assert stamps(settings.out / "model") == before
    assert (settings.out / "metrics.csv").read_bytes() == log


@pytest.mark.parametrize("harm", ["damaged", "missing", "gone", "more", "unknown"])
def test_a_model_folder_that_is_not_as_it_was_written_is_written_again(run, harm):
    settings = run(steps=2)
    train(settings)
    folder = settings.out / "model"
    before = {name: content for name, (_, content) in stamps(folder).items()}
    if harm == "damaged":
        flip(folder / "model.safetensors")
    elif harm == "missing":
        (folder / "tokenizer.json").unlink()
    elif harm == "gone":
        shutil.rmtree(folder)
    elif harm == "more":
        (folder / "peer.yaml").write_text("kind: other")
    else:
        (settings.out / "finished.json").write_text("[")
    assert not train(settings).finished_before
    assert {name: content for name, (_, content) in stamps(folder).items()} == before
    assert train(settings).finished_before


def test_a_run_that_starts_over_is_not_taken_for_finished(run):
    """Killed between its last checkpoint and its model, beside the model of the run before."""
    settings = run(steps=2)
    train(settings)
    old = stamps(settings.out / "model")

    def stop(done, total, loss):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, fresh=True, progress=stop)
    assert checkpoints(settings.out / "checkpoints")
    assert not train(settings).finished_before
    assert stamps(settings.out / "model") != old

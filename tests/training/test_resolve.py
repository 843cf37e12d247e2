"""Resolved settings: defaults written out, and what differs from them."""

from __future__ import annotations

import pytest
import yaml

from medclip_debias.errors import UserError
from medclip_debias.training.resolve import changed, load_run, resolved

MINIMAL = "prepared: p\nout: o\nmodel: {text: {folder: lm}}\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL + "loss: {kind: debiased, eta: {kind: constant}}\n")
    return path


def test_the_resolved_settings_make_the_same_run_again(config, tmp_path):
    content = resolved(config, ["train.lr=1e-3"])
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(content))
    assert resolved(again) == content
    assert content["train"]["lr"] == 1e-3
    assert content["loss"]["eta"] == {"kind": "constant", "value": 0.1}


def test_what_is_changed_is_enough_to_make_the_same_run(config, tmp_path):
    words = ["train.lr=1e-3", "loss.eta.value=0.2", "model.similarity.k=5", "train.steps=1000"]
    short = changed(config, words)
    assert short["train"] == {"lr": 1e-3}  # 1000 steps are the default
    assert short["model"] == {"text": {"folder": "lm"}, "similarity": {"k": 5.0}}
    assert short["loss"] == {"kind": "debiased", "eta": {"kind": "constant", "value": 0.2}}
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(short))
    assert resolved(again) == resolved(config, words)


def test_a_minimal_file_changes_nothing_but_what_it_must_name(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    assert changed(path) == {
        "prepared": "p",
        "out": "o",
        "model": {"text": {"folder": "lm"}},
        "loss": {"kind": "debiased"},
    }
    assert load_run(path).train.steps == resolved(path)["train"]["steps"]


def test_a_wrong_loss_is_named(config):
    with pytest.raises(UserError, match=r"loss\.eta\.value"):
        resolved(config, ["loss.eta.value=2"])


def test_on_and_off_are_taken_as_the_pages_write_them(config):
    words = ["train.shard_loss=on", "train.preview=on", "train.wandb=off"]
    train = load_run(config, words).train
    assert (train.shard_loss, train.preview, train.wandb) == ("on", "on", "off")
    assert load_run(config, ["train.preview=off"]).train.preview == "off"
    with pytest.raises(UserError, match=r"train\.wandb.* is wrong: input should be 'off'"):
        load_run(config, ["train.wandb=on"])

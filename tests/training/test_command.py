"""The verb ``train``: validation, exit codes, Weights & Biases, and what the environment says."""

from __future__ import annotations

import json
import sys
import time

import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.errors import UserError
from medclip_debias.training.distributed import Place
from medclip_debias.training.train import train
from tests.training.conftest import in_processes, table


def test_a_run_validates_and_says_which_step_was_best(config, capsys, tmp_path):
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


def test_weights_and_biases_works_without_a_network(run, monkeypatch):
    pytest.importorskip("wandb")
    # Its queue of jobs, which it can do without, takes longer to import than all else here.
    monkeypatch.setitem(sys.modules, "wandb.sdk.launch", None)
    settings = run(wandb="offline", steps=2)
    train(settings)
    (record,) = (settings.out / "wandb").glob("offline-run-*/*.wandb")
    until = time.monotonic() + 20  # its own process writes, and may do so a little later
    while b"gradient_norm" not in (content := record.read_bytes()):
        assert time.monotonic() < until
        time.sleep(0.1)
    from medclip_debias.data.store import PreparedSet

    for text in PreparedSet.open(settings.prepared).texts:
        assert text.encode() not in content


def test_without_weights_and_biases_one_sentence_says_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"medclip-debias\[wandb\]"):
        train(run(wandb="online", steps=2))


def test_settings_that_cannot_be_shared_out_are_refused(config, capsys):
    assert command(["train", config(), "train.accumulate=3"]) == 2
    assert "accumulate" in capsys.readouterr().err
    assert command(["train", config(), "train.trainable.image.last_blocks=3"]) == 2
    assert "image encoder has 2 layers" in capsys.readouterr().err
    assert command(["train", config(), "train.patience=2"]) == 2
    assert "validate_every" in capsys.readouterr().err


def test_the_place_of_a_process_is_read_from_torchrun_or_slurm(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert Place.from_environment() == Place()
    # A batch script has a SLURM_PROCID too, but is no step of several tasks.
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert Place.from_environment() == Place()
    for name, value in (("SLURM_PROCID", 5), ("SLURM_STEP_NUM_TASKS", 8), ("SLURM_LOCALID", 1)):
        monkeypatch.setenv(name, str(value))
    assert Place.from_environment() == Place(5, 8, 1)
    for name, value in (("RANK", 2), ("WORLD_SIZE", 4), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(name, str(value))
    assert Place.from_environment() == Place(2, 4, 0)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(UserError, match="RANK is 4, but WORLD_SIZE is 4"):
        Place.from_environment()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "first"),
        ("WORLD_SIZE", ""),
        ("LOCAL_RANK", "0x1"),
        ("SLURM_STEP_NUM_TASKS", "2(x3)"),
        ("SLURM_PROCID", "one"),
        ("SLURM_LOCALID", "-"),
    ],
)
def test_a_place_that_is_no_number_is_one_sentence(config, capsys, monkeypatch, name, value):
    for other in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(other, raising=False)
    group = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    if name not in group:
        group = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    for other, number in zip(group, ("0", "2", "0"), strict=True):
        monkeypatch.setenv(other, number)
    monkeypatch.setenv(name, value)
    assert command(["train", config()]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert name in reported[0]
    assert "must be" in reported[0]


def test_what_is_wrong_before_processes_meet_is_said_by_one_of_a_machine(config, capfd):
    path = config()

    def work():
        raise SystemExit(command(["train", path, "train.learning_rate=1"]))

    assert in_processes(3, work) == [2, 2, 2]
    assert capfd.readouterr().err.count("'train.learning_rate'") == 1


def test_a_device_that_is_missing_is_said_once(config, capfd):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    path = config(device="cuda")

    def work():
        raise SystemExit(command(["train", path]))

    assert in_processes(2, work) == [2, 2]
    reported = capfd.readouterr().err
    assert reported.count("device 'cuda' cannot be used here") == 1
    assert reported.count("medclip-debias:") == 1

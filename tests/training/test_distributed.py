"""The device of a process; tests/losses/test_distributed.py has the arithmetic among them."""

import doctest
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from medclip_debias.errors import UserError
from medclip_debias.experiments.trainings import Trainings
from medclip_debias.training import distributed
from medclip_debias.training.distributed import Place, claim_gpu, device_of


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_one_process_takes_the_device_as_it_is_called(name, monkeypatch):
    """torch makes no device the current one that has no number, on no machine: a run ended so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name == "auto")
    assert device_of(name, Place(0, 1, 0)) == torch.device("cuda" if name == "auto" else "cpu")


@pytest.mark.parametrize(("visible", "number"), [(1, 0), (4, 3)])
def test_each_process_has_its_own_gpu_or_sees_it_alone(visible, number, monkeypatch):
    """srun --gpus-per-task=1 shows each task one GPU, whatever its number on the machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(distributed, "best_device", torch.device)
    assert device_of("auto", Place(7, 8, 3)) == torch.device("cuda", number)
    if visible > 1:
        with pytest.raises(UserError, match="Process 4 of this machine has no GPU of its own"):
            device_of("auto", Place(8, 16, 4))


def test_two_processes_never_share_a_gpu(monkeypatch):
    gpus = {0: SimpleNamespace(uuid="a"), 1: SimpleNamespace(uuid="b")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpus[device.index])
    store = dist.HashStore()
    for number in gpus:
        claim_gpu(torch.device("cuda", number), Place(number, 3, number), store)
    with pytest.raises(UserError, match="Process 2 of this machine has no GPU of its own"):
        claim_gpu(torch.device("cuda", 0), Place(2, 3, 2), store)


def test_the_first_host_is_the_first_of_slurms_list():
    assert doctest.testmod(distributed).failed == 0


def test_a_cell_in_a_worker_that_srun_started_is_a_run_of_one_process(monkeypatch):
    """Else the workers' cells, each another run, would wait for each other and train together."""
    values = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert Place.from_environment() == Place(1, 4, 1)
    Trainings.begin(None, 1)
    assert Place.from_environment() == Place()

"""The device of a process; tests/losses/test_distributed.py has the arithmetic among them."""

import pytest
import torch

from medclip_debias.training.distributed import Place, device_of


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_one_process_takes_the_device_as_it_is_called(name, monkeypatch):
    """torch makes no device the current one that has no number, on no machine: a run ended so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name == "auto")
    assert device_of(name, Place(0, 1, 0)) == torch.device("cuda" if name == "auto" else "cpu")

"""What ends a run whose loader process dies, whenever that is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset, dataloader

from medclip_debias.data.workers import ahead
from medclip_debias.errors import UserError


class Numbers(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("attempt", range(4))
def test_a_loader_process_that_is_killed_is_always_named(stopped, attempt, monkeypatch):
    """A batch that it has announced and not handed over breaks the connection, not the queue."""
    looks = dataloader._MultiProcessingDataLoaderIter._try_get_data  # every five seconds
    monkeypatch.setattr(looks, "__defaults__", (0.3,))
    batches = ahead(Numbers(), range(1000), 1)
    assert next(batches)[0] == 0
    (worker,) = multiprocessing.active_children()
    if stopped:
        time.sleep(0.3)  # until the next batches are announced
        os.kill(worker.pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL)).start()
    else:
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(UserError, match=r"process of the data loader was killed.*run the same"):
        for _ in batches:
            pass

"""The script of a lent GPU, at toy size on a processor: what runs there is what runs here."""

from __future__ import annotations

import shutil
from functools import partial

import gpu
import pytest


def test_every_row_is_measured_at_toy_size(capsys, monkeypatch, toy_data):
    copy = partial(shutil.copytree, toy_data, dirs_exist_ok=True)
    monkeypatch.setattr(gpu, "make_data", lambda folder, _: copy(folder))
    assert gpu.main(["--device", "cpu", "--small", "--rounds", "1"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:4] for line in said}
    right = (
        "loss of the engine against the plain loop, fp32",
        "one process under gloo: loss and gradients as alone",
        "a run resumed, against the same run whole",
    )
    for name in right:
        assert rows[name][2] == "met", name
    for name in (
        "bf16 against fp32: loss",
        "training step against a plain loop",
        "a soak's memory",
    ):
        assert rows[name][2] in ("met", "**missed**"), name
    assert not [name for name, cells in rows.items() if cells[1] == "not measured"]


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--device", "cuda"])
    assert "there is no GPU here" in capsys.readouterr().err

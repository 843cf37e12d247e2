"""The scripts of measurements at toy size on a processor: what runs there is what runs here."""

from __future__ import annotations

import shutil
from functools import partial

import common
import gpu
import growth
import pytest
import rivals
import torch
import torch.nn.functional as F
import train_step


def test_rows_of_a_lent_gpu_are_measured_at_toy_size(capsys, monkeypatch, toy_data):
    copy = partial(shutil.copytree, toy_data, dirs_exist_ok=True)
    monkeypatch.setattr(gpu, "make_data", lambda folder, _: copy(folder))
    only = ("agreement", "nccl", "step")
    assert gpu.main(["--device", "cpu", "--small", "--rounds", "1", "--only", *only]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[3] for line in said}
    for name in (
        "loss of the engine against the plain loop, fp32",
        "one process under gloo: loss and gradients as alone",
    ):
        assert rows[name] == "met", name
    assert rows["training step against a plain loop"] in ("met", "**missed**")


def test_open_clips_step_is_symmetric_cross_entropy_of_pooled_embeddings(toy_data):
    trainer = train_step.Trainer(train_step.settings(toy_data, train_step.SMALL))
    trainer.model.text_encoder.eval()  # no dropout
    way, batch = train_step.ways(trainer)["open_clip"](), trainer.batches[0]
    ids = trainer.model.tokenizer.encode(
        [trainer.studies.texts[number] for number in batch.texts.tolist()], 64
    )
    with torch.no_grad():
        images = way.model.image_encoder(way.images(batch)).mean(dim=(2, 3))
        images = F.normalize(way.model.image_projection(images), dim=-1)
        logits = 14 * images @ way.model.encode_ids(ids).T
        target = torch.arange(len(logits))
        expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        assert float(way.loss(batch)) == pytest.approx(float(expected), rel=1e-4)


def test_rivals_of_this_environment_give_the_same_output_and_a_figure(capsys):
    """Those that need no environment of their own, at toy size, one round."""
    names = ["loader", "similarity"]
    assert rivals.main(["--quick", "--rounds", "1", "--threads", "1", "--only", *names]) == 0
    said = capsys.readouterr().out
    assert said.count("times") >= 2
    assert "not measured" not in said


def test_ways_take_turns_and_a_row_says_ratio_goal_or_why_it_has_none(capsys, monkeypatch):
    order = []

    def way(name):
        return lambda: order.append(name) or float(len(order))

    found = common.in_turn({"a": way("a"), "b": way("b")}, rounds=2)
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert found == {"a": [3.0, 6.0], "b": [4.0, 5.0]}
    row = common.ratio("x", [1.0, 2.0, 1.0], [3.0, 2.0, 2.0], 2)
    assert row.met
    assert "2.00 (1.00 to 3.00) times" in row.measured
    assert not common.ratio("x", [1.0] * 5, [1.9] * 5, 2).met
    assert growth.exponent([100, 200, 400], [3.0, 6.0, 12.0]) == pytest.approx(1)

    def broken(_):
        """A thing: against another."""
        raise RuntimeError("no\nsuch | thing")
        yield

    monkeypatch.setattr(rivals, "ROWS", {"a": broken})
    assert rivals.main(["--only", "a"]) == 1
    assert "| A thing | - | not measured | - | no such / thing |" in capsys.readouterr().out

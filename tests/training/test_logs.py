"""What a run writes down: lines, tables (also as a crash leaves them), and TensorBoard."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.training.logs import FILE, RunLog, last_row
from medclip_debias.training.pace import Pace
from medclip_debias.training.train import train
from tests.training.conftest import same, table, wait_until, weights

WHOLE = "step,loss,lr,images_per_second,seconds\n10,2.5,1,8,9\n20,1.5,1,8,18\n"
IDENTITY = {"train": {}, "loss": {}, "provenance": {}}
ROW = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  step (\d+) of (\d+), lr (\S+), [\d.]+ images/s, "
    r"loss ([\d.]+), elapsed \d+:\d\d:\d\d, left \d+:\d\d:\d\d"
)


@pytest.mark.parametrize("torn", ["30,1.25", "30,x,1,8,9", "\x00\x00\x00"])
def test_a_row_that_was_cut_off_and_rows_of_steps_taken_again_are_dropped(run, torn):
    settings = run()
    settings.out.mkdir()
    path = settings.out / "metrics.csv"
    path.write_text(WHOLE + torn)
    assert last_row(path)["loss"] == 1.5
    with RunLog(settings, 30, IDENTITY) as log:
        row = {"step": 40, "loss": 1.0, "lr": 1.0, "images_per_second": 8.0, "seconds": 36.0}
        log.write_row(row, 0.0)
    assert path.read_text() == WHOLE + "40,1,1,8,36\n"
    with RunLog(settings, 10, IDENTITY):
        assert path.read_text() == WHOLE[: WHOLE.index("20,")]
    with RunLog(settings, 0, IDENTITY):
        assert last_row(path) == {}


def test_a_figure_that_comes_later_gets_a_column_and_one_that_goes_is_blank(run):
    """It went to TensorBoard alone, and an experiment wrote a row's nan to a JSON file."""
    settings = run()
    settings.out.mkdir()
    path = settings.out / "metrics.csv"
    plain = {"lr": 1.0, "images_per_second": 8.0, "seconds": 9.0}
    with RunLog(settings, 0, IDENTITY) as log:
        log.write_row({"step": 1, "loss": 1.0, **plain}, 0.0)
        log.write_row({"step": 2, "loss": 1.0, **plain, "clamped": 0.5}, 0.0)
        log.write_row({"step": 3, "loss": 1.0, **plain}, 0.0)
    assert [row["clamped"] for row in table(path)] == ["nan", "0.5", "nan"]
    assert last_row(path) == {"step": 3, "loss": 1.0, **plain}


def falling():
    """A validation whose second call is the best."""
    values = iter((0.25, 0.5, 0.375, 0.125))
    return lambda model: {"recall_at_10": next(values)}


def test_the_lines_say_step_rate_speed_loss_validation_and_what_is_kept(run):
    settings = run(steps=6, validate_every=2, keep="best", patience=3)
    seen = []
    train(settings, validator=falling(), line=lambda text, frequent: seen.append((text, frequent)))
    lines = (settings.out / FILE).read_text().splitlines()
    assert lines == [text for text, _ in seen]
    rows = [re.fullmatch(ROW, line) for line in lines]
    assert [row[1] for row in rows if row] == ["2", "4", "6"]
    assert [frequent for _, frequent in seen] == [row is not None for row in rows]
    others = [line[21:] for line, row in zip(lines, rows, strict=True) if not row]
    assert others == [
        "step 2, validation: recall_at_10 0.25; the best so far",
        "step 4, validation: recall_at_10 0.5; the best so far",
        "step 6, validation: recall_at_10 0.375; best is step 4 (recall_at_10 0.5); "
        "1 of 3 in a row without a better one",
        "finished: the model folder holds the weights after step 4, the best by recall_at_10 "
        "(train.keep: best)",
    ]


def test_what_is_left_is_reckoned_from_the_steps_of_this_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("medclip_debias.training.pace.time.perf_counter", lambda: now[0])
    pace = Pace(8, start=50, steps=100)
    now[0] = 130.0
    assert (pace.elapsed, pace.left(60)) == (30.0, 120.0)  # 3 s a step, 40 steps


def events(settings):
    """What TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(settings.out / "tensorboard"))
    board.Reload()
    return board


def test_tensorboard_shows_scalars_settings_and_heatmaps_and_changes_no_weights(run):
    plain = run("plain", steps=4, validate_every=2)
    shown = run("shown", steps=4, validate_every=2, preview="on")
    models = [train(settings, validator=falling()).model for settings in (plain, shown)]
    assert same(*map(weights, models))
    board = events(shown)
    assert [event.step for event in board.Images("preview")] == [2, 4]
    (text,) = board.Tensors("settings/text_summary")
    assert b"kind: infonce" in text.tensor_proto.string_val[0]
    assert [event.value for event in board.Scalars("validation/recall_at_10")] == [0.25, 0.5]
    assert [event.step for event in board.Scalars("loss")] == [2, 4]
    board = events(plain)
    assert "preview" not in board.Tags()["images"]
    (text,) = board.Tensors("preview/text_summary")
    assert b"train.preview is off" in text.tensor_proto.string_val[0]


def test_no_sentence_of_a_patient_leaves_a_run(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    # Its queue of jobs, which it can do without, takes longer to import than all else here.
    monkeypatch.setitem(sys.modules, "wandb.sdk.launch", None)
    settings = run(steps=2, wandb="offline", preview="auto")
    real = tmp_path / "real"
    shutil.copytree(settings.prepared, real)
    meta = json.loads((real / "meta.json").read_text())
    (real / "meta.json").write_text(json.dumps(meta | {"synthetic": False}))
    settings = settings.model_copy(update={"prepared": real})
    train(settings)
    assert events(settings).Tags()["images"] == []
    (record,) = (settings.out / "wandb").glob("offline-run-*/*.wandb")
    wait_until(lambda: b"gradient_norm" in record.read_bytes(), 20)  # a process of its own writes
    paths = [record, *(settings.out / "tensorboard").iterdir()]
    content = b"".join(path.read_bytes() for path in paths)
    assert not any(text.encode() in content for text in PreparedSet.open(real).texts)


def test_without_weights_and_biases_one_sentence_says_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"medclip-debias\[wandb\]"):
        train(run(wandb="online", steps=2))


def test_heatmaps_that_cannot_be_drawn_do_not_end_a_run(run, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("medclip_debias.evaluation.preview.pictures", fail)
    warnings = []
    assert train(run(steps=4, preview="on"), warn=warnings.append).steps == 4
    (warning,) = warnings
    assert "shows no more heatmaps (ZeroDivisionError)" in warning

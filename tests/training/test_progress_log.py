"""The lines of a run, and a watcher that must not change it."""

from __future__ import annotations

import re

import pytest
import torch

from medclip_debias.training.logs import RunLog
from medclip_debias.training.pace import Pace
from medclip_debias.training.progress_log import FILE
from medclip_debias.training.run import train
from tests.training.conftest import same, weights

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "
ROW = (
    TIME + r"step (\d+) of (\d+), lr (\S+), [\d.]+ images/s, loss ([\d.]+), "
    r"elapsed \d+:\d\d:\d\d, left \d+:\d\d:\d\d"
)


@pytest.fixture
def networks():
    return "tiny"


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


def test_a_stopped_run_says_where_and_a_resumed_one_goes_on_below(run, monkeypatch):
    settings = run(steps=4, ema=0.5)

    def stop(done, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, progress=stop)
    train(settings)
    lines = [line[21:] for line in (settings.out / FILE).read_text().splitlines()]
    assert "resumed after step 2 of 4" in lines
    assert len([line for line in lines if line.startswith("step 4 of 4, ")]) == 1
    assert lines[-1] == (
        "finished: the model folder holds the moving average of the weights after step 4, the last"
        " (train.keep: last)"
    )


def test_what_is_left_is_reckoned_from_the_steps_of_this_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("medclip_debias.training.pace.time.perf_counter", lambda: now[0])
    pace = Pace(8, start=50, steps=100)
    now[0] = 130.0
    assert (pace.elapsed, pace.left(60)) == (30.0, 120.0)  # 3 s a step, 40 steps


def test_a_watcher_neither_changes_nor_ends_a_run(run):
    alone = train(run("alone", steps=4, validate_every=2), validator=falling()).model
    seen, warnings = [], []

    def watcher(moment, model):
        torch.rand(3)  # nothing may depend on the state of the global generator
        seen.append((moment.step, moment.status, model is not None and not model.training))
        if moment.step == 4:
            raise ZeroDivisionError
        return torch.zeros(4, 6, 3, dtype=torch.uint8).numpy()

    pictures = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "write_picture", lambda *given: pictures.append(given[3]))
        watched = train(
            run("watched", steps=4, validate_every=2),
            validator=falling(),
            watcher=watcher,
            warn=warnings.append,
        ).model
    assert seen == [(2, "training", True), (4, "finished", True)]
    assert pictures == [2]
    (warning,) = warnings
    assert "not kept up to date any more (ZeroDivisionError)" in warning
    assert same(weights(alone), weights(watched))

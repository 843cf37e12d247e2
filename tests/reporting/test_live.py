"""The page of a run while it trains, and its six pictures."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.loader import training_corpus
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.preview import IMAGES, SIDE, STRIP, _picture, choose, sheet
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.reporting.live import LivePage
from medclip_debias.training.progress_log import RUNNING, Moment
from medclip_debias.training.run import train
from medclip_debias.training.settings import RunSettings, TrainSettings


@pytest.fixture(scope="module")
def language_model(prepared_phantom, tmp_path_factory):
    out = tmp_path_factory.mktemp("live") / "lm"
    small = LanguageModelSettings(
        vocabulary=400, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=32
    )
    train_masked_lm(training_corpus(PreparedSet.open(prepared_phantom)), out, small)
    return out


@pytest.fixture
def settings(prepared_phantom, language_model, tmp_path):
    """A function that makes settings of a short run: ``settings(prepared, preview="on")``."""

    def make(prepared=prepared_phantom, **changes):
        plain = {"steps": 4, "batch_size": 8, "warmup_steps": 1, "log_every": 2, "workers": 0}
        return RunSettings(
            prepared=prepared,
            out=tmp_path / "run",
            preprocessing=Preprocessing(prepare=PreparedSet.open(prepared).settings, input_size=64),
            model=ModelSettings(
                image=ImageEncoderSettings(arch="resnet_small"),
                text=TextEncoderSettings(folder=language_model, max_tokens=32),
                dim=16,
            ),
            loss={"kind": "infonce"},
            train=TrainSettings(**(plain | {"checkpoint_every": 2} | changes)),
        )

    return make


def trained(run):
    """The pages that a run wrote after each step, and what it warned of."""
    pages, warned = [], []

    def progress(*_):
        path = run.out / "report.html"
        pages.append(path.read_text() if path.exists() else "")

    watcher = LivePage(run)
    train(run, watcher=watcher, progress=progress, warn=warned.append)
    assert warned == []
    return [*pages, (run.out / "report.html").read_text()], watcher


def test_the_page_lives_while_the_run_does_and_tells_what_is_kept(settings):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = settings()
    pages, watcher = trained(run)
    assert pages[0] == ""
    assert 'http-equiv="refresh"' in pages[1]
    assert "2 of 4" in pages[1]
    assert "The model folder will hold the weights of the last step" in pages[1]
    last = pages[-1]
    assert "refresh" not in last
    assert "The model folder holds the weights after step 4, the last" in last
    assert "Not evaluated yet" in last
    assert watcher.spent > 0
    data = PreparedSet.open(run.prepared)
    shown = re.findall(r"<figcaption>(.*?)</figcaption>", last.split("Where the model looks")[-1])
    assert len({text.lower() for text in shown}) == IMAGES
    assert set(shown) <= set(data.texts) | set(data.phrases["text"])
    pictures = re.findall(r'"data:image/png;base64,([^"]+)"', last)
    assert len(pictures) == IMAGES
    for text in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(text))).size == (2 * SIDE, SIDE)
    assert last.count("<svg") >= 2  # loss and learning rate at least
    board = EventAccumulator(str(run.out / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Images("preview")] == [2, 4]
    assert "http://" not in last.replace("http://www.w3.org", "")


def test_patients_are_not_shown_unless_it_is_asked_for(settings, prepared_phantom, tmp_path):
    real = tmp_path / "real"
    shutil.copytree(prepared_phantom, real)
    meta = json.loads((real / "meta.json").read_text())
    (real / "meta.json").write_text(json.dumps(meta | {"synthetic": False}))
    pages, _ = trained(settings(real))
    assert "train.preview=on shows six" in pages[-1]
    assert "data:image/png" not in pages[-1]
    assert not any(text in pages[-1] for text in PreparedSet.open(real).texts)
    shutil.rmtree(tmp_path / "run")
    page = LivePage(settings(real, preview="on"))
    off = LivePage(settings(preview="off"))
    data = PreparedSet.open(real)
    model = type("Model", (), {"preprocessing": settings(real).preprocessing})
    for each, wanted in ((page, IMAGES), (off, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("medclip_debias.reporting.live.pictures", lambda *given: given[2])
            each._look(model, 1)
        assert len(each._examples) == wanted
    assert "train.preview is off" in off._without
    assert data.meta["synthetic"] is False


def test_a_page_that_took_too_much_of_the_time_waits(settings, tmp_path):
    page = LivePage(settings())
    page.spent = 2.0
    moment = Moment(tmp_path, 10, 100, RUNNING, 100.0, 900.0, "", "the model folder will hold x")
    assert page(moment, None) is None
    assert not (tmp_path / "report.html").exists()
    page(
        Moment(tmp_path, 20, 100, RUNNING, 500.0, 1200.0, "", "the model folder will hold x"), None
    )
    assert "0:08:20" in (tmp_path / "report.html").read_text()  # elapsed
    assert "0:20:00" in (tmp_path / "report.html").read_text()  # left


def test_the_six_are_of_the_validate_split_and_the_same_each_time(prepared_phantom):
    data = PreparedSet.open(prepared_phantom)
    chosen = choose(data, 64)
    assert len({each.row for each in chosen}) == IMAGES
    assert {data.images["split"].iloc[each.row] for each in chosen} == {"validate"}
    again = choose(PreparedSet.open(prepared_phantom), 64)
    assert [(each.row, each.text) for each in again] == [(each.row, each.text) for each in chosen]
    for each in chosen:
        study = data.images["study_id"].iloc[each.row]
        said = set(data.sentences.loc[data.sentences["study_id"] == study, "text"])
        image = data.images["image_id"].iloc[each.row]
        phrases = data.phrases.loc[data.phrases["image_id"] == image, "text"]
        assert each.text in said | set(phrases)


def test_colour_begins_above_the_reference_and_boxes_stand_where_they_are():
    image = np.full((SIDE, SIDE), 100, dtype=np.uint8)
    heatmap = np.full((SIDE, SIDE), 0.1)
    heatmap[50:100, 20:60] = 0.4
    found = _picture(image, heatmap, (0.2, 0.4), np.array([[120.0, 150.0, 40.0, 30.0]]))
    assert found.shape == (SIDE, 2 * SIDE, 3)
    clean, coloured = found[:, :SIDE], found[:, SIDE:].astype(int)
    assert (clean == 100).all()
    changed = (coloured != 100).any(axis=-1)
    wanted = np.zeros_like(changed)
    wanted[50:100, 20:60] = True
    wanted[150:181, 120:161] = True
    wanted[151:180, 121:160] = False
    assert (changed == wanted).all()
    assert (coloured[150, 120:161] == (53, 224, 255)).all()
    whole = sheet([found] * 3, ["Left effusion.", "", "Épanchement gauche " * 20])
    assert whole.shape == (2 * (SIDE + STRIP), 4 * SIDE, 3)
    assert (whole[SIDE + STRIP :, 2 * SIDE :] == 255).all()  # no fourth picture
    assert (whole[:SIDE, : 2 * SIDE] == found).all()
    words, none = whole[SIDE : SIDE + STRIP, : 2 * SIDE], whole[SIDE : SIDE + STRIP, 2 * SIDE :]
    assert (words < 128).any()
    assert (none == 255).all()


def test_a_run_that_was_stopped_is_not_shown_as_one_that_trains(settings, tmp_path):
    page = LivePage(settings())
    ended = Moment(tmp_path, 7, 100, "stopped by SIGTERM after step 7.", 5.0, 9.0, "", "the m")
    page(ended, None)
    shown = (tmp_path / "report.html").read_text()
    assert "<title>Stopped: " in shown
    assert "refresh" not in shown
    assert "Stopped by SIGTERM after step 7. For research" in shown
    assert "7 of 100" in shown

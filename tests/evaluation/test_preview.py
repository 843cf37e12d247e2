"""The six pictures of a run."""

from __future__ import annotations

import json
import shutil

import numpy as np

from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.preview import IMAGES, SIDE, STRIP, _picture, choose, refuse, sheet


def test_patients_are_not_shown_unless_it_is_asked_for(prepared_phantom, tmp_path):
    synthetic = PreparedSet.open(prepared_phantom)
    shutil.copytree(prepared_phantom, tmp_path / "real")
    meta = json.loads((tmp_path / "real" / "meta.json").read_text())
    (tmp_path / "real" / "meta.json").write_text(json.dumps(meta | {"synthetic": False}))
    real = PreparedSet.open(tmp_path / "real")
    assert refuse(synthetic, "auto", "image_text") == refuse(real, "on", "image_text") == ""
    assert "train.preview=on shows six" in refuse(real, "auto", "image_text")
    assert "train.preview is off" in refuse(synthetic, "off", "image_text")
    assert "learns no sentences" in refuse(synthetic, "on", "two_view")


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

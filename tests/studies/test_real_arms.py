"""The registered arms on several archives: settings that exist, mirrored reports, chosen claims."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.secret import read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.catalogue import COMPARED
from medclip_debias.evaluation.item_tables import ItemNames, write_items
from medclip_debias.evaluation.phrase_selection import select_phrases
from medclip_debias.losses.presets import presets
from medclip_debias.training.resolve import load_run
from studies import real_arms

STUDIES = sorted((Path(__file__).parents[2] / "configs/studies").glob("real_*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_arm_is_a_run_of_known_settings_and_outcomes(path, tmp_path):
    study = yaml.safe_load(path.read_text())
    compared = {metric.key for metric in COMPARED}
    assert {key for keys in study["outcomes"].values() for key in keys} <= compared
    assert set(study["outcomes"]) == set(study["judged"])
    for arm in study["arms"].values():
        preset = arm.get("preset", study["preset"])
        assert preset in presets()
        words = [f"out={tmp_path}", *study["settings"], *arm.get("settings", [])]
        load_run("phantom/base", words, preset)


@given(
    st.lists(st.sampled_from(["train", "validate", "test"]), min_size=1, max_size=40),
    st.floats(0.1, 1),
    st.floats(0.1, 1),
)
def test_fewer_training_patients_are_part_of_more_and_other_splits_stay(splits, first, second):
    patients = pd.DataFrame({"patient_id": [f"p{n}" for n in range(len(splits))], "split": splits})
    images = pd.concat([patients, patients.head(7)])  # some have several
    less, more = (real_arms.fewer_patients(images, share) for share in sorted((first, second)))
    trained = splits.count("train")
    assert (more["split"] == "train").sum() == round(max(first, second) * trained)
    assert set(less["patient_id"]) <= set(more["patient_id"])
    judged = patients[patients["split"] != "train"]
    assert set(judged["patient_id"]) <= set(less["patient_id"])
    assert not more["patient_id"].duplicated().any()


def test_items_of_the_same_films_in_other_pixels_pair(tiny_tree, tmp_path):
    sets = [
        prepare(tiny_tree.root, tmp_path / f"{size}", PrepareSettings(size=size), workers=1)
        for size in (24, 32)
    ]
    images = sets[0].images
    texts = images.merge(sets[0].sentences, on="study_id")
    tables = {
        "zero_shot": images[["image_id", "patient_id"]].set_axis(["id", "patient"], axis=1),
        "laterality": pd.DataFrame(
            {"id": texts["image_id"] + ":" + texts["text"], "patient": texts["patient_id"]}
        ),
    }
    cells = [tmp_path / "cells" / name for name in "ab"]
    for cell, data in zip(cells, sets, strict=True):
        names = ItemNames(data.content_hash, read_secret(data.folder))
        write_items(cell, {name: table.assign(value=1.0) for name, table in tables.items()}, names)
        real_arms.name_items_alike(cell, data.folder, sets[0].folder)
    for name in tables:
        first, second = (pd.read_parquet(cell / "items" / f"{name}.parquet") for cell in cells)
        pd.testing.assert_frame_equal(first, second)
        assert len(first)


def test_a_doubling_of_patients_changes_an_outcome_by_the_slope_of_a_line():
    arms = {"all": {}, "half": {"share": 0.5}, "eighth": {"share": 0.125}, "large": {"size": 128}}
    rows = {("all", 0): 0.7, ("half", 0): 0.68, ("eighth", 0): 0.64, ("large", 0): 0.1}
    rows |= {(arm, 1): value + 0.05 for (arm, _), value in rows.items()}
    values = pd.Series(rows).rename_axis(["arm", "seed"]).to_frame("auc")
    assert list(real_arms.doublings(arms, values)) == ["auc: +0.020 a doubling [+0.020, +0.020]"]
    assert not list(real_arms.doublings({"all": {}, "large": {"size": 128}}, values))


def test_moved_boxes_are_those_of_other_images_of_the_finding(prepared_phantom, tmp_path):
    """As many of each finding, each somewhere in its image, nearly none where it was."""
    data = PreparedSet.open(prepared_phantom)
    images = data.images[data.frontal & (data.images["split"] == "train")].head(12)
    sizes = images[["image_id", "width", "height"]].to_numpy().tolist()
    listed = [
        {"id": n, "file_name": f"{name}.png", "width": int(w), "height": int(h)}
        for n, (name, w, h) in enumerate(sizes)
    ]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "label_text": "Mass.", "bbox": [n, 2, 3, 4]}
        for n in range(len(listed))
    ]
    content = {"images": listed, "annotations": boxes, "categories": [{"id": 1, "name": "Mass"}]}
    file, moved = tmp_path / "boxes.json", tmp_path / "moved.json"
    file.write_text(json.dumps(content))
    real_arms.move_boxes(data, [file], moved)
    before, after = (select_phrases(data, "train", 32, each).phrases for each in (file, moved))
    places = [
        {
            p.row: (np.array(p.boxes[0]) / np.tile([p.geometry.width, p.geometry.height], 2)).round(
                6
            )
            for p in phrases
        }
        for phrases in (before, after)
    ]
    assert places[0].keys() == places[1].keys()
    assert not any((places[0][row] == places[1][row]).all() for row in places[0])
    first, second = (sorted(box.tolist() for box in each.values()) for each in places)
    assert first == second

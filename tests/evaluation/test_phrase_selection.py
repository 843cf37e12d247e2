"""Phrases of a box file, and which of them can be grounded."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.prepare import prepare
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.phrase_selection import COUNTS, merge_phrases, select_phrases
from medclip_debias.evaluation.protocol import Skipped
from medclip_debias.evaluation.protocols.phrase_grounding import (
    best_overlaps,
    phrase_metrics,
)
from medclip_debias.evaluation.table import read_results
from medclip_debias.evaluation.upsampled import Upsampled
from medclip_debias.grounding.denials import is_groundable, study_counts
from medclip_debias.models.region_grid import RegionGrid
from tests.evaluation.conftest import measuring_only

INPUT = 40


def coco(path, annotations, images=None):
    """Write a COCO file; an annotation is image, text, box and perhaps a category number."""
    names = images or {}
    listed = list(dict.fromkeys(a[0] for a in annotations))
    content = {
        "images": [
            {"id": n, "file_name": f"{n}.jpg", "width": names.get(n, (0, 0))[0]}
            | {"height": names.get(n, (0, 0))[1]}
            for n in listed
        ],
        "annotations": [
            {"id": k, "image_id": a[0], "label_text": a[1], "bbox": a[2], "category_id": 1}
            for k, a in enumerate(annotations)
        ],
        "categories": [{"id": 1, "name": "Edema"}],
    }
    path.write_text(json.dumps(content))
    return path


def test_boxes_of_a_file_are_matched_scaled_clipped_and_counted(small_prepared, tmp_path):
    # i00 (test) is 90 wide and 60 high, i02 (held out) 70 x 70, i04 in training.
    file = coco(
        tmp_path / "boxes.json",
        [
            ("i00", "Mild edema.", [20, 20, 40, 30]),
            ("i00", "Mild edema.", [100, 10, 200, 30]),  # over the right edge
            ("i00", "Mild edema.", [500, 500, 9, 9]),  # outside
            ("i02", "New here", [5, 6, 0, 10]),  # no area
            ("i02", "New here", [5, 6, 7, 8]),
            ("i04", "In training", [1, 1, 5, 5]),
            ("absent", "Nowhere", [1, 1, 5, 5]),
            ("i01", "Flat only", [1, 1, 5, 0]),
            ("i08", "Of another shape", [1, 1, 5, 5]),
        ],
        images={"i00": (180, 120), "i02": (140, 140), "i08": (100, 900)},
    )
    found = select_phrases(small_prepared, "test", INPUT, file)
    assert [p.text for p in found.phrases] == ["Mild edema.", "New here"]
    assert found.phrases[0].boxes == [[10, 10, 20, 15], [50, 5, 40, 15]]
    assert found.phrases[1].boxes == [[2.5, 3, 3.5, 4]]
    assert found.counts == {
        **{"other_splits": 1, "without_image": 1, "without_box": 1, "zero_area_boxes": 2},
        **{"outside_boxes": 1, "clipped_boxes": 1, "scaled": 2, "other_shape": 1},
        **{"other_annotation_splits": 0, "other_views": 0},
    }
    assert "annotation_splits" not in found.source
    assert found.source["phrases"] == "boxes.json"
    # Neither is said by a training study.
    assert [p.sentence_count for p in found.phrases] == [0, 0]
    own = select_phrases(small_prepared, "test", INPUT)
    counts = {p.text: p.sentence_count for p in own.phrases}
    training = small_prepared.studies[small_prepared.studies["split"] == "train"]["study_id"]
    said = small_prepared.sentences[small_prepared.sentences["study_id"].isin(training)]["text"]
    assert counts["Right lower pneumonia."] == (said == "Right lower pneumonia.").sum() > 0


def test_boxes_that_were_drawn_on_larger_images_are_refused(small_prepared, tmp_path):
    """The file says no sizes: what of its boxes lies inside lies at wrong places."""
    boxes = [("i00", f"Finding {n}.", [20 * n, 20 * n, 15, 15]) for n in range(12)]
    file = coco(tmp_path / "boxes.json", boxes)
    with pytest.raises(UserError, match=r"of 12 boxes lie outside their images"):
        select_phrases(small_prepared, "test", INPUT, file)


def test_phrases_with_a_split_of_their_own_are_of_that_split(small_prepared, tmp_path):
    file = coco(
        tmp_path / "MS_CXR_Local_Alignment_v1.1.0.json",
        [
            ("i00", "test image", [1, 1, 5, 5]),
            ("i02", "to train on", [1, 1, 5, 5]),
            ("i02", "to choose by", [1, 1, 5, 5]),
            ("i02", "to measure", [1, 1, 5, 5]),
            ("i08", "without", [1, 1, 5, 5]),
            ("i04", "in training", [1, 1, 5, 5]),
        ],
    )
    content = json.loads(file.read_text())
    words = ["test", "train", "val", "test", "", "train"]
    for annotation, word in zip(content["annotations"], words, strict=True):
        annotation["split"] = word
    file.write_text(json.dumps(content))

    def chosen(split, **options):
        found = select_phrases(small_prepared, split, INPUT, file, **options)
        return [p.text for p in found.phrases], found

    texts, found = chosen("test")
    assert texts == ["test image", "to measure", "without"]
    assert found.counts["other_annotation_splits"] == 2
    assert found.counts["other_splits"] == 1
    assert found.source["annotation_splits"] == {"test": 2, "train": 2, "validate": 1}
    assert chosen("validate")[0] == ["to choose by", "without"]
    everything = ["test image", "to train on", "to choose by", "to measure", "without"]
    texts, found = chosen("test", annotation_split="all")
    assert texts == everything
    assert found.counts["other_annotation_splits"] == 0
    assert chosen("held_out")[0] == everything[1:]
    for annotation in content["annotations"]:
        annotation["split"] = "train"
    file.write_text(json.dumps(content))
    with pytest.raises(Skipped, match="5 have another split of their own"):
        chosen("test")


def test_no_phrase_left_says_why(small_prepared, tmp_path):
    file = coco(tmp_path / "b.json", [("absent", "a", [1, 1, 5, 5]), ("i04", "b", [1, 1, 5, 5])])
    with pytest.raises(
        Skipped, match=r"None of the phrases in b\.json .* 1 are on images of other"
    ):
        select_phrases(small_prepared, "test", INPUT, file)
    with pytest.raises(UserError, match="there is no such file"):
        select_phrases(small_prepared, "test", INPUT, tmp_path / "none.json")
    broken = coco(tmp_path / "c.json", [("i00", "a", [1, 1, float("nan"), 5])])
    with pytest.raises(UserError, match=r"c\.json, annotation 0: its 'bbox' must be"):
        select_phrases(small_prepared, "test", INPUT, broken)


@pytest.mark.parametrize(
    ("text", "groundable"),
    [
        ("there is no focal consolidation", False),
        ("Without pleural effusion", False),
        ("Negative for pneumothorax", False),
        ("Pneumothorax is not seen.", False),
        ("An effusion is no longer clearly seen", False),
        ("The lungs are clear.", False),
        ("Cardiac silhouette is normal in size", False),
        ("Left effusion without pneumothorax", True),
        ("No significant change in right apical pneumothorax", True),
        ("no longer clear right base", True),
        ("abnormal opacity at the right base", True),
    ],
)
def test_negated_and_normal_sentences_cannot_be_grounded(text, groundable):
    assert is_groundable(text, "Edema") is groundable
    assert not is_groundable(text, "No_Finding")


def test_a_study_counts_once_however_it_writes_a_sentence():
    counts = study_counts(["Edema.", "edema", "Edema", "Other"], ["s1", "s1", "s2", "s2"])
    assert counts == {"edema": 2, "other": 1}


def test_overlaps_of_boxes_by_hand():
    truth = [[0, 0, 10, 10], [20, 20, 10, 10]]
    found = [[5, 0, 10, 10], [0, 0, 10, 5]]
    np.testing.assert_allclose(best_overlaps(truth, found), [0.5, 0])
    assert best_overlaps(truth, []).tolist() == [0, 0]


def test_boxes_out_of_a_map_find_the_boxes_it_was_made_from():
    """Two blobs, each over four patches: cut at half the range they give their own boxes."""
    geometry, places = SquareGeometry(80, 80, 80, 80), RegionGrid.patches(8, 8, 80)
    grid = np.zeros((8, 8), np.float32)
    grid[1:3, 1:3] = grid[5:7, 4:7] = 0.8
    boxes = [[10, 10, 20, 20], [40, 50, 30, 20]]

    def scored(boxes, rule):
        return phrase_metrics(Upsampled(grid, geometry, places, boxes), boxes, rule)

    found = scored(boxes, BoxRule())
    assert [found[f"box_recall_{level}"] for level in (0.1, 0.3, 0.5)] == [1, 1, 1]
    half = scored([boxes[0], [60, 0, 10, 10]], BoxRule())
    assert half["box_recall_0.5"] == 0.5
    too_high = scored(boxes, BoxRule(rule="score", value=0.9))
    assert too_high["box_recall_0.1"] == 0


def test_the_sets_own_boxes_and_the_same_file_named_give_the_same_counts(small_model, tmp_path):
    """Boxes that are left out or mended are counted when the set is prepared, and read later."""
    rng = np.random.default_rng(7)
    rows = [("image", "report", "view", "split", "study_id")]
    for name, width, height, view, split in (
        ("seen", 90, 60, "AP", "test"),
        ("other", 70, 70, "AP", "test"),
        ("trained", 70, 70, "AP", "train"),
        ("validated", 70, 80, "AP", "validate"),
        ("beside", 70, 70, "LATERAL", "test"),
    ):
        Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8)).save(
            tmp_path / f"{name}.png"
        )
        rows.append((f"{name}.png", "FINDINGS: Pulmonary edema.", view, split, f"s{name}"))
    with (tmp_path / "manifest.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    file = coco(
        tmp_path / "boxes.coco.json",
        [
            ("seen", "Pulmonary edema", [21, 20, 40, 31]),
            ("seen", "Pulmonary edema", [100, 10, 200, 30]),  # over the right edge
            ("seen", "Pulmonary edema", [500, 500, 9, 9]),  # outside
            ("seen", "Nothing left", [500, 500, 9, 9]),
            ("seen", "Mild edema.", [33, 7, 41, 29]),
            ("other", "Mild edema.", [5, 6, 0, 10]),  # no area
            ("other", "Mild edema.", [-5, 6, 17, 8]),  # over the left edge
            ("trained", "In training", [1, 1, 500, 5]),
            ("validated", "Of another shape", [1, 1, 5, 5]),
            ("beside", "Not in the set", [1, 1, 5, 5]),
            ("absent", "Nowhere", [1, 1, 5, 5]),
        ],
        images={"seen": (180, 120), "validated": (100, 900)},
    )
    data = prepare(tmp_path, tmp_path / "set", PrepareSettings(size=48), workers=1)
    found = {}
    for name, named in {"own": None, "named": file}.items():
        options = {"bootstrap": 20, "heatmaps": 0, "phrases": named}
        with measuring_only("grounding"):
            evaluate(small_model, data.folder, tmp_path / name, **options)
        results = read_results(tmp_path / name / "results.json")
        written = results.details("grounding")
        assert written.pop("source")["phrases"] == (named.name if named else "the prepared set")
        written["dice"].pop("reason")  # names the file
        found[name] = {"grounding": written, "metrics": results["metrics"]}
        found[name]["phrases"] = select_phrases(data, "test", INPUT, named).phrases
    assert found["own"]["phrases"] == found["named"]["phrases"]
    assert found["own"] == found["named"]
    counts = {name: found["own"]["grounding"][name] for name in COUNTS}
    assert counts == {
        **{
            "other_splits": 2,
            "other_annotation_splits": 0,
            "other_views": 0,
            "without_image": 2,
            "without_box": 1,
        },
        **{"zero_area_boxes": 1, "outside_boxes": 2, "clipped_boxes": 2, "scaled": 3},
        "other_shape": 0,
    }
    for named in (None, file):  # the one phrase on that image was annotated on another shape
        with pytest.raises(Skipped, match="1 were annotated on an image of another shape"):
            select_phrases(data, "validate", INPUT, named)


def test_phrases_of_one_image_are_merged_by_words_or_by_category(small_prepared):
    def select(**how):
        return select_phrases(small_prepared, "test", INPUT, **how)

    plain = select()
    assert "merged" not in plain.counts
    first = plain.phrases[0]
    alike = replace(first, text=f" {first.text.upper()}.", boxes=[*first.boxes, [1.0, 2, 3, 4]])
    other = replace(first, text="Another.", groundable=False)
    merged, count = merge_phrases([first, other, alike], "phrase")
    assert count == 1
    assert [phrase.text for phrase in merged] == [first.text, "Another."]
    assert merged[0].boxes == [*first.boxes, [1.0, 2, 3, 4]]
    by_category = select(merge="category")
    pairs = {(phrase.row, phrase.category) for phrase in plain.phrases}
    assert len(by_category.phrases) == len(pairs)
    assert by_category.counts["merged"] == len(plain.phrases) - len(pairs) > 0
    for phrase in by_category.phrases:
        own = [p for p in plain.phrases if (p.row, p.category) == (phrase.row, phrase.category)]
        assert phrase.text == own[0].text
        assert {tuple(box) for box in phrase.boxes} == {tuple(b) for p in own for b in p.boxes}

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
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.phrase_selection import COUNTS, merge_phrases, select_phrases
from medclip_debias.evaluation.protocol import Skipped
from medclip_debias.evaluation.protocols.phrase_grounding import (
    phrase_metrics,
)
from medclip_debias.evaluation.upsampled import Upsampled
from medclip_debias.grounding.denials import is_groundable
from medclip_debias.models.region_grid import RegionGrid

INPUT = 40


def coco(path, annotations, images=None):
    """Write a COCO file; an annotation is image, text, box and perhaps a split."""
    sizes = dict.fromkeys((a[0] for a in annotations), (0, 0)) | (images or {})
    content = {
        "images": [
            {"id": n, "file_name": f"{n}.jpg", "width": width, "height": height}
            for n, (width, height) in sizes.items()
        ],
        "annotations": [
            {"id": k, "image_id": a[0], "label_text": a[1], "bbox": a[2], "category_id": 1}
            | ({"split": a[3]} if a[3:] else {})
            for k, a in enumerate(annotations)
        ],
        "categories": [{"id": 1, "name": "Edema"}],
    }
    path.write_text(json.dumps(content))
    return path


def test_phrases_with_a_split_of_their_own_are_of_that_split(small_prepared, tmp_path):
    box = [1, 1, 5, 5]
    held_out = [("i02", word, box, word) for word in ("train", "val", "test")]
    rows = [("i00", "image", box, "test"), *held_out, ("i08", "none", box, "")]
    file = coco(tmp_path / "MS_CXR.json", [*rows, ("i04", "in training", box, "train")])

    def chosen(split, **options):
        found = select_phrases(small_prepared, split, INPUT, file, **options)
        return [p.text for p in found.phrases], found

    texts, found = chosen("test")
    assert texts == ["image", "test", "none"]
    assert found.counts["other_annotation_splits"] == 2
    assert found.counts["other_splits"] == 1
    assert found.source["annotation_splits"] == {"test": 2, "train": 2, "validate": 1}
    assert chosen("validate")[0] == ["val", "none"]
    every = chosen("test", annotation_split="all")[0]
    assert every == ["image", "train", "val", "test", "none"]
    coco(file, [(*row[:3], "train") for row in rows])
    with pytest.raises(Skipped, match="5 have another split of their own"):
        chosen("test")


@pytest.mark.parametrize(
    ("text", "groundable"),
    [
        ("Negative for pneumothorax", False),
        ("An effusion is no longer clearly seen", False),
        ("The lungs are clear.", False),
        ("Left effusion without pneumothorax", True),
        ("No significant change in right apical pneumothorax", True),
        ("abnormal opacity at the right base", True),
    ],
)
def test_negated_and_normal_sentences_cannot_be_grounded(text, groundable):
    assert is_groundable(text, "Edema") is groundable
    assert not is_groundable(text, "No_Finding")


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


def test_the_sets_own_boxes_and_the_same_file_named_give_the_same_counts(tmp_path):
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
    own, named = (select_phrases(data, "test", INPUT, given) for given in (None, file))
    assert own.phrases == named.phrases
    assert {phrase.text: phrase.boxes for phrase in own.phrases} == {
        "Pulmonary edema": [[10.5, 10, 20, 15.5], [50, 5, 40, 15]],
        "Mild edema.": [[0, 6, 12, 8]],
    }
    assert [phrase.sentence_count for phrase in own.phrases] == [1, 0, 0]  # of one training study
    assert own.counts == named.counts
    counts = {"other_splits": 2, "without_image": 2, "without_box": 1, "zero_area_boxes": 1}
    counts |= {"outside_boxes": 2, "clipped_boxes": 2, "scaled": 3}
    assert own.counts == dict.fromkeys(COUNTS, 0) | counts
    for given in (None, file):  # the one phrase on that image was annotated on another shape
        with pytest.raises(Skipped, match="1 were annotated on an image of another shape"):
            select_phrases(data, "validate", INPUT, given)


def test_phrases_of_one_image_are_merged_by_words_or_by_category(small_prepared):
    plain = select_phrases(small_prepared, "test", INPUT)
    first = plain.phrases[0]
    alike = replace(first, text=f" {first.text.upper()}.", boxes=[*first.boxes, [1.0, 2, 3, 4]])
    other = replace(first, text="Another.", groundable=False)
    merged, count = merge_phrases([first, other, alike], "phrase")
    assert count == 1
    assert [phrase.text for phrase in merged] == [first.text, "Another."]
    assert merged[0].boxes == [*first.boxes, [1.0, 2, 3, 4]]
    by_category = select_phrases(small_prepared, "test", INPUT, merge="category")
    pairs = {(phrase.row, phrase.category) for phrase in plain.phrases}
    assert len(by_category.phrases) == len(pairs)
    assert by_category.counts["merged"] == len(plain.phrases) - len(pairs) > 0

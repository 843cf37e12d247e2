"""Every layout of the phantom is read back by its own source: rows, sentences, boxes, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.boxes import fit_boxes, same_shape
from medclip_debias.data.prepare import prepare
from medclip_debias.data.records import RELATIVE, Source
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.store import PreparedSet
from medclip_debias.phantom import study as plan
from medclip_debias.phantom.render import Picture
from phantom_layouts import LAYOUTS, ArchiveSettings, Layout, write_archive
from phantom_layouts.content import ContentStudy, ContentView, plan_content, rendered

KINDS = sorted(LAYOUTS)
SETTINGS: dict[str, Any] = {
    "studies": 20,
    "seed": 5,
    "min_side": 64,
    "max_side": 80,
    "format": "jpg",  # MIMIC-CXR's: DICOM files of 12 bits are like no other layout's
    "lateral_share": 0.3,
    "second_frontal_share": 0.2,
    # Archives without a word for an unknown view would keep images that others leave out.
    "blank_view_share": 0.0,
    "odd_report_share": 0.0,
}


@dataclass
class Tree:
    """A tree in one layout, its source and its prepared set."""

    layout: Layout
    root: Path
    source: Source
    prepared: PreparedSet


def drawn_once(render: Callable[..., Picture]) -> Callable[..., Picture]:
    """A function that draws what it is given once: all layouts show the same thoraces."""

    @cache
    def drawn(key: tuple[int, ...], size: tuple[int, int], *more: Any, **how: Any) -> Picture:
        picture = render(key, size, *map(list, more), **how)
        picture.pixels.setflags(write=False)
        return picture

    return lambda key, size, *more, **how: drawn(key, size, *map(tuple, more), **how)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tree]:
    """Write, open and prepare a layout; once for each kind."""
    draw = {name: drawn_once(getattr(plan, name)) for name in ("render_frontal", "render_lateral")}

    @cache
    def made(kind: str) -> Tree:
        folder = tmp_path_factory.mktemp(kind)
        settings = ArchiveSettings(**SETTINGS, layout=kind)
        with pytest.MonkeyPatch.context() as patch:
            for name, once in draw.items():
                patch.setattr(plan, name, once)
            write_archive(folder / "tree", settings, workers=1)
        source = detect(folder / "tree")
        prepared = prepare(folder / "tree", folder / "set", PrepareSettings(size=32), workers=1)
        return Tree(LAYOUTS[kind](settings), folder / "tree", source, prepared)

    return made


@cache
def rendered_truth(square: bool) -> list[ContentStudy]:
    settings = ArchiveSettings(**SETTINGS, **({"aspect": (1.0, 1.0)} if square else {}))
    return [rendered(settings, study)[0] for study in plan_content(settings)]


def held(layout: Layout) -> list[tuple[ContentStudy, ContentView]]:
    return layout.held(rendered_truth(layout.square))


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_lists_the_images_that_were_written(kind, tree):
    made = tree(kind)
    assert made.source.kind == made.layout.source_kind
    listed = {
        (i.image_id, i.study_id, i.patient_id, i.split, i.path.relative_to(made.root).as_posix())
        for i in made.source.images()
    }
    layout = made.layout
    assert listed == {
        (layout.image_id(s, v), *layout.owner_ids(s, v), s.split, layout.image_file(s, v))
        for s, v in held(layout)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_those_that_were_drawn_to_a_billionth_of_a_pixel(kind, tree):
    made = tree(kind)
    expected = made.layout.boxes(rendered_truth(made.layout.square))
    found: dict[str, list[tuple[float, ...]]] = {}
    sizes = {made.layout.image_id(s, v): (v.width, v.height) for s, v in held(made.layout)}
    for phrase in made.source.phrases():
        size = sizes[phrase.image_id]
        known = phrase.annotated_size in (None, RELATIVE)
        assert known or same_shape(phrase.annotated_size, size)
        boxes = fit_boxes(phrase.boxes, phrase.annotated_size, size).boxes
        found.setdefault(phrase.image_id, []).extend(tuple(box) for box in boxes)
    assert sorted(found) == sorted(expected)
    for image, boxes in found.items():
        assert np.allclose(sorted(boxes), sorted(expected[image]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_all_layouts_hold_the_same_images_and_sentences(kind, tree):
    made = tree(kind)
    other = tree(next(k for k in KINDS if storage(k) == storage(kind)))
    for split in ("train", "validate", "test"):
        if split == "train" and not (made.layout.sections and other.layout.sections):
            continue  # without sentences no training image is kept
        mine = row_hashes(made, split)
        assert mine == row_hashes(other, split)
        assert mine
    other = tree(next(k for k in KINDS if LAYOUTS[k].sections == made.layout.sections))
    assert Counter(made.prepared.sentences["text"]) == Counter(other.prepared.sentences["text"])
    assert (len(made.prepared.sentences) > 0) == bool(made.layout.sections)
    known = pd.read_parquet(made.root / "truth" / "images.parquet")
    assert set(made.prepared.images["image_id"]) <= set(known["dicom_id"])
    assert made.prepared.meta["synthetic"] is True


@pytest.mark.parametrize("kind", ["padchest", "vindr_cxr"])
def test_labels_of_other_names_are_chexperts_of_what_the_study_shows(kind, tree):
    made = tree(kind)
    table = made.prepared.studies.set_index("study_id")
    same = ["Atelectasis", "Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax"]
    shown = {made.layout.study_id(s): s.true_labels for s in rendered_truth(False)}
    kept = [study for study in shown if study in table.index]
    assert len(kept) > 3
    for study in kept:
        assert table.loc[study, same].to_dict() == {name: shown[study][name] for name in same}


def storage(kind: str) -> str:
    """Layouts of one storage keep the same pixels: whole, or as the same JPG."""
    layout = LAYOUTS[kind](ArchiveSettings(**SETTINGS, layout=kind))
    if layout.lossless:
        return "lossless, square" if layout.square else "lossless"
    return Path(layout.image_file(*held(layout)[0])).suffix


def row_hashes(made: Tree, split: str) -> list[bytes]:
    images = made.prepared.images
    # Patients of MS-CXR-T are train's by the archive, and held out of it.
    splits = (split, "held_out") if split == "train" else (split,)
    rows = np.flatnonzero(images["split"].isin(splits))
    return sorted(np.asarray(made.prepared.pixels[row]).tobytes() for row in rows)

"""Every layout of the phantom is read back by its own source: the same rows, sentences, boxes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.boxes import same_shape, scale_boxes
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
    "studies": 20,  # the fewest; with this seed each kind of defect has its place
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
DEFECTS = 0.03


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
def tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], Tree]:
    """Write, open and prepare a layout; once for each kind and share of defects."""
    draw = {name: drawn_once(getattr(plan, name)) for name in ("render_frontal", "render_lateral")}

    @cache
    def made(kind: str, defects: float = 0.0) -> Tree:
        folder = tmp_path_factory.mktemp(kind)
        settings = ArchiveSettings(**SETTINGS, layout=kind, defects=defects)
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


@pytest.fixture
def truth(kind: str) -> list[ContentStudy]:
    return rendered_truth(LAYOUTS[kind].square)


def held(layout: Layout, truth: list[ContentStudy]) -> list[tuple[ContentStudy, ContentView]]:
    return [(s, v) for s in truth for v in s.views if layout.image_file(s, v)]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryLayout:
    def test_is_recognised_as_its_own_source(self, kind, tree):
        made = tree(kind)
        assert made.source.kind == made.layout.source_kind

    def test_gives_the_images_studies_and_patients_that_were_written(self, kind, tree, truth):
        made = tree(kind)
        layout = made.layout
        listed = {
            (
                i.image_id,
                i.study_id,
                i.patient_id,
                i.split,
                i.path.relative_to(made.root).as_posix(),
            )
            for i in made.source.images()
        }
        assert listed == {
            (
                layout.image_id(s, v),
                *layout.owner_ids(s, v),
                s.split,
                layout.image_file(s, v),
            )
            for s, v in held(layout, truth)
        }

    def test_has_no_patient_in_two_splits(self, kind, tree):
        splits: dict[str, set[str]] = {}
        for image in tree(kind).source.images():
            splits.setdefault(image.patient_id, set()).add(image.split)
        assert all(len(found) == 1 for found in splits.values())

    def test_has_its_boxes_to_a_billionth_of_a_pixel(self, kind, tree, truth):
        made = tree(kind)
        expected = made.layout.boxes(truth)
        found: dict[str, list[tuple[float, ...]]] = {}
        sizes = {
            made.layout.image_id(s, v): (v.width, v.height) for s, v in held(made.layout, truth)
        }
        for phrase in made.source.phrases():
            size = sizes[phrase.image_id]
            known = phrase.annotated_size in (None, RELATIVE)
            assert known or same_shape(phrase.annotated_size, size)
            boxes = scale_boxes(phrase.boxes, phrase.annotated_size, size)
            found.setdefault(phrase.image_id, []).extend(tuple(box) for box in boxes)
        assert sorted(found) == sorted(image for image, boxes in expected.items() if boxes)
        for image, boxes in found.items():
            assert np.allclose(sorted(boxes), sorted(expected[image]), rtol=0, atol=1e-9)

    def test_has_the_images_of_every_layout_that_stores_them_alike(self, kind, tree, truth):
        made = tree(kind)
        other = tree(next(k for k in KINDS if storage(k, truth) == storage(kind, truth)))
        for split in ("train", "validate", "test"):
            if split == "train" and not (made.layout.sections and other.layout.sections):
                continue  # without sentences no training image is kept
            mine = row_hashes(made, split)
            assert mine == row_hashes(other, split)
            assert mine

    def test_has_the_sentences_of_every_layout_with_the_same_sections(self, kind, tree):
        made = tree(kind)
        same = [k for k in KINDS if LAYOUTS[k].sections == made.layout.sections]
        other = tree(same[0])
        assert Counter(made.prepared.sentences["text"]) == Counter(other.prepared.sentences["text"])
        assert (len(made.prepared.sentences) > 0) == bool(made.layout.sections)

    def test_knows_its_truth_by_the_ids_of_the_source(self, kind, tree):
        import pandas as pd

        made = tree(kind)
        known = pd.read_parquet(made.root / "truth" / "images.parquet")
        assert set(made.prepared.images["image_id"]) <= set(known["dicom_id"])
        assert made.prepared.meta["synthetic"] is True

    def test_counts_every_defect(self, kind, tree):
        clean, made = tree(kind), tree(kind, DEFECTS)
        listed = json.loads((made.root / "truth" / "defects.json").read_text())
        assert {d["kind"] for d in listed} >= {"missing_image", "truncated_image"}
        expected = Counter((d["expected"]["shown"], d["expected"]["what"]) for d in listed)
        for (shown, what), count in expected.items():
            assert difference(made, clean, shown, what) == count, (shown, what)

    def test_says_nothing_of_defects_where_there_are_none(self, kind, tree):
        made = tree(kind)
        assert not (made.root / "truth" / "defects.json").exists()
        assert not rows_of(made, "rejected.csv")
        assert not rows_of(made, "missing.csv")


def storage(kind: str, truth: list[ContentStudy]) -> str:
    """Layouts of one storage keep the same pixels: whole, or as the same JPG."""
    layout = LAYOUTS[kind](ArchiveSettings(**SETTINGS, layout=kind))
    if layout.lossless:
        return "lossless, square" if layout.square else "lossless"
    return Path(layout.image_file(*held(layout, truth)[0])).suffix


def row_hashes(made: Tree, split: str) -> list[bytes]:
    images = made.prepared.images
    # Patients of MS-CXR-T are train's by the archive, and held out of it.
    splits = (split, "held_out") if split == "train" else (split,)
    rows = np.flatnonzero(images["split"].isin(splits))
    return sorted(np.asarray(made.prepared.pixels[row]).tobytes() for row in rows)


def rows_of(made: Tree, name: str) -> list[list[str]]:
    path = made.prepared.folder / name
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def difference(made: Tree, clean: Tree, shown: str, what: str) -> int:
    """How many more are counted in one tree than in the other."""
    if shown == "funnel":
        steps = (steps_of(tree, what) for tree in (made, clean))
        (dropped, kept), (before, known) = steps
        return dropped - before if dropped else kept - known  # a step that only counts drops none
    return counted(made, shown, what) - counted(clean, shown, what)


def steps_of(made: Tree, what: str) -> tuple[int, int]:
    """What the steps of a name dropped and kept."""
    steps = json.loads((made.prepared.folder / "funnel.json").read_text())
    found = [step for step in steps if step["step"] == what]
    return sum(step["dropped"] for step in found), sum(step["kept"] for step in found)


def counted(made: Tree, shown: str, what: str) -> int:
    """How many a reader of the set sees: the number beside the words."""
    if shown == "describe":
        lines = [line for line in made.source.describe() if what in line]
        assert len(lines) <= 1
        numbers = [int(w) for line in lines for w in line.replace(",", " ").split() if w.isdigit()]
        return numbers[0] if numbers else 0
    return sum(row[0] == what for row in rows_of(made, f"{shown}.csv"))


def test_the_number_of_processes_changes_no_byte_of_a_layout(tree, tmp_path: Path) -> None:
    settings = ArchiveSettings(**SETTINGS, layout="rexgradient", defects=DEFECTS)
    write_archive(tmp_path / "x", settings, workers=2)
    one = tree("rexgradient", DEFECTS).root
    names = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    again = [p.relative_to(tmp_path / "x") for p in (tmp_path / "x").rglob("*") if p.is_file()]
    assert sorted(again) == names
    assert all((one / n).read_bytes() == (tmp_path / "x" / n).read_bytes() for n in names)

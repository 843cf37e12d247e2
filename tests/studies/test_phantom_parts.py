"""Marker, severity and long tail on the phantom: what is measured, on cases made by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from medclip_debias import phantom
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.phantom import generate
from medclip_debias.phantom.catalogue import CLASSES
from studies.command import run_study
from studies.fine_grained_phantom import (
    PAIRS,
    FineGrainedPhantom,
    FineGrainedPhantomSettings,
    severity_labels,
)
from studies.long_tail_images import etas
from studies.long_tail_phantom import (
    RARE,
    TYPES,
    LongTailPhantom,
    LongTailPhantomSettings,
    load,
    long_tailed,
    one_type,
)
from studies.marker_run import Shown, best_threshold, metrics
from studies.phantom_data import PhantomFolder
from studies.phantom_run import PhantomTraining
from studies.spurious_marker import (
    CONTRASTIVE,
    EXCLUDED,
    SHOWN,
    SUPERVISED,
    SpuriousMarker,
    SpuriousMarkerSettings,
)

TRAIN = PhantomTraining(steps=2, batch_size=16, warmup_steps=1, dim=16)
QUICK = SpuriousMarker.quick().data
DATA = QUICK.model_copy(  # a barely taught language model
    update={
        "studies": 130,
        "test_studies": 50,
        "language": QUICK.language | {"hidden": 16, "batch_size": 16, "steps": 2},
    }
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of the inputs, as a run keeps it."""
    return tmp_path_factory.mktemp("parts") / "inputs"


@pytest.fixture(scope="module")
def marked(inputs):
    """The study of the marker, closely tied, on one small phantom."""
    settings = SpuriousMarker.quick().model_copy(
        update={"data": DATA, "train": TRAIN, "seeds": (0,), "ties": (0.95,)}
    )
    return SpuriousMarker(settings, inputs)


@pytest.fixture(scope="module")
def place(marked):
    """The phantom with the marker; its severities serve the other study too."""
    return PhantomFolder(marked.shared_folder(marked.cells()[0]))


# ------------------------------------------------------------------------------- the marker


def test_the_marker_is_tied_in_training_and_free_in_test_and_in_the_pixels(place):
    data = PreparedSet.open(place.prepared)
    train = Shown.of(place, data, "train", "cardiomegaly_mild")
    assert (train.marker == train.finding).mean() > 0.9
    test = Shown.of(place, data, "test", "cardiomegaly_mild")
    assert 0.2 < test.marker.mean() < 0.8
    assert 0.2 < (test.marker == test.finding).mean() < 0.8
    # The square is white, in the upper left corner of an image that may be padded to a square.
    corner = [int(data.pixels[row][:16, :16].max()) for row in train.rows]
    lit = np.array(corner) > 200
    assert lit[train.marker].mean() > 0.9
    assert lit[~train.marker].mean() < lit[train.marker].mean()


def test_no_image_judged_shows_the_finding_in_another_form(place):
    data = PreparedSet.open(place.prepared)
    table = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    shown = Shown.of(place, data, "train", "cardiomegaly_mild")
    own = table.loc[data.images["image_id"].iloc[shown.rows].astype(str)]
    assert not own["cardiomegaly_severe"].any()
    assert (own["view"] != "LATERAL").all()
    assert np.array_equal(own["cardiomegaly_mild"].to_numpy(dtype=bool), shown.finding)
    there = data.images["image_id"][data.images["split"] == "train"].astype(str)
    rest = table.loc[sorted(set(there) - set(own.index))]
    assert len(rest)
    assert (rest["cardiomegaly_severe"] | (rest["view"] == "LATERAL")).all()


def test_figures_of_a_score_that_is_the_finding_and_of_one_that_is_the_marker():
    finding = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    marker = np.array([1, 0, 1, 0, 1, 0, 1, 0], dtype=bool)
    tied = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    test = Shown(list(range(8)), finding, marker)
    validate = Shown(list(range(8)), finding, tied)
    honest = metrics(test, finding * 1.0, validate, finding * 1.0)
    assert honest == {
        "auc": 1, "auc_with": 1, "auc_without": 1, "auc_against": 1, "auc_marker": 0.5,
        "auc_validate": 1, "accuracy": 1, "worst_group": 1,
    }  # fmt: skip
    shortcut = metrics(test, marker * 1.0, validate, tied * 1.0)
    assert shortcut == {
        "auc": 0.5, "auc_with": 0.5, "auc_without": 0.5, "auc_against": 0, "auc_marker": 1,
        "auc_validate": 1, "accuracy": 0.5, "worst_group": 0,
    }  # fmt: skip


def test_the_threshold_has_the_best_balanced_accuracy_of_all():
    rng = np.random.default_rng(0)
    truth = rng.random(60) < 0.2
    scores = np.round(rng.normal(size=60) + truth, 1)  # with ties

    def balanced(cut):
        above = scores > cut
        return above[truth].mean() + (~above)[~truth].mean()

    best = max(balanced(cut) for cut in np.arange(-5, 6, 0.01))
    assert balanced(best_threshold(truth, scores)) == pytest.approx(best)


def test_every_arm_is_finite_repeats_and_differs(marked):
    rows = {cell["method"]: marked.measure(cell) for cell in marked.cells()}
    assert set(rows) == {SUPERVISED, CONTRASTIVE, EXCLUDED}
    for row in rows.values():
        assert all(math.isfinite(value) and 0 <= value <= 1 for value in row.values())
    first = marked.cells()[0]
    assert marked.measure(first) == rows[first["method"]]
    values = list(rows.values())
    assert values[0] != values[1]
    assert values[1] != values[2]


def made_up(settings, taken):
    """Figures in which supervision loses .1 at tie .8, and ``taken`` seeds all at tie .95."""
    rng = np.random.default_rng(3)
    rows = []
    for cell in SpuriousMarker(settings).cells():
        values = dict.fromkeys(SHOWN, 0.95)
        if cell["method"] == SUPERVISED and cell["tie"] == 0.8:
            values["auc_against"] = 0.85
        if cell["method"] == CONTRASTIVE and cell["tie"] == 0.95 and cell["seed"] < taken:
            values["auc_against"] = 0.1
        rows.append(cell | {name: v + 0.002 * rng.normal() for name, v in values.items()})
    return rows


def test_arms_are_compared_at_every_tie_and_seeds_that_take_the_marker_are_counted():
    settings = SpuriousMarkerSettings()
    study, rows = SpuriousMarker(settings), made_up(settings, taken=2)
    found = study.summary(rows).findings
    (own,) = [f for f in found if f.startswith("contrastive: from tie 0 to 0.95")]
    assert own.endswith("in 2 of 8 seeds.")
    against = [f for f in found if f.startswith("contrastive minus supervised, AUC against")]
    assert len(against) == 2
    assert "at tie 0.8" in against[0]
    assert "as the paper says" in against[0]
    assert "at tie 0.95" in against[1]
    assert "chance is not ruled out" in against[1]
    assert len(study.figure(rows).axes) == 4


def test_a_tie_beyond_one_is_refused():
    with pytest.raises(ValueError, match=r"every tie must be in 0\.\.1"):
        SpuriousMarkerSettings(ties=(0.5, 1.5))


# --------------------------------------------------------------------------------- severity


def test_severity_labels_are_those_of_the_truth_and_blank_where_none_or_both(place):
    data = PreparedSet.open(place.prepared)
    found = severity_labels(data, place)
    table = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    seen = set()
    for n, row in enumerate(found.rows):
        truth = table.loc[str(data.images["image_id"].iloc[row])]
        for name in PAIRS:
            said = {c.severity for c in CLASSES if c.type == name and truth[c.name]}
            value = found.values[name][n]
            seen.add(len(said))
            if len(said) != 1:
                assert np.isnan(value)
            else:
                assert value == float(said <= {"large", "severe"})
    assert {0, 1} <= seen


def test_keyword_weights_change_the_result_and_every_form_is_in_the_grid(inputs, marked, place):
    grid = FineGrainedPhantomSettings(
        seeds=(0,), train=TRAIN, g1=(10.0,), g2=(10.0,), same_class=(10.0,),
        data=DATA,
    )  # fmt: skip
    study = FineGrainedPhantom(grid, inputs)
    cells = study.cells()
    labels = ["weight 0", "g1, weight 10", "g2, weight 10", "L', weight 10"]
    assert [c["method"] for c in cells] == labels
    # On the phantom that is there already.
    own = {"data": marked.cells()[0]["data"]}
    rows = [study.measure(cell | own) for cell in cells[:2]]
    assert rows[0] != rows[1]
    plain = [value for row in rows for value in row.values() if not isinstance(value, dict)]
    assert all(math.isfinite(value) for value in plain)
    each = [rows[0][f"severity_{name}"] for name in PAIRS]
    assert rows[0]["severity_auc"] == pytest.approx(np.mean(each))


# -------------------------------------------------------------------------------- long tail


def test_true_eta_is_the_share_of_the_type_in_the_subset():
    labels = np.repeat(np.arange(8), 1000)
    kept = labels[long_tailed(labels, 0.25, np.random.default_rng(0))]
    eta = etas("true", 0.25, kept, len(TYPES), RARE)
    for number in range(8):
        assert eta[kept == number][0] == pytest.approx((kept == number).mean(), rel=1e-5)


@pytest.fixture
def dealt(place):
    """The prepared set, and a truth made by hand.

    Training images show the eight types in turn, but every fifth one two types.
    """
    data = PreparedSet.open(place.prepared)
    truth = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    truth[[c.name for c in CLASSES]] = False
    train = data.images[data.images["split"] == "train"].drop_duplicates("study_id")
    for n, name in enumerate(train["image_id"].astype(str)):
        forms = [c.name for c in CLASSES if c.type == TYPES[n % 8]]
        other = [c.name for c in CLASSES if c.type == TYPES[(n + 1) % 8]]
        # Two forms of one type are still one type.
        truth.loc[name, [*forms[:2], *(other[:1] if n % 5 == 0 else [])]] = True
    return data, truth


def test_one_type_images_are_balanced_and_show_just_that_type(dealt):
    data, truth = dealt
    rows, numbers = one_type(data, truth, "train")
    counts = np.bincount(numbers, minlength=8)
    assert counts.min() == counts.max() >= 2
    train = data.images[data.images["split"] == "train"].drop_duplicates("study_id")
    alone = [n % 8 for n in range(len(train)) if n % 5]
    assert counts.min() == np.bincount(alone, minlength=8).min()
    place_of = {int(row): n for n, row in enumerate(train.index)}
    assert all(place_of[int(row)] % 5 for row in rows)
    assert [place_of[int(row)] % 8 for row in rows] == numbers.tolist()


def test_a_phantom_too_small_for_every_type_is_refused(dealt):
    data, truth = dealt
    truth[[c.name for c in CLASSES if c.type == "edema"]] = False
    with pytest.raises(UserError, match=r"0 images show edema alone.*raise 'studies'"):
        one_type(data, truth, "train")


def test_long_tail_runs_whole_and_repeats(inputs, monkeypatch):
    def drawn_small(out, given, workers):
        """Drawing takes the longest, and the study's images have 32 pixels."""
        generate(out, given.model_copy(update={"min_side": 64, "max_side": 72}), workers=workers)

    monkeypatch.setattr(phantom, "generate", drawn_small)
    settings = LongTailPhantomSettings(
        studies=400, test_studies=120, shares=(0.5,), kinds=("none", "true"), labels=(1.0,),
        steps=3, batch=16, seeds=2,
    )  # fmt: skip
    out = inputs.parent / "long-tail-phantom"
    found = run_study("long-tail-phantom", out, settings=settings, workers=1)
    study = LongTailPhantom(settings, inputs)
    cells = study.cells()
    row = study.measure(cells[1])
    known = found["rows"][1]
    assert all(known[name] == value for name, value in row.items())
    assert all(math.isfinite(value) for value in row.values())
    images, types, test, truth = load(study.shared_folder(cells[0]))
    assert images.shape[1:] == test.shape[1:] == (1, 32, 32)
    assert len(images) == len(types)
    assert len(test) == len(truth)
    assert {x.tobytes() for x in images}.isdisjoint({x.tobytes() for x in test})
    assert (out / "figure.png").is_file()

"""Studies that train on the phantom: inputs, cells, choosing, marker, severity, one-type images."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.errors import UserError
from medclip_debias.experiments.doses import language_eta
from medclip_debias.phantom.catalogue import CLASSES
from medclip_debias.phantom.truth import Truth
from medclip_debias.settings_files import load_yaml, merge
from studies.corrections import FalseNegatives, Table1, false_rate, tracking
from studies.fine_grained import FineGrainedPhantom
from studies.long_tail import TYPES, one_type
from studies.phantom import (
    CONTROLS,
    LANGUAGE_MODEL,
    METRICS,
    Phantom,
    PhantomStudy,
    against_controls,
    methods,
    resolve,
)
from studies.spurious_marker import (
    CONTRASTIVE,
    EXCLUDED,
    SUPERVISED,
    SpuriousMarker,
    metrics,
    shown_in,
)
from studies.study import STUDIES

MARKED = {"marker_class": "cardiomegaly_mild", "marker_correlation": 0.95}
SMALL = merge(
    Table1.small,
    {
        "data": {
            "studies": 130,
            "test_studies": 50,
            "size": 48,
            "language": {"hidden": 16, "batch_size": 16, "steps": 2},
            "dials": MARKED,
        },
        "train": {"steps": 2, "warmup_steps": 1},
    },
)
"""As few studies as leave every metric defined, a barely taught language model, and the marker."""
DATA, TRAIN = SMALL["data"], SMALL["train"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of the inputs, as a run keeps it."""
    return tmp_path_factory.mktemp("studies") / "inputs"


def small(kind, inputs, **settings):
    return kind(kind.small | {"data": DATA, "train": TRAIN, "seeds": [0]} | settings, inputs)


@pytest.fixture(scope="module")
def place(inputs):
    """A small phantom with the marker, prepared and scored."""
    study = small(FalseNegatives, inputs)
    return Phantom(study.shared_folder(study.cells()[0]))


@pytest.fixture
def data(place):
    return place.data


def test_every_place_holder_becomes_what_it_stands_for(place, data, tmp_path):
    eta, counts = language_eta(data, 0.2, 0.35)

    def eta_of(given):
        return resolve({"eta": given}, place, tmp_path, 1000)["eta"]

    mean = eta_of({"kind": "mean_of", "a": 0.2, "k": 0.35})
    everyone = [value for text, value in eta.items() for _ in range(counts[text])]
    assert mean == {"kind": "constant", "value": pytest.approx(np.mean(everyone))}
    true = eta_of({"kind": "table", "path": "@eta_true"})
    table = pd.read_parquet(true["path"]).set_index("text")["eta"]
    for text, value in place.eta_true().items():
        assert table[text] == pytest.approx(min(value, 0.99))
    late = methods()["FNC"]["alpha 0.05"]
    inner = resolve({"kind": "keyword", "core": late}, place, tmp_path, 1000)["core"]
    assert inner["negatives"][0]["start_step"] == 400


def test_a_cell_repeats_exactly(inputs):
    study = small(FalseNegatives, inputs)
    cell = next(c for c in study.cells() if "train" in c)
    plain = study.measure(cell)
    assert study.measure(cell) == plain
    assert set(METRICS) <= set(plain)
    assert all(math.isfinite(value) for value in plain.values())


def test_nothing_is_said_of_a_control_whose_dose_is_another():
    doses = {LANGUAGE_MODEL: 0.04, CONTROLS[0]: 0.039, CONTROLS[1]: 0.008}
    row = dict.fromkeys(METRICS, 0.5)
    groups = {
        name: {seed: row | {"mean_eta": eta, "auc": eta + seed} for seed in range(3)}
        for name, eta in doses.items()
    }
    (table,) = against_controls("t", groups)
    assert [said[0] for said in table.rows] == [f"minus {CONTROLS[0]}"]


def test_the_rate_of_false_negatives_is_that_of_the_truth(place, data):
    train = data.studies.loc[data.studies["split"] == "train", "study_id"]
    said = data.sentences.loc[data.sentences["study_id"].isin(train), "text"].tolist()
    each, found = Truth(place.truth).eta(said), false_rate(place)
    assert found["mean"] == pytest.approx(each.mean())


def test_estimates_track_the_truth_and_boilerplate_is_left_out(place):
    row = tracking(place, "counts")
    assert 0 < row["spearman"] <= 1
    truth = place.eta_true()
    assert row["sentences"] == sum(0 < value < 1 for value in truth.values()) < len(truth)


def test_the_packaged_config_for_gpu_nodes_fits_every_study_on_the_phantom():
    given = load_yaml(Path(__file__).parents[2] / "configs/studies/phantom_gpu.yaml")
    for kind in STUDIES.all().values():
        if issubclass(kind, PhantomStudy):
            cells = kind(merge(kind.usual, given)).cells()
            assert {cell["train"]["arch"] for cell in cells if "train" in cell} == {"resnet18"}


# ------------------------------------------------------------------------------- the marker


def test_judged_are_frontal_images_that_show_the_finding_in_no_other_form(place, data):
    rows, finding, marker = shown_in(place, "train", "cardiomegaly_mild")
    table = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    own = table.loc[data.images["image_id"].iloc[rows].astype(str)]
    assert not own["cardiomegaly_severe"].any()
    assert (own["view"] != "LATERAL").all()
    assert np.array_equal(own["cardiomegaly_mild"].to_numpy(dtype=bool), finding)
    assert (marker == finding).mean() > 0.9  # the tie, in training alone
    _, finding, marker = shown_in(place, "test", "cardiomegaly_mild")
    assert 0.2 < (marker == finding).mean() < 0.8


def test_figures_of_a_score_that_is_the_finding_and_of_one_that_is_the_marker():
    finding = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    marker = np.array([1, 0, 1, 0, 1, 0, 1, 0], dtype=bool)
    honest = metrics(finding, finding * 1.0, finding, marker, finding * 1.0)
    assert honest == {"auc": 1, "auc_against": 1, "auc_marker": 0.5, "worst_group": 1}
    shortcut = metrics(finding, finding * 1.0, finding, marker, marker * 1.0)
    assert shortcut == {"auc": 0.5, "auc_against": 0, "auc_marker": 1, "worst_group": 0}


def test_every_arm_of_the_marker_is_finite_and_differs(inputs):
    study = small(SpuriousMarker, inputs, ties=[0.95])
    rows = {cell["method"]: study.measure(cell) for cell in study.cells()}
    assert set(rows) == {SUPERVISED, CONTRASTIVE, EXCLUDED}
    assert all(0 <= value <= 1 for row in rows.values() for value in row.values())
    assert rows[SUPERVISED] != rows[CONTRASTIVE] != rows[EXCLUDED]


# ------------------------------------------------------------- severity, images of one type


def test_keyword_weights_change_the_result_and_severity_has_an_auc(inputs):
    study = small(FineGrainedPhantom, inputs)
    rows = [study.measure(cell) for cell in study.cells()[:2]]
    assert rows[0] != rows[1]
    assert 0 <= rows[0]["severity_auc"] <= 1


def test_one_type_images_are_balanced_and_show_just_that_type(place, data):
    """A truth made by hand: images show the eight types in turn, every fifth one two types."""
    truth = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    truth[[c.name for c in CLASSES]] = False
    train = data.images[data.images["split"] == "train"].drop_duplicates("study_id")
    for n, name in enumerate(train["image_id"].astype(str)):
        forms = [c.name for c in CLASSES if c.type == TYPES[n % 8]]
        other = [c.name for c in CLASSES if c.type == TYPES[(n + 1) % 8]]
        # Two forms of one type are still one type.
        truth.loc[name, [*forms[:2], *(other[:1] if n % 5 == 0 else [])]] = True
    rows, numbers = one_type(data, truth, "train")
    counts = np.bincount(numbers, minlength=8)
    alone = [n % 8 for n in range(len(train)) if n % 5]
    assert counts.min() == counts.max() == np.bincount(alone, minlength=8).min() >= 2
    place_of = {int(row): n for n, row in enumerate(train.index)}
    assert [place_of[int(row)] % 8 for row in rows] == numbers.tolist()
    assert all(place_of[int(row)] % 5 for row in rows)
    truth[[c.name for c in CLASSES if c.type == "edema"]] = False
    with pytest.raises(UserError, match="raise 'studies'"):
        one_type(data, truth, "train")

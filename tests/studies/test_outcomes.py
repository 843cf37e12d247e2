"""The outcomes of a grid's cells beside those that were registered."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from studies.outcomes import OUTCOMES, by_truth, cells, rare_classes, table
from studies.phantom_data import class_prompts
from tests.grounding.conftest import make_model  # noqa: F401
from tests.helpers import results as made


def test_rare_classes_are_the_half_with_the_fewest_positive_images():
    found = {"a": (0.9, 50), "b": (0.6, 5), "c": (0.8, 7), "e": (0.7, 9)}
    counts = {name: {"positive": count} for name, (_, count) in found.items()}
    results = Results(
        metrics=[
            made.row("zero_shot", "auc", auc, of_class=name) for name, (auc, _) in found.items()
        ],
        details={"zero_shot": {"classes": counts | {"d": {"positive": 0}}}},
    )
    assert rare_classes(results) == pytest.approx(0.7)
    assert rare_classes(Results()) is None


@pytest.fixture
def grid(tmp_path):
    """A grid of two methods and two seeds, whose cells measured AUC and CNR."""
    rows = []
    for seed, shift in enumerate((0.1, 0.3)):
        for method, extra in (("a", shift), ("b", 0.0)):
            place = tmp_path / "runs" / f"{method}{seed}" / "evaluate"
            place.mkdir(parents=True)
            means = {"mean_auc": 0.5 + extra, "accuracy": 0.5, "balanced_accuracy": 0.5}
            measured = [*made.rows("zero_shot", means), made.row("grounding", "cnr", 1.0 - extra)]
            Results(made.LEAST | {"metrics": measured}).write(place / "results.json")
            rows.append({"method": method, "seed": seed, "folder": f"{method}{seed}/evaluate"})
    content = {"rows": rows, "figures": {"contrasts": []}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    return tmp_path


def test_each_outcome_that_was_measured_is_a_row(grid):
    lines = table([cells(grid)], "b", ["a"])
    assert lines[0] == "| outcome | b | a minus b |"
    # By hand: Student's t of one degree of freedom is 12.706, the standard error .1.
    assert lines[2:] == [
        "| AUC | 0.500 | +0.200 [-1.071, +1.471] |",
        "| balanced accuracy | 0.500 | +0.000 [+0.000, +0.000] |",
        "| accuracy | 0.500 | +0.000 [+0.000, +0.000] |",
        "| CNR | 1.000 | -0.200 [-1.471, +1.071] |",
    ]
    assert set(cells(grid)[0]["metrics"]) == set(OUTCOMES)


def test_a_cell_whose_evaluation_is_gone_is_a_sentence(grid):
    (grid / "runs" / "a0" / "evaluate" / "results.json").unlink()
    with pytest.raises(UserError, match="the grid's experiment again"):
        cells(grid)
    with pytest.raises(UserError, match="fewer than two seeds"):
        table([cells_of_one(grid)], "b", ["a"])


def cells_of_one(grid):
    rows = json.loads((grid / "results.json").read_text())["rows"]
    return [row | {"metrics": dict.fromkeys(OUTCOMES, 0.5)} for row in rows if row["seed"] == 1]


def test_true_classes_are_judged_as_scikit_learn_does(
    prepared_phantom,
    phantom_tree,
    make_model,  # noqa: F811
    tmp_path,
):
    make_model(72, 64, (0.5, 99.5)).save(tmp_path / "runs" / "a0" / "model")
    row = {"folder": "a0/evaluate", "run": {"prepared": str(prepared_phantom)}}
    found = by_truth(tmp_path, row, phantom_tree / "truth")
    model, data = make_model(72, 64, (0.5, 99.5)).eval(), PreparedSet.open(prepared_phantom)
    rows = np.flatnonzero(data.images["split"] == "test")
    shown = pd.read_parquet(phantom_tree / "truth" / "images.parquet").set_index("dicom_id")
    shown = shown.loc[data.images["image_id"].iloc[rows]]
    with torch.no_grad():
        images = model.encode_images(torch.from_numpy(np.array(data.pixels[rows])))
        expected = []
        for name, sides in class_prompts().classes.items():
            texts = [sides.positive[0], sides.negative[0]]
            scores = model.score(images, model.encode_sentences(texts))
            if shown[name].nunique() == 2:
                difference = (scores[:, 0] - scores[:, 1]).numpy()
                expected.append(roc_auc_score(shown[name], difference))
    assert list(found.values()) == pytest.approx(
        [np.mean(expected), np.mean(expected[:9]), np.mean(expected[-9:])], abs=1e-5
    )

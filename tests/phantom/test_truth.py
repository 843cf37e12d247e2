"""The truth tables of a phantom, against its own reports and images."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from medclip_debias.errors import UserError
from medclip_debias.phantom.truth import Truth


def test_truth_of_the_phantom_agrees_with_its_own_reports(phantom_tree):
    truth = Truth(phantom_tree)
    reported = pd.read_parquet(phantom_tree / "truth/sentences.parquet")
    shown = pd.read_parquet(phantom_tree / "truth/images.parquet").drop_duplicates("study_id")
    image = dict(zip(shown["study_id"], shown["dicom_id"], strict=True))
    reported = reported[reported["study_id"].isin(image)].head(200)
    texts = reported["text"].tolist()
    found = truth.agreement(texts, [image[study] for study in reported["study_id"]])
    assert np.array_equal(found.diagonal(), reported["agrees"].to_numpy())
    assert truth.eta(texts) == pytest.approx(reported["eta_true"].to_numpy())


def test_truth_that_does_not_fit_is_refused(phantom_tree, tmp_path):
    with pytest.raises(UserError, match="holds no truth of a phantom"):
        Truth(tmp_path)
    truth = Truth(phantom_tree)
    with pytest.raises(UserError, match="1 of 1 images are not in the phantom's truth"):
        truth.agreement([], ["another"])


@pytest.mark.parametrize("statement", ["{", "[]", '{"kind": "none", "clauses": [{}]}', None])
def test_a_damaged_statement_is_one_sentence(phantom_tree, tmp_path, statement):
    for name in ("images", "sentences"):
        table = pd.read_parquet(phantom_tree / f"truth/{name}.parquet")
        if name == "sentences":
            table["statement"] = statement
        else:
            image = table["dicom_id"].iloc[0]
        table.to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match="statement is damaged; write the phantom again"):
        Truth(tmp_path).agreement([str(table["text"].iloc[0])], [image])

"""Tables of eta of a stated dose, on a small phantom."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import UserError
from medclip_debias.experiments.doses import training_counts
from studies import eta_table


@pytest.fixture
def scored(prepared_phantom, monkeypatch):
    """The prepared phantom, with log probabilities that are longer than a float can hold."""
    prepared = PreparedSet.open(prepared_phantom)
    scores = {text: -40.0 * len(text.split()) for text in prepared.texts}
    monkeypatch.setattr(PreparedSet, "scores", lambda self, expected=None: scores)
    return prepared


@pytest.mark.parametrize(("exponent", "dose"), [(0.05, 0.05), (0.1, 0.2)])
def test_the_language_models_eta_has_its_dose_and_its_exponent(scored, exponent, dose):
    eta = eta_table.from_language_model(scored, exponent, dose)
    counts = training_counts(scored)
    total = sum(counts.values())
    assert sum(eta[t] * n for t, n in counts.items()) / total == pytest.approx(dose)
    (a, b), scores = list(counts)[:2], scored.scores()
    ratio = np.log(eta[a] / eta[b])
    assert ratio == pytest.approx(exponent * (scores[a] - scores[b]))


def test_the_truth_of_a_tree_is_a_table_too(phantom_tree, scored, tmp_path):
    copy = shutil.copytree(scored.folder, tmp_path / "set")
    claim_set(copy)
    eta_table.main(copy, tmp_path / "eta", phantom_tree)
    names = {path.name for path in (tmp_path / "eta").iterdir()}
    assert {"claims.parquet", "agreement.npz", "lm_k0.1_m0.2.parquet"} <= names
    found = pd.read_parquet(tmp_path / "eta/truth.parquet").set_index("text")["eta"]
    truth = pd.read_parquet(phantom_tree / "truth/sentences.parquet").groupby("text")["eta_true"]
    for text in training_counts(scored):
        assert found[text] == pytest.approx(min(truth.get_group(text).mean(), 0.99))
    with pytest.raises(UserError, match="holds no truth of a phantom"):
        eta_table.main(copy, tmp_path / "none", tmp_path)

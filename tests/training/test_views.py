"""Several views of a study in a run: what a batch brings, and what is said of the loss."""

from __future__ import annotations

import warnings

import pytest
import torch

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import ReportedWarning
from medclip_debias.training.step import Trainer


@pytest.fixture(scope="module")
def with_laterals(phantom_tree, prepared_phantom, tmp_path_factory):
    """The phantom with all of its views."""
    settings = PrepareSettings(size=PreparedSet.open(prepared_phantom).settings.size)
    chosen = SelectionSettings(views=("all",))
    out = tmp_path_factory.mktemp("views") / "set"
    return prepare(phantom_tree, out, settings, selection=chosen, workers=1).folder


def settings_of(run, folder, loss, views):
    made = run(loss=loss, views_per_study=views)
    return made.model_copy(update={"prepared": folder})


@pytest.mark.parametrize("evidence", ["study", "label"])
def test_a_run_learns_from_views_as_further_positives(run, with_laterals, evidence):
    loss = {"kind": "multi_positive", "evidence": {"kind": evidence}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReportedWarning)
        trainer = Trainer(settings_of(run, with_laterals, loss, 2))
    data = PreparedSet.open(with_laterals)
    assert not data.frontal.all()
    several = 0
    for step in range(6):
        batch = trainer.batches[step]
        several += len(batch.studies) - len(batch.studies.unique())
        figures = trainer.step(step, batch)
        assert torch.isfinite(torch.as_tensor(figures["loss"]))
    assert several
    assert figures["positives"] > 1


def test_a_loss_that_pushes_views_of_a_study_away_is_said(run, with_laterals):
    with pytest.warns(ReportedWarning, match="views_per_study' is 2, but the loss takes"):
        Trainer(settings_of(run, with_laterals, {"kind": "infonce"}, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReportedWarning)
        Trainer(settings_of(run, with_laterals, {"kind": "infonce"}, 1))

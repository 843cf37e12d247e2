"""A model of one archive on another's data: prepared for it, labelled through a map, and said."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.data.joint import FAMILIES
from medclip_debias.data.sources.registry import formats
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.archives import archive_notes, describe_archives
from medclip_debias.evaluation.table import read_results
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.synthetic import WARNING
from medclip_debias.reporting.report import write_report
from phantom_layouts import ArchiveSettings, write_archive
from tests.evaluation.conftest import measuring_only

CLASSES = ["Edema", "Pneumonia", "Pneumothorax"]


@pytest.fixture(scope="module")
def trained_elsewhere(small_model, tmp_path_factory):
    """The small model, as if a run on a MIMIC-CXR phantom had saved it."""
    model = DualEncoder.load(small_model)
    model.provenance = {
        "provenance": {"data_hash": "0" * 64},
        "data": {"kind": "mimic_cxr", "synthetic": True},
    }
    folder = tmp_path_factory.mktemp("elsewhere") / "model"
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def prepared_for_model(trained_elsewhere, tmp_path_factory):
    """A phantom as ChestX-ray14 would hold it, prepared for the model."""
    folder = tmp_path_factory.mktemp("nih")
    settings = ArchiveSettings(studies=40, seed=7, layout="chestxray14", min_side=80, max_side=112)
    write_archive(folder / "tree", settings, 1)
    words = ["prepare", folder / "tree", folder / "set", "--for", trained_elsewhere, "--all-test"]
    assert run([str(word) for word in [*words, "--workers", 1]]) == 0
    return PreparedSet.open(folder / "set")


def test_results_and_report_name_both_archives(prepared_for_model, trained_elsewhere, tmp_path):
    out = tmp_path / "run"
    words = ["evaluate", trained_elsewhere, prepared_for_model.folder, "--out", out]
    words += ["--bootstrap", 0, "--heatmaps", 0, "--label-map", "chestxray14"]
    words += ["--prompts", "openi", "--classes", "Cardiomegaly,Fracture,Pleural Effusion"]
    with measuring_only("zero_shot", "grounding", "study_retrieval"):
        assert run([str(word) for word in words]) == 0
    found = read_results(out / "results.json")
    # The archive has labels and boxes, and no reports.
    assert found.details("grounding")["phrases"] == len(prepared_for_model.phrases) > 0
    assert "there are 0" in found["skipped"]["study_retrieval"]
    assert found["archives"]["relation"] == "another archive"
    assert found["notes"][0].startswith("External test: the model was trained on mimic_cxr (synth")
    zero = found.details("zero_shot")
    assert zero["refused"]["Fracture"]["reason"] == "the archive has no label of it"
    made = zero["label_map"]["classes"]["Pleural Effusion"]
    counts = zero["classes"]["Pleural Effusion"]
    assert (made["present"], made["absent"]) == (counts["positive"], counts["negative"])
    page = write_report(out).read_text(encoding="utf-8")
    for words in ("External test:", "Labels by the label map", "Fracture: the archive has no"):
        assert words in page


def test_a_model_of_synthetic_images_measured_on_others_says_what_that_means(
    trained_elsewhere, measured, tmp_path
):
    found = measured("zero_shot", model=trained_elsewhere)
    assert found["notes"][0] == WARNING
    assert write_report(tmp_path / "run").read_text().count(WARNING) == 1


def test_precision_by_class_uses_the_map_too(measured, write_prepared, tmp_path):
    def rename(tables):
        names = {"Edema": "Wet", "Pneumonia": "Infection", "Pneumothorax": "Air"}
        tables["studies"] = tables["studies"].rename(columns=names)

    folder = write_prepared(tmp_path / "renamed", change=rename)
    mine = tmp_path / "mine.yaml"
    mine.write_text("classes: {Edema: Wet, Pneumonia: {any: [Infection]}, Pneumothorax: Air}")
    names, asked = ("zero_shot", "study_retrieval"), {"classes": CLASSES}
    plain = measured(*names, **asked)
    mapped = measured(*names, prepared=folder, label_map=mine, **asked)
    assert mapped.details("study_retrieval")["precision_classes"] == CLASSES
    assert mapped["metrics"] == plain["metrics"]
    assert mapped["options"]["label_map"][0] == "mine"
    assert "label_map" not in plain["options"]


@pytest.mark.parametrize(
    ("trained", "tested", "relation", "note"),
    [
        (("mimic_cxr", False, "a"), ("mimic_cxr", False, "a"), "same set", "all of them put"),
        (("mimic_cxr", False, "a"), ("mimic_cxr", False, "b"), "same archive", "may be among them"),
        (("mimic_cxr", True, "a"), ("mimic_cxr", False, "b"), "another archive", "External test"),
        (("rsna", False, "a"), ("siim", False, "b"), "same archive", "come from one archive"),
        (("openi", False, "a"), ("manifest", False, "b"), "unknown", "share patients is not"),
        (("openi+rsna", False, "a"), ("siim", False, "b"), "same archive", "come from one archive"),
        (("openi+rsna", False, "a"), ("openi", False, "part"), "same set", "all of them put"),
        ((None, None, "a"), ("openi", False, "b"), "unknown", "does not say of which archive"),
        ((None, None, None), ("openi", False, "b"), "unknown", ""),
    ],
)
def test_archives_are_told_apart_by_kind_and_content(trained, tested, relation, note):
    kind, synthetic, digest = trained
    data = {"kind": kind, "synthetic": synthetic, "sets": ["part"] * ("+" in (kind or ""))}
    model = SimpleNamespace(provenance={"provenance": {"data_hash": digest}, "data": data})
    meta = {"kind": tested[0], "synthetic": tested[1], "options": {"all_test": True}}
    prepared = SimpleNamespace(meta=meta, content_hash=tested[2])
    found = describe_archives(model, prepared)
    assert found["relation"] == relation
    notes = archive_notes(found, prepared)
    assert note in notes[0] if note else not notes
    assert set().union(*FAMILIES) <= set(formats())


def test_a_table_names_the_row_that_contradicts_itself(measured, tmp_path):
    table = pd.DataFrame({"study_id": ["s06", "s00"], "P": [0, 1], "N": [1, 1], "Edema": [1, 0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "mine.yaml").write_text("classes: {Edema: {present: P, absent: N}}")
    with pytest.raises(UserError, match=r"t\.csv, row 3: 'Edema' is both .* 1 of 2 images"):
        measured("zero_shot", labels=tmp_path / "t.csv", label_map=tmp_path / "mine.yaml")

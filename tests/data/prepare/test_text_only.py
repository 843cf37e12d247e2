"""Sets without images: what they are for, and what they are refused for."""

import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.loader import TrainingStudies, training_corpus
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import changes, check_sample
from medclip_debias.errors import UserError


def test_a_language_model_learns_from_every_sentence_and_an_image_model_does_not(
    small_phantom, tmp_path
):
    reading = Reading(text_only=True)
    reports = prepare(small_phantom, tmp_path / "o", PrepareSettings(size=32), reading=reading)
    joined = reports.sentences.merge(reports.studies[["study_id", "split"]], on="study_id")
    for split in ("train", "test"):
        chosen = joined[joined["split"] == split]
        expected = [t for _, s in chosen.groupby("study_id", sort=False) for t in set(s["text"])]
        assert expected
        assert sorted(training_corpus(reports, split)) == sorted(expected)
    with pytest.raises(UserError, match="no study of the split 'none' has a sentence"):
        training_corpus(reports, "none")
    assert reports.pixels.shape == (0, 32, 32)
    check_sample(reports)
    assert changes(reports) == []
    with pytest.raises(UserError, match="was prepared without images"):
        TrainingStudies.of(reports)


def test_of_a_manifest_without_an_image_column_it_must_be_said(tmp_path, capsys):
    rows = "patient_id,study_id,report,split,Edema\np,1,Clear lungs.,train,0\nq,2,Edema.,test,1\n"
    words = ["prepare", str(tmp_path / "manifest.csv"), str(tmp_path / "o")]
    (tmp_path / "manifest.csv").write_text(rows)
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "column 'image' is missing" in said
    assert "--text-only" in said
    assert run([*words, "--text-only"]) == 0
    assert "reports alone of 2 studies" in capsys.readouterr().err
    found = PreparedSet.open(tmp_path / "o")
    assert found.studies["split"].tolist() == ["train", "test"]
    assert found.studies["Edema"].tolist() == [0, 1]
    assert found.texts == ["Clear lungs.", "Edema."]
    assert len(found) == 0
    assert pd.read_parquet(tmp_path / "o" / "manifest.parquet")["study_id"].tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("rows", "studies"),
    [
        ("text\nClear.\nEdema.\n", ["2", "3"]),  # rows are studies where nothing names them
        ("image,study_id,report\na.png,1,Clear.\nb.png,1,Clear.\n", ["1"]),
    ],
)
def test_images_of_a_manifest_are_not_asked_for(tmp_path, rows, studies):
    (tmp_path / "manifest.csv").write_text(rows)
    reading = Reading(text_only=True)
    made = prepare(tmp_path / "manifest.csv", tmp_path / "o", PrepareSettings(), reading=reading)
    assert made.studies["study_id"].tolist() == studies

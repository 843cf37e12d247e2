"""Sets without images: what they are for, and what they are refused for."""

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.loader import TrainingStudies, training_corpus
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError


class TestUse:
    """A set without images: a language model learns from it, an image model does not."""

    @pytest.fixture
    def reports(self, phantom_tree, tmp_path):
        reading = Reading(text_only=True)
        return prepare(phantom_tree, tmp_path / "o", PrepareSettings(size=32), reading=reading)

    def test_the_corpus_is_every_sentence_of_the_split(self, reports):
        joined = reports.sentences.merge(reports.studies[["study_id", "split"]], on="study_id")
        for split in ("train", "test"):
            chosen = joined[joined["split"] == split]
            expected = [
                t for _, s in chosen.groupby("study_id", sort=False) for t in set(s["text"])
            ]
            assert expected
            assert sorted(training_corpus(reports, split)) == sorted(expected)
        with pytest.raises(UserError, match="no study of the split 'none' has a sentence"):
            training_corpus(reports, "none")

    def test_training_is_refused_in_one_sentence(self, reports):
        with pytest.raises(UserError, match="was prepared without images"):
            TrainingStudies.of(reports)


class TestManifest:
    ROWS = "patient_id,study_id,report,split,Edema\np,1,Clear lungs.,train,0\nq,2,Edema.,test,1\n"

    def command(self, tmp_path, rows, *words):
        (tmp_path / "manifest.csv").write_text(rows)
        return run(["prepare", str(tmp_path / "manifest.csv"), str(tmp_path / "o"), *words])

    def test_without_an_image_column_it_must_be_said(self, tmp_path, capsys):
        assert self.command(tmp_path, self.ROWS) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "column 'image' is missing" in said
        assert "--text-only" in said
        assert self.command(tmp_path, self.ROWS, "--text-only") == 0
        assert "reports alone of 2 studies" in capsys.readouterr().err
        found = PreparedSet.open(tmp_path / "o")
        assert found.studies["split"].tolist() == ["train", "test"]
        assert found.studies["Edema"].tolist() == [0, 1]
        assert found.texts == ["Clear lungs.", "Edema."]
        assert len(found) == 0

    @pytest.mark.parametrize(
        ("rows", "studies"),
        [
            ("text\nClear.\nEdema.\n", ["2", "3"]),  # rows are studies where nothing names them
            ("image,study_id,report\na.png,1,Clear.\nb.png,1,Clear.\n", ["1"]),
        ],
    )
    def test_images_are_not_asked_for(self, tmp_path, rows, studies):
        assert self.command(tmp_path, rows, "--text-only") == 0
        assert PreparedSet.open(tmp_path / "o").studies["study_id"].tolist() == studies


def test_openi_leaves_its_images_aside_when_asked(tmp_path, capsys):
    folder = tmp_path / "openi" / "ecgen-radiology"
    folder.mkdir(parents=True)
    (folder / "1.xml").write_text(
        "<eCitation><uId id='CXR1'/><AbstractText Label='FINDINGS'>Clear.</AbstractText>"
        "<parentImage id='CXR1_1'/></eCitation>"
    )
    (tmp_path / "openi" / "CXR1_1.png").write_bytes(b"x")
    words = ["prepare", str(tmp_path / "openi"), str(tmp_path / "o"), "--text-only"]
    assert run(words) == 0
    assert "images are skipped" in capsys.readouterr().err
    assert len(PreparedSet.open(tmp_path / "o")) == 0


def test_tables_belong_to_mimic_alone(tmp_path, capsys):
    (tmp_path / "manifest.csv").write_text("text\nClear.\n")
    assert run(["prepare", str(tmp_path), str(tmp_path / "o"), "--tables", str(tmp_path)]) == 2
    assert "only MIMIC-CXR has tables of its own" in capsys.readouterr().err

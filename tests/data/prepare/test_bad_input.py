"""What users meet: each is one sentence with exit code 2, or a counted rejection, nothing lost."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import without_patients
from medclip_debias.phantom import PhantomSettings, generate


@pytest.fixture
def prepared(tmp_path, capsys):
    """Prepare a source by the command line; return the exit code, the set, what was said."""

    def prepare(source, *words):
        out = tmp_path / "out"
        code = run(["prepare", str(source), str(out), "--size", "32", "--workers", "1", *words])
        error = capsys.readouterr().err
        if code:
            assert code == 2
            assert not out.exists()
            assert not (tmp_path / "out.partial").exists()
            assert "Traceback" not in error
            return code, None, error.splitlines()[-1]
        return code, PreparedSet.open(out), error

    return prepare


def rejections(prepared):
    table = pd.read_csv(prepared.folder / "rejected.csv")
    return dict(zip(table["image_id"], table["reason"], strict=True))


class TestTables:
    def test_bom_crlf_and_reordered_columns_are_read(self, tiny_tree, prepared):
        path = next(tiny_tree.root.glob("*metadata*"))
        frame = pd.read_csv(path, dtype=str)
        text = frame[frame.columns[::-1]].to_csv(index=False, lineterminator="\r\n")
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
        code, found, _ = prepared(tiny_tree.root)
        assert code == 0
        assert found.images["image_id"].tolist() == ["a", "b", "d", "e"]


class TestImages:
    """Files that are no picture are rejected with file and reason, and never a row of zeros."""

    @pytest.mark.parametrize("kind", ["empty", "no_pixels", "constant", "loop"])
    def test_an_unusable_one_is_rejected_by_name(self, tiny_tree, prepared, write_dicom, kind):
        path = tiny_tree.image("a")
        path.unlink()
        if kind == "loop":
            path.symlink_to(path)
        elif kind == "no_pixels":
            write_dicom(path, tiny_tree.picture, PixelData=None)
        elif kind == "constant":
            write_dicom(path, np.full((19, 19), 7, dtype=np.uint16))
        else:
            path.write_bytes(b"")
        _, found, _ = prepared(tiny_tree.root)
        assert found.images["image_id"].tolist() == ["b", "d", "e"]
        reason = rejections(found)["a"]
        assert without_patients(str(path)) in reason
        assert reason.endswith(".")
        assert found.pixels.reshape(3, -1).max(axis=1).min() > 0
        assert sum(row["dropped"] for row in found.funnel if row["unit"] == "images") == 2


class TestPlaces:
    def test_a_source_that_is_a_loop_of_links(self, tmp_path, prepared):
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        _, _, said = prepared(tmp_path / "loop")
        assert "there is no such folder or file" in said

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--multi-view", "none"], "multi_view"),
            (["--blank-view", "maybe"], "blank_view"),
            (["--views", ","], "views must name at least one"),
            (["--labels", "mine"], "'mine' is not a labeller"),
            (["--kind", "mimic"], "is not a kind of source"),
            (["--shard", "3/2"], "give i/n"),
            (["--report-set", "sectoins=[findings]"], "did you mean 'sections'"),
            (["--window", "second"], "window"),
        ],
    )
    def test_an_option_that_makes_no_sense(self, tiny_tree, prepared, words, sentence):
        _, _, said = prepared(tiny_tree.root, *words)
        assert sentence in said


def test_a_phantom_says_that_it_is_one(tiny_tree, prepared, tmp_path, capsys):
    generate(tmp_path / "tree", PhantomSettings(studies=20, min_side=64, max_side=72), workers=1)
    _, found, _ = prepared(tmp_path / "tree")
    assert found.meta["synthetic"] is True
    words = [str(tiny_tree.root), str(tmp_path / "real"), "--size", "32", "--workers", "1"]
    assert run(["prepare", *words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["synthetic"] is False
    assert len(figures["manifest_hash"]) == 64

"""What a preparation that was interrupted, or had finished, depends on: no more and no less."""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import dependencies as dependencies_module
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prepare.dependencies import ROOT, code_files, made_by
from medclip_debias.data.sources.registry import formats
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=16)

OF_NO_INFLUENCE = [
    *("data/loader.py", "data/augment.py", "data/workers.py", "data/agreement.py"),
    *("data/store.py", "data/verify.py", "data/secret.py", "data/parallel.py"),
    *("data/prepare/run.py", "data/prepare/shards.py", "data/sources/registry.py"),
    *("data/sources/openi.py", "data/sources/mimic_cxr.py", "training/train.py", "errors.py"),
]
OF_INFLUENCE = [
    *("data/text/reports.py", "data/text/repairs.py", "data/text/headings.py"),
    *("data/text/patterns.py", "data/text/languages/es.yaml"),
    *("data/images/dicom.py", "data/images/raster.py", "data/images/radiograph.py"),
    *("data/images/square.py", "data/geometry.py", "data/boxes.py", "data/labels.py"),
    *("data/sources/manifest.py", "data/sources/ids.py", "data/sources/ms_cxr.py"),
    *("data/prepare/select.py", "data/prepare/assemble.py", "data/layout.py", "data/splits.py"),
]


@pytest.fixture
def source(tmp_path):
    """A folder of three images with a manifest."""
    folder = tmp_path / "source"
    folder.mkdir()
    rows = [("image", "report", "split")]
    for number in range(3):
        grey = np.arange(400, dtype=np.uint8).reshape(20, 20) // 2 + number
        Image.fromarray(grey).save(folder / f"{number}.png")
        rows.append((f"{number}.png", "FINDINGS: Clear lungs. No effusion.", "train"))
    with (folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, whose files count as those that run: they may be edited."""
    copy = tmp_path / "medclip_debias"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(dependencies_module, "ROOT", copy)
    made_by.cache_clear()
    yield copy
    made_by.cache_clear()


def edit(package, names):
    for name in names:
        with (package / name).open("a", encoding="utf-8") as file:
            file.write("\n# another line\n")
    made_by.cache_clear()


def interrupt(done, total):
    if done > 4:  # with three reports and some images
        raise KeyboardInterrupt


class TestAfterAnEdit:
    def resumed(self, source, out):
        said = []
        prepare(source, out, SMALL, workers=1, say=said.append)
        return " ".join(said)

    @pytest.fixture
    def stopped(self, source, package, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            prepare(source, tmp_path / "o", SMALL, workers=1, progress=interrupt)
        return tmp_path / "o"

    def test_of_no_influence_an_interrupted_run_resumes(self, source, package, stopped):
        edit(package, OF_NO_INFLUENCE)
        said = self.resumed(source, stopped)
        assert "resuming an interrupted run" in said
        assert "nothing is left to do" in self.resumed(source, stopped)

    def test_of_influence_an_interrupted_run_starts_over(self, source, package, stopped):
        edit(package, ["data/text/sentences.py"])
        assert "another version; starting over" in self.resumed(source, stopped)

    def test_of_influence_a_finished_set_is_not_taken_for_the_new_one(
        self, source, package, tmp_path
    ):
        self.resumed(source, tmp_path / "o")
        edit(package, OF_NO_INFLUENCE)
        assert "nothing is left to do" in self.resumed(source, tmp_path / "o")
        edit(package, ["data/boxes.py"])
        with pytest.raises(UserError, match="is not empty"):
            self.resumed(source, tmp_path / "o")


def test_the_hash_covers_every_file_of_influence_and_no_other(package):
    reader = formats()["manifest"].module
    covered = {
        path.relative_to(package).as_posix() for path in code_files(reader, package).values()
    }
    assert covered >= set(OF_INFLUENCE)
    assert not covered & set(OF_NO_INFLUENCE)
    for name in OF_INFLUENCE[:3]:
        before = made_by(reader)["code"]
        edit(package, [name])
        assert made_by(reader)["code"] != before


@pytest.mark.parametrize("kind", sorted(formats()))
def test_the_reader_of_a_format_counts_for_its_sources_alone(kind):
    mine = formats()[kind].module
    # A format that builds on another one depends on it, too.
    built_on = {"chexpert": ("chexlocalize",)}.get(kind, ())
    for other in formats().values():
        uses = mine == other.module or other.kind in built_on
        assert (mine in code_files(other.module)) == uses


class TestNothingIsMissed:
    """Against what runs: every function of ``data/`` that is called while a set is prepared."""

    MACHINERY = frozenset(
        (
            *("prepare/__init__.py", "prepare/run.py", "prepare/reading.py", "prepare/shards.py"),
            *("prepare/finished.py", "prepare/dependencies.py", "secret.py", "store.py"),
            *("parallel.py", "sources/registry.py", "sources/detect.py"),
        )
    )

    def called(self, source, out):
        data, files = ROOT / "data", set()

        def note(frame, event, _):
            if event == "call":
                files.add(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            prepare(source, out, SMALL, workers=1)
        finally:
            sys.setprofile(None)
        paths = (Path(name) for name in files)
        return {p.relative_to(data).as_posix() for p in paths if p.is_relative_to(data)}

    def test_by_a_manifest(self, source, tmp_path):
        self.check(source, tmp_path / "o", "manifest")

    def test_by_a_mimic_tree(self, tiny_tree, tmp_path):
        self.check(tiny_tree.root, tmp_path / "o", "mimic_cxr")

    def test_by_open_i(self, tmp_path):
        text = "<AbstractText Label='FINDINGS'>Clear lungs.</AbstractText>"
        for number in (1, 2):
            content = f"<eCitation><uId id='CXR{number}'/>{text}</eCitation>"
            (tmp_path / f"{number}.xml").write_text(content)
        self.check(tmp_path, tmp_path / "o", "openi")

    def check(self, source, out, kind):
        called = self.called(source, out)
        files = code_files(formats()[kind].module).values()
        covered = {path.relative_to(ROOT / "data").as_posix() for path in files}
        # Every format is asked whether it knows the folder, which changes nothing but the kind.
        asked = {f"sources/{f.module.rpartition('.')[2]}.py" for f in formats().values()}
        helpers = {"sources/mimic_files.py", "sources/archive.py", "sources/stanford.py"}
        assert called - covered <= self.MACHINERY | asked | helpers
        assert len(called & covered) > 12

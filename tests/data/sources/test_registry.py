"""Formats are known because their file is there; each says how it is known and what it needs."""

import importlib
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.data.records import Source
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.registry import FORMATS, Given, Sure, formats, source
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image

DOCS = Path(__file__).parents[3] / "docs"
KINDS = sorted(formats())


@pytest.mark.parametrize("kind", KINDS)
def test_a_format_does_not_know_other_things_nor_options_that_it_cannot_use(kind, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    known = formats()[kind]
    assert known.reader.recognise(tmp_path) == Sure.NO
    with pytest.raises(UserError):
        known.open(tmp_path, Given())
    for option in {"reports", "tables"} - known.takes:
        with pytest.raises(UserError, match=rf"^{tmp_path}: .*(--{option}|column)"):
            known.open(tmp_path, Given(**{option: tmp_path}))


@pytest.fixture
def register(monkeypatch):
    """`source`, whose formats are forgotten after the test."""
    monkeypatch.setattr(FORMATS, "entries", FORMATS.all())
    return source


def test_the_example_of_the_docs_is_a_source(register, tmp_path, monkeypatch):
    docs = (DOCS / "data.md").read_text(encoding="utf-8")
    example = docs[docs.index("## A new source") :].split("```python\n")[1].split("```")[0]
    (tmp_path / "pairs_example.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("pairs_example")
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(12):
        write_image(folder / f"n{number}.jpg", number)
        (folder / f"n{number}.txt").write_text(f"FINDINGS: Finding {number}. Clear lungs.")
    (folder / "n3.jpg").unlink()
    command = ["prepare", str(folder), str(tmp_path / "o"), "--size", "16", "--workers", "1"]
    assert run(command) == 0
    found = PreparedSet.open(tmp_path / "o")
    assert found.meta["kind"] == "pairs"
    assert len(found) == 11
    assert set(found.studies["split"]) <= {"train", "validate", "test"}
    assert "Finding 7." in found.sentences["text"].tolist()
    assert found.folder.joinpath("missing.csv").read_text().splitlines()[1].startswith("n3,")
    # It finds its work done; with an option that it cannot use it stops.
    assert run(command) == 0
    with pytest.raises(UserError, match="'pairs' cannot use --text-only"):
        detect(folder, text_only=True)


def test_the_surest_format_reads_and_equally_sure_ones_ask(register, tmp_path):
    def registered(sure):
        @register(title="Notes", looks="a notes.txt", give="folder", needs="`notes.txt`")
        class Notes(Source):
            kind = "notes"

            @classmethod
            def recognise(cls, path):
                return sure

            @classmethod
            def open(cls, path, given):
                return cls()

    write_image(tmp_path / "0.png")
    (tmp_path / "manifest.csv").write_text("image,report\n0.png,Clear lungs.\n")
    registered(Sure.LAYOUT)
    assert detect(tmp_path).kind == "manifest"
    registered(Sure.DECLARED)
    with pytest.raises(UserError, match="may be manifest or notes; say which with --kind"):
        detect(tmp_path)
    assert detect(tmp_path, "notes").kind == "notes"

"""Formats are known because their file is there; each says how it is known and what it needs."""

import importlib
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.registry import FORMATS, Given, Sure, formats
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


def test_the_example_of_the_docs_is_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr(FORMATS, "entries", FORMATS.all())  # it is forgotten after the test
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

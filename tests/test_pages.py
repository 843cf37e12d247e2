"""The pages of documentation: found in the checkout, or where a wheel put them, and printed."""

from __future__ import annotations

import json
from importlib.metadata import PackagePath
from pathlib import Path

from medclip_debias import pages as module
from medclip_debias.cli import run

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_is_listed_and_one_is_printed(capsys):
    assert run(["docs"]) == 0
    folder, *names = capsys.readouterr().out.splitlines()
    assert Path(folder) == DOCS
    assert [name.strip() for name in names] == sorted(
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")
    )
    assert run(["docs", "studies/index"]) == 0
    assert capsys.readouterr().out == (DOCS / "studies/index.md").read_text(encoding="utf-8")
    assert run(["docs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == folder
    assert run(["docs", "strat"]) == 2
    assert "did you mean 'start'" in capsys.readouterr().err


def test_without_a_checkout_they_are_where_the_wheel_put_them(tmp_path, monkeypatch, capsys):
    package = tmp_path / "lib/site-packages/medclip_debias"
    placed = tmp_path / "share/doc/medclip-debias"
    monkeypatch.setattr(module, "__file__", str(package / "pages.py"))
    listed = PackagePath("../../share/doc/medclip-debias/start.md")
    listed.dist = type("Dist", (), {"locate_file": lambda self, path: package.parent / path})()
    monkeypatch.setattr(module, "files", lambda name: [listed])
    assert run(["docs"]) == 2
    assert "were not installed" in capsys.readouterr().err
    package.parent.mkdir(parents=True)
    placed.mkdir(parents=True)
    (placed / "start.md").write_text("# Start", encoding="utf-8")
    assert module.pages() == (placed, ["start"])

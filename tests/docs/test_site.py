"""The site builds strictly: links lead somewhere, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPO


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the extra 'docs' is not installed (make docs)")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    # scripts/docs_site.py refuses a page that loads from elsewhere.
    build(load_config(str(REPO / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert len(list(tmp_path.rglob("*.html"))) > 40
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text("utf-8")), style
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert all(name in api for name in ("zero_shot", "heatmaps", "DebiasedContrastive"))

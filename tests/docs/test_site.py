"""The site builds strictly, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed (make docs)")
    pytest.importorskip("material", reason="the extra 'docs' is not installed (make docs)")
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed (make docs)")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(REPO / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|"
        r"<link[^>]*rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]*href=\"?(?:https?:)?//"
    )
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not loaded.search(text), page.name
        assert 'class="mermaid"' not in text, page.name  # the theme would fetch its script
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text("utf-8")), style
    api = (tmp_path / "site/api.html").read_text(encoding="utf-8")
    assert all(name in api for name in ("zero_shot", "heatmaps", "DebiasedContrastive"))

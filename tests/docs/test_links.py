"""Every link between pages leads to a file and a heading that exist; the site's list is whole."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs_site import (
    DOCS,
    OUTSIDE,
    REPO,
    anchor,
    anchors,
    generated,
    links,
    named_pages,
    notebook_page,
    turned,
    with_every_table,
)

PAGES = [*sorted(DOCS.rglob("*.md")), *(REPO / name for name in ("README.md", *OUTSIDE))]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
GENERATED = {DOCS / name: text for name, text in generated().items()}


def missing(page, text):
    """Links of ``text``, as if it stood at ``page``, that lead nowhere."""
    for link in links(text):
        path, _, mark = link.partition("#")
        target = page.parent / path if path else page
        if target.resolve() not in GENERATED and not target.exists():
            yield f"{page.relative_to(REPO)}: {link}"
        elif mark and target.suffix == ".md":
            there = text if target == page else GENERATED.get(target.resolve())
            there = target.read_text(encoding="utf-8") if there is None else there
            if mark not in anchors(there):
                yield f"{page.relative_to(REPO)}: {link} (no such heading)"


def test_every_relative_link_and_anchor_exists():
    checked = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    checked += [(page, notebook_page(page)) for page in NOTEBOOKS]
    checked += [(page, text) for page, text in GENERATED.items() if page.suffix == ".md"]
    assert sum(len(links(text)) for _, text in checked) > 100
    assert [each for page, text in checked for each in missing(page, text)] == []


def test_a_link_or_anchor_that_leads_nowhere_is_found():
    page = DOCS / "python.md"
    text = "# A b\n[x](nowhere.md) [y](#a-b) [z](#c) [d](data.md#sources) [e](data.md#no) `[f](g)`"
    assert [each.split(": ")[1] for each in missing(page, text)] == [
        "nowhere.md",
        "#c (no such heading)",
        "data.md#no (no such heading)",
    ]


def test_anchors_are_those_of_a_repository_view():
    assert anchor("Similarity (`models/similarity.py`)") == "similarity-modelssimilaritypy"
    assert anchor("results.json, format 2") == "resultsjson-format-2"
    assert anchors("# A\n```\n# no heading\n```\n## A\n") == {"a", "a-1"}


def test_links_are_turned_for_the_site():
    text = "[a](docs/data.md#sources) [b](CONTRIBUTING.md) [c](https://x.org/docs/y)"
    kept = "[a](data.md#sources) [b](contributing.md) [c](https://x.org/docs/y)"
    assert turned(text, "CHANGELOG.md") == kept
    assert turned("[a](../CONTRIBUTING.md#rules)", "studies/x.md") == "[a](contributing.md#rules)"
    assert turned("[a](notebooks/q.ipynb)", "start.md") == "[a](notebooks/q.md)"


def test_the_site_shows_every_table_of_a_study():
    for name in ("table1", "positives"):
        page = DOCS / f"studies/{name}.md"
        text = page.read_text(encoding="utf-8")
        shown = with_every_table(text, page)
        assert shown.count("\n### ") > text.count("\n### ")
        assert shown.startswith(text.partition("<!-- tables")[0])


def test_every_page_of_the_navigation_exists():
    text = re.sub(r"!!python\S*", "", (REPO / "mkdocs.yml").read_text(encoding="utf-8"))
    named = list(named_pages(yaml.safe_load(text)["nav"]))
    assert len(named) == len(set(named)) > 40
    made = {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    made |= {*OUTSIDE.values(), *generated()}
    for page in named:
        assert page in made or (DOCS / Path(page)).is_file(), page

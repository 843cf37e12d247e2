"""Pages share one base: contents, headings in order, contrast, plots that follow the style."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from medclip_debias.experiments.runner import html_page
from medclip_debias.reporting.prepared_page import (
    write_prepared_page,
)
from tests.reporting.conftest import SAID, write_set


class Outline(HTMLParser):
    """Levels of headings, tags without what they need, and names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.faults: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        lacking = {"th": "scope", "img": "alt", "nav": "aria-label", "html": "lang"}.get(tag)
        if lacking and not given.get(lacking):
            self.faults.append(f"{tag} without {lacking}")
        if tag == "svg" and not given.get("aria-label"):
            self.faults.append("svg without a name")
        self.names += [given["id"]] if "id" in given else []
        self.links += [given["href"][1:]] if tag == "a" else []


def check(html: str) -> Outline:
    outline = Outline(html)
    assert not outline.faults
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(outline.levels, outline.levels[1:], strict=False))
    assert set(outline.links) <= set(outline.names)
    assert len(outline.names) == len(set(outline.names))
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "url(" not in html
    return outline


def test_a_prepared_sets_page_holds_its_counts_and_no_words_of_patients(tmp_path):
    prepared = write_set(tmp_path / "set", synthetic=False)
    html = write_prepared_page(prepared).read_text()
    outline = check(html)
    assert len(outline.links) == 6  # five sections, and the way past them
    private = [*(text for report in SAID for text in report), "patient0", "is0", "s0<"]
    assert not any(words in html for words in private)
    cells = {
        match[0]: re.findall(r"<td[^>]*>([^<]*)", match[1])
        for match in re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', html, flags=re.S)
    }
    assert cells["train"] == ["6", "6", "6"]
    assert cells["test"] == ["1", "1", "1"]
    assert cells["Edema"] == ["3", "3", "0", "1"]
    assert cells["images listed"] == ["images", "7", "2"]
    # "No pneumothorax." thrice, "Lungs are clear." twice, five others.
    assert cells["1"] == ["5", "5", "50.0%"]
    assert cells["2 to 4"] == ["2", "5", "50.0%"]


def test_the_markdown_of_an_experiment_becomes_an_escaped_page():
    text = "# T <i>\n\nSome <b> `c_d` **e**.\n\n## Findings\n\n- one\n  more\n\n![T](p.svg)\n"
    text += "\n### Roots\n\n| a | b |\n| --- | --- |\n| <u> | 2 |\n"
    html = html_page(text, b'<svg viewBox="0 0 1 1"></svg>')
    check(html)
    for part in (
        "<h1>T &lt;i&gt;</h1>",
        "<p>Some &lt;b&gt; <code>c_d</code> <strong>e</strong>.</p>",
        '<h2 id="findings">Findings</h2>',
        '<svg class="plot" role="img"',
        '<th scope="row">&lt;u&gt;</th>\n<td>2</td>',
    ):
        assert part in html

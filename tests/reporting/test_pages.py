"""Pages share one base: contents, headings in order, contrast, plots that follow the style."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from importlib import resources
from xml.etree import ElementTree

import numpy as np

from medclip_debias.experiments.runner import html_page
from medclip_debias.reporting import plots
from medclip_debias.reporting.content import render
from medclip_debias.reporting.prepared_page import (
    frequency_rows,
    whole_bins,
    write_prepared_page,
)
from medclip_debias.reporting.report import (
    train_sentences,
    validation_sentence,
)
from medclip_debias.reporting.tables import Table
from medclip_debias.training.settings import TrainSettings
from tests.reporting.conftest import SAID, write_set

CSS = (resources.files("medclip_debias.reporting") / "templates/page.css").read_text()


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


def test_groups_of_sentences_and_bins_of_numbers_leave_nothing_out():
    counts = np.array([1, 1, 4, 5, 9, 10, 99, 100, 5000])
    rows = frequency_rows(counts)
    assert sum(int(row[1]) for row in rows) == len(counts)
    assert sum(int(row[2].replace(",", "")) for row in rows) == counts.sum()
    for values in (np.array([3]), np.arange(1, 200), np.array([1, 1000])):
        edges, found = whole_bins(values)
        assert found.sum() == len(values)
        assert len(found) <= 30
        assert set(np.diff(edges)) == {edges[1] - edges[0]}


def test_plots_follow_the_style_and_can_stand_side_by_side():
    bins = [{"images": 3, "probability": 0.2, "positive": 0.5}]
    drawn = [
        plots.curve([1, 2, 3], [1.0, None, 2.0], "A <curve>", second=[1.0, 1.0, 1.0], mark=2),
        plots.curve([1, 2, 3], [1.0, None, 2.0], "Another", second=[1.0, 1.0, 1.0], mark=2),
        plots.reliability(bins, "Reliability"),
        plots.bars([0, 1, 2], [3, 1], "Bars", x="x", y="y", second=[1, 2]),
        plots.points([1, 10, 100], [0.0, 1.0, 2.0], "Points", ("x", "y")),
        plots.levels(["a_$b$", "c"], [3, 0], "Levels", x="count"),
    ]
    names = [name for plot in drawn for name in re.findall(r'\bid="([^"]+)"', plot)]
    assert len(names) == len(set(names))
    for plot in map(str, drawn):
        root = ElementTree.fromstring(plot.replace("<svg ", '<svg xmlns:xlink="x" ', 1))
        assert root.tag == "svg"
        assert not re.findall(r"#[0-9a-f]{6}\b", plot)
        known = set(re.findall(r"(--[\w-]+):", CSS))
        assert set(re.findall(r"var\((--[\w-]+)\)", plot)) <= known
    assert 'aria-label="A &lt;curve&gt;"' in drawn[0]
    assert "a_$b$" in drawn[-1]


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_stand_out_from_the_page_in_light_and_in_dark():
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", CSS, flags=re.S)
    )
    assert set(dark) <= set(light)
    for colours in (light, light | dark):
        pairs = [
            (word, ground) for word in ("ink", "soft", "accent") for ground in ("paper", "wash")
        ]
        pairs += [
            ("warn", "warn-wash"),
            ("ink", "warn-wash"),
            ("bad", "bad-wash"),
            ("ink", "good-wash"),
        ]
        for word, ground in pairs:
            a, b = sorted(luminance(colours[f"--{name}"]) for name in (word, ground))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (word, ground)
        lines = ["second", "soft", *(f"plot-{n}" for n in range(7))]
        for line in lines:  # the palette's pale ones have marks and dashes of their own
            a, b = sorted((luminance(colours[f"--{line}"]), luminance(colours["--paper"])))
            assert (b + 0.05) / (a + 0.05) >= (1.9 if line in ("plot-5", "plot-6") else 3.0), line
    assert "@media screen and (prefers-color-scheme: dark)" in CSS  # paper stays light


def test_pages_of_tables_have_contents_and_rows_with_heads():
    table = Table("Values", ("metric", "run"), (("AUC", "0.7"), ("", "0.8")), "A caption.", 1)
    sections = [(title, [table]) for title in ("Values", "Values", "Differences")]
    page = partial(render, "tables.html.j2", title="Benchmark", lead="A lead.")
    html = page(sections=sections)
    outline = check(html)
    assert {"values", "values-2", "differences"} <= set(outline.links)
    assert '<th scope="row">AUC</th>' in html
    html = page(sections=sections[:2])
    assert "<nav" not in html  # two sections need no list


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


def test_settings_of_the_loop_are_said_or_as_usual():
    said = " ".join(train_sentences(TrainSettings()))
    assert "1,000 steps of AdamW with batches of 64 studies; sentences of each study: 1." in said
    assert "Not at their defaults" not in said
    changed = TrainSettings(ema=0.999, device="cpu", trainable={"text": {"frozen": True}})
    said = " ".join(train_sentences(changed, last_step=20))
    assert said.endswith("Not at their defaults: ema 0.999, trainable: text: frozen on.")
    assert "the last step that was logged is 20" in said
    train = TrainSettings(validate_every=15, best_metric="mean_auc", keep="best")
    assert "The model folder holds the best weights (step 45)." in validation_sentence(train, 45)
    assert "Not validated during training" in validation_sentence(TrainSettings(), None)

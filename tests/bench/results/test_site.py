"""The leaderboard: one page without anything beside it, and names stay names."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from medclip_debias.bench.board import read_board
from medclip_debias.bench.pack import pack_results
from medclip_debias.bench.site import page, sheet, write_site


class Page(HTMLParser):
    """Collects tags and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_the_page_needs_no_network_and_no_other_file(results, tmp_path):
    pack_results(results, tmp_path / "repository")
    path = write_site(tmp_path / "repository", tmp_path / "site")
    text = path.read_text()
    assert not re.search(r"https?://|@import|url\(", text)
    found = Page(text).tags
    assert not [tag for tag, attrs in found if "src" in attrs or tag == "link"]
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["index.html"]
    rows = [attrs for tag, attrs in found if tag == "tr" and "data-published" in attrs]
    assert len(rows) == 1
    assert text.count("published, not reproduced</span>") == 1
    labelled = [attrs for tag, attrs in found if tag == "button" and attrs.get("type") == "button"]
    assert labelled  # columns are sorted by buttons, which the keyboard reaches


def test_models_are_sorted_by_the_first_metric_and_intervals_lie_on_one_scale(results):
    board = read_board(results)
    zero = sheet(board, board.results.tasks[1])
    assert [line.name for line in zero.lines] == ["b", "a", "c", "CARZero & Co"]
    assert [line.published for line in zero.lines] == [False, False, False, True]
    # The column reaches from 0.4, the lowest end of an interval, to 1.0, over 110 pixels.
    for line, value in zip(zero.lines, (1.0, 15 / 16, 0.5, 0.9), strict=True):
        assert abs(line.shown[0].bar.at - (5 + 110 * (value - 0.4) / 0.6)) < 0.06
    assert zero.scales == [("0.400", "1.000")]
    ranks = sheet(board, board.results.tasks[0])
    assert [line.name for line in ranks.lines] == ["a", "b"]


def test_a_name_cannot_become_markup(results, make):
    name = '<script>alert(1)</script>" onload="x'
    make.edit(results / "c" / "model.json", lambda model: model.update(name=name))
    make.edit(results / "c" / "model.json", lambda model: model.update(licence="<i>x</i>"))
    text = page(read_board(results))
    tags = Page(text).tags
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not [attrs for _, attrs in tags if "onload" in attrs]
    assert not [tag for tag, _ in tags if tag == "i"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text

"""Publishing what was found: page, figure, its part of the index."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from studies.publish import publish

INDEX = "# Studies\n\n<!-- made -->\nold\n<!-- /made -->\n\nend\n"


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n")
    (folder / "figure.svg").write_text("<svg/>")
    (folder / "results.json").write_text('{"rows": []}\n')
    (folder / "settings.yaml").write_text("seeds: 5\n")
    return folder


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "index.md").write_text(INDEX)
    return folder


def test_page_figure_results_and_settings_take_the_name_of_the_study(out, docs):
    written = publish("made", out, docs)
    assert [path.name for path in written] == ["made.md", "made.svg", "made.json", "made.yaml"]
    assert (docs / "made.json").read_text() == '{"rows": []}\n'
    assert (docs / "made.yaml").read_text() == "seeds: 5\n"
    assert (docs / "made.md").read_text() == "# Page\n"
    assert (docs / "made.svg").read_text() == "<svg/>"
    assert (docs / "index.md").read_text() == INDEX


def test_only_its_own_part_of_the_index_is_renewed(out, docs):
    (out / "overview.md").write_text("| a\\1 |\n")
    publish("made", out, docs)
    expected = INDEX.replace("old", "| a\\1 |")
    assert (docs / "index.md").read_text() == expected
    publish("made", out, docs)
    assert (docs / "index.md").read_text() == expected


def test_without_a_place_for_it_nothing_is_written(out, docs, tmp_path):
    (out / "overview.md").write_text("new")
    with pytest.raises(UserError, match="must hold '<!-- other -->'"):
        publish("other", out, docs)
    assert [path.name for path in docs.iterdir()] == ["index.md"]
    with pytest.raises(UserError, match="is not a folder"):
        publish("made", out, tmp_path / "nowhere")

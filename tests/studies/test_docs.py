"""The pages of the studies in docs/studies: one for each, with plot, results and settings."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.config import validate
from medclip_debias.settings_files import load_yaml
from studies.study import STUDIES


def test_the_index_has_a_row_with_page_and_figure_for_every_study():
    docs = Path(__file__).parents[2] / "docs/studies"
    index = (docs / "index.md").read_text()
    for name, kind in STUDIES.all().items():
        assert f"| [{name}]({name}.md) |" in index
        page = (docs / f"{name}.md").read_text()
        assert f"]({name}.svg)" in page
        assert (docs / f"{name}.svg").is_file()
        assert f"medclip-debias study {name} " in page
        settings = load_yaml(docs / f"{name}.yaml")
        assert validate(kind.settings_class, settings, name) == kind.settings_class()

"""What many tests here read: a small phantom, what one run makes of it, the real reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.data.records import Source, StudyRecord


@pytest.fixture(scope="session")
def small_phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom of small images: reports for two chunks of work, images for several."""
    from medclip_debias.phantom import PhantomSettings, generate

    out = tmp_path_factory.mktemp("small") / "tree"
    sizes = {"min_side": 64, "max_side": 72}
    generate(out, PhantomSettings(studies=84, seed=3, **sizes), workers=1)
    return out


@pytest.fixture(scope="session")
def small_prepared(small_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared set of `small_phantom` of 32 pixels, made by one process: do not write to it."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    out = tmp_path_factory.mktemp("small-prepared") / "o"
    prepare(small_phantom, out, PrepareSettings(size=32), workers=1)
    return out


@pytest.fixture(scope="session")
def openi_source(shared_data: Path) -> Source:
    """The real Open-i archive, opened."""
    from medclip_debias.data.sources.detect import detect

    return detect(shared_data / "openi")


@pytest.fixture(scope="session")
def openi_studies(openi_source: Source) -> list[StudyRecord]:
    """Every study of the real Open-i archive."""
    return list(openi_source.studies())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of prepared sets have every plot, but as an empty drawing: most of a small run."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr("medclip_debias.reporting.plots.svg_of", lambda figure: svg)

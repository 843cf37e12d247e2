"""What many tests here read: a small phantom, what one run makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest


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

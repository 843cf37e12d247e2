"""What many tests here read: a small phantom, what one run makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_phantom(once: Callable[..., Path]) -> Path:
    """A phantom of small images: reports for two chunks of work, images for several."""
    from medclip_debias.phantom import PhantomSettings, generate

    settings = PhantomSettings(studies=84, seed=3, min_side=64, max_side=72)
    return once("small_phantom", lambda out: generate(out, settings, workers=1))


@pytest.fixture(scope="session")
def small_prepared(small_phantom: Path, once: Callable[..., Path]) -> Path:
    """The prepared set of `small_phantom` of 32 pixels, made by one process: do not write to it."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    settings = PrepareSettings(size=32)
    return once("small_prepared", lambda out: prepare(small_phantom, out, settings, workers=1))


@pytest.fixture
def folder(small_prepared: Path, tmp_path: Path) -> Path:
    """A copy of `small_prepared`, free to be damaged."""
    return shutil.copytree(small_prepared, tmp_path / "set")

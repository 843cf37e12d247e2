"""`import medclip_debias` is light and offers what it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import medclip_debias as md

REPO = Path(__file__).parents[2]


def test_importing_the_package_imports_nothing_slow():
    slow = "torch numpy pandas pydantic transformers cv2 PIL typer"
    code = "import sys, medclip_debias; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    words = [sys.executable, "-c", code, *slow.split()]
    found = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_every_name_is_there_and_no_other():
    assert set(md.__all__) <= set(dir(md))
    for name in md.__all__:
        assert getattr(md, name) is getattr(md, name)
    assert md.losses.InfoNCE.__name__ == "InfoNCE"
    with pytest.raises(AttributeError, match="laod"):
        md.laod  # noqa: B018

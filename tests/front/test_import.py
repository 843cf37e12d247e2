"""`import medclip_debias` is light and offers what it names; the pages' examples run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import medclip_debias as md

REPO = Path(__file__).parents[2]


def examples(page):
    return re.findall(r"```python\n(.*?)```", (REPO / page).read_text(encoding="utf-8"), re.S)


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


def test_the_first_examples_of_the_page_run(
    model_folder, grey, files, tmp_path, monkeypatch, capsys
):
    first, picture = examples("docs/python.md")[:2]
    (tmp_path / "runs/debiased").mkdir(parents=True)
    (tmp_path / "runs/debiased/model").symlink_to(model_folder)
    (tmp_path / "first.dcm").symlink_to(files[0])
    Image.fromarray(grey).save(tmp_path / "second.png")
    monkeypatch.chdir(tmp_path)
    import matplotlib as mpl

    mpl.use("agg")
    exec(compile(first + picture, "example", "exec"), {})
    said = capsys.readouterr().out
    assert "Effusion" in said
    assert "second.png" in said
    assert (tmp_path / "maps.png").stat().st_size > 1000

"""Every file that a verb writes may be read by whom the umask lets, and by nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.phantom import PhantomSettings, generate

REPO = Path(__file__).parents[1]
UMASK = 0o027


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """What the verbs leave, one after the other."""
    root = tmp_path_factory.mktemp("rights")
    phantom = tmp_path_factory.mktemp("phantom") / "tree"
    generate(phantom, PhantomSettings(studies=48, seed=3, min_side=80, max_side=112), None, 1)
    before = os.umask(UMASK)
    try:
        prepared, lm, out = f"{root}/prepared", f"{root}/lm", f"{root}/run"
        small = ["hidden=16", "heads=2", "layers=1", "steps=2", "vocabulary=400", "batch_size=16"]
        settings = ["train.steps=2", "train.batch_size=8", "train.workers=0", "train.keep=best"]
        settings += ["train.validate_every=1", "train.validate_images=8", "train.warmup_steps=1"]
        settings += [f"prepared={prepared}", f"out={out}", f"model.text.folder={lm}"]
        config = str(REPO / "configs" / "phantom" / "base.yaml")
        image = next(phantom.rglob("*.dcm"))
        few = ["--set", "landmarks=40", "--set", "queries=10", "--set", "image_queries=2"]
        quick = ["--bootstrap", "0", "--heatmaps", "1"]
        for command in (
            ["prepare", str(phantom), prepared, "--size", "72", "--workers", "1"],
            ["language-model", prepared, lm, *small],
            ["score", prepared, "--language-model", lm],
            ["train", config, "--loss", "debiased_language_model", *settings],
            ["evaluate", f"{out}/model", prepared, "--out", out, *quick],
            ["report", out],
            ["index", f"{out}/model", prepared, "--out", f"{root}/index", *few],
            ["ground", f"{out}/model", str(image), "--text", "Clear.", "--out", f"{root}/maps"],
        ):
            assert run(command) == 0, command
    finally:
        os.umask(before)
    return root


@pytest.mark.parametrize(
    "place",
    [
        "prepared",
        "lm",
        "run/model",
        "run/checkpoints",
        "run/heatmaps",
        "run/retrieval",
        "run/items",
        "index",
        "maps",
    ],
)
def test_the_umask_decides_who_may_read(root, place):
    folder = root / place
    found = list(folder.rglob("*"))
    assert found
    for path in [folder, *found]:
        expected = (0o777 if path.is_dir() else 0o666) & ~UMASK
        if path.name == "items.key":  # a secret, whatever the umask
            expected = 0o600
        assert path.stat().st_mode & 0o777 == expected, path


def test_nothing_else_in_a_run_is_more_open_or_more_closed(root):
    found = list((root / "run").rglob("*"))
    assert {"settings.yaml", "metrics.csv", "results.json", "report.html"} <= {
        p.name for p in found
    }
    wrong = [
        path.name
        for path in found
        if path.stat().st_mode & 0o777 != (0o777 if path.is_dir() else 0o666) & ~UMASK
    ]
    assert wrong == []


def test_nothing_hidden_is_left(root):
    assert [path for path in root.rglob(".*")] == []

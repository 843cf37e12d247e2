"""What readers of the docs have in front of them: the repository's files, and a finished demo."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.cli.demo import QUICK, stages

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo_folder(phantom_tree, prepared_phantom, tmp_path_factory):
    """A folder in which `make demo` and the second run of the compare page were done, small."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "runs/demo").mkdir(parents=True)
    (folder / "runs/demo/phantom").symlink_to(phantom_tree)
    shutil.copytree(prepared_phantom, folder / "runs/demo/prepared")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    words = {stage.name: stage.words for stage in stages(Path("runs/demo"), 160, quick=True)}
    second = ["train", "phantom/demo", "--loss", "no_correction"]
    second += ["out=runs/uncorrected"]
    judged = ["evaluate", "runs/uncorrected/model", "runs/demo/prepared"]
    judged += ["--out", "runs/uncorrected"]
    for name in ("language_model", "score", "claims", "train", "evaluate"):
        assert run([*words[name]]) == 0, name
    assert run([*second, *QUICK["train"]]) == 0
    assert run([*judged, *QUICK["evaluate"]]) == 0
    patch.undo()
    _write_peer(folder / "models/peer", folder / "runs/demo/language_model", prepared_phantom)
    return folder


def _write_peer(folder, language_model, prepared):
    """A folder as `import-model` writes it, of BiomedCLIP's kind, with random weights."""
    import json

    import torch

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.peers.peer import Peer
    from medclip_debias.models.peers.settings import (
        ImageSettings,
        PeerPreprocessing,
        PeerSettings,
        TextSettings,
    )
    from medclip_debias.models.text_encoder import SentenceTokenizer

    torch.manual_seed(0)
    config = json.loads((language_model / "config.json").read_text())
    sizes = {"image_size": 64, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16}
    vit = ImageSettings(kind="open_clip", config=sizes)
    text = TextSettings(kind="bert", config=config, pooling="mlp")
    settings = PeerSettings(
        kind="open_clip", dim=12, max_tokens=24, image=vit, text=text, scale=20.0
    )
    own = PeerPreprocessing(
        prepare=PreparedSet.open(prepared).settings,
        input_size=64,
        channel_mean=(0.4,) * 3,
        channel_std=(0.3,) * 3,
    )
    tokenizer = SentenceTokenizer.load(language_model)
    inside = {"text.head.0.weight": torch.empty(10, 1)}
    peer = Peer(settings, own, tokenizer, state=inside)
    with torch.no_grad():
        for value in peer.parameters():
            if value.abs().max() == 0:  # class tokens, places, projections
                value.normal_(std=0.2)
    peer.eval().save(folder)


@pytest.fixture
def reader(demo_folder, monkeypatch):
    """That folder as the working directory, and plots that open no window."""
    import matplotlib as mpl

    mpl.use("agg")
    monkeypatch.chdir(demo_folder)
    return demo_folder

"""What readers of the docs have in front of them: the repository's files, and a finished demo."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.cli.demo import QUICK, stages
from medclip_debias.evaluation import evaluate as evaluation

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
    words = {
        stage.name: [*map(str, stage.words)] for stage in stages(Path("runs/demo"), 160, quick=True)
    }
    second = ["train", "phantom/demo", "--loss", "no_correction"]
    second += ["out=runs/uncorrected"]
    judged = ["evaluate", "runs/uncorrected/model", "runs/demo/prepared"]
    judged += ["--out", "runs/uncorrected"]
    for name in ("language_model", "score", "claims", "train", "evaluate"):
        assert run([*words[name]]) == 0, name
    assert run([*second, *QUICK["train"]]) == 0
    some = partial(evaluation.plan, only={"zero_shot", "grounding", "retrieval"})
    patch.setattr(evaluation, "plan", some)  # enough to be compared
    assert run([*judged, *QUICK["evaluate"]]) == 0
    patch.undo()
    _write_peer(folder / "models/peer", folder / "runs/demo/language_model", prepared_phantom)
    return folder


def _write_peer(folder, language_model, prepared):
    """A folder as `import-model` writes it, of BiomedCLIP's kind, with random weights."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.peers.settings import PeerPreprocessing
    from tests.helpers.small_models import make_peer

    sizes = {"image_size": 64, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16}
    how = PeerPreprocessing(
        prepare=PreparedSet.open(prepared).settings,
        input_size=64,
        channel_mean=(0.4,) * 3,
        channel_std=(0.3,) * 3,
    )
    head, image = {"text.head.0.weight": (10, 1)}, {"kind": "open_clip", "config": sizes}
    content = {"dim": 12, "max_tokens": 24, "image": image, "scale": 20.0}
    make_peer(language_model, how, head, {"pooling": "mlp"}, **content).save(folder)


@pytest.fixture
def reader(demo_folder, monkeypatch):
    """That folder as the working directory, and plots that open no window."""
    import matplotlib as mpl

    mpl.use("agg")
    monkeypatch.chdir(demo_folder)
    return demo_folder

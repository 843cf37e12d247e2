"""A prepared and scored phantom with its language model, and a small grid on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.loader import training_corpus
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation import compare
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.language.scoring import score_prepared
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.settings_files import load_yaml

GRID = Path(__file__).parents[2] / "configs/experiments/phantom_small.yaml"
METHOD, MEAN, SHUFFLED = "eta", "its mean", "its values shuffled"
METRICS = ["zero_shot.mean_auc", "grounding.cnr", "study_retrieval.report.median_rank"]
METHODS = {
    "CLIP": {"loss": {"kind": "clip"}},
    METHOD: {"loss": {"kind": "debiased", "eta": {"kind": "language_model", "k": 0.02}}},
    MEAN: {"loss": {"kind": "debiased", "eta": {"kind": "mean_of", "k": 0.02}}},
    SHUFFLED: {"loss": {"kind": "debiased", "eta": {"kind": "shuffled", "k": 0.02}}},
}


TWO = {name: METHODS[name] for name in ("CLIP", SHUFFLED)}


def never(*_: object, **__: object) -> None:
    """In place of what must not be done again."""
    raise AssertionError("measured again")


def measured(folder: Path) -> dict[tuple[str, int], tuple[object, object]]:
    """What a grid's cells of `TWO` with seed 0 gave, whatever their names and places."""
    rows = json.loads((folder / "results.json").read_text())["rows"]
    found = {
        (row["method"].removeprefix("my "), row["seed"]): (row["metrics"], row["train"])
        for row in rows
    }
    return {(method, 0): found[method, 0] for method in TWO}


def write_grid(path: Path, **changes: object) -> Path:
    """`GRID` with other parts, as a file; None leaves a part out."""
    content = load_yaml(GRID)
    content["base"]["extends"] = str(GRID.parents[1] / "phantom/base.yaml")
    content |= {"settings": None, "methods": METHODS} | changes
    path.write_text(json.dumps({k: value for k, value in content.items() if value is not None}))
    return path


class Place(NamedTuple):
    """What a grid on the phantom needs."""

    prepared: Path
    language_model: Path

    def words(self, **more: object) -> list[str]:
        """Words over `GRID` that make it one of seconds."""
        chosen = {
            "base.prepared": self.prepared,
            "base.model.text.folder": self.language_model,
            "base.model.text.max_tokens": 32,
            "base.preprocessing.input_size": 32,
            "base.train.steps": 4,
            "base.train.checkpoint_every": 2,
            "base.train.warmup_steps": 1,
            "base.train.log_every": 2,
            "evaluate.bootstrap": 0,
            "seconds_per_step": 0.1,
        }
        return [f"{key}={value}" for key, value in (chosen | more).items() if value is not None]


@contextmanager
def _quick() -> Iterator[None]:
    only = {"zero_shot", "grounding", "study_retrieval"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluation, "plan", partial(evaluation.plan, only=only))
        patched.setattr(compare, "compare", partial(compare.compare, resamples=200))
        yield


@pytest.fixture(scope="module")
def quick_judgement() -> Iterator[None]:
    """Models are measured by what `GRID` asks for alone, and compared with few resamples."""
    with _quick():
        yield


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every method and its controls."""
    path = tmp_path_factory.mktemp("file") / "small.yaml"
    return write_grid(path, controls={METHOD: [MEAN, SHUFFLED]}, metrics=METRICS)


@pytest.fixture(scope="session")
def done(grid: Path, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid's folder after one run, without a prediction that was given."""
    out = tmp_path_factory.mktemp("grid") / "out"
    words = ["experiment", str(grid), *place.words(seconds_per_step=None)]
    with _quick():
        assert run([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A small phantom, prepared and scored by a tiny language model."""
    folder = tmp_path_factory.mktemp("grid")
    few = PhantomSettings(studies=60, test_studies=16, seed=3, min_side=64, max_side=80)
    generate(folder / "tree", few, None, 1)
    prepare(folder / "tree", folder / "prepared", PrepareSettings(size=72), workers=1)
    data = PreparedSet.open(folder / "prepared")
    small = LanguageModelSettings(
        vocabulary=500, hidden=16, layers=1, heads=2, steps=2, batch_size=16, max_tokens=32
    )
    train_masked_lm(training_corpus(data), folder / "lm", small)
    score_prepared(data, folder / "lm")
    return Place(folder / "prepared", folder / "lm")

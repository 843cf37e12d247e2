"""A prepared and scored phantom with its language model, and a grid on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

GRID = Path(__file__).parents[2] / "medclip_debias/configs/experiments/phantom_small.yaml"


class Place(NamedTuple):
    """What a grid on the phantom needs."""

    prepared: Path
    language_model: Path

    def words(self, **more: object) -> list[str]:
        """Words over `GRID` that make it one of seconds."""
        given = {
            "base.prepared": self.prepared,
            "base.model.text.folder": self.language_model,
            "base.model.text.max_tokens": 32,
            "base.preprocessing.input_size": 32,
            "base.train.steps": 4,
            "base.train.checkpoint_every": 2,
            "base.train.warmup_steps": 1,
            "base.train.log_every": 2,
            "evaluate.bootstrap": 0,
        }
        return [f"{key}={value}" for key, value in (given | more).items()]


@pytest.fixture(scope="session")
def place(prepared_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A copy of the prepared phantom that a tiny language model has scored."""
    from medclip_debias.data.loader import training_corpus
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
    from medclip_debias.language.scoring import score_prepared

    folder = tmp_path_factory.mktemp("grid")
    shutil.copytree(prepared_phantom, folder / "prepared")
    data = PreparedSet.open(folder / "prepared")
    small = LanguageModelSettings(
        vocabulary=500, hidden=16, layers=1, heads=2, steps=2, batch_size=16, max_tokens=32
    )
    train_masked_lm(training_corpus(data), folder / "lm", small)
    score_prepared(data, folder / "lm")
    return Place(folder / "prepared", folder / "lm")

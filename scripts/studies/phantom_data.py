"""What the cells of a study on the phantom share: data, language model, scores, truth.

Everything is a function of `PhantomData`, so studies that ask for the same find it generated.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from medclip_debias.config import PrepareSettings, Settings
from medclip_debias.files import atomic_folder

if TYPE_CHECKING:
    from medclip_debias.data.prompts import PromptSet


class PhantomData(Settings):
    """A phantom and a language model of its sentences.

    ``dials`` are settings of `medclip_debias.phantom.settings.PhantomSettings`; ``language``
    those of `medclip_debias.language.masked_lm.LanguageModelSettings`, which learns from
    ``language_share`` of the training sentences.
    """

    studies: int = Field(3000, ge=60)
    test_studies: int = Field(900, ge=20)
    seed: int = 0
    dials: dict[str, Any] = Field(default_factory=lambda: {"regime": "hospital"})
    size: int = 56
    language: dict[str, Any] = Field(
        default_factory=lambda: {
            **{"hidden": 64, "heads": 2, "layers": 1, "vocabulary": 1500},
            **{"batch_size": 64, "steps": 2000, "lr": 3e-3},
        }
    )
    language_share: float = Field(1.0, gt=0, le=1)


class PhantomFolder:
    """The folder of a `PhantomData`; attributes name what is in it.

    Args:
        root: the folder, as `make_phantom` leaves it.
    """

    def __init__(self, root: Path) -> None:
        self.prepared = root / "prepared"
        self.language_model = root / "language_model"
        self.truth = root / "truth"
        self.agreement = root / "agreement.npz"


def make_phantom(data: PhantomData, folder: Path) -> None:
    """Make the phantom, prepare it, learn a language model, score; atomic, and only once."""
    if folder.is_dir():
        return
    from medclip_debias.config import validate
    from medclip_debias.data.prepare import prepare
    from medclip_debias.phantom import PhantomSettings, generate
    from medclip_debias.phantom.truth import Truth, write_truth

    settings = validate(
        PhantomSettings,
        {
            "studies": data.studies,
            "test_studies": data.test_studies,
            "seed": data.seed,
            **data.dials,
        },
        "the study's data",
    )
    with atomic_folder(folder) as work:
        tree = work / "tree"
        generate(tree, settings, workers=1)
        prepared = prepare(tree, work / "prepared", PrepareSettings(size=data.size), workers=1)
        shutil.move(tree / "truth", work / "truth")
        shutil.rmtree(tree)
        write_truth(Truth(work / "truth"), prepared, work / "agreement.npz")
        learn_language(data, work / "prepared", work / "language_model")
        (work / "data.json").write_text(json.dumps(data.model_dump(mode="json"), indent=1) + "\n")


def learn_language(data: PhantomData, prepared_folder: Path, out: Path) -> None:
    """Learn the language model of ``data`` and score the set's sentences with it."""
    import numpy as np

    from medclip_debias.config import validate
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
    from medclip_debias.language.scoring import score_prepared

    prepared = PreparedSet.open(prepared_folder)
    train = set(prepared.studies.loc[prepared.studies["split"] == "train", "study_id"])
    said = prepared.sentences
    corpus = said.loc[said["study_id"].isin(train), "text"].tolist()
    if data.language_share < 1:
        rng = np.random.default_rng([data.seed, 77])
        count = max(2, round(data.language_share * len(corpus)))
        corpus = [corpus[n] for n in np.sort(rng.choice(len(corpus), count, replace=False))]
    settings = validate(LanguageModelSettings, {**data.language, "seed": data.seed}, "the study")
    train_masked_lm(corpus, out, settings)
    score_prepared(prepared, out)


def class_prompts() -> PromptSet:
    """One prompt pair for each of the 28 finding classes, in words that the reports use."""
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.phantom.catalogue import CLASSES
    from medclip_debias.phantom.vocabulary import NOUNS

    classes = {}
    for finding in CLASSES:
        noun = NOUNS[finding.type][0].text
        words = [finding.severity, finding.side, finding.zone, noun]
        classes[finding.name] = {
            "positive": [" ".join(word for word in words if word).capitalize()],
            "negative": [f"No {noun}"],
        }
    return load_prompts({"name": "phantom", "classes": classes})

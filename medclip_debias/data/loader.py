"""Training batches whose content is a pure function of the seed and the step.

Nothing here remembers what came before, so a run that resumes at step k sees what it would have
seen, whatever the number of worker processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from medclip_debias.config import AugmentSettings
from medclip_debias.data.augment import Augmenter
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError

# First words of the seed sequences, so that no two uses share a stream.
_ORDER, _CHOICE = 1, 2


@dataclass(frozen=True)
class TrainingStudies:
    """The studies that a run learns from, as indices.

    Attributes:
        texts: distinct sentences, sorted.
        rows: per study, its rows in ``PreparedSet.pixels``.
        sentences: per study, indices into ``texts``, without repeats.
        occurrences: ``[len(texts)]`` how many studies say each sentence.
    """

    texts: list[str]
    rows: list[NDArray[np.int64]]
    sentences: list[NDArray[np.int64]]
    occurrences: NDArray[np.int64]

    @classmethod
    def of(cls, prepared: PreparedSet, split: str = "train") -> TrainingStudies:
        """Studies of ``split`` with at least one image and one sentence.

        Raises:
            UserError: the split holds no such study.
        """
        images, sentences = prepared.images, prepared.sentences
        places = np.flatnonzero((images["split"] == split).to_numpy())
        rows: dict[str, list[int]] = {}
        for row, study in zip(places, images["study_id"].iloc[places], strict=True):
            rows.setdefault(study, []).append(int(row))
        said: dict[str, dict[str, None]] = {}
        for study, text in zip(sentences["study_id"], sentences["text"], strict=True):
            if study in rows:
                said.setdefault(study, {})[text] = None
        studies = [study for study in rows if study in said]
        if not studies:
            raise UserError(
                f"{prepared.folder}: no study of the split '{split}' has both an image and a "
                "sentence; look at its funnel.json."
            )
        texts = sorted({text for study in studies for text in said[study]})
        number = {text: index for index, text in enumerate(texts)}
        chosen = [np.array([number[t] for t in said[s]], dtype=np.int64) for s in studies]
        counts = np.bincount(np.concatenate(chosen), minlength=len(texts))
        return cls(texts, [np.array(rows[s]) for s in studies], chosen, counts)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Batch:
    """One step's input.

    Attributes:
        images: uint8 ``[B, C, C]``, cropped and augmented.
        texts: ``[T]`` indices into ``TrainingStudies.texts``.
        owners: ``[T]`` image of each sentence, in 0..B-1.
        studies: ``[B]`` index of each image's study.
    """

    images: Tensor
    texts: Tensor
    owners: Tensor
    studies: Tensor


class StepBatches(Dataset[Batch]):
    """Item k is the batch of step k.

    Studies are drawn without replacement within an epoch, the last incomplete batch is left
    out; of each study one image, and up to ``sentences_per_study`` sentences without repeats.
    """

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        studies: TrainingStudies,
        *,
        batch_size: int,
        sentences_per_study: int,
        input_size: int,
        augment: AugmentSettings,
        seed: int,
    ) -> None:
        if batch_size > len(studies):
            raise UserError(
                f"setting 'train.batch_size' is {batch_size}, but only {len(studies)} studies can "
                "be trained on; make it smaller."
            )
        self.pixels = pixels
        self.studies = studies
        self.batch_size = batch_size
        self.sentences_per_study = sentences_per_study
        self.seed = seed
        self.augmenter = Augmenter(augment, input_size)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the studies."""
        return len(self.studies) // self.batch_size

    def members(self, step: int) -> NDArray[np.int64]:
        """Studies of the batch of ``step``: ``[B]``."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([_ORDER, self.seed, epoch]).permutation(len(self.studies))
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def __getitem__(self, step: int) -> Batch:
        members = self.members(step)
        images, texts, owners = [], [], []
        for place, study in enumerate(members):
            rng = np.random.default_rng([_CHOICE, self.seed, step, place])
            row = rng.choice(self.studies.rows[study])
            images.append(self.augmenter(self.pixels[row], rng))
            said = self.studies.sentences[study]
            count = min(self.sentences_per_study, len(said))
            texts.append(rng.choice(said, size=count, replace=False))
            owners.append(np.full(count, place))
        return Batch(
            torch.from_numpy(np.stack(images)),
            torch.from_numpy(np.concatenate(texts)),
            torch.from_numpy(np.concatenate(owners)),
            torch.from_numpy(members),
        )


def iterate(batches: StepBatches, start: int, stop: int, workers: int) -> Iterator[Batch]:
    """Yield the batches of steps ``start`` to ``stop - 1``, made by ``workers`` processes."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        worker_init_fn=_one_thread if workers else None,
        prefetch_factor=2 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    yield from loader


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def training_corpus(prepared: PreparedSet, split: str = "train") -> list[str]:
    """Every sentence of the studies that `TrainingStudies.of` trains on, one an occurrence."""
    studies = TrainingStudies.of(prepared, split)
    return [studies.texts[number] for said in studies.sentences for number in said]

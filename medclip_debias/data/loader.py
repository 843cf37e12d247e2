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
from medclip_debias.data.augment import Draws, augment, augment_on_device, draw
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
        if not len(prepared):
            raise UserError(
                f"{prepared.folder}: was prepared without images, so nothing can be trained on it"
                " but a language model; prepare the reports together with their images."
            )
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
        images: uint8 ``[B, C, C]``, cropped and augmented; ``[B, S, S]`` with ``draws``.
        texts: ``[T]`` indices into ``TrainingStudies.texts``.
        owners: ``[T]`` image of each sentence, in 0..B-1.
        studies: ``[B]`` index of each image's study.
        draws: the augmentation that is still to be done, on the device; None when it is done.
    """

    images: Tensor
    texts: Tensor
    owners: Tensor
    studies: Tensor
    draws: Draws | None = None

    def images_on(self, device: torch.device) -> Tensor:
        """Augmented images on ``device``: uint8 ``[B, C, C]``."""
        images = self.images.to(device, non_blocking=True)
        return images if self.draws is None else augment_on_device(images, self.draws)

    def pin_memory(self) -> Batch:
        """A copy in page-locked memory (called by torch's loader)."""
        return Batch(
            self.images.pin_memory(),
            self.texts.pin_memory(),
            self.owners.pin_memory(),
            self.studies.pin_memory(),
            None if self.draws is None else self.draws.pin_memory(),
        )


class _Ragged:
    """Lists of integers end to end, so that a batch of them is drawn without a loop."""

    def __init__(self, lists: list[NDArray[np.int64]]) -> None:
        self.counts = np.array([len(one) for one in lists])
        self.starts = np.cumsum(self.counts) - self.counts
        self.values = np.concatenate(lists)

    def one(self, members: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """One element of each list named in ``members``."""
        places = (rng.random(len(members)) * self.counts[members]).astype(np.int64)
        return self.values[self.starts[members] + places]

    def some(
        self, members: NDArray[np.int64], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Up to ``count`` elements of each list, without repeats, and whose they are."""
        counts = self.counts[members]
        owners = np.repeat(np.arange(len(members)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        # Shuffle each list by random keys and keep its first places.
        order = np.lexsort((rng.random(len(owners)), owners))
        chosen = order[within < count]
        places = self.starts[members][owners[chosen]] + within[chosen]
        return self.values[places], owners[chosen]


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
        self.input_size = input_size
        self.augment = augment
        self.seed = seed
        self._rows = _Ragged(studies.rows)
        self._sentences = _Ragged(studies.sentences)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the studies."""
        return len(self.studies) // self.batch_size

    def members(self, step: int) -> NDArray[np.int64]:
        """Studies of the batch of ``step``: ``[B]``."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:  # kept: it costs more than a batch
            rng = np.random.default_rng([_ORDER, self.seed, epoch])
            self._order = epoch, rng.permutation(len(self.studies))
        return self._order[1][place * self.batch_size : (place + 1) * self.batch_size]

    def __getitem__(self, step: int) -> Batch:
        members = self.members(step)
        rng = np.random.default_rng([_CHOICE, self.seed, step])
        rows = self._rows.one(members, rng)
        texts, owners = self._sentences.some(members, self.sentences_per_study, rng)
        draws = draw(rng, self.augment, len(rows), self.pixels.shape[1], self.input_size)
        here = self.augment.where == "cpu"
        images = augment(self.pixels, rows, draws) if here else np.asarray(self.pixels[rows])
        return Batch(
            torch.from_numpy(images),
            torch.from_numpy(texts),
            torch.from_numpy(owners),
            torch.from_numpy(members),
            None if here else draws,
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
    """Every sentence of the studies that `TrainingStudies.of` trains on, one an occurrence.

    Of a set without images it is every study of ``split``.

    Raises:
        UserError: the split holds no such study.
    """
    if not len(prepared):
        names = prepared.studies["study_id"][prepared.studies["split"] == split]
        said = prepared.sentences[prepared.sentences["study_id"].isin(set(names))]
        if said.empty:
            raise UserError(
                f"{prepared.folder}: no study of the split '{split}' has a sentence; look at its"
                " funnel.json."
            )
        return said.drop_duplicates(["study_id", "text"])["text"].tolist()
    studies = TrainingStudies.of(prepared, split)
    return [studies.texts[number] for said in studies.sentences for number in said]

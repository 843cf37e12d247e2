"""Training batches whose content is a pure function of the seed and the step.

Nothing here remembers what came before, so a run that resumes at step k sees what it would have
seen, whatever the number of threads that read.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.config import AugmentSettings
from medclip_debias.data.augment import Draws, augment, augment_on_device, draw
from medclip_debias.data.executor import in_order
from medclip_debias.data.frozen_features import FeatureFile, StoredAugmentations
from medclip_debias.data.joint import JointSet
from medclip_debias.data.layout import STATED
from medclip_debias.data.mixture import Mixture
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained

PREFETCH = 2  # batches that each thread reads ahead
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
        frontal: per study, those of its rows that are frontal; all of them where none is. None
            for studies whose images are all frontal.
        sets: number of each study's set, where there are several.
        shares: name, weight and batches of each set (`medclip_debias.config.SetSettings`); none
            for a single one.
    """

    texts: list[str]
    rows: list[NDArray[np.int64]]
    sentences: list[NDArray[np.int64]]
    occurrences: NDArray[np.int64]
    frontal: list[NDArray[np.int64]] | None = None
    sets: NDArray[np.int64] | None = None
    shares: tuple[tuple[str, float, str], ...] = ()

    @classmethod
    def of(
        cls, prepared: PreparedSet, split: str = "train", *, text: bool = True
    ) -> TrainingStudies:
        """Studies of ``split`` with at least one image and one sentence; none of weight 0 in train.

        Args:
            prepared: the data.
            split: name of the split.
            text: False keeps studies that say nothing as well, for training on images alone.
        """
        if prepared.images.empty:
            raise UserError(
                f"{prepared.folder}: was prepared without images, so nothing can be trained on it"
                " but a language model; prepare the reports together with their images."
            )
        images, sentences = prepared.images, prepared.sentences
        sentences = sentences[sentences["section"] != STATED]
        chosen = (images["split"] == split).to_numpy()
        if split == "train" and isinstance(prepared, JointSet):  # weight 0 is for evaluation alone
            chosen = chosen & prepared.drawn
        places = np.flatnonzero(chosen)
        rows: dict[str, list[int]] = {}
        for row, study in zip(places, images["study_id"].iloc[places], strict=True):
            rows.setdefault(study, []).append(int(row))
        said: dict[str, dict[str, None]] = {}
        for study, sentence in zip(sentences["study_id"], sentences["text"], strict=True):
            if study in rows:
                said.setdefault(study, {})[sentence] = None
        studies = [study for study in rows if study in said or not text]
        if not studies:
            wanted = "both an image and a sentence" if text else "an image"
            raise UserError(
                f"{prepared.folder}: no study of the split '{split}' has {wanted}; "
                "see its funnel.json."
            )
        texts = sorted({sentence for study in studies for sentence in said.get(study, ())})
        number = {sentence: index for index, sentence in enumerate(texts)}
        spoken = [np.array([number[t] for t in said.get(s, ())], dtype=np.int64) for s in studies]
        counts = np.bincount(np.concatenate(spoken), minlength=len(texts))
        found = [np.array(rows[s]) for s in studies]
        chosen_rows = (of_study[prepared.frontal[of_study]] for of_study in found)
        frontal = [f if len(f) else every for f, every in zip(chosen_rows, found, strict=True)]
        if not isinstance(prepared, JointSet):
            return cls(texts, found, spoken, counts, frontal)
        firsts = np.array([int(of_study[0]) for of_study in found])
        sets = np.searchsorted(prepared.starts, firsts, side="right") - 1
        shares = tuple(zip(prepared.names, prepared.weights, prepared.batches, strict=True))
        return cls(texts, found, spoken, counts, frontal, sets, shares)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Batch:
    """One step's input: B studies, I images, T sentences.

    Attributes:
        images: uint8 ``[I, C, C]``, cropped and augmented; ``[I, S, S]`` with ``draws``; of stored
            features (`StepBatches.features`) they are those, ``[I, ...]``. The images of one
            study lie side by side.
        texts: ``[T]`` indices into ``TrainingStudies.texts``.
        owners: ``[T]`` image of each sentence, in 0..I-1.
        studies: ``[I]`` index of each image's study.
        draws: the augmentation that is still to be done, on the device; None when it is done.
        two_view: I = 2n rows are two augmentations of n images, first all the first ones, then
            all the second ones; there are no sentences.
    """

    images: Tensor
    texts: Tensor
    owners: Tensor
    studies: Tensor
    draws: Draws | None = None
    two_view: bool = False

    def images_on(self, device: torch.device) -> Tensor:
        """Augmented images on ``device``, uint8 ``[I, C, C]``, or their stored features."""
        images = self.images.to(device, non_blocking=True)
        return images if self.draws is None else augment_on_device(images, self.draws)

    def pin_memory(self) -> Batch:
        """A copy in page-locked memory, from which a GPU reads without waiting."""
        held = {name: value for name, value in vars(self).items() if hasattr(value, "pin_memory")}
        return replace(self, **{name: value.pin_memory() for name, value in held.items()})

    def split(self, parts: int) -> list[Batch]:
        """Cut into ``parts`` batches of equally many studies, in order; the parts divide them.

        The images of a study, its sentences, and both views of an image stay together.
        """
        firsts = self.studies[: len(self.studies) // 2] if self.two_view else self.studies
        counts = torch.unique_consecutive(firsts, return_counts=True)[1]
        ends = counts.cumsum(0)[len(counts) // parts - 1 :: len(counts) // parts].tolist()
        return [self._part(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _part(self, start: int, end: int) -> Batch:
        """Images ``start`` to ``end - 1`` (with two views, both of each) and their sentences."""
        images = torch.arange(start, end)
        if self.two_view:
            images = torch.cat([images, images + len(self.studies) // 2])
        mine = (self.owners >= start) & (self.owners < end)
        return replace(
            self,
            images=self.images[images],
            texts=self.texts[mine],
            owners=self.owners[mine] - start,
            studies=self.studies[images],
            draws=None if self.draws is None else self.draws.part(images),
        )


class Ragged:
    """Lists of integers end to end, so that a batch of them is drawn without a loop.

    Attributes:
        counts: ``[lists]`` length of each list.
        starts: ``[lists]`` place of its first element in ``values``.
        values: all lists, one behind the other.
    """

    def __init__(self, lists: list[NDArray[np.int64]]) -> None:
        self.counts = np.array([len(one) for one in lists])
        self.starts = np.cumsum(self.counts) - self.counts
        self.values = np.concatenate(lists)

    def one(self, members: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """One element of each list named in ``members``."""
        places = (rng.random(len(members)) * self.counts[members]).astype(np.int64)
        return self.values[self.starts[members] + places]

    def some(
        self,
        members: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
        first: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Up to ``count`` elements of each list, without repeats, and whose they are.

        Args:
            members: numbers of the lists.
            count: most elements of a list.
            rng: random numbers.
            first: ``[len(values)]``, of which elements one comes first, where a list has any.
        """
        counts = self.counts[members]
        owners = np.repeat(np.arange(len(members)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = self.starts[members][owners] + within
        # Shuffle each list by random keys and keep its first places.
        keys = rng.random(len(owners))
        if first is not None:  # the smallest key among them; nothing changes where it is already
            best = np.full(len(members), np.inf)
            np.minimum.at(best, owners[first[places]], keys[first[places]])
            keys = np.where(first[places] & (keys == best[owners]), -1.0, keys)
        order = np.lexsort((keys, owners))
        chosen = order[within < count]
        return self.values[places[chosen]], owners[chosen]


class StepBatches:
    """Item k is this process's share of the batch of step k.

    Studies are sampled without replacement within an epoch, the last incomplete batch is left
    out, and several sets share a batch by their weights (`medclip_debias.data.mixture`). Of each
    study there are up to ``views_per_study`` images and up to ``sentences_per_study`` sentences,
    without repeats. One of the images is frontal where the study has such an image. Among several
    images of a study each sentence belongs to one chosen at random.

    Every random number is that of the whole batch, whatever the number of processes: the shares
    of all ranks, put together in order, are the batch of a single process, bit for bit (with
    two views: their first halves, then their second halves).

    Args:
        pixels: uint8 ``[rows, S, S]``; only the images of the share are read.
        studies: what to draw from.
        batch_size: studies in the batch of all processes together.
        sentences_per_study: most sentences of a study.
        input_size: side C of the crop.
        augment: how images are changed.
        seed: decides, with the step, everything.
        views_per_study: most images of a study.
        two_view: instead two augmentations of one image of each study, and no sentences.
        rank: this process, counted from 0.
        world: number of processes, each with ``batch_size / world`` studies, a whole number.
        augmentations: how many augmentations of each image there are, one of which (for two views,
            two) is taken at random; 0 augments anew in every step.

    Attributes:
        features: stored features that are read in the place of images, None at first; the rest of
            the batch is the same with and without.
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
        views_per_study: int = 1,
        two_view: bool = False,
        rank: int = 0,
        world: int = 1,
        augmentations: int = 0,
    ) -> None:
        if batch_size > len(studies):
            raise UserError(
                f"setting 'train.batch_size' is {batch_size}, but only {len(studies)} studies can "
                "be trained on; make it smaller."
            )
        if two_view and views_per_study > 1:
            raise UserError(
                f"setting 'train.views_per_study' is {views_per_study}, but two augmented views "
                "are of one image; set it to 1."
            )
        self.pixels = pixels
        self.studies = studies
        self.batch_size = batch_size
        self.sentences_per_study = sentences_per_study
        self.input_size = input_size
        self.augment = augment
        self.seed = seed
        self.views_per_study = views_per_study
        self.two_view = two_view
        self.stored = StoredAugmentations(
            augmentations, augment, seed, len(pixels), pixels.shape[1], input_size
        )
        self.features: FeatureFile | None = None
        self._mixture: Mixture | None = None
        if studies.sets is not None:
            members = [np.flatnonzero(studies.sets == n) for n in range(len(studies.shares))]
            names, weights, batches = zip(*studies.shares, strict=True)
            self._mixture = Mixture(members, weights, batch_size, seed, names, batches)
        share = batch_size // world
        self._share = range(rank * share, (rank + 1) * share)
        self._rows = Ragged(studies.rows)
        self._frontal = self._rows if studies.frontal is None else Ragged(studies.frontal)
        self._is_first = np.isin(self._rows.values, self._frontal.values)
        self._sentences = Ragged(studies.sentences)
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._lock = Lock()  # of what `members` keeps

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the studies."""
        return len(self.studies) // self.batch_size

    def members(self, step: int) -> NDArray[np.int64]:
        """Studies of the batch of ``step``, of all processes: ``[B]``."""
        with self._lock:
            if self._mixture is not None:
                return self._mixture.members(step)
            epoch, place = divmod(step, self.steps_per_epoch)
            if self._order is None or self._order[0] != epoch:  # kept: it costs more than a batch
                rng = np.random.default_rng([_ORDER, self.seed, epoch])
                self._order = epoch, rng.permutation(len(self.studies))
            return self._order[1][place * self.batch_size : (place + 1) * self.batch_size]

    def __getitem__(self, step: int) -> Batch:
        members = self.members(step)
        rng = np.random.default_rng([_CHOICE, self.seed, step])
        # Places in 0..B-1: whose image, whose sentence.
        rows, places = self._images(members, rng)
        texts, speakers, owners = self._said(members, places, rng)
        copies = self.stored.choose(step, len(rows), self.two_view)
        if copies is None:
            draws = draw(rng, self.augment, len(rows), self.pixels.shape[1], self.input_size)
        else:
            draws = self.stored.draws(rows, copies)

        images, said = self._mine(places), self._mine(speakers)
        left = None
        if self.features is not None:
            read = self.features.of(rows[images], None if copies is None else copies[images])
        else:
            left = draws.part(torch.from_numpy(images))
            if self.augment.where == "cpu":
                read, left = torch.from_numpy(augment(self.pixels, rows[images], left)), None
            else:
                read = torch.from_numpy(np.asarray(self.pixels[rows[images]]))
        return Batch(
            read,
            torch.from_numpy(texts[said]),
            torch.from_numpy(owners[said] - int(images[0])),
            torch.from_numpy(members[places[images]]),
            left,
            self.two_view,
        )

    def _images(
        self, members: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the whole batch's images ``[I]`` and the place of each one's study."""
        if self.views_per_study > 1:
            return self._rows.some(members, self.views_per_study, rng, self._is_first)
        views = 2 if self.two_view else 1
        rows = self._frontal.one(members, rng)
        return np.tile(rows, views), np.tile(np.arange(len(members)), views)

    def _said(
        self, members: NDArray[np.int64], places: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The whole batch's sentences ``[T]``: text, place of the study, image of each."""
        if self.two_view:
            none = np.empty(0, dtype=np.int64)
            return none, none, none
        texts, speakers = self._sentences.some(members, self.sentences_per_study, rng)
        if self.views_per_study == 1:
            return texts, speakers, speakers
        counts = np.bincount(places, minlength=len(members))
        starts = np.cumsum(counts) - counts
        chosen = (rng.random(len(texts)) * counts[speakers]).astype(np.int64)
        return texts, speakers, starts[speakers] + chosen

    def _mine(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of what lies at ``places`` is of this process's share."""
        (chosen,) = np.nonzero((places >= self._share.start) & (places < self._share.stop))
        return chosen


def iterate(batches: StepBatches, start: int, stop: int, workers: int) -> Generator[Batch]:
    """Yield the batches of steps ``start`` to ``stop - 1``, read ahead by ``workers`` threads.

    NumPy and OpenCV copy and change pixels without Python's lock, so threads are as fast as
    processes, which would need shared memory and open files, and may be killed. 0 reads in this
    thread.

    Raises:
        UserError: the prepared set cannot be read, or memory or threads do not suffice.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    again = "then run the same command again."

    def read(step: int) -> Batch:
        try:
            batch = batches[step]
        except OSError as error:
            name, why = error.filename or "the prepared set", error.strerror or type(error).__name__
            raise UserError(f"{name}: cannot be read ({why}); fix it, {again}") from error
        except MemoryError:
            raise UserError(
                "The memory does not suffice for the batches that are read ahead; lower"
                f" train.workers or train.batch_size, {again}"
            ) from None
        if device is None:
            return batch
        with torch.cuda.device(device):  # a thread's own is GPU 0
            return batch.pin_memory()

    if not workers:
        yield from map(read, range(start, stop))
        return
    with ThreadPoolExecutor(workers, "loader") as pool:

        def submit(step: int) -> Future[Batch]:
            with explained(
                "the loader's threads cannot be started; lower train.workers", RuntimeError
            ):
                return pool.submit(read, step)

        steps, ahead = range(start, stop), PREFETCH * workers
        yield from in_order(submit, Future.result, steps, lambda: ahead)


def training_corpus(prepared: PreparedSet, split: str = "train") -> list[str]:
    """Every sentence of the studies that `TrainingStudies.of` trains on, one an occurrence.

    Of a set without images it is every study of ``split``.
    """
    if prepared.images.empty:
        names = prepared.studies["study_id"][prepared.studies["split"] == split]
        said = prepared.sentences[prepared.sentences["study_id"].isin(set(names))]
        if said.empty:
            raise UserError(
                f"{prepared.folder}: no study of the split '{split}' has a sentence; see its"
                " funnel.json."
            )
        return said.drop_duplicates(["study_id", "text"])["text"].tolist()
    studies = TrainingStudies.of(prepared, split)
    return [studies.texts[number] for said in studies.sentences for number in said]


def training_patients(prepared: PreparedSet, split: str = "train") -> dict[str, set[str]]:
    """The patients of each distinct sentence in ``split``."""
    studies = prepared.studies.loc[prepared.studies["split"] == split, ["study_id", "patient_id"]]
    said = prepared.sentences[["study_id", "text"]].merge(studies, on="study_id")
    return {str(text): set(patients) for text, patients in said.groupby("text")["patient_id"]}

"""Batches: what is drawn, where it is applied, and that only seed and step decide."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from medclip_debias.config import AugmentSettings
from medclip_debias.data.augment import augment, augment_on_device, draw
from medclip_debias.data.loader import Batch, StepBatches, TrainingStudies, iterate
from medclip_debias.errors import UserError

SIZE, SIDE = 40, 32
PIXELS = np.random.default_rng(0).integers(0, 256, (30, SIZE, SIZE), dtype=np.uint8)


def studies(count=12):
    """Study s has s % 3 + 1 images and s % 4 + 1 sentences."""
    rows, sentences, row = [], [], 0
    for study in range(count):
        rows.append(np.arange(row, row + study % 3 + 1))
        row += study % 3 + 1
        sentences.append(np.arange(study % 4 + 1) + study)
    texts = [f"sentence {number}" for number in range(count + 4)]
    return TrainingStudies(texts, rows, sentences, np.ones(len(texts), dtype=np.int64))


def of_sets(count):
    """The same studies in several sets, which share the batches."""
    if count == 1:
        return studies()
    shares = tuple((f"set {n}", float(n + 1), "") for n in range(count))
    return replace(studies(), sets=np.arange(12) % count, shares=shares)


def batches(pixels=PIXELS, data=None, kind=StepBatches, **changes):
    options = {
        "batch_size": 5,
        "sentences_per_study": 2,
        "input_size": SIDE,
        "augment": AugmentSettings(),
        "seed": 3,
    } | changes
    return kind(pixels, data or studies(), **options)


UNCHANGED = AugmentSettings(crop=False, brightness=0, contrast=0)
"""No augmentation: each image of a batch is the middle of a row of `PIXELS`."""


def shown_rows(batch, rows) -> list[int]:
    """For each image of a batch made with `UNCHANGED`, the row of its study that it is."""
    middle = PIXELS[:, 4 : 4 + SIDE, 4 : 4 + SIDE]
    shown = []
    for image, study in zip(batch.images.numpy(), batch.studies.tolist(), strict=True):
        (place,) = np.flatnonzero((middle[rows[study]] == image).all(axis=(1, 2)))
        shown.append(int(rows[study][place]))
    return shown


def same(a: Batch, b: Batch) -> bool:
    names = ("images", "texts", "owners", "studies")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


class TestDraws:
    def test_they_follow_albumentations(self):
        """Kolmogorov-Smirnov against what albumentations itself draws for the same settings."""
        import albumentations

        ours = draw(np.random.default_rng(1), AugmentSettings(), 2000, SIZE, SIDE)
        theirs = albumentations.RandomBrightnessContrast((-0.2, 0.2), (-0.2, 0.2), p=1.0)
        theirs.set_random_seed(2)
        image = PIXELS[0]
        drawn = [theirs.get_params_dependent_on_data({}, {"image": image}) for _ in range(2000)]
        for mine, name in ((ours.contrast, "alpha"), (ours.brightness, "beta")):
            test = stats.ks_2samp(mine.numpy(), [one[name] for one in drawn])
            assert test.pvalue > 1e-3

    def test_every_corner_of_the_crop_is_equally_likely(self):
        draws = draw(np.random.default_rng(1), AugmentSettings(), 9000, SIZE, SIDE)
        for corner in (draws.top, draws.left):
            counts = np.bincount(corner.numpy(), minlength=SIZE - SIDE + 1)
            assert len(counts) == SIZE - SIDE + 1
            assert stats.chisquare(counts).pvalue > 1e-3


class TestPixels:
    def test_cpu_and_device_give_the_same_bytes(self):
        strong = AugmentSettings(brightness=0.6, contrast=0.9)
        rows = np.random.default_rng(2).integers(0, len(PIXELS), 200)
        draws = draw(np.random.default_rng(3), strong, 200, SIZE, SIDE)
        here = augment(PIXELS, rows, draws)
        there = augment_on_device(torch.from_numpy(PIXELS[rows]), draws)
        np.testing.assert_array_equal(here, there.numpy())

    def test_they_are_contrast_times_value_plus_brightness(self):
        draws = draw(np.random.default_rng(3), AugmentSettings(), 8, SIZE, SIDE)
        found = augment(PIXELS, range(8), draws)
        for number in range(8):
            top, left = int(draws.top[number]), int(draws.left[number])
            crop = PIXELS[number, top : top + SIDE, left : left + SIDE].astype(float)
            value = crop * float(draws.contrast[number]) + float(draws.brightness[number])
            expected = np.clip(value, 0, 255)
            assert np.abs(found[number] - expected).max() < 1.001

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_a_gpu_gives_the_bytes_of_the_cpu(self):
        batch = batches(augment=AugmentSettings(where="device"))[4]
        expected = batch.images_on(torch.device("cpu"))
        pinned = batch.pin_memory()
        assert pinned.images.is_pinned()
        assert torch.equal(pinned.images_on(torch.device("cuda")).cpu(), expected)


class TestBatches:
    @pytest.mark.parametrize("sets", [1, 2])
    def test_any_number_of_workers_gives_the_same(self, sets):
        """Over many epochs: an epoch's order is kept by whichever thread needs it first."""
        alone, helped = (batches(data=of_sets(sets)) for _ in range(2))
        read = list(iterate(helped, 1, 90, 8))
        assert len(read) == 89
        assert all(same(alone[step], batch) for step, batch in enumerate(read, start=1))

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (
                OSError(errno.EIO, "Input/output error", "images.bin"),
                r"images.bin: cannot be read \(Input/output error\); fix it, then run the same",
            ),
            (MemoryError(), r"memory does not suffice .* lower train.workers or train.batch_size"),
        ],
    )
    def test_what_keeps_a_batch_from_being_read_is_one_sentence(self, workers, error, sentence):
        class Unreadable(StepBatches):
            def __getitem__(self, step):
                raise error

        with pytest.raises(UserError, match=sentence):
            next(iterate(batches(kind=Unreadable), 0, 9, workers))

    def test_threads_that_cannot_be_started_are_one_sentence(self, monkeypatch):
        def start(_):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("threading.Thread.start", start)
        with pytest.raises(UserError, match="loader's threads cannot be started"):
            next(iterate(batches(), 0, 9, 2))

    def test_seed_and_step_alone_decide_in_any_order(self):
        forwards, backwards = batches(), batches()
        first = {step: forwards[step] for step in range(6)}
        for step in reversed(range(6)):
            assert same(first[step], backwards[step])
        assert not same(first[0], first[1])
        assert not same(first[0], batches(seed=4)[0])

    @pytest.mark.parametrize("views", [1, 2])
    def test_images_and_sentences_are_drawn_without_repeats_and_evenly(self, views):
        """Images of a study lie side by side, and its sentences belong to each equally often."""
        data, made = studies(), batches(views_per_study=views, augment=UNCHANGED)
        images, owners = np.zeros(len(PIXELS)), np.zeros(views)
        sentences = [np.zeros(len(said)) for said in data.sentences]
        for step in range(600):
            batch = made[step]
            drawn = shown_rows(batch, data.rows)
            assert len(set(drawn)) == len(drawn)
            images[drawn] += 1
            for study in batch.studies.unique().tolist():
                (mine,) = np.nonzero(batch.studies.numpy() == study)
                assert len(mine) == min(views, len(data.rows[study]))
                assert (np.diff(mine) == 1).all()
                told = np.isin(batch.owners.numpy(), mine)
                said = batch.texts.numpy()[told] - study
                assert len(set(said)) == len(said) == min(2, len(data.sentences[study]))
                sentences[study][said] += 1
                if len(mine) == views:
                    owners += np.bincount(batch.owners.numpy()[told] - mine[0], minlength=views)
        for counts in (*(images[rows] for rows in data.rows), *sentences, owners):
            assert len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-4

    @pytest.mark.parametrize("views", [1, 2, 3])
    def test_one_image_is_frontal_where_there_is_one(self, views):
        """Of each study the last image is lateral; studies of one image have nothing else."""
        data = studies()
        data = replace(data, frontal=[rows[: max(len(rows) - 1, 1)] for rows in data.rows])
        made = batches(data=data, views_per_study=views, batch_size=12, augment=UNCHANGED)
        lateral = 0
        for step in range(60):
            rows = set(shown_rows(made[step], data.rows))
            for study in range(12):
                shown = rows & set(data.rows[study].tolist())
                frontal = shown & set(data.frontal[study].tolist())
                assert len(shown) == min(views, len(data.rows[study]))
                assert frontal
                lateral += len(shown - frontal)
        assert (lateral > 0) is (views > 1)

    def test_two_views_are_two_draws_of_the_same_image(self):
        first, second = batches(two_view=True, augment=UNCHANGED)[3].images.chunk(2)
        assert torch.equal(first, second)
        silent = replace(studies(), texts=[], sentences=[np.empty(0, dtype=np.int64)] * 12)
        for data in (studies(), silent):
            batch = batches(two_view=True, data=data)[3]
            first, second = batch.images.chunk(2)
            assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            assert torch.equal(*batch.studies.chunk(2))
            assert len(batch.texts) == len(batch.owners) == 0

    def test_batches_of_one_image_a_study_have_not_changed(self):
        """Digest of three batches as drawn before several views and processes were added."""
        for where in ("cpu", "device"):
            digest, made = hashlib.sha256(), batches(augment=AugmentSettings(where=where))
            for step in (0, 3, 17):
                batch = made[step]
                images = batch.images_on(torch.device("cpu"))
                for value in (images, batch.texts, batch.owners, batch.studies):
                    digest.update(str(value.dtype).encode() + value.numpy().tobytes())
            assert digest.hexdigest().startswith("5000983e70a4b117444fe0515507aa5e")


def joined(shares):
    """The batch of one process from those of all, put together by hand."""
    two_view, device = shares[0].two_view, torch.device("cpu")
    starts = np.cumsum([0, *(len(share.images) for share in shares)])
    per_image = {"images": [s.images_on(device) for s in shares], "studies": []}
    per_image["studies"] = [s.studies for s in shares]
    for name, parts in per_image.items():
        if two_view:  # all first views, then all second ones
            halves = [part.chunk(2) for part in parts]
            parts = [h[0] for h in halves] + [h[1] for h in halves]
        per_image[name] = torch.cat(parts)
    owners = [share.owners + start for share, start in zip(shares, starts, strict=False)]
    return Batch(
        per_image["images"],
        torch.cat([share.texts for share in shares]),
        torch.cat(owners),
        per_image["studies"],
        two_view=two_view,
    )


def augmented(batch):
    """The batch with its augmentation done."""
    return replace(batch, images=batch.images_on(torch.device("cpu")), draws=None)


KINDS = [{}, {"views_per_study": 3}, {"two_view": True}]
"""One image a study, several images, two augmentations of one."""


class Recorded(np.ndarray):
    """Pixels that note which rows are read."""

    def __getitem__(self, key):
        rows = key[0] if isinstance(key, tuple) else key
        self.read.update(np.atleast_1d(np.asarray(rows)).tolist())
        return np.asarray(self)[key]


class TestShares:
    @settings(max_examples=25)
    @given(
        kind=st.sampled_from(KINDS),
        count=st.sampled_from([1, 2, 3, 4, 6, 12]),
        where=st.sampled_from(["cpu", "device"]),
        step=st.integers(0, 30),
        seed=st.integers(0, 5),
    )
    def test_of_processes_or_micro_batches_are_in_order_the_batch(
        self, kind, count, where, step, seed
    ):
        options = {"batch_size": 12, "seed": seed, "augment": AugmentSettings(where=where)} | kind
        whole = batches(**options)[step]
        of_ranks = [batches(**options, rank=rank, world=count)[step] for rank in range(count)]
        for shares in (of_ranks, whole.split(count)):
            assert len(shares) == count
            assert len({len(share.studies.unique()) for share in shares}) == 1
            assert same(joined(shares), augmented(whole))
            for share in shares:
                assert share.two_view is whole.two_view is options.get("two_view", False)
                if len(share.owners):
                    assert 0 <= share.owners.min() <= share.owners.max() < len(share.images)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_process_reads_the_pixels_of_its_share_alone(self, kind):
        for rank in range(3):
            pixels = PIXELS.view(Recorded)
            pixels.read = set()
            made = batches(pixels, batch_size=6, rank=rank, world=3, **kind)
            members = set(made[2].studies.tolist())
            owned = {int(row) for study in members for row in studies().rows[study]}
            assert pixels.read
            assert pixels.read <= owned

    def test_of_two_views_of_several_images_are_an_error(self):
        with pytest.raises(UserError, match=r"views_per_study' is 2"):
            batches(two_view=True, views_per_study=2)


def test_without_text_the_silent_ones_are_kept():
    """Of two tables as a prepared set has them; study c says nothing, d is not for training."""
    images = pd.DataFrame({"study_id": list("abbcd"), "split": ["train"] * 4 + ["test"]})
    sentences = pd.DataFrame({"study_id": list("aabd"), "text": ["x", "y", "y", "z"]})
    sentences["section"] = "findings"
    prepared = SimpleNamespace(
        images=images,
        sentences=sentences,
        folder=Path("set"),
        frontal=np.array([True, False, True, False, True]),
    )
    spoken, all_ = (TrainingStudies.of(prepared, text=text) for text in (True, False))
    assert [rows.tolist() for rows in spoken.rows] == [[0], [1, 2]]
    assert [rows.tolist() for rows in all_.rows] == [[0], [1, 2], [3]]
    assert [rows.tolist() for rows in all_.frontal] == [[0], [2], [3]]
    assert spoken.texts == all_.texts == ["x", "y"]
    assert [said.tolist() for said in all_.sentences] == [[0, 1], [1], []]
    prepared.sentences = sentences.iloc[:0]
    assert TrainingStudies.of(prepared, text=False).texts == []
    with pytest.raises(UserError, match="both an image and a sentence"):
        TrainingStudies.of(prepared)

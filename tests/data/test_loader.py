"""Batches: what is drawn, where it is applied, and that only seed and step decide."""

import numpy as np
import pytest
import torch
from scipy import stats

from medclip_debias.config import AugmentSettings
from medclip_debias.data.augment import augment, augment_on_device, draw
from medclip_debias.data.loader import Batch, StepBatches, TrainingStudies, iterate

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


def batches(**changes):
    options = {
        "batch_size": 5,
        "sentences_per_study": 2,
        "input_size": SIDE,
        "augment": AugmentSettings(),
        "seed": 3,
    } | changes
    return StepBatches(PIXELS, studies(), **options)


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

    def test_switched_off_they_are_the_central_crop(self):
        off = AugmentSettings(crop=False, brightness=0, contrast=0)
        draws = draw(np.random.default_rng(1), off, 4, SIZE, SIDE)
        expected = PIXELS[:4, 4 : 4 + SIDE, 4 : 4 + SIDE]
        np.testing.assert_array_equal(augment(PIXELS, range(4), draws), expected)
        on_device = augment_on_device(torch.from_numpy(PIXELS[:4]), draws)
        np.testing.assert_array_equal(on_device.numpy(), expected)


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

    def test_a_batch_on_the_device_equals_the_batch_of_the_cpu(self):
        device = torch.device("cpu")
        here, there = batches()[4], batches(augment=AugmentSettings(where="device"))[4]
        assert there.images.shape == (5, SIZE, SIZE)
        assert torch.equal(here.images_on(device), there.images_on(device))
        assert torch.equal(here.texts, there.texts)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_a_gpu_gives_the_bytes_of_the_cpu(self):
        batch = batches(augment=AugmentSettings(where="device"))[4]
        expected = batch.images_on(torch.device("cpu"))
        pinned = batch.pin_memory()
        assert pinned.images.is_pinned()
        assert torch.equal(pinned.images_on(torch.device("cuda")).cpu(), expected)


class TestBatches:
    @pytest.mark.parametrize("where", ["cpu", "device"])
    @pytest.mark.parametrize("workers", [1, 2])
    def test_any_number_of_workers_gives_the_same(self, where, workers):
        made = batches(augment=AugmentSettings(where=where))
        alone = list(iterate(made, 1, 6, workers=0))
        helped = list(iterate(made, 1, 6, workers=workers))
        assert len(alone) == len(helped) == 5
        for a, b in zip(alone, helped, strict=True):
            assert same(a, b)
            assert torch.equal(a.images_on(torch.device("cpu")), b.images_on(torch.device("cpu")))

    def test_steps_may_come_in_any_order(self):
        forwards, backwards = batches(), batches()
        first = {step: forwards[step] for step in range(6)}
        for step in reversed(range(6)):
            assert same(first[step], backwards[step])

    def test_seeds_and_steps_differ(self):
        made = batches()
        assert not same(made[0], made[1])
        assert not same(made[0], batches(seed=4)[0])

    def test_every_image_of_a_study_has_its_turn(self):
        data = studies()
        made = batches(augment=AugmentSettings(crop=False, brightness=0, contrast=0))
        counts = np.zeros(len(PIXELS), dtype=int)
        for step in range(600):
            batch = made[step]
            for image, study in zip(batch.images.numpy(), batch.studies.tolist(), strict=True):
                choices = data.rows[study]
                inner = PIXELS[choices][:, 4 : 4 + SIDE, 4 : 4 + SIDE]
                (match,) = np.flatnonzero((inner == image).all(axis=(1, 2)))
                counts[choices[match]] += 1
        for rows in (rows for rows in data.rows if len(rows) > 1):
            assert stats.chisquare(counts[rows]).pvalue > 1e-4

    def test_sentences_are_drawn_without_repeats_and_evenly(self):
        data, made = studies(), batches(sentences_per_study=2)
        counts = {study: np.zeros(len(said)) for study, said in enumerate(data.sentences)}
        for step in range(600):
            batch = made[step]
            for place, study in enumerate(batch.studies.tolist()):
                said = batch.texts[batch.owners == place].numpy() - study
                assert len(set(said)) == len(said) == min(2, len(data.sentences[study]))
                counts[study][said] += 1
        for found in (found for found in counts.values() if len(found) > 1):
            assert stats.chisquare(found).pvalue > 1e-4

    def test_a_memory_map_is_read_as_an_array_is(self, tmp_path):
        PIXELS.tofile(tmp_path / "images.bin")
        mapped = np.memmap(tmp_path / "images.bin", np.uint8, "r", shape=PIXELS.shape)
        for where in ("cpu", "device"):
            made = batches(augment=AugmentSettings(where=where))
            on_disk = StepBatches(
                mapped,
                studies(),
                batch_size=5,
                sentences_per_study=2,
                input_size=SIDE,
                augment=AugmentSettings(where=where),
                seed=3,
            )
            assert same(made[2], on_disk[2])

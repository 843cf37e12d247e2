"""Sharpened maps: each way against its definition, and on the range of the plain map."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.data.prompts import default_prompts, sets_of
from medclip_debias.errors import UserError
from medclip_debias.grounding.sharpen import Sharpener, checked_sharpen, to_range_of

TEXTS = ["Small left pleural effusion.", "As before."]


@pytest.fixture(scope="module")
def seen(model):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, 96, 96), np.uint8))
    with torch.inference_mode():
        return model.encode_images(pixels)


def vectors_of(count, seed):
    found = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 16)))
    return torch.nn.functional.normalize(found.float(), dim=1)


def maps_of(model, seen, vectors):
    with torch.inference_mode():
        return model.region_scores(seen, vectors).numpy().astype(float)


def sharpened(model, seen, way):
    """The sentences that the way needs, random vectors for all, and the maps."""
    maker = Sharpener(way, TEXTS, default_prompts())
    vectors, further = vectors_of(2, 0), vectors_of(len(maker.texts), 1)
    return maker.texts, vectors, further, maker.maps(model, seen, [0, 1], vectors, further)


@pytest.mark.parametrize(
    ("way", "texts"),
    [
        ("contrast", ["No pleural effusion.", "No acute cardiopulmonary process."]),
        ("redundant", None),
        ("findings", ["Pleural effusion."]),
    ],
)
def test_each_way_is_its_definition_brought_to_the_plain_range(model, seen, way, texts):
    names, vectors, further, maps = sharpened(model, seen, way)
    own = texts or list(dict.fromkeys(t for s in sets_of(default_prompts()) for t in s.texts))
    assert names == own
    plain, others = maps_of(model, seen, vectors), maps_of(model, seen, further)
    told = {
        "contrast": plain[:, 0] - others[:, 0],
        "redundant": plain[:, 0] - others.mean(axis=1),
        "findings": others[:, 0],
    }[way]
    for image in range(3):
        low, high = told[image].min(), told[image].max()
        a, b = plain[image, 0].min(), plain[image, 0].max()
        wanted = a + (told[image] - low) / (high - low) * (b - a)
        np.testing.assert_allclose(maps[image, 0], wanted, atol=2e-6)


def test_pruning_takes_the_mean_with_the_shorter_sentences_that_score_as_high(model, seen):
    names, vectors, further, maps = sharpened(model, seen, "prune")
    assert names[:2] == ["left pleural effusion.", "Small pleural effusion."]
    plain, others = maps_of(model, seen, vectors), maps_of(model, seen, further)
    with torch.inference_mode():
        scores = model.score(seen, vectors).numpy()
        rivals = model.score(seen, further).numpy()
    for image in range(3):
        for t, columns in enumerate((range(4), range(4, len(names)))):
            kept = [others[image, n] for n in columns if rivals[image, n] >= scores[image, t]]
            mean = np.mean([plain[image, t], *kept], axis=0)
            wanted = to_range_of(plain[image, t], mean)
            np.testing.assert_allclose(maps[image, t], wanted, atol=2e-6)


def test_none_a_sentence_without_a_finding_and_a_flat_map_leave_the_plain_one(model, seen):
    for way, columns in (("none", [0, 1]), ("findings", [1])):
        _, vectors, _, maps = sharpened(model, seen, way)
        plain = maps_of(model, seen, vectors).astype(np.float32)
        np.testing.assert_array_equal(maps[:, columns], plain[:, columns])
    np.testing.assert_array_equal(to_range_of(np.array([1.0, 2.0]), np.array([3.0, 3.0])), [1, 2])


def test_an_unknown_way_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"'contrst'.*contrast"):
        checked_sharpen("contrst")

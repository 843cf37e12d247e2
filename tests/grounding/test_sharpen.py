"""Sharpened maps: each way against its definition, and on the range of the plain map."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.data.prompts import default_prompts
from medclip_debias.errors import UserError
from medclip_debias.grounding.sharpen import Sharpener, checked_sharpen, to_range_of

TEXTS = ["Small left pleural effusion.", "As before."]


@pytest.fixture(scope="module")
def seen(model):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, 96, 96), np.uint8))
    with torch.inference_mode():
        return model.encode_images(pixels)


def sharpened(model, seen, way):
    maker = Sharpener(way, TEXTS, default_prompts())
    with torch.inference_mode():
        vectors, further = model.encode_sentences(TEXTS), model.encode_sentences(
            maker.texts or ["none"]
        )
    return maker, maker.maps(model, seen, [0, 1], vectors, further), further


def plain_of(model, seen, texts):
    with torch.inference_mode():
        vectors = model.encode_sentences(texts)
        return (
            model.region_scores(seen, vectors).numpy().astype(float),
            model.score(seen, vectors).numpy(),
        )


def test_none_leaves_the_map_as_it_is(model, seen):
    maker, maps, _ = sharpened(model, seen, "none")
    assert maker.texts == []
    np.testing.assert_array_equal(maps, plain_of(model, seen, TEXTS)[0].astype(np.float32))


def test_each_way_is_its_definition_brought_to_the_plain_range(model, seen):
    plain, _ = plain_of(model, seen, TEXTS)
    prompts = list(dict.fromkeys(t for s in _sets() for t in s.texts))
    wanted = {
        "contrast": plain[:, 0] - plain_of(model, seen, ["No pleural effusion."])[0][:, 0],
        "redundant": plain[:, 0] - plain_of(model, seen, prompts)[0].mean(axis=1),
        "findings": plain_of(model, seen, ["Pleural effusion."])[0][:, 0],
    }
    for way, definition in wanted.items():
        _, maps, _ = sharpened(model, seen, way)
        for image in range(3):
            # Equal up to one rising line, which runs through the ends of the plain map's range.
            own, told = maps[image, 0], definition[image]
            line = np.polyfit(told, own, 1)
            np.testing.assert_allclose(np.polyval(line, told), own, atol=2e-6)
            assert line[0] > 0
        np.testing.assert_allclose(maps.min(axis=2), plain.min(axis=2), atol=1e-6)
        np.testing.assert_allclose(maps.max(axis=2), plain.max(axis=2), atol=1e-6)


def test_pruning_takes_the_mean_with_the_shorter_sentences_that_score_as_high(model, seen):
    shorter = [
        "left pleural effusion.",
        "Small pleural effusion.",
        "Small left effusion.",
        "Small left pleural.",
    ]
    plain, own = plain_of(model, seen, TEXTS[:1])
    maps, scores = plain_of(model, seen, shorter)
    _, found, _ = sharpened(model, seen, "prune")
    for image in range(3):
        kept = [maps[image, n] for n in range(4) if scores[image, n] >= own[image, 0]]
        wanted = to_range_of(plain[image, 0], np.mean([plain[image, 0], *kept], axis=0))
        np.testing.assert_allclose(found[image, 0], wanted, atol=2e-6)


def test_a_sentence_without_a_finding_keeps_its_map_and_so_does_a_flat_one(model, seen):
    _, maps, _ = sharpened(model, seen, "findings")
    np.testing.assert_array_equal(maps[:, 1], plain_of(model, seen, TEXTS)[0][:, 1].astype("f4"))
    np.testing.assert_array_equal(to_range_of(np.array([1.0, 2.0]), np.array([3.0, 3.0])), [1, 2])


def test_an_unknown_way_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="'contrst'.*contrast"):
        checked_sharpen("contrst")


def _sets():
    from medclip_debias.data.prompts import sets_of

    return sets_of(default_prompts())

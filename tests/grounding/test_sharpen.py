"""Sharpened maps: each way against its definition, and on the range of the plain map."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.data.prompts import default_prompts, sets_of
from medclip_debias.errors import UserError
from medclip_debias.grounding.sharpen import Sharpener, to_range_of

TEXTS = ["Small left pleural effusion.", "As before."]
PROMPTS = list(dict.fromkeys(t for s in sets_of(default_prompts()) for t in s.texts))
COMPANIONS = {
    "none": [],
    "contrast": ["No pleural effusion.", "No acute cardiopulmonary process."],
    "redundant": PROMPTS,
    "findings": ["Pleural effusion."],
    "prune": [
        "left pleural effusion.",
        "Small pleural effusion.",
        "Small left effusion.",
        "Small left pleural.",
        "before.",
        "As.",
    ],
}


def vectors_of(count, seed):
    found = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 16)))
    return torch.nn.functional.normalize(found.float(), dim=1)


@pytest.mark.parametrize("way", COMPANIONS)
def test_each_way_is_its_definition_brought_to_the_plain_range(model, way):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, 96, 96), np.uint8))
    maker = Sharpener(way, TEXTS, default_prompts())
    assert maker.texts == COMPANIONS[way]
    vectors, further = vectors_of(2, 0), vectors_of(len(maker.texts), 1)
    with torch.inference_mode():
        seen = model.encode_images(pixels)
        known = further if len(further) else vectors
        maps = maker.maps(model, seen, [0, 1], vectors, further)
        plain, others = (
            model.region_scores(seen, v).numpy().astype(float) for v in (vectors, known)
        )
        scores, rivals = (model.score(seen, v).numpy() for v in (vectors, known))
    for image in range(3):
        for t, columns in enumerate((range(4), range(4, 6))):
            expected = {
                "none": lambda i=image, t=t: plain[i, t],
                "contrast": lambda i=image, t=t: plain[i, t] - others[i, t],
                "redundant": lambda i=image, t=t: plain[i, t] - others[i].mean(axis=0),
                # A sentence without a finding keeps its plain map.
                "findings": lambda i=image, t=t: plain[i, t] if t else others[i, 0],
                "prune": lambda i=image, t=t, c=columns: np.mean(
                    [plain[i, t], *(others[i, n] for n in c if rivals[i, n] >= scores[i, t])],
                    axis=0,
                ),
            }[way]()
            low, high = plain[image, t].min(), plain[image, t].max()
            share = (expected - expected.min()) / (expected.max() - expected.min())
            np.testing.assert_allclose(maps[image, t], low + share * (high - low), atol=2e-6)


def test_a_flat_map_leaves_the_plain_one_and_an_unknown_way_is_refused():
    np.testing.assert_array_equal(to_range_of(np.array([1.0, 2.0]), np.array([3.0, 3.0])), [1, 2])
    with pytest.raises(UserError, match=r"'contrst'.*contrast"):
        Sharpener("contrst", ["Left lung."], {})

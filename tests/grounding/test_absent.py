"""Where colour begins: the scores of findings that the model holds to be absent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.grounding.absent import AbsentFindings, AbsentScores

PROMPTS = {
    "own": {
        "name": "own",
        "classes": {
            "Left": {"positive": ["Left lung.", "Left lung left."], "negative": ["Right left."]},
            "Right": {"positive": ["Right lung."], "negative": ["Lung right right.", "Right."]},
            "Lung": {"positive": ["Lung."], "negative": ["Lung lung left right."]},
        },
    }
}


def by_hand(model, image):
    """Reference, median and absent classes of one prepared image, a sentence at a time."""
    features = model.encode_images(image[None])
    pool, names, gaps = [], [], {}
    for name, sides in PROMPTS["own"]["classes"].items():
        means, maps = {}, []
        for side in ("positive", "negative"):
            vectors = [model.encode_sentences([text]) for text in sides[side]]
            means[side] = np.mean([model.score(features, vector).item() for vector in vectors])
            maps += [model.region_scores(features, vector).numpy().ravel() for vector in vectors]
        gaps[name] = means["positive"] - means["negative"]
        if gaps[name] < 0:
            names.append(name)
            pool += maps
        gaps[name] = gaps[name], maps
    if not names:
        names = [min(gaps, key=lambda name: gaps[name][0])]
        pool = gaps[names[0]][1]
    values = np.sort(np.concatenate(pool).astype(np.float64))
    at = 0.95 * (len(values) - 1)
    low = values[int(at)]
    return low + (at - int(at)) * (values[int(at) + 1] - low), np.median(values), tuple(names)


def test_the_reference_repeats_a_loop_over_sentences(make_model):
    torch.manual_seed(5)
    images = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8)
    chosen = set()
    for seed in range(4):
        model = make_model(96, 80, (0, 100), seed)
        model.prompts = PROMPTS
        with torch.inference_mode():
            found = AbsentFindings(model).of(model.encode_images(images))
            for image, scores in zip(images, found, strict=True):
                reference, middle, classes = by_hand(model, image)
                assert scores.reference == pytest.approx(reference, abs=1e-5)
                assert scores.middle == pytest.approx(middle, abs=1e-5)
                assert scores.classes == classes
                chosen.add(classes)
    assert len(chosen) > 1


def test_colours_run_from_the_median_at_least_as_far_beyond_the_reference():
    scores = AbsentScores(0.5, 0.3, ())
    assert scores.limits(0.55) == pytest.approx((0.3, 0.7))
    assert scores.limits(0.9) == pytest.approx((0.3, 0.9))
    assert AbsentScores(0.9, 0.5, ()).limits(0.2) == pytest.approx((0.5, 1.0))  # no cosine above 1
    low, high = AbsentScores(1.0, 1.0, ()).limits(1.0)
    assert low < high

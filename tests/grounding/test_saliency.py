"""Explanations of a model's score against their definitions, written out in double precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.grounding.saliency import CELLS, SeenFeatures, with_maps, without_maps

TEXTS = ["Left lung.", "Right lung.", "As before."]
SIDE = 96


@pytest.fixture(scope="module")
def pixels():
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (2, SIDE, SIDE), np.uint8))


@pytest.fixture(scope="module")
def vectors(model):
    with torch.no_grad():
        return model.encode_sentences(TEXTS)


def maps_of(model, pixels, vectors):
    with torch.inference_mode():
        return model.region_scores(model.encode_images(pixels), vectors).numpy()


def exact(model):
    """Scores of normalised images in double precision, from the parts of the model."""
    parts = copy.deepcopy(model).double()

    def score(features, vectors):
        rows = features.flatten(2).transpose(1, 2)
        regions = torch.nn.functional.normalize(parts.image_projection(rows), dim=-1)
        return parts.similarity(regions, vectors.double())

    return parts.image_encoder, score


def test_gradcam_is_its_definition_in_double_precision(model, pixels, vectors):
    encoder, score = exact(model)
    features = encoder(model.normalise(pixels).double()).detach()
    expected = np.zeros((2, 3, *model.grid.shape))
    for image in range(2):
        for sentence in range(3):
            own = features[image : image + 1].clone().requires_grad_()
            value = score(own, vectors[sentence : sentence + 1].clone())[0, 0]
            (gradient,) = torch.autograd.grad(value, own)
            weights, own = gradient[0].mean(dim=(1, 2)), own.detach()
            for row in range(model.grid.rows):
                for column in range(model.grid.columns):
                    place = float((weights * own[0, :, row, column]).sum())
                    expected[image, sentence, row, column] = max(place, 0.0)
    found = maps_of(with_maps(model, "gradcam"), pixels, vectors).reshape(expected.shape)
    assert expected.max() > 0
    np.testing.assert_allclose(found, expected, atol=1e-4 * expected.max())


def test_occlusion_is_brute_force(model, pixels, vectors):
    encoder, score = exact(model)
    images = model.normalise(pixels).double()
    cell = images.shape[-1] // CELLS
    expected = np.zeros((2, 3, CELLS, CELLS))
    with torch.no_grad():
        for number, image in enumerate(images):
            whole = score(encoder(image[None]), vectors.clone())[0].numpy()
            counts = np.zeros((CELLS, CELLS))
            for row in range(CELLS - 1):
                for column in range(CELLS - 1):
                    covered = image.clone()
                    top, left = row * cell, column * cell
                    covered[:, top : top + 2 * cell, left : left + 2 * cell] = image.mean()
                    falls = whole - score(encoder(covered[None]), vectors.clone())[0].numpy()
                    own = slice(row, row + 2), slice(column, column + 2)
                    expected[number][(slice(None), *own)] += falls[:, None, None]
                    counts[own] += 1
            expected[number] /= counts
    found = maps_of(with_maps(model, "occlusion"), pixels, vectors).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_scores_weights_and_gradients_stay(model, pixels, vectors):
    explained = with_maps(model, "gradcam")
    features = explained.encode_images(pixels)
    plain = model.encode_images(pixels)
    assert torch.equal(explained.score(features, vectors), model.score(plain, vectors))
    explained.region_scores(features, vectors)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert explained.content_hash == model.content_hash
    assert explained.outputs.map_kind == "gradcam"
    assert without_maps(explained) is model


def test_features_keep_their_images(model, pixels):
    features = with_maps(model, "gradcam").encode_images(pixels)
    for rows in (1, [1], slice(1, 2), np.array([1]), torch.tensor([False, True])):
        part = features[rows]
        assert isinstance(part, SeenFeatures)
        assert torch.equal(part.images, pixels[1:])
    assert torch.equal(features.cpu().images, pixels)
    assert [one.images.shape[0] for one in features] == [1, 1]


def test_similarity_is_the_model_itself_and_other_methods_are_refused(model):
    assert with_maps(model, "similarity") is model
    with pytest.raises(UserError, match="did you mean 'gradcam'"):
        with_maps(model, "gradcm")

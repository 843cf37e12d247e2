"""Explanations of a model's score against their definitions, written out in double precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.grounding.saliency import CELLS, with_maps, without_maps

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
    (image,) = model.normalise(pixels[:1]).double()
    cell = image.shape[-1] // CELLS
    corners = [(row, column) for row in range(CELLS - 1) for column in range(CELLS - 1)]
    views = [image]
    for row, column in corners:
        top, left = row * cell, column * cell
        views.append(image.clone())
        views[-1][:, top : top + 2 * cell, left : left + 2 * cell] = image.mean()
    with torch.no_grad():
        whole, *covered = score(encoder(torch.stack(views)), vectors.clone()).numpy()
    expected, counts = np.zeros((3, CELLS, CELLS)), np.zeros((CELLS, CELLS))
    for (row, column), scores in zip(corners, covered, strict=True):
        expected[:, row : row + 2, column : column + 2] += (whole - scores)[:, None, None]
        counts[row : row + 2, column : column + 2] += 1
    found = maps_of(with_maps(model, "occlusion"), pixels[:1], vectors)
    np.testing.assert_allclose(found.reshape(expected.shape), expected / counts, atol=1e-5)


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


def test_a_part_of_the_features_has_the_maps_of_its_images(model, pixels, vectors):
    explained = with_maps(model, "gradcam")
    features = explained.encode_images(pixels)
    whole = explained.region_scores(features, vectors)
    for rows in (1, [1], slice(1, 2), torch.tensor([False, True])):
        part = explained.region_scores(features[rows], vectors)
        torch.testing.assert_close(part, whole[1:])


def test_similarity_is_the_model_itself_and_other_methods_are_refused(model):
    assert with_maps(model, "similarity") is model
    with pytest.raises(UserError, match="did you mean 'gradcam'"):
        with_maps(model, "gradcm")

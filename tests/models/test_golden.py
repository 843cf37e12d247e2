"""Golden samples: damage, another tokenizer and drift are distinguished; harmless folders load."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SelfTestWarning, golden_images
from tests.helpers.small_models import dual_encoder, edit_json


@pytest.fixture
def folder(saved_model, tmp_path):
    return shutil.copytree(saved_model, tmp_path / "model")


def quiet(folder, **options):
    """The self-test's report of a folder that gives no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return DualEncoder.load(folder, **options).self_test


def warned(folder, sentence):
    with pytest.warns(SelfTestWarning, match=sentence) as caught:
        report = DualEncoder.load(folder).self_test
    assert [str(one.message) for one in caught] == [report["sentence"]]
    assert "\n" not in report["sentence"]
    return report


def test_stored_scores_are_those_of_the_public_interface(folder):
    passed = quiet(folder)
    assert passed["status"] == "passed"
    assert passed["largest_difference"] <= 1e-6
    stored = json.loads((folder / "golden.json").read_text())
    model = DualEncoder.load(folder, check=False)
    with torch.no_grad():  # by the path every evaluation takes: uint8 images, then the similarity
        features = model.encode_images(golden_images(stored["side"]))
        sentences = model.encode_sentences(stored["sentences"])
        scores = model.score(features, sentences)
        maps = torch.einsum("bnd,td->btn", features.regions.double(), sentences.double())
    assert torch.allclose(scores, torch.tensor(stored["similarity"]), atol=1e-5)
    expected = [maps.mean(-1), maps.std(-1, unbiased=False), maps.amin(-1), maps.amax(-1)]
    regions = torch.tensor(stored["regions"], dtype=torch.float64)
    assert torch.allclose(regions, torch.stack(expected, -1), atol=1e-5)


def other_weights(folder):
    state = load_file(folder / "model.safetensors")
    state["text_projection.weight"][0] *= 3
    save_file(state, folder / "model.safetensors")


def other_preprocessing(folder):
    how = json.loads((folder / "config.json").read_text())["preprocessing"]
    edit_json(folder / "config.json", preprocessing=how | {"std": 0.5})


def other_tokens(folder):
    tokens = json.loads((folder / "golden.json").read_text())["tokens"]
    edit_json(folder / "golden.json", tokens=[[*row, 1] for row in tokens])


def cut_off(folder):
    path = folder / "golden.json"
    path.write_text(path.read_text()[:-40])


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        (other_weights, "weights", "are not those that were saved"),
        (other_preprocessing, "weights", "are not those that were saved"),
        (other_tokens, "tokens", "cut into other tokens"),
        (cut_off, "damaged", r"golden\.json: is damaged"),
    ],
)
def test_what_changed_is_distinguished_and_said(folder, change, status, sentence):
    change(folder)
    assert warned(folder, sentence)["status"] == status
    assert quiet(folder, check=False) == {"status": "off"}


def test_what_changes_no_score_is_not_reported(folder):
    edit_json(folder / "config.json", prompts={"mine": {}})
    assert quiet(folder)["status"] == "passed"
    edit_json(folder / "golden.json", format=99)
    assert quiet(folder) == {"status": "absent"}
    (folder / "golden.json").unlink()
    assert quiet(folder) == {"status": "absent"}


def test_numbers_that_move_with_the_same_files_are_drift_but_on_a_coarser_device(folder):
    scores = json.loads((folder / "golden.json").read_text())["similarity"]
    moved = [[value + 1e-3 for value in row] for row in scores]
    edit_json(folder / "golden.json", similarity=moved, precision="tf32")
    assert quiet(folder)["status"] == "passed"
    scores[1][2] += 2e-4
    edit_json(folder / "golden.json", similarity=scores, precision="float32")
    report = warned(folder, "the same files give other numbers here")
    assert report["status"] == "drift"
    assert report["largest_difference"] == pytest.approx(2e-4, rel=0.05)


def test_saving_leaves_the_model_and_the_random_numbers_as_they_were(texts, tmp_path):
    model = dual_encoder(texts).train()
    model.text_encoder.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    model.save(tmp_path / "model")
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():  # one that gives no numbers is saved without samples
        model.image_projection.weight.fill_(float("nan"))
    model.save(tmp_path / "broken")
    assert not (tmp_path / "broken" / "golden.json").exists()


def test_the_made_images_are_frozen():
    images = golden_images(32)
    # By hand, image 0 at (y, x) = (3, 5): (5 * 97 + 3 * 61) // 32 + |21 - 32| + |10 - 11|.
    assert images[0, 3, 5] == 20 + 11 + 1
    # Image 1 at (3, 12), in its square: (12 * 97 + 3 * 101) // 32 + |54 - 32| + |3 - 11| + 70.
    assert images[1, 3, 12] == 45 + 22 + 8 + 70

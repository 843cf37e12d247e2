"""Golden samples: damage, another tokenizer and drift are distinguished; harmless folders load."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.models import golden
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SelfTestWarning, golden_images, golden_scores


def build(text_folder, size=40, side=32):
    torch.manual_seed(0)
    return DualEncoder.create(
        ModelSettings(
            image=ImageEncoderSettings(arch="resnet_small"),
            text=TextEncoderSettings(folder=text_folder, max_tokens=16),
            dim=8,
        ),
        Preprocessing(prepare=PrepareSettings(size=size), input_size=side),
    )


@pytest.fixture
def folder(bert_folder, tmp_path):
    build(bert_folder).save(tmp_path / "model")
    return tmp_path / "model"


def edit(folder, **changes):
    path = folder / "golden.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_model_passes_and_does_not_warn(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = DualEncoder.load(folder).self_test
    assert found["status"] == "passed"
    assert found["largest_difference"] <= 1e-6
    assert "sentence" not in found


def test_stored_scores_are_those_of_the_public_interface(folder):
    stored = json.loads((folder / "golden.json").read_text())
    model = DualEncoder.load(folder, check=False)
    with torch.no_grad():  # by the path every evaluation takes: uint8 images, then the similarity
        features = model.encode_images(golden_images(stored["side"]))
        sentences = model.encode_sentences(stored["sentences"])
        scores = model.score(features, sentences)
        maps = torch.einsum("bnd,td->btn", features.regions.double(), sentences.double())
    assert torch.allclose(scores, torch.tensor(stored["similarity"]), atol=1e-5)
    expected = [maps.mean(-1), maps.std(-1, unbiased=False), maps.amin(-1), maps.amax(-1)]
    found = torch.tensor(stored["regions"], dtype=torch.float64)
    assert torch.allclose(found, torch.stack(expected, -1), atol=1e-5)


def test_changed_weights_are_distinguished_from_drift(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    state["text_projection.weight"][0] *= 3
    save_file(state, path)
    with pytest.warns(SelfTestWarning, match="are not those that were saved"):
        found = DualEncoder.load(folder).self_test
    assert found["status"] == "weights"
    assert found["largest_difference"] > found["tolerance"]


def test_the_command_line_shows_the_sentence_alone(folder, tmp_path, capsys):
    from PIL import Image

    from medclip_debias.cli import run

    path = folder / "model.safetensors"
    state = load_file(path)
    state["text_projection.weight"][0] *= 3
    save_file(state, path)
    Image.effect_noise((50, 60), 90).save(tmp_path / "image.png")
    words = ["ground", str(folder), str(tmp_path / "image.png"), "--text", "Left lung."]
    run([*words, "--out", str(tmp_path / "maps")])
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "not those that were" in x]
    assert line.startswith("medclip-debias: ")
    assert "golden.py" not in line


def test_changed_preprocessing_is_reported_and_changed_prompts_are_not(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"prompts": {"mine": {}}}))
    assert DualEncoder.load(folder).self_test["status"] == "passed"
    config["preprocessing"]["std"] = 0.5
    path.write_text(json.dumps(config))
    with pytest.warns(SelfTestWarning, match="are not those that were saved"):
        assert DualEncoder.load(folder).self_test["status"] == "weights"


def test_numbers_that_move_with_the_same_files_are_drift(folder):
    stored = json.loads((folder / "golden.json").read_text())
    moved = stored["similarity"]
    moved[1][2] += 2e-4
    edit(folder, similarity=moved)
    with pytest.warns(SelfTestWarning, match="the same files give other numbers here") as caught:
        found = DualEncoder.load(folder).self_test
    assert found["status"] == "drift"
    assert found["largest_difference"] == pytest.approx(2e-4, rel=0.05)
    sentence = str(caught[0].message)
    assert sentence.count("\n") == 0
    assert sentence == found["sentence"]


def test_a_coarser_device_may_differ_more(folder):
    stored = json.loads((folder / "golden.json").read_text())
    moved = [[value + 1e-3 for value in row] for row in stored["similarity"]]
    edit(folder, similarity=moved, precision="tf32")
    assert DualEncoder.load(folder).self_test["status"] == "passed"
    edit(folder, similarity=moved, precision="float32")
    with pytest.warns(SelfTestWarning):
        assert DualEncoder.load(folder).self_test["status"] == "drift"


def test_a_model_rounded_to_bfloat16_stays_within_its_tolerance(folder):
    stored = json.loads((folder / "golden.json").read_text())
    model = DualEncoder.load(folder, check=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    found = golden_scores(model, stored["side"])
    gap = (torch.tensor(found["similarity"]) - torch.tensor(stored["similarity"])).abs().max()
    assert golden.TOLERANCES["float32"] < gap < golden.TOLERANCES["bfloat16"]


def test_other_tokens_are_distinguished(folder):
    tokens = json.loads((folder / "golden.json").read_text())["tokens"]
    edit(folder, tokens=[[*row, 1] for row in tokens])
    with pytest.warns(SelfTestWarning, match="cut into other tokens"):
        assert DualEncoder.load(folder).self_test["status"] == "tokens"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"format": 1, "sentences": ["x"]}', "cut"]
)
def test_a_damaged_file_of_samples_is_said_in_one_sentence(folder, content):
    path = folder / "golden.json"
    path.write_text(path.read_text()[:-40] if content == "cut" else content)
    with pytest.warns(SelfTestWarning, match=r"golden\.json: is damaged") as caught:
        found = DualEncoder.load(folder).self_test
    assert len(caught) == 1
    assert found == {"status": "damaged", "sentence": str(caught[0].message)}


@pytest.mark.parametrize("content", [None, '{"format": 99}'])
def test_folders_without_samples_of_this_format_load(folder, content):
    path = folder / "golden.json"
    path.unlink() if content is None else path.write_text(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DualEncoder.load(folder).self_test == {"status": "absent"}


def test_the_test_can_be_switched_off(folder):
    edit(folder, tokens=[])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DualEncoder.load(folder, check=False).self_test == {"status": "off"}


def test_saving_leaves_the_model_and_the_random_numbers_as_they_were(bert_folder, tmp_path):
    model = build(bert_folder).train()
    model.text_encoder.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    model.save(tmp_path / "model")
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert DualEncoder.load(tmp_path / "model").self_test["status"] == "passed"


def test_a_model_that_gives_no_numbers_is_saved_without_samples(bert_folder, tmp_path):
    model = build(bert_folder)
    with torch.no_grad():
        model.image_projection.weight.fill_(float("nan"))
    model.save(tmp_path / "model")
    assert not (tmp_path / "model" / "golden.json").exists()
    assert DualEncoder.load(tmp_path / "model").self_test["status"] == "absent"


def test_large_inputs_are_tested_on_small_images(bert_folder, tmp_path):
    build(bert_folder, size=1024, side=1000).save(tmp_path / "model")
    stored = json.loads((tmp_path / "model" / "golden.json").read_text())
    assert stored["side"] == golden.LARGEST_SIDE


def test_the_made_images_are_frozen():
    images = golden_images(32)
    assert images.shape == (2, 32, 32)
    # By hand, image 0 at (y, x) = (3, 5): (5 * 97 + 3 * 61) // 32 + |21 - 32| + |10 - 11|.
    assert images[0, 3, 5] == 20 + 11 + 1
    assert images[0, 0, 0] == 0 + 32 + 11
    # Image 1 at (3, 12), in its square: (12 * 97 + 3 * 101) // 32 + |54 - 32| + |3 - 11| + 70.
    assert images[1, 3, 12] == 45 + 22 + 8 + 70
    assert images.float().std() > 20

"""transformers' Auto classes read a model folder without remote code, and write the same one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.data.images.square import prepare_image
from medclip_debias.errors import UserError
from medclip_debias.hub import MedClipDebiasModel, MedClipDebiasProcessor
from medclip_debias.models.dual_encoder import DualEncoder

TEXTS = ["Left effusion.", "no pleural effusion . " * 4]


@pytest.fixture(scope="module")
def picture():
    rows, columns = np.mgrid[:70, :52]
    noise = np.random.default_rng(0).normal(0, 12, (70, 52))
    return np.clip(120 + 60 * np.sin(rows / 7) + columns + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def auto(model_folder):
    from transformers import AutoModel, AutoProcessor

    return AutoModel.from_pretrained(model_folder), AutoProcessor.from_pretrained(model_folder)


def test_auto_classes_score_as_the_model_itself(auto, model_folder, picture):
    model, processor = auto
    assert isinstance(model, MedClipDebiasModel)
    assert not model.training
    network = DualEncoder.load(model_folder)
    inputs = processor(images=[picture, picture.T], text=TEXTS)
    with torch.no_grad():
        found = model(**inputs)
        features = network.encode_images(inputs["pixel_values"])
        sentences = network.encode_sentences(TEXTS)
        scores, maps = (
            network.score(features, sentences),
            network.region_scores(features, sentences),
        )
    torch.testing.assert_close(found.scores, scores, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.maps.flatten(2), maps, atol=1e-6, rtol=0)
    assert tuple(found.maps.shape) == (2, 2, *network.grid.shape)
    scale = network.learned_scale
    torch.testing.assert_close(found.logits_per_text.T, scores * scale, atol=1e-4, rtol=0)
    pooled = model.get_image_features(inputs["pixel_values"])
    torch.testing.assert_close(found.image_embeds, pooled, atol=1e-6, rtol=0)


def test_images_become_the_bytes_of_prepare_and_texts_the_models_tokens(
    auto, model_folder, picture, tmp_path
):
    _, processor = auto
    network = DualEncoder.load(model_folder)
    settings = network.preprocessing.prepare
    expected = torch.from_numpy(prepare_image(Radiograph.of(picture), settings))
    Image.fromarray(picture).save(tmp_path / "a.png")
    several = [picture, Image.fromarray(picture), tmp_path / "a.png"]
    for found in processor(images=several)["pixel_values"]:
        assert torch.equal(found, expected)
    ids, mask = network.tokenizer.pad(network.tokenizer.encode(TEXTS, network.max_tokens))
    inputs = processor(text=TEXTS)
    assert torch.equal(inputs["input_ids"], ids)
    assert torch.equal(inputs["attention_mask"], mask)
    assert processor(text="Left effusion.", return_tensors="np")["input_ids"].shape[0] == 1


def test_what_is_saved_is_what_is_read(auto, model_folder, picture, tmp_path):
    from transformers import AutoConfig, AutoImageProcessor, AutoProcessor

    model, processor = auto
    model.save_pretrained(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {path.name for path in model_folder.iterdir()}
    for name in names - {"golden.json"}:  # whose last digits depend on the layout in memory
        assert (tmp_path / "model" / name).read_bytes() == (model_folder / name).read_bytes()
    processor.save_pretrained(tmp_path / "model")  # says nothing that the model does not
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    processor(text=TEXTS)
    processor.save_pretrained(tmp_path / "alone")
    alone = AutoProcessor.from_pretrained(tmp_path / "alone")
    assert isinstance(alone, MedClipDebiasProcessor)
    mine, theirs = (one(images=picture, text=TEXTS) for one in (processor, alone))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    AutoConfig.from_pretrained(model_folder).save_pretrained(tmp_path / "model")
    hashes = [DualEncoder.load(f).content_hash for f in (tmp_path / "model", model_folder)]
    assert hashes[0] == hashes[1]
    images = AutoImageProcessor.from_pretrained(tmp_path / "alone")
    assert torch.equal(images(picture)["pixel_values"], mine["pixel_values"])


def test_nothing_is_downloaded_unasked_and_unknown_words_are_refused(auto, make_network, tmp_path):
    model, processor = auto
    with pytest.raises(UserError, match="local_files_only=False"):
        MedClipDebiasModel.from_pretrained("group/model", cache_dir=tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        DualEncoder.from_pretrained("runs/a/model")
    with pytest.raises(UserError, match="lists its files"):
        model.push_to_hub("group/model")
    with pytest.raises(TypeError, match="bogus"):
        MedClipDebiasModel.from_pretrained(tmp_path, bogus=1)
    with pytest.raises(TypeError, match="size"):
        processor(images=np.zeros((20, 20), np.uint8), size=224)
    other = make_network(pooling="mean")
    other.preprocessing = other.preprocessing.model_copy(update={"mean": 0.4})
    other.save(tmp_path / "other")
    with pytest.raises(UserError, match="another way"):
        processor.save_pretrained(tmp_path / "other")

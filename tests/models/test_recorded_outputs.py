"""What this project's own model computes stays as it was recorded, to 1e-6.

`tests/models/peers/conftest.py` does the same for every peer that a test imports.
"""

import json
import os
import zlib
from pathlib import Path

import pytest
import torch

from medclip_debias.config import ModelSettings, PrepareSettings, Preprocessing
from medclip_debias.models.dual_encoder import DualEncoder

RECORDED = Path(__file__).with_name("recorded.json")
SENTENCES = ["no pleural effusion", "left", "no left effusions"]
CASES = {
    "resnet": ({"arch": "resnet_small"}, {}, {}),
    "vit": ({"arch": "vit_tiny_scratch", "blocks": 1}, {"pooling": "mean"}, {}),
    "words": ({"arch": "resnet_tiny"}, {}, {"aggregator": "local_words"}),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_the_models_outputs_are_those_recorded(name, cxr_bert_folder):
    image, text, similarity = CASES[name]
    settings = {"image": image, "dim": 8, "similarity": similarity}
    settings["text"] = {"folder": str(cxr_bert_folder), "max_tokens": 16} | text
    if text.get("pooling") == "mean":
        settings["text"]["use_projection_head"] = False
    place = Preprocessing(prepare=PrepareSettings(size=64), input_size=64)
    model = DualEncoder.create(ModelSettings.model_validate(settings), place).eval()
    for key, value in model.state_dict().items():  # each by its name, in whatever order
        if value.dtype.is_floating_point and "log_scale" not in key:
            generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
            value.abs_() if key.endswith("running_var") else None
    images = torch.randint(
        0, 256, (2, 64, 64), generator=torch.Generator().manual_seed(7), dtype=torch.uint8
    )
    features, sentences = model.encode_images(images), model.encode_sentences(SENTENCES)
    found = [model.score(features, sentences), model.region_scores(features, sentences)[..., :4]]
    found += [features.regions[:, :2], sentences.flatten()[:24]]
    numbers = torch.cat([part.flatten() for part in found]).double().tolist()
    known = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    if "RECORD_MODELS" in os.environ:
        RECORDED.write_text(json.dumps(known | {name: [float(f"{n:.8g}") for n in numbers]}) + "\n")
        return
    assert numbers == pytest.approx(known[name], rel=1e-5, abs=1e-6)

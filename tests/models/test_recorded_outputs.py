"""What this project's own model computes stays as it was recorded, to 1e-6."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
import torch

from tests.helpers.small_models import dual_encoder

RECORDED = Path(__file__).with_name("recorded.json")
SENTENCES = ["no pleural effusion", "left", "no left effusions"]
MEAN = {"text": {"pooling": "mean", "use_projection_head": False}}
CASES = {
    "resnet": {"image": {"arch": "resnet_small"}},
    "vit": {"image": {"arch": "vit_tiny_scratch", "blocks": 1}, **MEAN},
    "words": {"image": {"arch": "resnet_tiny"}, "similarity": {"aggregator": "local_words"}},
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_the_models_outputs_are_those_recorded(name, texts):
    settings = dict(CASES[name])
    text = {"folder": str(texts), "max_tokens": 16} | settings.pop("text", {})
    model = dual_encoder(texts, size=64, side=64, text=text, **settings)
    for key, value in model.state_dict().items():  # each by its name, in whatever order
        if value.dtype.is_floating_point and "log_scale" not in key:
            generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
            value.abs_() if key.endswith("running_var") else None
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (2, 64, 64), generator=generator, dtype=torch.uint8)
    features, sentences = model.encode_images(images), model.encode_sentences(SENTENCES)
    parts = [model.score(features, sentences), model.region_scores(features, sentences)[..., :4]]
    parts += [features.regions[:, :2], sentences.flatten()[:24]]
    numbers = torch.cat([part.flatten() for part in parts]).double().tolist()
    known = json.loads(RECORDED.read_text())
    if "RECORD_MODELS" in os.environ:
        RECORDED.write_text(json.dumps(known | {name: [float(f"{n:.8g}") for n in numbers]}) + "\n")
        return
    assert numbers == pytest.approx(known[name], rel=1e-5, abs=1e-6)

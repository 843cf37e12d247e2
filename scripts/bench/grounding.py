"""K sentences on one image: encoded once, against the published way of one sentence at a time.

Both ways read the same file, run the same networks (untrained, which does not change their time)
and make the same heatmaps at every pixel of the original image. The published inference code
(BioViL, hi-ml-multimodal) starts from the file for every sentence; here the image is read,
prepared and encoded once, and the sentences are encoded together. The figure is the ratio of the
medians of five rounds, both ways in turn in each round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import medians, picture, show, write_dicom

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.images import read_radiograph
from medclip_debias.grounding.ground import ground_image
from medclip_debias.models.dual_encoder import DualEncoder

FINDINGS = ("effusion", "opacity", "edema", "pneumothorax", "consolidation")
SIDES = ("Left", "Right", "Small left", "Large right")
WORDS = sorted({word.lower() for side in SIDES for word in side.split()} | set(FINDINGS) | {"."})
# Hidden size, layers, heads of the sentence encoder: CXR-BERT's, or the demo's.
TEXT = {"cxr-bert": (768, 12, 12), "small": (64, 2, 2)}


def text_folder(folder: Path, size: str) -> Path:
    """A BERT folder of random weights."""
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    hidden, layers, heads = TEXT[size]
    config = BertConfig(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    bert = BertModel(config, add_pooling_layer=False)
    folder.mkdir()
    save_file({f"bert.{k}": v for k, v in bert.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"model_type": "bert"}))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def main() -> None:
    """Time both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--arch", default="resnet50", help="BioViL's; resnet18 is the paper's")
    parser.add_argument("--text", choices=TEXT, default="cxr-bert")
    parser.add_argument("--small", action="store_true", help="a file of 1024 pixels, not 3056")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    texts = [f"{side} {finding}." for finding in FINDINGS for side in SIDES]
    texts = [texts[number % len(texts)] for number in range(options.sentences)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = ModelSettings(
            image=ImageEncoderSettings(arch=options.arch),
            text=TextEncoderSettings(folder=text_folder(folder / "text", options.text)),
        )
        preprocessing = Preprocessing(prepare=PrepareSettings(size=512), input_size=480)
        model = DualEncoder.create(settings, preprocessing).eval()
        array = picture(0)
        write_dicom(folder / "image.dcm", array[::3, ::3].copy() if options.small else array)

        def maps(sentences: list[str]) -> list[np.ndarray]:
            image = read_radiograph(folder / "image.dcm")
            return [found.heatmap for found in ground_image(model, image, sentences)]

        def together() -> int:
            return len(maps(texts)) // len(texts)

        def one_at_a_time() -> int:
            return sum(len(maps([text])) for text in texts) // len(texts)

        for one, all_at_once in zip((maps([text])[0] for text in texts), maps(texts), strict=True):
            np.testing.assert_allclose(one, all_at_once, atol=1e-4)
        found = medians({"one at a time": one_at_a_time, "together": together})
    print(
        f"{options.sentences} sentences, {options.arch}, {options.text}, {options.threads} threads"
    )
    show(found, "together")


if __name__ == "__main__":
    main()

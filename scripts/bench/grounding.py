"""K sentences on one image: encoded once, against the published way of one sentence at a time.

All ways read the same file, run the same networks (untrained, which does not change their time)
and make a heatmap at every pixel of the original image. The published inference code (BioViL,
hi-ml-multimodal) starts from the file for every sentence, and reads it with pydicom, PIL and
torchvision: that is the first way. The second is one sentence at a time, too, but with this
project's reading and heatmaps. Here the image is read, prepared and encoded once, and the sentences
are encoded together. The numbers are ratios of the medians of five rounds, all ways in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
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


def published_map(model: DualEncoder, path: Path, text: str) -> np.ndarray:
    """The steps of the published code, from the file to a map of the original's size.

    DICOM to 8 bit by its range, PIL, the short side to 512, the central 480; cosines of patches
    and sentence; bilinear to the crop, NaN around it, nearest to the original's size.
    """
    import pydicom
    import torch.nn.functional as F
    from PIL import Image
    from torchvision import transforms

    dataset = pydicom.dcmread(path)
    values = dataset.pixel_array.astype(float)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        values = 2**dataset.BitsStored - 1 - values
    values = (values - values.min()) / (values.max() - values.min()) * 255
    image = Image.fromarray(values.astype(np.uint8)).convert("L")
    steps = [transforms.Resize(512), transforms.CenterCrop(480), transforms.ToTensor()]
    tensor = (transforms.Compose(steps)(image) - 0.5) / 0.25
    with torch.inference_mode():
        features = model.encode_images(tensor[None])
        cosines = model.region_scores(features, model.encode_sentences([text]))
        grid = cosines.reshape(1, 1, *model.grid.shape)
        crop = F.interpolate(grid, (480, 480), mode="bilinear", align_corners=False)
        height, width = values.shape
        short = min(height, width)
        scaled = (round(512 * height / short), round(512 * width / short))
        top, left = ((side - 480) // 2 for side in scaled)
        around = (left, scaled[1] - 480 - left, top, scaled[0] - 480 - top)
        whole = F.pad(crop, around, value=float("nan"))
        return F.interpolate(whole, (height, width), mode="nearest")[0, 0].numpy()


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
        plain = DualEncoder.create(settings, preprocessing).eval()
        plain.save(folder / "model")
        model = DualEncoder.load(folder / "model", check=False)
        array = picture(0)
        write_dicom(folder / "image.dcm", array[::3, ::3].copy() if options.small else array)

        def maps(sentences: list[str]) -> Iterator[np.ndarray]:
            """One map at a time: each has 31 MB, and nobody needs all of them at once."""
            image = read_radiograph(folder / "image.dcm")
            return (found.heatmap for found in ground_image(model, image, sentences))

        def together() -> int:
            return sum(found.ndim // 2 for found in maps(texts)) // len(texts)

        def one_at_a_time() -> int:
            return sum(next(maps([text])).ndim // 2 for text in texts) // len(texts)

        def published() -> int:
            return sum(published_map(plain, folder / "image.dcm", text).ndim for text in texts) // (
                2 * len(texts)
            )

        for one, all_at_once in zip(
            (next(maps([text])) for text in texts), maps(texts), strict=True
        ):
            np.testing.assert_allclose(one, all_at_once, atol=1e-4)
        found = medians(
            {
                "published steps, one at a time": published,
                "our steps, one at a time": one_at_a_time,
                "together": together,
            }
        )
    print(
        f"{options.sentences} sentences, {options.arch}, {options.text}, {options.threads} threads"
    )
    show(found, "together")


if __name__ == "__main__":
    main()

"""A rival in an environment of its own: what rivals.py starts, and talks to line by line.

    PYTHON rival_worker.py KIND FOLDER THREADS

``minicons`` scores FOLDER/sentences.json with the BERT in FOLDER/bert. ``himl`` first writes the
weights of a BioViL that it makes itself (FOLDER/biovil.pt, FOLDER/cxr_bert), then draws the maps of
FOLDER/sentences.json on FOLDER/large.dcm with hi-ml's own engine. Both write what they found to
FOLDER/KIND.npy, say one line when they are ready, and then, for each line that they are given, do
the work once and answer its seconds. Nothing here imports this project.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def minicons(folder: Path, texts: list[str]) -> tuple[Callable[[], object], Any]:
    """minicons' pseudo-log-likelihood, in batches of 32 sentences; the sums of its tokens."""
    from minicons import scorer
    from transformers import BertForMaskedLM, PreTrainedTokenizerFast

    place = folder / "bert"
    names = ("cls", "sep", "mask", "pad", "unk")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(place / "tokenizer.json"),
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
    )
    model = BertForMaskedLM.from_pretrained(place)
    bert = scorer.MaskedLMScorer(model, "cpu", tokenizer=tokenizer)

    def work() -> list[float]:
        found: list[float] = []
        for start in range(0, len(texts), 32):
            batch = texts[start : start + 32]
            found += bert.sequence_score(batch, reduction=lambda scores: scores.sum(0).item())
        return found

    return work, work()


def himl(folder: Path, texts: list[str]) -> tuple[Callable[[], object], Any]:
    """hi-ml's engine of images and sentences; the cosines of patches and sentences."""
    from health_multimodal.image.data.transforms import create_chest_xray_transform_for_inference
    from health_multimodal.image.inference_engine import ImageInferenceEngine
    from health_multimodal.image.model.model import ImageModel
    from health_multimodal.text.inference_engine import TextInferenceEngine
    from health_multimodal.text.model import CXRBertModel, CXRBertTokenizer
    from health_multimodal.text.model.configuration_cxrbert import CXRBertConfig
    from health_multimodal.vlp.inference_engine import ImageTextInferenceEngine

    given = json.loads((folder / "bert.json").read_text(encoding="utf-8"))
    torch.manual_seed(0)
    image = ImageModel(img_encoder_type="resnet50", joint_feature_size=128).eval()
    with torch.no_grad():  # so that regions differ, as those of a trained network do
        for module in image.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.0)
                module.bias.normal_(0, 0.2)
    torch.save(image.state_dict(), folder / "biovil.pt")
    place = folder / "cxr_bert"
    place.mkdir()
    text = CXRBertModel(CXRBertConfig(projection_size=128, **given["config"])).eval()
    torch.save(text.state_dict(), place / "pytorch_model.bin")
    content = text.config.to_dict() | {"model_type": "cxr-bert"}
    (place / "config.json").write_text(json.dumps(content, default=str), encoding="utf-8")
    vocabulary = "\n".join(given["vocabulary"]) + "\n"
    (place / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    tokenizer = CXRBertTokenizer(vocab_file=str(place / "vocab.txt"))
    resized = create_chest_xray_transform_for_inference(resize=512, center_crop_size=480)
    engine = ImageTextInferenceEngine(
        ImageInferenceEngine(image, resized), TextInferenceEngine(tokenizer, text)
    )
    images, sentences = engine.image_inference_engine, engine.text_inference_engine

    def work() -> None:
        for words in texts:
            engine.get_similarity_map_from_raw_data(
                folder / "large.dcm", words, interpolation="bilinear"
            )

    patches, _ = images.get_projected_patch_embeddings(folder / "small.dcm")
    vectors = torch.cat(
        [sentences.get_embeddings_from_prompt(words, verbose=False) for words in texts]
    )
    return work, torch.einsum("hwd,sd->shw", patches, vectors).numpy()


def main() -> None:
    kind, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print what they like
    torch.set_num_threads(threads)
    texts = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        work, found = {"minicons": minicons, "himl": himl}[kind](folder, texts)
        np.save(folder / f"{kind}.npy", np.asarray(found, dtype=np.float64))
        print("ready", file=answers, flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            work()
            print(time.perf_counter() - began, file=answers, flush=True)


if __name__ == "__main__":
    main()

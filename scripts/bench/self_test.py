"""What the self-test adds to loading a model: ratio of loading with and without it, medians."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder


def main() -> None:
    """Build an untrained model of the paper's size, load it in turn with and without the test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=480, help="Input size.")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz."]
        words += [f"##{word}" for word in words[5:]]
        (root / "vocab.txt").write_text("\n".join(words) + "\n")
        config = BertConfig(vocab_size=30522).to_dict() | {"model_type": "bert"}
        torch.manual_seed(0)
        model = DualEncoder(
            ModelSettings(
                image=ImageEncoderSettings(arch="resnet18"), text=TextEncoderSettings(folder=root)
            ),
            Preprocessing(prepare=PrepareSettings(size=options.side), input_size=options.side),
            ResNetRegions("resnet18"),
            TextEncoder(config, True),
            SentenceTokenizer.load(root),
        )
        model.save(root / "model")
        taken: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.runs):
            for check in (True, False):
                start = time.perf_counter()
                loaded = DualEncoder.load(root / "model", check=check)
                taken[check].append(time.perf_counter() - start)
                assert loaded.self_test is not None
                assert loaded.self_test["status"] == ("passed" if check else "off")
    with_test, without = statistics.median(taken[True]), statistics.median(taken[False])
    print(
        f"input {options.side}: load {without:.2f} s, with self-test {with_test:.2f} s, "
        f"ratio {with_test / without:.2f} (medians of {options.runs})"
    )


if __name__ == "__main__":
    main()

"""Loading a model: what the self-test adds, and what drawing weights first would; medians."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from transformers import BertConfig

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.models import dual_encoder
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder
from medclip_debias.models.unfilled import unfilled


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

        def load(check: bool, filled: Callable[[], AbstractContextManager[None]]) -> float:
            with mock.patch.object(dual_encoder, "unfilled", filled):
                start = time.perf_counter()
                loaded = DualEncoder.load(root / "model", check=check)
                seconds = time.perf_counter() - start
            assert loaded.self_test is not None
            assert loaded.self_test["status"] == ("passed" if check else "off")
            return seconds

        ways = {
            "tested": (True, unfilled),
            "plain": (False, unfilled),
            "drawn": (False, nullcontext),
        }
        load(*ways["tested"])  # the disk's and the imports' first time
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.runs):
            for name, way in ways.items():
                taken[name].append(load(*way))
    with_test, without, drawn = (statistics.median(taken[name]) for name in ways)
    print(
        f"input {options.side}: load {without:.2f} s, with self-test {with_test:.2f} s, "
        f"ratio {with_test / without:.2f}; where weights are drawn first {drawn:.2f} s, "
        f"ratio {drawn / without:.2f} (medians of {options.runs})"
    )


if __name__ == "__main__":
    main()

"""The plain way to a prepared image, and a text encoder's folder: what rivals are timed against."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import to_square
from medclip_debias.files import write_text


def plain_preparation(path: Path, settings: PrepareSettings) -> np.ndarray:
    """What `prepare` does, each step on every pixel, as the manuals of pydicom and numpy show."""
    import pydicom
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    dataset = pydicom.dcmread(path)
    values = apply_modality_lut(dataset.pixel_array, dataset)
    values = np.asarray(apply_voi_lut(values, dataset), dtype=np.float32)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        values = values.max() + values.min() - values
    low, high = np.percentile(values, settings.clip)
    values = (np.clip(values, low, high) - low) / (high - low) * 255
    return to_square(np.rint(values).astype(np.uint8), settings.size)


def bert_folder(folder: Path, words: list[str], hidden: int, layers: int) -> Path:
    """A BERT of random weights, with 64 dimensions a head and a vocabulary of 30,522 places."""
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    bert = BertModel(config, add_pooling_layer=False)
    folder.mkdir()
    save_file({f"bert.{k}": v for k, v in bert.state_dict().items()}, folder / "model.safetensors")
    write_text(folder / "config.json", json.dumps(config.to_dict() | {"model_type": "bert"}))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    write_text(folder / "vocab.txt", "\n".join(vocabulary) + "\n")
    return folder

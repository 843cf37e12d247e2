"""What rivals.py is timed against: rivals in an environment of their own, and plain ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import to_square
from medclip_debias.files import write_text

PINNED = (
    "minicons==0.3.39",
    "hi-ml-multimodal==0.2.2",
    "transformers==4.57.3",
    "tokenizers==0.22.2",
    "huggingface_hub<1",
    "wonderwords==3.0.1",
    "accelerate==1.15.0",
    "SimpleITK==2.5.7",
    "scikit-image==0.26.0",
    "lazy-loader==0.4",
    "imageio==2.37.2",
    "tifffile==2025.10.16",
)


class Rival:
    """A process of another environment that does one piece of work whenever it is asked."""

    def __init__(self, python: Path, kind: str, folder: Path, threads: int) -> None:
        worker = Path(__file__).with_name("rival_worker.py")
        words = [python, worker, kind, folder, threads]
        hidden = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.log = folder / f"{kind}.log"
        self.process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w", encoding="utf-8"),
            env=hidden | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
            text=True,
        )
        self._answer()
        self.found = np.load(folder / f"{kind}.npy")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self.log.read_text(encoding="utf-8").strip().splitlines() or ["no word"]
            raise RuntimeError(f"the rival ended: {last[-1][:150]}")
        return line

    def __call__(self) -> float:
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        return float(self._answer())

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # the end of its input ends it


def environment(folder: Path) -> Path:
    """The Python of the environment of minicons and hi-ml, made if it is not there."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"making {folder} for the rivals", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *PINNED]
        subprocess.run(pip, check=True, capture_output=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        own = sysconfig.get_path("purelib")  # torch, numpy: the same for both sides
        (packages / "host.pth").write_text(own + "\n", encoding="utf-8")
        (folder / "complete").touch()
    return python


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

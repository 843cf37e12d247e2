"""Rivals in an environment of their own: how it is made, and how a process of it is spoken to."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np

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
        """Seconds of its work."""
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

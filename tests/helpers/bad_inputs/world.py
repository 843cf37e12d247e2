"""A small source, prepared set, model and run, generated once; every case gets its own copies."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bad_inputs.case import stored
from dicom_files import write_radiograph
from phantom_layouts import ArchiveSettings, write_archive

REPORT = (
    "EXAMINATION: Chest.\n\nINDICATION: Mr. Zebulon Quackenbush, haemoptysis.\n\n"
    "FINDINGS: The lungs are clear. No pleural effusion.\n\nIMPRESSION: Normal chest.\n"
)
PATIENT, STUDY = "19876543", "59876543"


class Base:
    """What is generated once for all cases, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tree(self) -> Path:
        """A phantom of 40 studies in MIMIC-CXR's layout (JPG)."""
        out = self.folder / "tree"
        self._do(["phantom", str(out), "--studies", "40", "--format", "jpg", "--workers", "1"])
        return out

    def layout(self, kind: str) -> Path:
        """A phantom of 20 studies in the layout of another archive."""
        out = self.folder / f"layout_{kind}"
        if not out.exists():
            settings = ArchiveSettings(studies=20, layout=kind, min_side=64, max_side=80)
            write_archive(out, settings, workers=1)
        return out

    @cached_property
    def prepared(self) -> Path:
        """The phantom, prepared at 48 pixels."""
        out = self.folder / "prepared"
        self._do(["prepare", str(self.tree), str(out), "--size", "48", "--workers", "1"])
        return out

    @cached_property
    def language_model(self) -> Path:
        """A tiny BERT of the phantom's sentences."""
        out = self.folder / "language_model"
        words = ["hidden=16", "layers=1", "heads=2", "steps=2", "batch_size=8", "vocabulary=300"]
        self._do(["language-model", str(self.prepared), str(out), *words, "max_tokens=32"])
        return out

    def settings(self, **train: Any) -> dict[str, Any]:
        """Settings of a run of four steps."""
        plain = {"steps": 4, "batch_size": 4, "lr": 1e-3, "warmup_steps": 1, "workers": 0}
        return {
            "prepared": str(self.prepared),
            "out": str(self.folder / "run"),
            "preprocessing": {"prepare": {"size": 48}, "input_size": 32},
            "model": {
                "image": {"arch": "resnet_small"},
                "text": {"folder": str(self.language_model), "max_tokens": 32},
                "dim": 8,
            },
            "loss": {"kind": "infonce"},
            "train": plain | {"log_every": 1, "checkpoint_every": 2} | train,
        }

    @cached_property
    def run(self) -> Path:
        """A finished run with its results."""
        settings = self.settings()
        config = self.folder / "run.yaml"
        config.write_text(json.dumps(settings), encoding="utf-8")
        self._do(["train", str(config)])
        out = Path(settings["out"])
        few = ["--bootstrap", "20", "--heatmaps", "1"]
        self._do(["evaluate", str(out / "model"), str(self.prepared), "--out", str(out), *few])
        return out

    @cached_property
    def results(self) -> dict[str, Any]:
        """The run's results."""
        content: dict[str, Any] = json.loads((self.run / "results.json").read_text("utf-8"))
        return content

    @cached_property
    def index(self) -> Path:
        """A search index of the prepared set."""
        out = self.folder / "index"
        words = [str(self.run / "model"), str(self.prepared), "--out", str(out)]
        self._do(["index", *words, "--set", "landmarks=8"])
        return out

    @cached_property
    def part(self) -> Path:
        """Half of the prepared set, as one of two machines makes it."""
        return self._half("1/2", "part")

    @cached_property
    def other_part(self) -> Path:
        """The other half."""
        return self._half("2/2", "other_part")

    def _half(self, shard: str, name: str) -> Path:
        out = self.folder / name
        words = ["--size", "32", "--workers", "1", "--shard", shard]
        self._do(["prepare", str(self.tree), str(out), *words])
        return out

    @staticmethod
    def _do(words: list[str]) -> None:
        from medclip_debias.cli import run

        quiet = io.StringIO()
        with redirect_stdout(quiet), redirect_stderr(quiet):
            code = run(words)
        if code:
            raise SystemExit(f"the script's own inputs could not be made: {quiet.getvalue()}")


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


class World:
    """The folder of one case.

    Attributes:
        base: what the cases share; cases only read it, or copy from it.
        here: the case's own folder.
        out: where the case's verb is to write.
    """

    def __init__(self, base: Base, here: Path) -> None:
        self.base = base
        self.here = here
        self.out = here / "out"
        here.mkdir(parents=True)

    # ------------------------------------------------------------------------- copies

    def copy(self, name: str) -> Path:
        """A copy of ``tree``, ``prepared``, ``language_model``, ``run`` or ``index``."""
        place = self.here / name
        shutil.copytree(getattr(self.base, name), place, symlinks=True)
        return place

    def layout(self, kind: str) -> Path:
        """A copy of the phantom in this layout."""
        place = self.here / kind
        shutil.copytree(self.base.layout(kind), place)
        return place

    def model(self, **config: Any) -> Path:
        """A copy of the run's model folder; keywords change its ``config.json``."""
        place = self.here / "model"
        shutil.copytree(self.base.run / "model", place)
        if config:
            change_json(place / "config.json", lambda content: content.update(config))
        return place

    def file(self, name: str, content: Any) -> Path:
        """A file of text, bytes, or of anything else as JSON."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def table(self, name: str, rows: list[dict[str, Any]]) -> Path:
        """A table as CSV."""
        import pandas as pd

        return self.file(name, pd.DataFrame(rows).to_csv(index=False))

    def picture(self, name: str, side: int = 40, seed: int = 0) -> Path:
        """An image file that can be read."""
        from PIL import Image

        rng = np.random.default_rng(seed)
        coarse = rng.integers(0, 255, (side // 4, side // 4), dtype=np.uint8)
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.kron(coarse, np.ones((4, 4), dtype=np.uint8))).save(path)
        return path

    def rows(self, count: int = 6) -> list[dict[str, str]]:
        """Rows of a manifest, with their images; the first is the canary's."""
        result = []
        for number in range(count):
            self.picture(f"images/{number}.png", seed=number)
            splits = ("train", "train", "train", "validate", "test", "test")
            result.append(
                {
                    "image": f"images/{number}.png",
                    "report": REPORT.replace("clear", f"clear at {number} cm"),
                    "patient_id": f"{int(PATIENT) + number}",
                    "study_id": f"{int(STUDY) + number}",
                    "view": "PA",
                    "split": splits[number % 6],
                    "Edema": str(number % 2),
                }
            )
        return result

    def manifest(self, rows: list[dict[str, str]] | None = None, **first: str) -> Path:
        """A manifest; keywords change cells of its first row."""
        rows = self.rows() if rows is None else rows
        rows[0] |= first
        return self.table("manifest.csv", rows)

    # --------------------------------------------------------------------------- verbs

    def prepare(self, source: Path, *words: str) -> list[str]:
        """The command line that prepares ``source``."""
        return ["prepare", str(source), str(self.out), "--size", "32", "--workers", "1", *words]

    def train(self, **changes: Any) -> list[str]:
        """The command line of a run; keywords of the whole settings, or of ``train_*``."""
        train = {k.removeprefix("train_"): v for k, v in changes.items() if k[:6] == "train_"}
        rest = {k: v for k, v in changes.items() if k[:6] != "train_"}
        settings = self.base.settings(**train) | {"out": str(self.out)} | rest
        return ["train", str(self.config(json.dumps(settings)))]

    def resume(self, run: Path, **changes: Any) -> list[str]:
        """The command line that takes up ``run``, a copy, for two steps more."""
        (run / "finished.json").unlink(missing_ok=True)
        settings = self.base.settings() | {"out": str(run)} | changes
        return ["train", str(self.config(json.dumps(settings)))]

    def config(self, text: str) -> Path:
        """A settings file."""
        return self.file("run.yaml", text)

    def evaluate(self, *words: str, model: Path | None = None) -> list[str]:
        """The command line that evaluates the model on the prepared set."""
        model = model or self.base.run / "model"
        fixed = ["--out", str(self.out), "--bootstrap", "0", "--heatmaps", "0"]
        return ["evaluate", str(model), str(self.base.prepared), *fixed, *words]

    def ground(self, *images: Path, words: tuple[str, ...] = ()) -> list[str]:
        """The command line that grounds a sentence in images."""
        given = {"--text", "--sentences"} & set(words)
        text = () if given else ("--text", "Edema.")
        model = self.base.run / "model"
        return ["ground", str(model), *map(str, images), "--out", str(self.out), *text, *words]

    # -------------------------------------------------------------------------- looking

    def listing(self) -> set[str]:
        """Names of all that lies in the case's folder; locks, logs and lists for the user aside.

        The benchmark's cache is work that is done, and found again.
        """
        names = (path.relative_to(self.here).as_posix() for path in self.here.rglob("*"))
        aside = (".lock", "/lock", ".missing.csv", ".damaged.csv")
        found = {n for n in names if not n.endswith(aside) and "/tensorboard/" not in n}
        kept = {n for n in found if n.startswith("out/cache")}
        left = found - kept
        alone = kept and not any(n.startswith("out/") for n in left)
        return left - {"out"} if alone else left

    def stored(self) -> str:
        """What the verb stored of what it left aside."""
        return stored(self.here)

    def anonymous(self, sentence: str) -> str:
        """The sentence without this machine's paths."""
        sentence = sentence.replace(f"{self.here}/", "").replace(str(self.here), ".")
        sentence = sentence.replace(f"{self.base.folder}/", "")
        return re.sub(r"\s+", " ", sentence)


def write_dicom(path: Path, array: np.ndarray[Any, Any], **elements: Any) -> Path:
    """A radiograph with the canary's header; keywords set elements, or remove them (None)."""
    header = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.1.1", "Modality": "DX"}
    header |= {"PatientName": "Quackenbush^Zebulon", "PatientID": PATIENT}
    return write_radiograph(path, array, **header | elements)

"""The speed that a user feels, against rivals, in one run: the table of docs/performance.md.

    OMP_NUM_THREADS=2 python scripts/bench/rivals.py              # every row
    python scripts/bench/rivals.py --only pll heatmaps            # some rows
    python scripts/bench/rivals.py --quick                        # all rows, small

Each row first asserts that both sides give the same output. Then both take turns, five rounds, and
the row says the median of the rounds' ratios and their range. A row that cannot be measured says
why, and the next one is begun. minicons and hi-ml need an older transformers than this project: the
script makes an environment for them, whose torch is this project's, so that both sides compute with
the same library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
# New processes are to find what pip leaves: compiled modules. The round that is not counted makes
# those that an installer left out.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import cv2
import numpy as np
import torch
from common import (
    HEAD,
    Row,
    in_turn,
    machine,
    measure,
    picture,
    ratio,
    timed,
    title,
    unmeasured,
    within,
    write_dicom,
)
from foreign import Rival, bert_folder, environment, plain_preparation

REPO = Path(__file__).parents[2]
FINDINGS = ("effusion", "opacity", "edema", "pneumothorax", "consolidation")
SIDES = ("Left", "Right", "Small left", "Large right")


@dataclass(frozen=True)
class Options:
    """What every row is given: a folder of its own, rounds and threads."""

    folder: Path
    quick: bool
    rounds: int
    threads: int

    def rival(self, kind: str) -> Rival:
        python = environment(REPO / "runs" / "rivals-environment")
        return Rival(python, kind, self.folder, self.threads)

    def turns(self, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Seconds of all ways in turn; no further round begins after four minutes."""
        return in_turn(ways, self.rounds, budget=240)


# ------------------------------------------------------------------------ sentences' scores


def pll(options: Options) -> Iterator[Row]:
    """Pseudo-log-likelihood of sentences: minicons, and a loop over sentences and places."""
    from train_step import Scale, make_data

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.scoring import pseudo_log_likelihood
    from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm

    hidden, layers, count = (32, 1, 40) if options.quick else (256, 4, 300)
    make_data(options.folder, Scale(size=48, hidden=hidden, layers=layers, studies=400))
    texts = PreparedSet.open(options.folder / "prepared").texts[:count]
    place = options.folder / "bert"
    model, tokenizer = load_masked_lm(place).eval(), SentenceTokenizer.load(place)
    torch.set_num_threads(options.threads)

    @torch.inference_mode()
    def plain() -> list[float]:
        found = []
        for ids in tokenizer.encode(texts, model.config.max_position_embeddings):
            total = 0.0
            for at in range(1, len(ids) - 1):
                masked = torch.tensor([ids])
                masked[0, at] = tokenizer.mask_id
                total += float(model(input_ids=masked).logits[0, at].log_softmax(-1)[ids[at]])
            found.append(total)
        return found

    def ours() -> Any:
        return pseudo_log_likelihood(model, tokenizer, texts)[0]

    what = f"{len(texts)} sentences, BERT of {layers} layers of {hidden}"
    ways = {"ours": timed(ours), "plain": timed(plain)}
    same(ours(), plain(), 1e-3)
    (options.folder / "sentences.json").write_text(json.dumps(texts), encoding="utf-8")
    try:
        with options.rival("minicons") as rival:
            same(ours(), rival.found, 1e-3)
            found = options.turns(ways | {"minicons": rival})
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        yield unmeasured("scores of sentences against minicons", ">= 2 times", error)
        found = options.turns(ways)
    else:
        name = "scores of sentences against minicons"
        yield ratio(name, found["ours"], found["minicons"], 2, what + "; batches of 32")
    name = "scores of sentences against a plain loop"
    yield ratio(name, found["ours"], found["plain"], 5, what + "; one masked place at a time")


# ------------------------------------------------------------------- batches, training step


def loader(options: Options) -> Iterator[Row]:
    """A batch of images: open_clip's transforms and a plain dataset, each in torch's DataLoader."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms
    from train_step import open_clip_module

    from medclip_debias.config import AugmentSettings
    from medclip_debias.data.loader import StepBatches, TrainingStudies

    side, rows, size = (64, 32, 16) if options.quick else (480, 256, 64)
    pixels = np.stack([cv2.resize(picture(n) >> 4, (side, side)) for n in range(4)])
    pixels = pixels.astype(np.uint8)[np.arange(rows) % 4]
    files = [options.folder / f"{number}.png" for number in range(rows)]
    for path, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(path.with_suffix(".jpg"), quality=95)
    files = [path.with_suffix(".jpg") for path in files]
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])  # what JPG left of them

    class Files(Dataset[Any]):
        def __init__(self, transform: Callable[[Any], Any]) -> None:
            self.transform = transform

        def __len__(self) -> int:
            return rows

        def __getitem__(self, at: int) -> Any:
            return self.transform(Image.open(files[at]))

    mean, deviation = 0.5, 0.25
    plain = transforms.Compose([transforms.ToTensor(), transforms.Normalize((mean,), (deviation,))])
    theirs = open_clip_module("transform").image_transform(
        side, is_train=False, mean=(mean,) * 3, std=(deviation,) * 3
    )
    alone = [np.array([number]) for number in range(rows)]
    made = StepBatches(
        pixels,
        TrainingStudies([str(n) for n in range(rows)], alone, alone, np.ones(rows, dtype=np.int64)),
        batch_size=size,
        sentences_per_study=1,
        input_size=side,
        augment=AugmentSettings(crop=False, brightness=0, contrast=0),
        seed=0,
    )
    here, number = torch.device("cpu"), iter(range(10**9))

    def ours(step: int) -> Any:
        images = made[step].images_on(here)[:, None].float()
        return (images / 255 - mean) / deviation

    def epoch(transform: Callable[[Any], Any]) -> float:
        return timed(lambda: list(DataLoader(Files(transform), batch_size=size)))()

    def own_epoch() -> float:
        return timed(lambda: [ours(next(number)) for _ in range(rows // size)])()

    every = torch.cat([ours(step) for step in range(rows // size)])
    order = torch.cat([made[step].texts for step in range(rows // size)]).flatten().tolist()
    for transform in (plain, theirs):
        wanted = torch.stack([Files(transform)[at][0] for at in order])[:, None]
        same(every, wanted, 1e-5)
    ways: dict[str, Callable[[], float]]
    ways = {"ours": own_epoch, "plain": partial(epoch, plain), "open_clip": partial(epoch, theirs)}
    found = options.turns(ways)
    note = f"an epoch of {rows} JPG files of {side} px, normalised floats, one process"
    for name, goal in (("plain", 5), ("open_clip", 5)):
        called = "a plain PyTorch dataset" if name == "plain" else "open_clip's transforms"
        yield ratio(f"batches of images against {called}", found["ours"], found[name], goal, note)


def step(options: Options) -> Iterator[Row]:
    """A training step: open_clip's and a plain loop (train_step.py), on batches already read."""
    from train_step import SMALL, Scale, agree, make_data, training_steps

    scale = SMALL if options.quick else Scale(batch=32, workers=0)
    make_data(options.folder, scale)
    torch.set_num_threads(options.threads)
    agree(options.folder, scale)
    note = f"BERT of {scale.layers} layers of {scale.hidden}; goals are a GPU's"
    return training_steps(options.folder, scale, options.turns, note)


def features(options: Options) -> Iterator[Row]:
    """An epoch with a frozen image encoder: computed in every step against stored features."""
    from train_step import SMALL, Scale, make_data, stored_features

    scale = SMALL if options.quick else Scale(batch=32, workers=0, studies=200)
    make_data(options.folder, scale)
    torch.set_num_threads(options.threads)
    return stored_features(options.folder, scale, options.turns)


# ---------------------------------------------------------------------- heatmaps, preparing


def heatmaps(options: Options) -> Iterator[Row]:
    """Maps of many sentences on one DICOM file: hi-ml's own engine, with the same weights."""
    from medclip_debias.data.images import read_radiograph
    from medclip_debias.grounding.ground import ground_image
    from medclip_debias.models.peers.importing import import_model

    # Without a full stop, which hi-ml would take off.
    texts = [f"{side} {finding}" for finding in FINDINGS for side in SIDES]
    texts = texts[: 2 if options.quick else None]
    words = sorted({word.lower() for side in SIDES for word in side.split()} | set(FINDINGS))
    hidden = 48 if options.quick else 768
    config = {"hidden_size": hidden, "num_attention_heads": 12, "intermediate_size": 4 * hidden}
    config |= {"num_hidden_layers": 2 if options.quick else 12, "vocab_size": 30522}
    given = {
        "config": config,
        "vocabulary": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "."],
    }
    (options.folder / "bert.json").write_text(json.dumps(given), encoding="utf-8")
    (options.folder / "sentences.json").write_text(json.dumps(texts), encoding="utf-8")
    large = picture(0)
    large = large[::3, ::3].copy() if options.quick else large
    write_dicom(options.folder / "large.dcm", large)
    # At 512 pixels both take the file as it is, and of 8 bits in 12, a sixteenth off their edges
    # (hi-ml cuts grey values where we round them), both make the same 8 bits.
    small = 16 * (cv2.resize(large, (512, 512)) >> 4) + 1
    small[0, :2] = 0, 16 * 255
    small = small.clip(0, 16 * 255)  # and no MONOCHROME1, which hi-ml does not turn round
    write_dicom(options.folder / "small.dcm", small, windowed=False, kind="MONOCHROME2")
    with options.rival("himl") as rival:
        place = options.folder / "biovil.pt"
        model = import_model(
            "biovil", place, options.folder / "peer", text=options.folder / "cxr_bert"
        ).eval()
        torch.set_num_threads(options.threads)
        window = model.preprocessing.prepare.window
        image = read_radiograph(options.folder / "small.dcm", window)
        grids = [found.grid for found in ground_image(model, image, texts)]
        spread = rival.found.std()  # an untrained network's cosines lie close together
        same(np.stack(grids) / spread, rival.found / spread, 0.02)

        def ours() -> None:
            image = read_radiograph(options.folder / "large.dcm", window)
            for found in ground_image(model, image, texts):
                assert found.heatmap.shape == image.shape

        found = options.turns({"ours": timed(ours), "himl": rival})
    note = (
        f"{len(texts)} sentences, one file of {large.shape[1]} x {large.shape[0]}, BioViL's network"
    )
    yield ratio("heatmaps against hi-ml's engine", found["ours"], found["himl"], 12, note)


def prepare(options: Options) -> Iterator[Row]:
    """Files to prepared images: the plain way with pydicom and numpy, in the same bytes."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.images import prepare_image, read_radiograph

    def ours(path: Path) -> np.ndarray:
        return prepare_image(read_radiograph(path, settings.window), settings)

    settings = PrepareSettings()
    plain = partial(plain_preparation, settings=settings)
    cv2.setNumThreads(1)
    paths = [options.folder / f"{number}.dcm" for number in range(1 if options.quick else 4)]
    for number, path in enumerate(paths):
        write_dicom(path, picture(number), windowed=number % 2 == 0)
    for path in paths:
        same(ours(path), plain(path), 0)

    def every(way: Callable[[Path], Any]) -> Callable[[], float]:
        return timed(lambda: [way(path) for path in paths])

    found = options.turns({"ours": every(ours), "plain": every(plain)})
    note = f"{len(paths)} DICOM files of 2544 x 3056 to 512 x 512, one thread"
    yield ratio("preparing against a plain pydicom loop", found["ours"], found["plain"], 2, note)


# -------------------------------------------------------------------------- first answers


def console(*words: object) -> Callable[[], float]:
    """Seconds of the console command in a process of its own."""
    command = [sys.executable, "-m", "medclip_debias", *map(str, words)]

    def work() -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1][:150])

    return timed(work)


def verbs(options: Options) -> Iterator[Row]:
    """Import, and the first answer of each verb: its help."""
    import typer

    from medclip_debias.cli import app

    known = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    names = known[:3] if options.quick else known
    imported = [sys.executable, "-c", "import medclip_debias"]
    ways = {"import": timed(lambda: subprocess.run(imported, check=True, cwd=REPO))}
    ways |= {name: console(name, "--help") for name in names}
    found = options.turns({"help": console("--help"), **ways})
    yield within(
        "import medclip_debias", found.pop("import"), 0.3, "a new process, Python's start included"
    )
    yield within("medclip-debias --help", found.pop("help"), 0.3)
    slowest = max(found, key=lambda name: float(np.median(found[name])))
    note = f"the slowest of {len(found)} verbs: {slowest}"
    yield within("help of a verb", found[slowest], 0.3, note)


def first_heatmap(options: Options) -> Iterator[Row]:
    """From the console to a first heatmap, everything read from the disk."""
    from medclip_debias.config import ModelSettings, PrepareSettings, Preprocessing
    from medclip_debias.models.dual_encoder import DualEncoder

    words = sorted({word.lower() for side in SIDES for word in side.split()} | {*FINDINGS, "."})
    hidden, layers = (64, 2) if options.quick else (768, 12)
    text = bert_folder(options.folder / "text", words, hidden, layers)
    arch = "resnet18" if options.quick else "resnet50"
    settings = ModelSettings.model_validate({"image": {"arch": arch}, "text": {"folder": text}})
    whole = Preprocessing(prepare=PrepareSettings(size=512), input_size=480)
    DualEncoder.create(settings, whole).save(options.folder / "model")
    write_dicom(options.folder / "a.dcm", picture(0))
    command = ["ground", options.folder / "model", options.folder / "a.dcm", "--device", "cpu"]
    number = iter(range(10**9))

    def work() -> float:
        out = options.folder / f"out{next(number)}"
        return console(*command, "--text", "Left effusion.", "--out", out)()

    note = f"{arch}, 480 px, a file of 2544 x 3056, CXR-BERT's size, a new process"
    yield within(
        "`ground` on a processor, to its end", options.turns({"ours": work})["ours"], 12, note
    )


# ------------------------------------------------------------------------- many, and large


def similarity(options: Options) -> Iterator[Row]:
    """The similarity of images and sentences, forward and backward: chunks against all at once."""
    from medclip_debias.config import SimilaritySettings
    from medclip_debias.models.similarity import Similarity

    batch, regions = (32, 49) if options.quick else (256, 225)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(batch, regions, 128), dim=-1).requires_grad_()
    y = torch.nn.functional.normalize(torch.randn(batch, 128), dim=-1).requires_grad_()
    chunks = Similarity(SimilaritySettings(), dim=128)
    whole = Similarity(SimilaritySettings(chunk=0), dim=128)
    same(chunks(x, y).detach(), whole(x, y).detach(), 1e-5)
    ways = {
        "ours": timed(lambda: chunks(x, y).sum().backward()),
        "whole": timed(lambda: whole(x, y).sum().backward()),
    }
    found = options.turns(ways)
    note = f"batch {batch}, {regions} regions, forward and backward"
    yield ratio("similarity in chunks against all at once", found["ours"], found["whole"], 1, note)


# ------------------------------------------------------------------------------- the table

ROWS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "pll": pll,
    "loader": loader,
    "step": step,
    "features": features,
    "heatmaps": heatmaps,
    "prepare": prepare,
    "verbs": verbs,
    "first_heatmap": first_heatmap,
    "similarity": similarity,
}


def same(ours: Any, theirs: Any, tolerance: float) -> None:
    """Both sides gave the same output, or nothing is timed."""
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise AssertionError(f"shapes {ours.shape} and {theirs.shape}")
    off = float(np.abs(ours - theirs).max(initial=0))
    if not off <= tolerance:
        raise AssertionError(f"outputs differ by {off:.2g}, {tolerance:g} allowed")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS), help="rows")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(words)
    print(machine("torch", "transformers"), file=sys.stderr)
    print(HEAD)
    failed = 0
    for name in given.only:
        with tempfile.TemporaryDirectory(prefix="medclip-debias-rivals-") as folder:
            options = Options(Path(folder), given.quick, given.rounds, given.threads)
            failed += measure(partial(ROWS[name], options), title(ROWS[name]))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

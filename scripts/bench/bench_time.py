"""Time the benchmark: a first run beside encoding alone, and measuring again from kept vectors.

    python scripts/bench/bench_time.py [--studies 1500] [--arch resnet18] [--cards 20] [--size 224]

A phantom is generated and an untrained model made, so that nothing but time is measured. The set is
prepared before anything is timed. Encoding alone is the same images and sentences through the same
network in the same batches, with nothing kept. Cards judge the phantom zero-shot, by its boxes and
by its reports, in turn, until there are as many as asked for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch

from medclip_debias.bench.card import Card
from medclip_debias.bench.record import CACHE
from medclip_debias.bench.run import How, bench
from medclip_debias.bench.sets import Recipe
from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.prompts import default_prompts, load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.encoding import Network
from medclip_debias.evaluation.evaluate import plan
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Request
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.phantom import PhantomSettings, generate

KINDS = (
    ("zero_shot", ["zero_shot.mean_auc", "zero_shot.ece"], "chex5"),
    ("grounding", ["grounding.cnr", "grounding.miou", "grounding.pointing_game"], None),
    ("retrieval", ["study_retrieval.report.recall", "study_retrieval.report.median_rank"], None),
)


def cards(count: int) -> list[Card]:
    """Cards on the phantom, of every kind in turn; their seeds of names alone differ."""
    found = []
    for number in range(count):
        kind, metrics, prompts = KINDS[number % len(KINDS)]
        data = {"archive": "mimic_cxr", "folders": ["phantom"], "obtain": "the phantom"}
        data |= {"synthetic": True, "list": {"split": "all"}}
        content = {"name": f"phantom/{kind}-{number}", "version": 1, "kind": kind, "title": kind}
        content |= {"about": "timing", "data": data, "metrics": metrics, "prompts": prompts}
        found.append(Card.model_validate(content))
    return found


def make_model(folder: Path, arch: str, size: int) -> DualEncoder:
    """An untrained model with a small BERT, saved to ``folder``."""
    words = ["Pulmonary edema.", "No pleural effusion.", "The lungs are clear.", "Pneumothorax"]
    small = LanguageModelSettings(
        vocabulary=300, hidden=128, layers=2, heads=4, steps=1, batch_size=8, max_tokens=64
    )
    train_masked_lm(words * 4, folder.parent / "lm", small)
    torch.manual_seed(0)
    settings = ModelSettings(
        image=ImageEncoderSettings.model_validate({"arch": arch}),
        text=TextEncoderSettings(folder=folder.parent / "lm", max_tokens=64),
        dim=128,
    )
    place = Preprocessing(prepare=PrepareSettings(size=size), input_size=size)
    model = DualEncoder.create(settings, place)
    model.prompts = default_prompts()
    model.provenance = {"synthetic": True}
    model.save(folder)
    return DualEncoder.load(folder, check=False)


class Stopwatch:
    """Seconds on the clock, and of both processors: the latter are ours alone on a busy machine."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> tuple[float, float]:
        """Seconds since the start: on the clock, of the processors."""
        wall, cpu = self._began
        return time.perf_counter() - wall, time.process_time() - cpu


def shown(seconds: tuple[float, float]) -> str:
    """Both kinds of seconds."""
    return f"{seconds[0]:.1f} s ({seconds[1]:.1f} s of processors)"


def encoding_alone(model: DualEncoder, data: PreparedSet, asked: list[Card]) -> tuple[float, float]:
    """Seconds that the network takes for what the cards look at."""
    rows: set[int] = set()
    texts: dict[str, None] = {}
    for card in asked[: len(KINDS)]:
        request = Request(data, "test", model, load_prompts("chex5"), EvaluationOptions())
        planned = plan(request, {metric.partition(".")[0] for metric in card.metrics})
        rows |= planned.rows
        texts |= dict.fromkeys(planned.texts)
    network = Network(model, data)
    wanted = sorted(rows)
    watch = Stopwatch()
    with torch.inference_mode():
        network.sentences(list(texts))
        for start in range(0, len(wanted), 32):
            network.images(wanted[start : start + 32])
    seconds = watch.stop()
    print(f"{len(wanted)} images, {len(texts)} sentences: encoding alone {shown(seconds)}")
    return seconds


def main() -> None:
    """Print the figures of docs/benchmark.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1500)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--cards", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    asked = cards(options.cards)
    with tempfile.TemporaryDirectory(prefix="medclip-debias-bench-") as name:
        root = Path(name)
        model = make_model(root / "model", options.arch, options.size)
        phantom = PhantomSettings(studies=options.studies, seed=1, min_side=256, max_side=320)
        generate(root / "data" / "phantom", phantom, None, 2)
        how = How(device="cpu")
        recipe = Recipe.of(asked[0], root / "data" / "phantom", model.preprocessing)
        data = recipe.make(root / "out" / CACHE, None, None, None)
        alone = encoding_alone(model, data, asked)
        words = [f"one={root / 'model'}"]
        watch = Stopwatch()
        few = bench(words, asked[: len(KINDS)], root / "data", root / "out", how)
        first = watch.stop()
        print(f"first run of {len(KINDS)} cards {shown(first)}: {ratio(first, alone)}")
        for key, record in few.records.items():
            print(f"  {key[1]}: {', '.join(f'{n} {s:.1f} s' for n, s in record.seconds.items())}")
        watch = Stopwatch()
        everything = bench(words, asked, root / "data", root / "out", how)
        rest = watch.stop()
        print(f"the other {len(everything.fresh)} cards {shown(rest)}")
        watch = Stopwatch()
        outcome = bench(words, asked, root / "data", root / "out", How(device="cpu", again=True))
        again = watch.stop()
        print(f"{len(outcome.fresh)} card runs again {shown(again)}, {len(outcome.not_run)} failed")


def ratio(first: tuple[float, float], alone: tuple[float, float]) -> str:
    """How often encoding alone fits into a run."""
    return f"{first[0] / alone[0]:.2f} of encoding alone ({first[1] / alone[1]:.2f})"


if __name__ == "__main__":
    main()

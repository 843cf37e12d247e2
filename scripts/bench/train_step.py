"""Ways to take a training step, what is measured of them, and the data that they are given.

Every way starts from the same weights, on the same batches: `Engine` is this package, `Plain` a
loop as one writes it for a first experiment, `OpenClip` the step of open_clip's own training loop
(its loss, its order of operations) with pooled embeddings, since it knows no regions. Losses of the
engine and of the plain loop agree; bf16 agrees with fp32 for every preset; epochs with a frozen
image encoder, computed and from stored features.
"""

from __future__ import annotations

import copy
import importlib
import importlib.machinery
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from common import Row, ratio
from torch import Tensor, nn

from medclip_debias.config import PrepareSettings
from medclip_debias.data.loader import Batch, iterate, training_corpus
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import (
    LanguageModelSettings,
    language_model_hash,
    train_masked_lm,
)
from medclip_debias.losses.presets import presets
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.step import Trainer

Turns = Callable[[dict[str, Callable[[], float]]], dict[str, list[float]]]
"""Takes several ways in turn; the seconds of each in each round."""


@dataclass(frozen=True)
class Scale:
    """What is measured; ``size`` is the side of the network's input in pixels."""

    device: str = "cpu"
    precision: str = "fp32"
    batch: int = 64
    size: int = 224
    arch: str = "resnet18"
    hidden: int = 256
    layers: int = 4
    studies: int = 0
    workers: int = 1

    @property
    def margin(self) -> int:
        """Pixels by which the prepared images are larger, for the random crop."""
        return max(self.size // 15, 2)


SMALL = Scale(batch=8, size=48, arch="resnet_small", hidden=16, layers=1, workers=0)
"""Toy size."""


def make_data(folder: Path, scale: Scale) -> None:
    """Write a phantom, its prepared set, random scores, and a BERT of one training step."""
    # Two batches in training: about seven in ten studies are, and some have no sentence.
    studies = scale.studies or max(4 * scale.batch, 60)
    sides = {"min_side": max(scale.size // 2, 64), "max_side": max(scale.size, 65)}
    cores = os.cpu_count() or 1
    generate(folder / "tree", PhantomSettings(studies=studies, seed=1, **sides), None, cores)
    settings = PrepareSettings(size=scale.size + scale.margin)
    prepare(folder / "tree", folder / "prepared", settings, workers=cores)
    prepared = PreparedSet.open(folder / "prepared")
    bert = LanguageModelSettings(
        vocabulary=2000,
        hidden=scale.hidden,
        layers=scale.layers,
        heads=max(scale.hidden // 64, 1),
        steps=1,
        batch_size=8,
    )
    train_masked_lm(training_corpus(prepared), folder / "bert", bert)
    texts = prepared.texts
    random = torch.Generator().manual_seed(0)
    values = (-20 * torch.rand(len(texts), generator=random)).tolist()
    counts = [len(text.split()) for text in texts]
    write_scores(folder / "prepared", texts, values, counts, language_model_hash(folder / "bert"))


def settings(
    folder: Path, scale: Scale, loss: dict[str, Any] | None = None, **train: Any
) -> RunSettings:
    """The run: symmetric InfoNCE unless another ``loss`` is given."""
    plain = {"steps": 1_000_000, "warmup_steps": 0, "batch_size": scale.batch}
    plain |= {name: getattr(scale, name) for name in ("precision", "device", "workers")}
    content = {
        "prepared": folder / "prepared",
        "out": folder / "run",
        "preprocessing": {
            "prepare": {"size": scale.size + scale.margin},
            "input_size": scale.size,
        },
        "model": {"image": {"arch": scale.arch}, "text": {"folder": folder / "bert"}},
        "loss": loss or {"kind": "clip"},
        "train": plain | train,
    }
    return RunSettings.model_validate(content)


class Way:
    """One way to take a step: a copy of the engine's model at its start."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        # A copy is not to keep the engine's memory layout.
        assert isinstance(trainer.model, DualEncoder)
        self.model: DualEncoder = copy.deepcopy(trainer.model)
        self.model.to(memory_format=torch.contiguous_format)
        self.limit = trainer.settings.train.clip_norm or math.inf
        self.parameters = list(self.model.parameters())

    def autocast(self) -> AbstractContextManager[object]:
        """Context of the whole forward pass, the similarity included."""
        half = self.trainer.settings.train.precision == "bf16"
        return torch.autocast(self.model.device.type, torch.bfloat16) if half else nullcontext()

    def images(self, batch: Batch) -> Tensor:
        """Normalised float images ``[B, 1, C, C]``."""
        given = self.model.preprocessing
        images = batch.images_on(self.model.device)[:, None].float() / 255
        return (images - given.mean) / given.std

    def tokens(self, batch: Batch, length: int = 0) -> tuple[Tensor, Tensor]:
        """Ids and mask of every sentence, padded to the longest or to ``length``."""
        texts = [self.trainer.studies.texts[number] for number in batch.texts.tolist()]
        ids = self.model.tokenizer.encode(texts, self.model.max_tokens)
        padded, mask = self.model.tokenizer.pad(ids)
        more = (0, max(length - padded.shape[1], 0))
        padded, mask = F.pad(padded, more, value=self.model.tokenizer.pad_id), F.pad(mask, more)
        return padded.to(self.model.device), mask.to(self.model.device)


@dataclass
class Engine:
    """This package: `Trainer.step`."""

    trainer: Trainer

    def step(self, number: int, batch: Batch) -> Tensor:
        return self.trainer.step(number, batch)["loss"]


class Plain(Way):
    """A plain loop: all region scores ``[B, B, R]`` at once, AdamW over all parameters."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        train = trainer.settings.train
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=train.lr, weight_decay=train.weight_decay
        )

    def loss(self, batch: Batch) -> Tensor:
        model = self.model
        features = model.image_encoder(self.images(batch))
        regions = model.image_projection(features.flatten(2).transpose(1, 2))
        regions = F.normalize(regions, dim=-1)
        ids, mask = self.tokens(batch)
        sentences = F.normalize(model.text_projection(model.text_encoder(ids, mask)), dim=-1)
        given = model.settings.similarity
        h = torch.einsum("ind,jd->ijn", regions, sentences)
        count = h.shape[-1]
        local = (torch.logsumexp(given.k * h, dim=-1) - math.log(count)) / given.k
        best = h.argmax(dim=-1)
        likeness = regions @ regions.transpose(1, 2)
        rows = likeness.gather(1, best[..., None].expand(-1, -1, count))
        remote = (torch.softmax(given.temperature * rows, dim=-1) * h).sum(dim=-1)
        logits = given.local_weight * local + (1 - given.local_weight) * remote
        logits = model.similarity.log_scale.exp() * logits
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def step(self, _: int, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.limit)
        self.optimizer.step()
        return loss.detach()


class OpenClip(Way):
    """open_clip's step (`open_clip_train/train.py`), with the mean of the regions as the image.

    Sentences are padded to the longest that is read, as open_clip's tokenizers do.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.criterion = open_clip_module("loss").ClipLoss()
        train = trainer.settings.train
        named = list(self.model.named_parameters())
        small = [p for name, p in named if _gain_or_bias(name, p)]
        large = [p for name, p in named if not _gain_or_bias(name, p)]
        groups: list[dict[str, Any]] = [{"params": small, "weight_decay": 0.0}, {"params": large}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=train.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=train.weight_decay
        )

    def loss(self, batch: Batch) -> Tensor:
        model = self.model
        features = model.image_encoder(self.images(batch))
        pooled = model.image_projection(features.mean(dim=(2, 3)))
        sentences = model.text_projection(
            model.text_encoder(*self.tokens(batch, self.model.max_tokens))
        )
        scale = model.similarity.log_scale.exp()
        result: Tensor = self.criterion(
            F.normalize(pooled, dim=-1), F.normalize(sentences, dim=-1), scale
        )
        return result

    def step(self, _: int, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.limit)
        self.optimizer.step()
        with torch.no_grad():
            self.model.similarity.log_scale.clamp_(0, math.log(100))
        return loss.detach()


def _gain_or_bias(name: str, parameter: Tensor) -> bool:
    """open_clip's rule for what is not decayed."""
    return parameter.ndim < 2 or any(w in name for w in ("bn", "ln", "bias", "logit_scale"))


def open_clip_module(name: str) -> ModuleType:
    """One module of open_clip alone: the package's own import needs all of its tokenizers."""
    found = importlib.util.find_spec("open_clip")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("open_clip is not installed (pip install open-clip-torch)")
    bare = importlib.machinery.ModuleSpec("open_clip_alone", None, is_package=True)
    bare.submodule_search_locations = list(found.submodule_search_locations)
    sys.modules.setdefault(bare.name, importlib.util.module_from_spec(bare))
    return importlib.import_module(f"{bare.name}.{name}")


def ways(trainer: Trainer) -> dict[str, Any]:
    """Name to a function that makes the way; what is not available here is left out."""
    known: dict[str, Any] = {"engine": partial(Engine, trainer), "plain": partial(Plain, trainer)}
    if importlib.util.find_spec("open_clip") is not None:
        known["open_clip"] = partial(OpenClip, trainer)
    return known


AGREE = 1e-4
STILL = {"crop": False, "brightness": 0, "contrast": 0}


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long ``work`` takes, with all that it starts on the device."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def agree(folder: Path, scale: Scale) -> float:
    """Relative difference of the losses of engine and plain loop, in float32, at most `AGREE`."""
    trainer = Trainer(settings(folder, replace(scale, precision="fp32"), lr=1e-12))
    batch = trainer.batches[0]
    plain = ways(trainer)["plain"]()
    trainer.model.text_encoder.eval()
    plain.model.text_encoder.eval()
    with torch.no_grad():
        theirs = float(plain.loss(batch))
    ours = float(trainer.step(0, batch)["loss"])
    difference = abs(ours - theirs) / abs(theirs)
    if difference > AGREE:
        raise AssertionError(f"loss of the engine {ours:.6f}, of a plain loop {theirs:.6f}")
    return difference


def gradient_of(
    folder: Path, scale: Scale, loss: dict[str, Any], precision: str
) -> tuple[float, Tensor]:
    """Loss and gradient (one vector) of the first batch, without dropout."""
    run = settings(folder, scale, loss, precision=precision, deterministic=False)
    trainer = Trainer(run)
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trainer.model.text_encoder.eval()
    metrics = trainer.backward(trainer.batches[0], 0)
    parts = [p.grad.flatten().double().cpu() for p in trainer.parameters if p.grad is not None]
    return float(metrics["loss"]), torch.cat(parts)


def precision(folder: Path, scale: Scale, only: list[str]) -> dict[str, tuple[float, ...]]:
    """Relative errors of bf16 against fp32 by preset: loss, gradient's norm and vector.

    Presets that read what the phantom lacks, as a list of words, are left out and named.
    """
    errors: dict[str, tuple[float, ...]] = {}
    for name, preset in sorted(presets().items()):
        if only and name not in only:
            continue
        try:
            exact, whole = gradient_of(folder, scale, preset.loss, "fp32")
        except UserError:
            print(f"left out: {name}, the phantom lacks what it reads", flush=True)
            continue
        half, part = gradient_of(folder, scale, preset.loss, "bf16")
        # Without any negative left (all texts alike to a random language model) nothing moves.
        norm = max(float(whole.norm()), 1e-12)
        errors[name] = (
            abs(half - exact) / max(abs(exact), 1e-12),
            abs(float(part.norm()) - norm) / norm,
            float((part - whole).norm()) / norm,
        )
    return errors


def training_steps(
    folder: Path, scale: Scale, turns: Turns, note: str, count: int = 1
) -> Iterator[Row]:
    """``count`` steps of the engine, on a batch already read, against those of the others."""
    trainer = Trainer(settings(folder, scale))
    batch, numbers = trainer.batches[0], iter(range(10**9))

    def steps(way: Any) -> None:
        for _ in range(count):
            way.step(next(numbers), batch)

    known: dict[str, Callable[[], float]] = {
        name: partial(seconds, partial(steps, make()), trainer.device)
        for name, make in ways(trainer).items()
    }
    found = turns(known)
    about = f"{scale.arch}, {scale.size} px, batch {scale.batch}, {note}"
    goals = {"plain": ("a plain loop", 1.5), "open_clip": ("open_clip's step", 1.3)}
    for name, (called, goal) in goals.items():
        if name in found:
            what = f"training step against {called}"
            yield ratio(what, found["engine"], found[name], goal, about)


def stored_features(folder: Path, scale: Scale, turns: Turns) -> Iterator[Row]:
    """Epochs with a frozen image encoder, text trained or frozen: computed against stored."""
    for text in ("trained", "stored"):
        trainable = {"image": "frozen", "text": "all" if text == "trained" else "frozen"}
        known: dict[str, Callable[[], float]] = {}
        for way in ("computed", "stored"):
            cache = {"cache": way == "stored", "text": way == text == "stored"}
            how: dict[str, Any] = {"trainable": trainable, "augment": STILL}
            how["features"] = {"folder": folder / "features", **cache}
            run = Trainer(settings(folder, scale, **how))
            steps = iter(range(0, 10**9, run.batches.steps_per_epoch))

            def epoch(run: Trainer = run, steps: Iterator[int] = steps) -> None:
                first = next(steps)
                last = first + run.batches.steps_per_epoch
                batches = iterate(run.batches, first, last, scale.workers)
                for step, batch in enumerate(batches, start=first):
                    run.step(step, batch)

            known[way] = partial(seconds, epoch, run.device)
        times = turns(known)
        what = f"epoch from stored features, text {'too' if text == 'stored' else 'trained'}"
        note = f"{scale.arch}, {scale.size} px, batch {scale.batch}, frozen, no augmentation"
        goal = 20 if text == "stored" else 1
        yield ratio(what, times["stored"], times["computed"], goal, note)

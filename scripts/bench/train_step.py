"""Training steps that rivals.py and gpu.py measure: checks, stored features, shares of a loss.

Losses of the engine and of a plain loop agree; bf16 agrees with fp32 for every preset; memory over
many steps; epochs with a frozen image encoder, computed and from stored features; the loss of one
of W processes. Data and contenders are those of train_ways.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Row, ratio, resident
from torch import Tensor, nn
from train_ways import Scale, settings, ways

from medclip_debias.data.loader import iterate
from medclip_debias.errors import UserError
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.distributed import Ranks, ShardedBatch
from medclip_debias.losses.objective import Objective
from medclip_debias.losses.presets import presets
from medclip_debias.training.step import Trainer

MIB = 2**20
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
    """Relative difference of the losses of engine and plain loop, without dropout, in float32.

    Raises:
        AssertionError: it is above `AGREE`.
    """
    exact = replace(scale, precision="fp32", compile=False)
    trainer = Trainer(settings(folder, exact, lr=1e-12))
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
        norm = float(whole.norm())
        errors[name] = (
            abs(half - exact) / max(abs(exact), 1e-12),
            abs(float(part.norm()) - norm) / norm,
            float((part - whole).norm()) / norm,
        )
    return errors


def soak(folder: Path, scale: Scale, steps: int, every: int) -> list[float]:
    """MiB of this process after every ``every`` steps, real loader included."""
    import psutil

    trainer = Trainer(settings(folder, scale))
    memory: list[float] = []
    for number, batch in enumerate(iterate(trainer.batches, 0, steps, scale.workers), start=1):
        trainer.step(number - 1, batch)
        if number % every == 0 or number == steps:
            memory.append(psutil.Process().memory_info().rss / MIB)
    return memory


def stored_features(
    folder: Path,
    scale: Scale,
    turns: Callable[[dict[str, Callable[[], float]]], dict[str, list[float]]],
) -> Iterator[Row]:
    """Epochs with a frozen image encoder, text trained or frozen: computed against stored."""
    for text in ("trained", "stored"):
        trainable = {"image": "frozen", "text": "all" if text == "trained" else "frozen"}
        known: dict[str, Callable[[], float]] = {}
        for way in ("computed", "stored"):
            cache = {"cache": way == "stored", "text": way == text == "stored"}
            run = Trainer(
                settings(
                    folder,
                    scale,
                    trainable=trainable,
                    augment=STILL,
                    features={"folder": folder / "features", **cache},
                )
            )
            steps = iter(range(0, 10**9, run.batches.steps_per_epoch))

            def epoch(run: Trainer = run, steps: Iterator[int] = steps) -> None:
                first = next(steps)
                last = first + run.batches.steps_per_epoch
                batches = iterate(run.batches, first, last, scale.workers)
                for step, batch in enumerate(batches, start=first):
                    run.step(step, batch)

            known[way] = lambda e=epoch, d=run.device: seconds(e, d)  # type: ignore[misc]
        times = turns(known)
        what = f"epoch from stored features, text {'too' if text == 'stored' else 'trained'}"
        note = f"{scale.arch}, {scale.size} px, batch {scale.batch}, frozen, no augmentation"
        goal = 20 if text == "stored" else 1
        yield ratio(what, times["stored"], times["computed"], goal, note)


class Alone(ShardedBatch):
    """A share without other processes: sums over them are its own."""

    def total(self, value: Tensor) -> Tensor:
        """As it is."""
        return value


def share_of_loss(objective: Objective, size: int, world: int) -> dict[str, float]:
    """Forward and backward of the loss, given the similarities of a process of ``world``."""
    torch.manual_seed(0)
    mine, scale = size // world, torch.tensor(14.0)
    rows = (torch.rand(mine, size) * 2 - 1).requires_grad_()
    columns = (torch.rand(size, mine) * 2 - 1).requires_grad_() if world > 1 else None
    before, began = resident("VmRSS"), time.perf_counter()
    if columns is None:
        objective(ContrastiveBatch(rows, scale)).loss.backward()
    else:
        counts = [mine] * world
        owners = torch.arange(size)
        ranks = Ranks(0, world)
        batch = Alone(
            rows, scale, image_of_sentence=owners, ranks=ranks, images=counts, texts=counts
        )
        batch.__dict__["columns"] = columns  # which the other processes would have sent
        batch.loss_of(objective(batch).per_anchor).backward()
    taken = time.perf_counter() - began
    similarities = 2 * rows.numel() * 4 if world > 1 else rows.numel() * 4
    return {"bytes": resident("VmHWM") - before + similarities, "seconds": taken}
